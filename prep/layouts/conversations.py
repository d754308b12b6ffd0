"""The conversations layout: `meta.json`, `media/…`, `text/…` (contracts, section 2).

`meta.json` is a JSON array of `{"id", "media", "conversation"}` in row order; both paths
are relative to the dataset's directory. Each conversation file holds one user turn, with
a media block and the question, and one assistant turn with the answer; a table of one's own may
have further turns behind them. All files are
ASCII-escaped JSON, as upstream opens them in the locale's encoding.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

from prep.errors import UsageError

__all__ = ["META", "Answer", "Layout", "RejectedAnswerError", "meta_json"]

META = "meta.json"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_FIELD = re.compile(r"\\\{row(?::0(\d+)d)?\\\}")


class RejectedAnswerError(ValueError):
    """A cell that gives no answer; `reason` is the stable word of the drop."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and places of the records of one dataset; rows count from 1."""

    id_pattern: str
    media_pattern: str
    conversation_pattern: str
    media_type: str
    media_key: str

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> Layout:
        """The layout that a recipe's document describes; raises UsageError for a bad pattern."""
        record = recipe["record"]
        layout = cls(
            id_pattern=record["id"],
            media_pattern=record["media"],
            conversation_pattern=record["conversation"],
            media_type=record["media_type"],
            media_key=record["media_key"],
        )
        for pattern in (layout.id_pattern, layout.media_pattern, layout.conversation_pattern):
            _check_pattern(pattern)
        for path in (layout.media(1), layout.conversation(1)):
            _check_place(path)
        if layout.is_media(layout.conversation(1)) or layout.is_conversation(layout.media(1)):
            raise UsageError(
                f"The record patterns {layout.media_pattern!r} and {layout.conversation_pattern!r} "
                "give media and conversations the same names.",
                remedy="Give each its own folder or ending.",
            )
        return layout

    def entry(self, row: int) -> dict[str, str]:
        """The entry of `meta.json` for a row."""
        return {"id": self.id(row), "media": self.media(row), "conversation": self.conversation(row)}

    def id(self, row: int) -> str:
        """The record's id."""
        return self.id_pattern.format(row=row)

    def media(self, row: int) -> str:
        """The path of the record's media, relative to the dataset's directory."""
        return self.media_pattern.format(row=row)

    def conversation(self, row: int) -> str:
        """The path of the record's conversation, relative to the dataset's directory."""
        return self.conversation_pattern.format(row=row)

    def is_media(self, relative: str) -> bool:
        """Whether a path is one that some row's media would have."""
        return _regex(self.media_pattern).fullmatch(relative) is not None

    def is_conversation(self, relative: str) -> bool:
        """Whether a path is one that some row's conversation would have."""
        return _regex(self.conversation_pattern).fullmatch(relative) is not None

    def conversation_json(self, question: str, answer: str, further: Sequence[str] = ()) -> bytes:
        """The bytes of a conversation file; `further` are texts of the user and the assistant by turns."""
        media = {"type": self.media_type, self.media_type: self.media_key}
        turns = [
            {"role": "user", "content": [media, {"type": "text", "text": question}]},
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        ]
        roles = itertools.cycle(("user", "assistant"))
        turns += [
            {"role": role, "content": [{"type": "text", "text": text}]}
            for role, text in zip(roles, further, strict=False)
        ]
        return json.dumps({"conversations": turns}).encode("ascii")


def _check_pattern(pattern: str) -> None:
    try:
        names = {pattern.format(row=row) for row in (1, 2)}
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(
            f"The record pattern {pattern!r} cannot be filled in: {error}.",
            remedy="Patterns know the field {row}, as in media/clip_{row:04d}.mp4.",
        ) from error
    if len(names) == 1 or not _FIELD.search(re.escape(pattern)):
        raise UsageError(
            f"The record pattern {pattern!r} gives every row the same name.",
            remedy="Write {row:04d} where the row's number belongs.",
        )


def _check_place(path: str) -> None:
    """Refuse a file that would stand outside the dataset, or among our own notes."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or any(part.startswith(".") for part in pure.parts) or "\0" in path:
        raise UsageError(
            f"The record pattern for {path!r} leaves the dataset, or is hidden in it.",
            remedy="Write a path below the dataset's directory, without `..` and leading dots.",
        )


@functools.cache
def _regex(pattern: str) -> re.Pattern[str]:
    def digits(field: re.Match[str]) -> str:
        return rf"\d{{{field[1] or 1},}}"

    return re.compile(_FIELD.sub(digits, re.escape(pattern)))


def meta_json(entries: Iterable[Mapping[str, str]]) -> Iterator[bytes]:
    """The bytes of `meta.json`, piece by piece: what `json.dump(entries, indent=2)` writes."""
    first = True
    for entry in entries:
        yield b"[\n  " if first else b",\n  "
        yield json.dumps(entry, indent=2).replace("\n", "\n  ").encode("ascii")
        first = False
    yield b"[]" if first else b"\n]"


@dataclass(frozen=True, slots=True)
class Answer:
    """The rule by which a column's cell becomes the answer's text.

    `integer`: a whole number of the scale; 4.0 is 4, and 3.7 is refused, not cut.
    `words`: one of a table, such as 0 and 1 for "no" and "yes". `text`: the cell itself.
    """

    kind: str
    minimum: int = 0
    maximum: int = 0
    words: Mapping[str, str] | None = None

    @classmethod
    def of(cls, rule: Mapping[str, Any]) -> Answer:
        """The rule as a recipe states it."""
        return cls(**rule)

    @property
    def is_closed(self) -> bool:
        """Whether the answers are those of a scale or a list, not texts of any number and length."""
        return self.kind != "text"

    def text(self, cell: str) -> str:
        """The answer for a cell; raises RejectedAnswerError."""
        value = cell.strip()
        if value.lower() in ("", "nan"):
            raise RejectedAnswerError("no_answer", f"the cell is {cell!r}")
        if self.kind == "text":
            return cell
        if self.kind == "words":
            return self._word(value)
        number = _whole_number(value)
        if number is None:
            raise RejectedAnswerError("not_an_integer", f"{_shown(value)} is not a whole number")
        if not self.minimum <= number <= self.maximum:
            raise RejectedAnswerError(
                "outside_scale", f"{_shown(value)} is outside {self.minimum} to {self.maximum}"
            )
        return str(int(number))

    def allows(self, answer: str) -> bool:
        """Whether an answer's text is one that this rule writes."""
        if self.kind == "integer":
            return answer.isascii() and answer.isdecimal() and self.minimum <= int(answer) <= self.maximum
        return answer in self.words.values() if self.words else bool(answer.strip())

    def _word(self, value: str) -> str:
        words = self.words or {}
        number = _whole_number(value)
        plain = value if number is None else f"{number.to_integral_value() + 0:f}"  # +0: -0 is 0
        for key in (value, _TRUTH.get(value.lower(), value), plain):
            if key in words:
                return words[key]
        raise RejectedAnswerError("unknown_word", f"{_shown(value)} is none of {', '.join(words)}")


_TRUTH = {"true": "1", "false": "0"}  # as a table that was saved with logical columns spells them


_SHOWN = 40


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= _SHOWN else f"{cell[:_SHOWN]}…")


def _whole_number(cell: str) -> Decimal | None:
    """The whole number that a cell spells, as 4, 4.0 and 4e0 do; however large it is."""
    if not _NUMBER.fullmatch(cell):
        return None
    number = Decimal(cell)
    return number if number == number.to_integral_value() else None
