"""A census of shapes: which fields are now a text and now a list, and where each was first seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from prep.findings import Finding, found
from prep.layouts.conversations import META
from prep.layouts.conversations_turns import Turns

__all__ = ["Census"]

_KEYS: Final = ("id", "media", "conversation")
_NAMES: Final = {str: "text", list: "list", dict: "object", bool: "logical", type(None): "null"}


class Census:
    """Counts the shapes of each field; memory does not grow with the number of records."""

    def __init__(self) -> None:
        self._usual = 0
        self._first = 0
        self._plain = 0
        self._plain_path = ""
        self._odd: dict[tuple[str, str], list[Any]] = {}
        self._turns: dict[tuple[str, type], list[Any]] = {}

    def take_usual(self, index: int) -> None:
        """Count an entry with the three keys, all of them texts."""
        if not self._usual:
            self._first = index
        self._usual += 1

    def take_odd(self, entry: Any, index: int) -> None:
        """Count the shapes of an entry that has other keys, or values that are no texts."""
        if not isinstance(entry, dict):
            return
        for key, value in entry.items():
            shape = _shape(value)
            self._odd.setdefault((str(key), shape), [0, f"/{index}/{key}"])[0] += 1

    def take_plain(self, path: str) -> None:
        """Count a conversation as `prep` writes it: an object, each content a list."""
        if not self._plain:
            self._plain_path = path
        self._plain += 1

    def take_turns(self, document: Any, turns: Turns) -> None:
        """Count the shapes of a conversation: the document's own, and each role's content."""
        census = self._turns
        for turn in turns.turns:
            key = (turn["role"], turn["content"].__class__)
            if key in census:
                census[key][0] += 1
            else:
                census[key] = [1, turns.path]
        key = ("", document.__class__)
        if key in census:
            census[key][0] += 1
        else:
            census[key] = [1, turns.path]

    def report(self, emit: Callable[[Finding], None]) -> None:
        """One TXT006 for each field that has several shapes, with the first place of each."""
        fields: dict[str, dict[str, list[Any]]] = {}
        for (key, shape), (count, place) in self._odd.items():
            fields.setdefault(key, {})[shape] = [count, place]
        for key, shapes in fields.items():
            if key in _KEYS and self._usual:
                count = shapes.get("text", [0])[0]
                shapes["text"] = [count + self._usual, f"/{self._first}/{key}"]
            if len(shapes) > 1:
                emit(found("TXT006", META, f"the field {key!r} is {_listed(shapes)}"))
        self._report_turns(emit)

    def _report_turns(self, emit: Callable[[Finding], None]) -> None:
        fields: dict[str, dict[str, list[Any]]] = {}
        if self._plain:
            for key in (("user", list), ("assistant", list), ("", dict)):
                count = self._turns.get(key, [0])[0]
                self._turns[key] = [count + self._plain, self._plain_path]
        for (role, kind), (count, path) in self._turns.items():
            fields.setdefault(role, {})[_NAMES.get(kind, kind.__name__)] = [count, path]
        for role, shapes in fields.items():
            if len(shapes) > 1:
                first = next(iter(shapes.values()))[1]
                what = f"the content of {role} turns" if role else "the conversation file"
                emit(found("TXT006", first, f"{what} is {_listed(shapes)}"))


def _shape(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else _NAMES[type(value)]


def _listed(shapes: dict[str, list[Any]]) -> str:
    return ", ".join(
        f"{shape} in {count} (first {place})" for shape, (count, place) in sorted(shapes.items())
    )
