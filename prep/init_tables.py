"""Guesses from a table: which columns are the media, the question, the answer, the turns, and the split."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prep.errors import UsageError
from prep.records import SAMPLE, TURNS, Row, Rows, is_picture, turns_of

__all__ = ["ENDINGS", "Columns", "guess_columns", "media_folder"]

IMAGES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
VIDEOS: Final = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".gif", ".ts")
ENDINGS: Final = {"video": VIDEOS, "image": IMAGES}

_MEDIA: Final = (
    "video",
    "video_url",
    "video_path",
    "videopath",
    "clip",
    "media",
    "file_name",
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
_IDS: Final = ("id", "uuid")
_SEPARATORS: Final = {";": "`;`", "\t": "a tab", "|": "`|`"}
_FEW: Final = 50
_SHARE: Final = 0.8
_LOOKED: Final = 100
"""Media files of a table that are looked for, and folders that they are looked for in."""


@dataclass(slots=True)
class Columns:
    """What was guessed of a table's columns, and why.

    `kind` and `ending` are those of most media; `numbers` are the least and greatest answer, if all are
    whole numbers. `pictures` tells that the media are in the table itself.
    """

    media: str | None = None
    kind: str = "video"
    ending: str = ".mp4"
    prompt: str | None = None
    answer: str | None = None
    turns: str | None = None
    split: str | None = None
    id: str | None = None
    numbers: tuple[int, int] | None = None
    pictures: bool = False
    reasons: dict[str, str] = field(default_factory=dict)

    def need(self, rows: Rows) -> None:
        """Raise UsageError for a table without media, or without anything to answer."""
        if self.media is not None and (self.answer is not None or self.turns is not None):
            return
        if len(rows.names) == 1 and (signs := [sign for sign in _SEPARATORS if sign in rows.names[0]]):
            told = _SEPARATORS[signs[0]]
            raise UsageError(
                f"{rows.path}: there is one column, whose name has {told} in it: {rows.names[0][:80]!r}.",
                remedy="Save the table with commas between its columns.",
            )
        lacks = "names videos" if self.media is None else "looks like an answer, a score or a caption"
        raise UsageError(
            f"{rows.path}: no column {lacks} (of {', '.join(rows.names[:12])}).",
            remedy="Rename it to `video` or `answer`, or write the recipe by hand (docs/recipes.md).",
        )


def guess_columns(rows: Rows) -> Columns:
    """Guess the columns from their names and the first rows."""
    sample, found = rows.sample(), Columns()
    texts = {name: [str(value) for value in _values(sample, name)] for name in rows.names}
    _guess_media(texts, found)
    _guess_pictures(rows.names, sample, found)
    found.turns = next((name for name in TURNS if _holds_turns(sample, name)), None)
    free = [name for name in rows.names if name not in (found.media, found.turns) and texts[name]]
    found.id = _named(free, _IDS)
    found.split = _named([name for name in free if len(set(texts[name])) <= _FEW], _SPLITS)
    if found.split is not None:
        values = ", ".join(sorted(set(texts[found.split])))
        found.reasons["split"] = f"{found.split!r} has the values {values}"
    if found.turns is not None:
        found.prompt, found.answer = "question", "answer"
        found.reasons["prompt"] = found.reasons["answer"] = f"{found.turns!r} holds turns"
        return found
    found.prompt = _named(free, _PROMPTS)
    if found.prompt is not None:
        found.reasons["prompt"] = f"a column is called {found.prompt!r}"
    found.answer = _named([name for name in free if name not in (found.prompt, found.split)], _ANSWERS)
    if found.answer is not None:
        found.reasons["answer"] = f"a column is called {found.answer!r}"
        _guess_numbers(texts[found.answer], found)
    return found


def _values(sample: Sequence[Row], name: str) -> Iterator[Any]:
    """The values of a column that say something and are no pictures; of a list the first."""
    for row in sample:
        value = row.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if value not in (None, "", []) and not isinstance(value, dict | bytes):
            yield value


def _holds_turns(sample: Sequence[Row], name: str) -> bool:
    return any(turns_of(row.get(name)) for row in sample[:_LOOKED])


def _guess_pictures(names: Sequence[str], sample: Sequence[Row], found: Columns) -> None:
    for name in names:
        if any(is_picture(row.get(name)) for row in sample[:3]):
            found.media, found.kind, found.pictures = name, "image", True
            found.reasons["media"] = f"{name!r} holds pictures"
            return


def _guess_media(texts: Mapping[str, list[str]], found: Columns) -> None:
    """The column whose values end as files of one kind do; where several do, the one with the better name."""
    best: tuple[float, int] = (0.0, 0)
    for name, values in texts.items():
        for kind, endings in ENDINGS.items():
            named = sum(value.split("?")[0].lower().endswith(endings) for value in values)
            share = named / max(len(values), 1)
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


def media_folder(rows: Rows, column: str) -> tuple[Path, int, int]:
    """The folder near the table that the most media files are below, how many are there, and of how many.

    URLs are not looked for: with nothing else the folder is the table's own, with 0 of 0.
    """
    own = rows.path.parent
    values = [str(value) for value in _values(rows.sample()[:SAMPLE], column) if "://" not in str(value)]
    names = list(dict.fromkeys(values))[:_LOOKED]
    if not names:
        return own, 0, 0
    counted = [(sum((folder / name).is_file() for name in names), folder) for folder in _near(own)]
    most = max(count for count, _ in counted)
    folder = next(folder for count, folder in counted if count == most)
    return folder, most, len(names)


def _near(own: Path) -> list[Path]:
    """The table's folder, the one above it, and the folders in both."""
    inside = [
        Path(entry.path)
        for folder in (own, own.parent)
        if os.access(folder, os.R_OK)
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
        if entry.is_dir() and not entry.name.startswith(".")
    ]
    return [own, own.parent, *inside][: 2 * _LOOKED]
