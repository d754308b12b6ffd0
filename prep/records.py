"""Rows of tables as people have them: CSV, JSON Lines, a JSON array or mapping, parquet; and their turns."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prep.documents import BrokenDocumentError, parse
from prep.errors import UsageError

__all__ = [
    "SAMPLE",
    "TABLES",
    "TURNS",
    "Row",
    "Rows",
    "Turn",
    "is_picture",
    "read_rows",
    "single",
    "turns_of",
]

TABLES: Final = (".csv", ".jsonl", ".json", ".parquet")
"""The endings of tables that can be read."""

TURNS: Final = ("conversations", "messages", "conversation")
"""The names under which records hold turns; the first is ShareGPT's."""

SAMPLE: Final = 1000
"""Rows that a guess is made from, and rows of parquet in memory at a time."""

_SAMPLE_BYTES: Final = 32 << 20
_PLACEHOLDERS: Final = ("<video>", "<image>")
_ROLES: Final = {"human": "user", "gpt": "assistant"}
_NAMED: Final = ("file", "caption")
"""The columns of a JSON mapping from files to texts."""

Row = Mapping[str, Any]
Turn = tuple[str, str]
"""A role (`user`, `assistant`, `system`, or as the source has it) and its text."""


def is_picture(value: Any) -> bool:
    """Whether a value is an image itself, as the Hub's parquet holds it."""
    return isinstance(value, dict) and {"bytes", "path"} == set(value)


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its columns in order, and its rows as often as they are asked for.

    `is_csv` tells that a recipe of conversations can name it as it is.
    """

    path: Path
    names: tuple[str, ...]
    each: Callable[[], Iterator[Row]]
    is_csv: bool = False

    def sample(self) -> list[Row]:
        """The first rows; fewer where they hold pictures, so that memory stays bounded."""
        rows: list[Row] = []
        size = 0
        for row in itertools.islice(self.each(), SAMPLE):
            rows.append(row)
            size += sum(len(value["bytes"] or b"") for value in row.values() if is_picture(value))
            if size > _SAMPLE_BYTES:
                break
        return rows


def read_rows(path: Path) -> Rows:
    """The table at `path`; raises UsageError for one that cannot be read, also while its rows are read."""
    readers = dict(zip(TABLES, (_csv, _lines, _json, _parquet), strict=True))
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"{path}: a table ends in {', '.join(TABLES)}.",
            remedy="Give such a table, or a folder of media.",
        )
    try:
        return reader(path)
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"not UTF-8 at byte {error.start}") from error
    except (OSError, ValueError, csv.Error) as error:
        raise _unreadable(path, str(error).splitlines()[0]) from error
    except BrokenDocumentError as error:
        raise _unreadable(path, error.findings[0].message) from error


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(f"{path}: cannot be read: {why}.", remedy="Correct the table, or give another.")


def _csv(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = tuple(next(csv.reader(file), ()))
    if not names:
        raise _unreadable(path, "it has no header")

    def each() -> Iterator[Row]:
        with path.open(encoding="utf-8-sig", newline="", errors="surrogateescape") as file:
            yield from csv.DictReader(file)

    return _filled(Rows(path, names, each, is_csv=True))


def _filled(rows: Rows) -> Rows:
    if next(rows.each(), None) is None:
        raise _unreadable(rows.path, "it has no rows")
    return rows


def _lines(path: Path) -> Rows:
    def each() -> Iterator[Row]:
        with path.open(encoding="utf-8-sig") as file:
            try:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield _object(path, number, line)
            except UnicodeDecodeError as error:
                raise _unreadable(path, f"not UTF-8: {error.reason}") from error

    return _named(path, each)


def _object(path: Path, number: int, line: str) -> Row:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _unreadable(path, f"line {number}: {error}") from error
    if not isinstance(record, dict):
        raise _unreadable(path, f"line {number} is no object")
    return record


def _json(path: Path) -> Rows:
    document = parse(path.read_bytes(), path.name)
    records = _mapped(document) if isinstance(document, dict) else document
    if not isinstance(records, list) or not records or not all(isinstance(row, dict) for row in records):
        raise _unreadable(path, "no array of objects, and no object of files and their texts")
    return _named(path, lambda: iter(records))


def _mapped(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`{"a.mp4": "A caption."}` and `{"a.mp4": {"caption": …}}` as rows; empty for any other object."""
    file, text = _NAMED
    named = {key: value for key, value in document.items() if Path(key).suffix}
    if len(named) * 2 <= len(document):
        return []
    return [
        {file: key, **(value if isinstance(value, dict) else {text: value})} for key, value in named.items()
    ]


def _parquet(path: Path) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = tuple(pq.read_schema(path).names)
    except pa.ArrowException as error:
        raise _unreadable(path, str(error).splitlines()[0]) from error

    def each() -> Iterator[Row]:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=32):  # rows may hold pictures
                    columns = [column.to_pylist() for column in batch.columns]
                    yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
        except pa.ArrowException as error:
            raise _unreadable(path, str(error).splitlines()[0]) from error

    return _filled(Rows(path, names, each))


def _named(path: Path, each: Callable[[], Iterator[Row]]) -> Rows:
    """Rows of objects, with every key that the first of them have."""
    sample = list(itertools.islice(each(), SAMPLE))
    if not sample:
        raise _unreadable(path, "it has no rows")
    return Rows(path, tuple(dict.fromkeys(itertools.chain.from_iterable(sample))), each)


def single(value: Any) -> Any:
    """A list of one stands for its one value, as `videos: [path]` does."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def turns_of(value: Any) -> list[Turn]:
    """The turns of a record, in either spelling; placeholders of media are taken out of their texts.

    Empty for a value that holds none. A list that is JSON in a text, as a CSV has it, is read as one.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        return []
    return [(_role(turn), _text(turn)) for turn in value]


def _role(turn: Mapping[str, Any]) -> str:
    role = str(turn.get("from", turn.get("role", "")))
    return _ROLES.get(role, role)


def _text(turn: Mapping[str, Any]) -> str:
    value = turn.get("value", turn.get("content", ""))
    if isinstance(value, Sequence) and not isinstance(value, str):  # blocks of text and media
        value = "".join(str(block.get("text") or "") for block in value if isinstance(block, dict))
    text = str(value)
    for placeholder in _PLACEHOLDERS:
        text = text.replace(placeholder, "")
    return text.strip()
