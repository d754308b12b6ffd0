"""What breaks the shape of a conversation, at its place: `oneOf` in its schema hides where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prep import schemas
from prep.findings import Finding, found
from prep.layouts.conversations_turns import CONVERSATION

__all__ = ["shape_findings"]

_ROLES: Final = ("system", "user", "assistant")
_TYPES: Final = ("text", "video", "image")


def shape_findings(document: Any, path: str) -> list[Finding]:
    """TXT005 for each place where a document is no conversation; none for one that obeys its schema."""
    if schemas.is_valid(CONVERSATION, document):
        return []
    told = [found("TXT005", path, message, place=place) for place, message in _breaches(document)]
    # The schema is the rule; this file only explains it.
    return told or schemas.broken(CONVERSATION, document, path)


def _breaches(document: Any) -> Iterator[tuple[str, str]]:
    turns = document.get("conversations") if isinstance(document, dict) else document
    at = "/conversations" if isinstance(document, dict) else ""
    if isinstance(document, dict) and "conversations" not in document:
        yield "/", f"no key 'conversations' among {', '.join(map(repr, sorted(document)))[:80] or 'none'}"
    elif not isinstance(turns, list) or not turns:
        yield at or "/", f"{_kind(turns)}; expected a list of turns"
    else:
        for number, turn in enumerate(turns):
            yield from _breaches_of_turn(turn, f"{at}/{number}")


def _breaches_of_turn(turn: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(turn, dict):
        yield at, f"{_kind(turn)}; expected a turn with role and content"
        return
    if turn.get("role") not in _ROLES:
        yield f"{at}/role", f"{_value(turn, 'role')}; expected one of {', '.join(_ROLES)}"
    content = turn.get("content")
    if isinstance(content, list) and content:
        for place, block in enumerate(content):
            yield from _breaches_of_block(block, f"{at}/content/{place}")
    elif not isinstance(content, str):
        yield f"{at}/content", f"{_value(turn, 'content')}; expected a text or a list of blocks"


def _breaches_of_block(block: Any, at: str) -> Iterator[tuple[str, str]]:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind not in _TYPES:
        given = _value(block, "type") if isinstance(block, dict) else _kind(block)
        yield f"{at}/type", f"{given}; expected one of {', '.join(_TYPES)}"
    elif not isinstance(block.get(kind), str) or (kind != "text" and not block[kind]):
        yield f"{at}/{kind}", f"{_value(block, kind)}; expected a text"


def _value(holder: dict[str, Any], key: str) -> str:
    return repr(holder[key])[:80] if key in holder else f"no {key}"


def _kind(value: Any) -> str:
    empty = "an empty " if value in ([], {}) else "the "
    return (
        f"{empty}{type(value).__name__}"
        if isinstance(value, list | dict)
        else f"the value {str(value)[:80]!r}"
    )
