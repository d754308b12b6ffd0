"""What a clip was cut from, as its name tells it."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["source_of"]

_PART: Final = re.compile(
    r"(.+?)[ ._-]*(?:clip|part|segment|seg|scene|shot|chunk|window|split)[ ._-]*\d+", re.IGNORECASE
)


def source_of(name: str, pattern: re.Pattern[str] | None = None) -> str:
    """What a clip was cut from, by its name: `episode_15_clip002` is of `episode_15`.

    A `pattern` has the last word where it matches; a name without a part's number is its own source.
    """
    match = pattern.search(name) if pattern is not None else _PART.fullmatch(name)
    return match[1] if match is not None and match[1] else name
