"""The envelope cosmos-reason-v1.0 of `nvidia-tao-daft`: the conversations layout, each file wrapped.

`meta.json` is `{"version", "metadata": {"type": "meta", …}, "samples": […]}`, a conversation file
`{"version", "metadata": {"type": "conversation", …}, "conversations": […]}`. Source: the formats'
schemas in `nvidia-tao-daft` 7.0.0, which allow no other key, want `text/….json` and `media/…` as
paths, lists as content, and two turns or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal

__all__ = ["VERSION", "breaches_of_entry", "breaches_of_turns", "unwrap"]

VERSION: Final = "cosmos-reason-v1.0"

_ITEMS: Final = {"meta": "samples", "conversation": "conversations"}
_ENTRY: Final = {
    "conversation": re.compile(r"text/.+\.json"),
    "media": re.compile(r"media/.+", re.DOTALL),
}
_TURN_KEYS: Final = frozenset(("role", "content", "reasoning_content"))
_METADATA: Final = frozenset(("type", "date", "description", "license", "tags"))


def unwrap(
    document: Any, kind: Literal["meta", "conversation"]
) -> tuple[list[Any] | None, list[tuple[str, str]]]:
    """The list inside an envelope, or None, and what breaks the format: pointer and sentence."""
    items = _ITEMS[kind]
    if not isinstance(document, dict):
        return None, [("/", f"no object; expected the envelope {VERSION}")]
    breaches = list(_breaches(document, kind, items))
    inside = document.get(items)
    if not isinstance(inside, list):
        return None, [*breaches, (f"/{items}", "no list")]
    return inside, breaches


def _breaches(document: dict[str, Any], kind: str, items: str) -> Iterator[tuple[str, str]]:
    if document.get("version") != VERSION:
        yield "/version", f"{document.get('version')!r}; expected {VERSION!r}"
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        yield "/metadata", "no object"
    else:
        if metadata.get("type") != kind:
            yield "/metadata/type", f"{metadata.get('type')!r}; expected {kind!r}"
        for key in sorted(metadata.keys() - _METADATA):
            yield f"/metadata/{key}", "a key that the envelope does not have"
    for key in sorted(document.keys() - {"version", "metadata", items}):
        yield f"/{key}", "a key that the envelope does not have"


def breaches_of_entry(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the envelope's own schema forbids in an entry that the layout's schema allows."""
    for key, pattern in _ENTRY.items():
        value = entry.get(key)
        if isinstance(value, str) and not pattern.fullmatch(value):
            yield f"/{key}", f"{value!r} does not have the form {pattern.pattern}"
    for key in sorted(entry.keys() - {"id", "media", "conversation"}):
        yield f"/{key}", "a key that the envelope does not have"


def breaches_of_turns(turns: list[Any]) -> Iterator[tuple[str, str]]:
    """What the envelope's own schema forbids in turns that the layout's schema allows."""
    if len(turns) < 2:
        yield "/conversations", f"{len(turns)} turns; expected 2 or more"
    for number, turn in enumerate(turns):
        for key in sorted(turn.keys() - _TURN_KEYS):
            yield f"/conversations/{number}/{key}", "a key that the envelope does not have"
        if isinstance(turn["content"], str):
            yield f"/conversations/{number}/content", "a text; expected a list of blocks"
            continue
        for place, block in enumerate(turn["content"]):
            kind = block["type"]
            value = block[kind]
            if (kind == "text" and not value) or (
                kind != "text" and not re.fullmatch(rf"{kind}_[0-9]+", value)
            ):
                at = f"/conversations/{number}/content/{place}/{kind}"
                yield at, f"{value!r} is not what the envelope calls a {kind}"
