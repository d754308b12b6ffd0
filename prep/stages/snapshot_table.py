"""A table of one's own that names image files, made into parquet with the images in it.

The parquet is what the snapshot stage reads of the Hub's datasets; it stands in the run's own folder
until its rows are in sealed shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prep.errors import PrepError, UsageError
from prep.files import disk_errors, resolve_below, sha256_of, size_of
from prep.recipe import Recipe, Split
from prep.records import Rows, read_rows, single, turns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ImageTable"]

_TEXT_TABLES: Final = (".csv", ".json", ".jsonl")
_BATCH: Final = 64 << 20
"""Bytes of images in memory before a row group is written."""

_SPEAKERS: Final = {"user": "human", "assistant": "gpt"}


@dataclass(frozen=True, slots=True)
class ImageTable:
    """A table on this disk, the folder that its images are below, and the recipe's columns."""

    path: Path
    media_root: Path
    columns: Mapping[str, str]
    turns: Mapping[str, str]

    @classmethod
    def of(cls, recipe: Recipe, part: Split) -> ImageTable | None:
        """The table that a recipe names; None where it names parquet with the images in it, or no table.

        Raises UsageError for a media_root that is no folder.
        """
        if part.table is None or (recipe.folder / part.table).is_dir():
            return None
        path, document = recipe.folder / part.table, recipe.document
        turns = document.get("turns", {})
        if path.suffix.lower() not in _TEXT_TABLES and not turns and _is_whole(path, document["columns"]):
            return None
        folder = recipe.folder / part.media_root if part.media_root is not None else path.parent
        if not folder.is_dir():
            raise UsageError(
                f"The media_root of split {part.name} is no folder: {folder}.",
                remedy="Correct the recipe; its paths are relative to its own folder.",
            )
        return cls(path, folder, document["columns"], turns)

    @property
    def name(self) -> str:
        """The name of the parquet that is made."""
        return f"{self.path.stem}.parquet"

    def digests(self) -> dict[str, str]:
        """The SHA-256 of the table, and one over its images, by which a run sees that they were changed."""
        images, known = hashlib.sha256(), dict[Path, str]()
        for row in read_rows(self._there()).each():
            path = self._file(row)
            if path is None:
                continue
            if path not in known:
                known[path] = sha256_of(path) if path.is_file() else "absent"
            name = path.relative_to(self.media_root).as_posix()
            images.update(f"{name}\0{known[path]}\n".encode("utf-8", "surrogateescape"))
        return {"table": sha256_of(self.path), "images": images.hexdigest()}

    def size(self) -> int:
        """The bytes of the table and of its images."""
        rows = read_rows(self._there())
        images = (self._file(row) for row in rows.each())
        return self.path.stat().st_size + sum(size_of(image) or 0 for image in images if image is not None)

    def embed(self, folder: Path) -> Path:
        """Write the parquet into `folder`; raises UsageError for a table that cannot be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows, target = read_rows(self._there()), folder / self.name
        schema = self._schema()
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(target, schema) as writer:
                for batch in self._batches(rows):
                    writer.write_table(pa.Table.from_pylist(batch, schema=schema))
        return target

    def _there(self) -> Path:
        if not self.path.is_file():
            raise UsageError(
                f"There is no table at {self.path}.",
                remedy="Correct the recipe; its paths are relative to its own folder.",
            )
        return self.path

    def check(self) -> None:
        """Raise UsageError for a table that cannot be read, or without the recipe's columns."""
        rows = read_rows(self._there())
        turns = [self.turns[key] for key in ("question", "answer") if key in self.turns]
        wanted = [self.columns["image"], *(turns or [self.columns["conversations"]])]
        missing = [name for name in wanted if name not in rows.names]
        if missing:
            raise UsageError(
                f"{self.path} has no column {missing[0]!r}; it has {', '.join(rows.names)}.",
                remedy="Correct the columns in the recipe.",
            )

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        text = pa.string()
        turn = pa.struct([("from", text), ("value", text)])
        image = pa.struct([("bytes", pa.binary()), ("path", text)])
        named = [(self.columns["id"], text)] if "id" in self.columns else []
        return pa.schema(
            [*named, (self.columns["image"], image), (self.columns["conversations"], pa.list_(turn))]
        )

    def _batches(self, rows: Rows) -> Iterator[list[dict[str, Any]]]:
        batch: list[dict[str, Any]] = []
        size = 0
        for row in rows.each():
            batch.append(self._record(row))
            size += len((batch[-1][self.columns["image"]] or {}).get("bytes") or b"")
            if size > _BATCH or len(batch) == 1000:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _record(self, row: Mapping[str, Any]) -> dict[str, Any]:
        name = row.get(self.columns.get("id", ""))
        identity = {self.columns["id"]: None if name is None else str(name)} if "id" in self.columns else {}
        return {
            **identity,
            self.columns["image"]: self._image(row),
            self.columns["conversations"]: self._turns(row),
        }

    def _image(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The image with its bytes; without them if the file is not there; None if the row names none."""
        value = single(row.get(self.columns["image"]))
        if isinstance(value, dict):  # parquet with the images in it
            return value
        path = self._file(row)
        if path is None:
            return None if value in (None, "") or isinstance(value, list) else {"bytes": None, "path": value}
        if not path.is_file():  # the row is told of by all that the table names
            return {"bytes": None, "path": value}
        return {"bytes": path.read_bytes(), "path": path.name}

    def _file(self, row: Mapping[str, Any]) -> Path | None:
        value = single(row.get(self.columns["image"]))
        if not isinstance(value, str) or not value:
            return None
        try:
            return resolve_below(self.media_root, value)
        except PrepError:
            return None  # it leaves the folder: the row counts as one whose image is absent

    def _turns(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        """The turns as upstream reads them; it would take a system's turn for an answer: left out."""
        if not self.turns:
            turns = turns_of(row.get(self.columns["conversations"]))
            return [
                {"from": _SPEAKERS.get(role, role), "value": text} for role, text in turns if role != "system"
            ]
        question = self.turns.get("text") or str(row.get(self.turns.get("question", "")) or "")
        answer = row.get(self.turns["answer"])
        if answer is None or not str(answer).strip() or not question.strip():
            return []
        return [{"from": "human", "value": question}, {"from": "gpt", "value": str(answer)}]


def _is_whole(path: Path, columns: Mapping[str, str]) -> bool:
    """Whether parquet is as `datasets` writes it, with ShareGPT's turns; a broken file is told of later."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        image, turns = (schema.field(columns[key]).type for key in ("image", "conversations"))
    except (OSError, KeyError, pa.ArrowException):
        return True
    if not pa.types.is_struct(image) or not pa.types.is_list(turns):
        return False
    turn = turns.value_type
    return bool(pa.types.is_struct(turn) and turn.get_field_index("from") >= 0)
