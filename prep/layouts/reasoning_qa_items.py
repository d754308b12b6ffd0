"""The rules on one item of an annotation file, and on items compared with one another."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prep import schemas
from prep.findings import Finding, found
from prep.layouts.repeats import repeated_positions

__all__ = ["ITEM", "Seen", "item_findings", "repeated_indices", "repeated_questions"]

ITEM: Final = "reasoning-item"

_PLACEHOLDER: Final = re.compile(
    r"<(?:image|video)>|<\|(?:image_pad|video_pad|vision_start|vision_end|vision_pad)\|>"
)
_TAGS: Final = re.compile(r"</?think>")
_MISSING: Final = frozenset(("nan", "NaN", "None", "null", "<NA>", "NaT"))
_TEXTS: Final = ("question", "answer", "reasoning")
_NAMED: Final = 5


def item_findings(item: Any, path: str, place: str, *, exposed: bool) -> Iterator[Finding]:
    """What is wrong with an item by itself; `exposed` tells whether training sees it at all."""
    if not schemas.is_valid(ITEM, item):
        yield from schemas.broken(ITEM, item, path, place=place)
        return
    if "image_id" in item:
        message = f"image_id {item['image_id']!r}; these recipes read video_id"
        yield found("REA002", path, message, place=place, severity=None if exposed else "warning")
    for key in _TEXTS:
        if key in item:
            yield from _text_findings(key, item[key], path, f"{place}/{key}")


def _text_findings(key: str, text: str, path: str, place: str) -> Iterator[Finding]:
    plain = text.strip()
    if not plain and key != "reasoning":  # an empty reasoning is none
        yield found(
            "REC005", path, f"the {key} is blank", place=place, remedy="Write the text, or drop the item."
        )
    if plain in _MISSING:
        yield found("REC009", path, f"the {key} is {plain!r}", place=place)
    if "<" not in text:
        return
    if seen := _PLACEHOLDER.search(text):
        code = "REC003" if key == "question" else "REC004"
        yield found(code, path, f"the {key} holds {seen[0]}", place=place)
    if tag := _TAGS.search(text):
        yield found("REA003", path, f"the {key} holds {tag[0]}", place=place)


class Seen:
    """What is kept of all items to compare them: 64-bit hashes, 24 bytes an item; 0 for none."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.starts: list[int] = []
        self.questions = array("q")
        self.answers = array("q")
        self.indices = array("q")

    def begin(self, name: str) -> None:
        """The items that follow are of this file."""
        self.files.append(name)
        self.starts.append(len(self.questions))

    def take(self, item: Any, video: str) -> None:
        """Note an item; `video` is the file that it is about, wherever two roots meet."""
        given: Mapping[str, Any] = item if isinstance(item, dict) else {}
        question, index = given.get("question"), given.get("item_index")
        asked = isinstance(question, str) and bool(video)
        self.questions.append(hash((video, question)) if asked else 0)
        self.answers.append(hash(str(given.get("answer"))))
        self.indices.append(hash((len(self.files), index)) if isinstance(index, str) else 0)

    def place(self, position: int) -> tuple[str, int]:
        """The file and the item in it, from 0, of an item among all."""
        at = bisect_right(self.starts, position) - 1
        return self.files[at], position - self.starts[at]


def repeated_questions(seen: Seen) -> Iterator[Finding]:
    """REA004, one for each question that is asked of one video more than once."""
    for group in repeated_positions(seen.questions):
        name, item = seen.place(group[0])
        answers = len({seen.answers[position] for position in group})
        told = "the same answer" if answers == 1 else f"{answers} different answers"
        message = f"{len(group)} items ask it, with {told}; also {_others(seen, group[1:])}"
        yield found("REA004", name, message, place=f"/items/{item}")


def repeated_indices(seen: Seen) -> Iterator[Finding]:
    """REC001, one for each item_index that an item before it in the file has."""
    for group in repeated_positions(seen.indices):
        _, first = seen.place(group[0])
        for position in group[1:]:
            name, item = seen.place(position)
            yield found(
                "REC001", name, f"its item_index is that of item {first}", place=f"/items/{item}/item_index"
            )


def _others(seen: Seen, positions: Sequence[int]) -> str:
    places = (seen.place(position) for position in positions[:_NAMED])
    return ", ".join(f"{name} item {item}" for name, item in places) + " …" * (len(positions) > _NAMED)
