"""Tables as people have them, read for a guess: CSV, JSON Lines, JSON arrays, parquet; also conversations."""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prep.documents import BrokenDocumentError, parse
from prep.errors import UsageError

__all__ = ["ENDINGS", "SAMPLE", "Columns", "Rows", "guess_columns", "read_rows"]

IMAGES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
VIDEOS: Final = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".gif", ".ts")
ENDINGS: Final = {"video": VIDEOS, "image": IMAGES}
SAMPLE: Final = 1000
"""Rows that a guess is made from."""

_MEDIA: Final = (
    "video",
    "video_url",
    "video_path",
    "videopath",
    "clip",
    "media",
    "file",
    "path",
    "url",
    "image",
)
_PROMPTS: Final = ("question", "prompt", "instruction", "query", "input")
_ANSWERS: Final = (
    "answer",
    "response",
    "output",
    "target",
    "label",
    "score",
    "rating",
    "pc",
    "caption",
    "text",
)
_SPLITS: Final = ("split", "subset", "partition")
_FEW: Final = 50
_SHARE: Final = 0.8
_PLACEHOLDERS: Final = ("<video>", "<image>")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: its columns in order, its rows as often as they are asked for, and remarks on how it was read.

    `is_table` tells that it is a CSV, which a recipe can name as it is.
    """

    path: Path
    names: tuple[str, ...]
    each: Callable[[], Iterator[Row]]
    is_table: bool = False
    remarks: tuple[str, ...] = ()

    def sample(self) -> list[Row]:
        """The first rows."""
        return list(itertools.islice(self.each(), SAMPLE))


@dataclass(slots=True)
class Columns:
    """Which column is what, each with the reason; None where there is none."""

    media: str | None = None
    kind: str = "video"
    ending: str = ".mp4"
    prompt: str | None = None
    answer: str | None = None
    split: str | None = None
    numbers: tuple[int, int] | None = None
    reasons: dict[str, str] = field(default_factory=dict)


def read_rows(path: Path) -> Rows:
    """The table at `path`; raises UsageError for one that cannot be read."""
    readers = {".csv": _csv, ".jsonl": _lines, ".json": _array, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"{path}: a table ends in {', '.join(readers)}.",
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

    return Rows(path, names, each, is_table=True)


def _lines(path: Path) -> Rows:
    def each() -> Iterator[Row]:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _object(path, number, line)

    return _records(path, each)


def _object(path: Path, number: int, line: str) -> Row:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _unreadable(path, f"line {number}: {error}") from error
    if not isinstance(record, dict):
        raise _unreadable(path, f"line {number} is no object")
    return record


def _array(path: Path) -> Rows:
    document = parse(path.read_bytes(), path.name)
    records = document if isinstance(document, list) else []
    if not records or not all(isinstance(record, dict) for record in records):
        raise _unreadable(path, "no array of objects")
    return _records(path, lambda: iter(records))


def _parquet(path: Path) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = tuple(pq.read_schema(path).names)
    except pa.ArrowException as error:
        raise _unreadable(path, str(error).splitlines()[0]) from error

    def each() -> Iterator[Row]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=SAMPLE):
                columns = [column.to_pylist() for column in batch.columns]
                yield from (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))

    return _records(path, each)


def _records(path: Path, each: Callable[[], Iterator[Row]]) -> Rows:
    """Rows of objects; those that hold conversations become question and answer."""
    sample = list(itertools.islice(each(), SAMPLE))
    if not sample:
        raise _unreadable(path, "it has no rows")
    key = next((key for key in ("conversations", "messages") if isinstance(sample[0].get(key), list)), None)
    if key is None:
        return Rows(path, tuple(dict.fromkeys(itertools.chain.from_iterable(sample))), each)
    others = tuple(name for name in dict.fromkeys(itertools.chain.from_iterable(sample)) if name != key)
    remarks = [f"`{key}` holds turns: the first question and its answer are taken"]
    more = sum(len(record.get(key) or ()) > 2 + _has_system(record.get(key)) for record in sample)
    if more:
        remarks.append(f"{more} of {len(sample)} conversations have further turns, which are left out")

    def flat() -> Iterator[Row]:
        for record in each():
            question, answer = _first_pair(record.get(key) or ())
            yield {
                **{name: _single(record.get(name)) for name in others},
                "question": question,
                "answer": answer,
            }

    return Rows(path, (*others, "question", "answer"), flat, remarks=tuple(remarks))


def _has_system(turns: Any) -> int:
    return int(bool(turns) and isinstance(turns, list) and _role(turns[0]) == "system")


def _role(turn: Any) -> str:
    return str(turn.get("from", turn.get("role", ""))) if isinstance(turn, dict) else ""


def _first_pair(turns: Sequence[Any]) -> tuple[str, str]:
    asked: Mapping[str, Any] = next((turn for turn in turns if _role(turn) in ("human", "user")), {})
    told: Mapping[str, Any] = next((turn for turn in turns if _role(turn) in ("gpt", "assistant")), {})
    question = _text(asked)
    for placeholder in _PLACEHOLDERS:
        question = question.replace(placeholder, "")
    return question.strip(), _text(told)


def _text(turn: Mapping[str, Any]) -> str:
    value = turn.get("value", turn.get("content", ""))
    if isinstance(value, list):  # blocks of text and media
        return "".join(str(block.get("text", "")) for block in value if isinstance(block, dict))
    return str(value)


def _single(value: Any) -> Any:
    """A list of one stands for its one value, as `videos: [path]` does."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def guess_columns(rows: Rows) -> Columns:
    """Guess the columns from their names and the first rows."""
    sample, found = rows.sample(), Columns()
    texts = {
        name: [str(row[name]) for row in sample if row.get(name) not in (None, "")] for name in rows.names
    }
    _guess_media(texts, found)
    free = [name for name in rows.names if name != found.media and texts[name]]
    found.prompt = _named(free, _PROMPTS)
    if found.prompt is not None:
        found.reasons["prompt"] = f"a column is called {found.prompt!r}"
    found.split = next(
        (name for name in free if name.lower() in _SPLITS and len(set(texts[name])) <= _FEW), None
    )
    if found.split is not None:
        found.reasons["split"] = (
            f"{found.split!r} has the values {', '.join(sorted(set(texts[found.split])))}"
        )
    found.answer = _named([name for name in free if name not in (found.prompt, found.split)], _ANSWERS)
    if found.answer is not None:
        found.reasons["answer"] = f"a column is called {found.answer!r}"
        _guess_numbers(texts[found.answer], found)
    return found


def _guess_media(texts: Mapping[str, list[str]], found: Columns) -> None:
    """The column whose values end as files of one kind do; where several do, the one with the better name."""
    best: tuple[float, int] = (0.0, 0)
    for name, values in texts.items():
        for kind, endings in ENDINGS.items():
            share = sum(value.split("?")[0].lower().endswith(endings) for value in values) / max(
                len(values), 1
            )
            place = _MEDIA.index(name.lower()) if name.lower() in _MEDIA else len(_MEDIA)
            if share >= _SHARE and (share, -place) > best:
                best = (share, -place)
                found.media, found.kind = name, kind
                counted = Counter(Path(value.split("?")[0]).suffix.lower() for value in values)
                found.ending = counted.most_common(1)[0][0]
                found.reasons["media"] = f"{share:.0%} of the values looked at end as those of {kind}s do"


def _named(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    lowered = {name.lower(): name for name in reversed(names)}
    return next((lowered[name] for name in wanted if name in lowered), None)


def _guess_numbers(values: Sequence[str], found: Columns) -> None:
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return
    if all(number.is_integer() for number in numbers) and len(set(numbers)) <= _FEW:
        found.numbers = int(min(numbers)), int(max(numbers))
        low, high = found.numbers
        found.reasons["numbers"] = f"the values looked at are whole numbers from {low} to {high}"
