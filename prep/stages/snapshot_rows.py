"""The rows of parquet files, one after another from any position, each judged: kept, or why not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from prep.errors import PrepError
from prep.files import resolve_below
from prep.findings import Finding, catalogue
from prep.images import check_image

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FILTERED", "Judged", "Position", "RowRule", "judged_rows", "schema_of"]

FILTERED: Final = ("no_image", "too_few_turns")
"""The reasons that upstream's own filter has: rows without them are no loss."""

_BATCH = 32
_BUFFER = 1 << 20  # bytes of a column that are read at a time; a row group is never in memory whole


class Position(NamedTuple):
    """A place in the source: the number of the file, and of the row in it, both from 0."""

    file: int
    row: int


@dataclass(frozen=True, slots=True)
class Judged:
    """A row and what became of it: `reason` is empty for one that is kept. `weight` is its bytes."""

    id: str
    reason: str
    detail: str
    media_sha256: str | None
    sha256: str
    weight: int
    mode: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowRule:
    """What a row is to hold: the recipe's columns, and how many turns.

    `media_root` is the folder of the images of a table that names files; None where parquet holds them.
    """

    id: str | None
    image: str
    conversations: str
    minimum_turns: int
    media_root: Path | None = None

    @classmethod
    def of(cls, recipe: Mapping[str, Any], media_root: Path | None = None) -> RowRule:
        """The rule of a recipe's document."""
        columns = recipe["columns"]
        return cls(
            columns.get("id"),
            columns["image"],
            columns["conversations"],
            recipe["keep"]["minimum_turns"],
            media_root,
        )

    def judge(self, row: Mapping[str, Any]) -> Judged:
        """Decide on a row, decoding its image. Upstream's filter comes first, in its order."""
        image, turns = row[self.image], row[self.conversations]
        text = {name: value for name, value in row.items() if name != self.image}
        written = orjson.dumps(text, option=orjson.OPT_SORT_KEYS, default=_plain)
        data = image.get("bytes") if isinstance(image, dict) else image
        name = row.get(self.id) if self.id else None
        reason, detail, mode, warnings = self._fault(image, data, turns)
        return Judged(
            id="" if name is None else str(name),
            reason=reason,
            detail=detail,
            media_sha256=hashlib.sha256(data).hexdigest() if data and not reason else None,
            sha256=hashlib.sha256(written).hexdigest(),
            weight=len(written) + len(data or b""),
            mode=mode,
            warnings=warnings,
        )

    def _fault(self, image: Any, data: bytes | None, turns: Any) -> tuple[str, str, str, tuple[str, ...]]:
        """Why a row is not kept, in a word and in words; for one that is, its image's mode and warnings."""
        if image is None:
            return "no_image", "", "", ()
        if len(turns or ()) < self.minimum_turns:
            return "too_few_turns", f"{len(turns or ())}; expected {self.minimum_turns} or more", "", ()
        broken = broken_turn(turns)
        if broken:
            return "broken_turn", broken, "", ()
        name = image.get("path") if isinstance(image, dict) else None
        facts, findings = check_image(data, name=name)
        if facts is None:
            reason, detail = _failure(findings[0])
            if data is None and name and self.media_root is not None:
                detail = _not_there(self.media_root, str(name))
            return reason, detail, "", ()
        return "", "", facts.mode, tuple(finding.code for finding in findings)


def broken_turn(turns: Sequence[Any]) -> str:
    """What upstream cannot read in the turns, or nothing."""
    for number, turn in enumerate(turns):
        for key in ("from", "value"):
            if not isinstance(turn, dict) or not isinstance(turn.get(key), str):
                return f"turn {number}: its {key!r} is no text"
    return ""


def _failure(finding: Finding) -> tuple[str, str]:
    return catalogue()[finding.code].reasons[0], finding.message


def _not_there(folder: Path, name: str) -> str:
    """Why a table's image could not be read."""
    try:
        resolve_below(folder, name)
    except PrepError as error:
        return error.message
    return f"{name!r} is not in {folder}"


def _plain(value: Any) -> str:
    """How a value that JSON has not is written for the digest."""
    return value.hex() if isinstance(value, bytes) else str(value)


def schema_of(path: Path, rule: RowRule) -> pa.Schema:
    """The columns of a parquet file, with its own metadata; raises PrepError if it lacks one that is used."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    wanted = [name for name in (rule.id, rule.image, rule.conversations) if name]
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise PrepError(
            f"{path.name} has no column {missing[0]!r}; its columns are {', '.join(schema.names)}.",
            remedy="Name the columns in a recipe of your own.",
        )
    image = schema.field(rule.image).type
    if not pa.types.is_struct(image) or {"bytes", "path"} - {field.name for field in image}:
        raise PrepError(
            f"{path.name}: the column {rule.image!r} is {image}; expected a struct of bytes and path.",
            remedy="Write the parquet with `datasets`, whose Image feature embeds the bytes.",
        )
    return schema


def judged_rows(
    path: Path, first: int, schema: pa.Schema, rule: RowRule, threads: Executor
) -> Iterator[tuple[pa.RecordBatch, Judged]]:
    """Each row of a file from row `first` on, as a batch of one row in the columns of `schema`, judged.

    Raises PrepError for a file that cannot be read or has other columns.
    """
    for batch in _batches(path, first, schema):
        try:
            columns = {name: batch.column(name).to_pylist() for name in schema.names}
        except UnicodeDecodeError as error:
            raise _unreadable(path, error) from error
        rows = ({name: values[at] for name, values in columns.items()} for at in range(len(batch)))
        for at, judged in enumerate(threads.map(rule.judge, rows)):
            yield batch.slice(at, 1), judged


def _batches(path: Path, first: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
            _check_columns(path, file.schema_arrow, schema)
            groups, skipped = _groups_from(file.metadata, first)
            for batch in file.iter_batches(_BATCH, row_groups=groups, columns=schema.names):
                rest = batch.slice(min(skipped, len(batch)))
                skipped -= len(batch) - len(rest)
                if len(rest):
                    yield _in_order(rest, schema)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _groups_from(metadata: Any, first: int) -> tuple[list[int], int]:
    """The row groups that hold row `first` and all after it, and how many rows of them come before."""
    before = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if before + rows > first:
            return list(range(group, metadata.num_row_groups)), first - before
        before += rows
    return [], 0


def _check_columns(path: Path, found: pa.Schema, schema: pa.Schema) -> None:
    if set(found.names) != set(schema.names):
        raise PrepError(
            f"{path.name} has the columns {', '.join(found.names)}; "
            f"the first file has {', '.join(schema.names)}.",
            remedy="Name another revision with --source owner/name@revision.",
        )


def _in_order(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the types of the first file."""
    import pyarrow as pa

    columns = [batch.column(name) for name in schema.names]
    same = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(same, schema=schema)


def _unreadable(path: Path, error: Exception) -> PrepError:
    return PrepError(
        f"{path.name}: cannot be read as parquet: {str(error).splitlines()[0]}.",
        remedy="Fetch it again, or name another revision with --source owner/name@revision.",
    )
