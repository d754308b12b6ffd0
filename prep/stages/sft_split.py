"""Clips held out for validation: whole sources, drawn by a seed, so that no source stands on both sides."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from prep.errors import UsageError
from prep.stages.sft_plan import Clip

__all__ = ["hold_out", "source_of"]

_PART: Final = re.compile(
    r"(.+?)[ ._-]*(?:clip|part|segment|seg|scene|shot|chunk|window|split)[ ._-]*\d+", re.IGNORECASE
)


def source_of(name: str, pattern: re.Pattern[str] | None = None) -> str:
    """What a clip was cut from, by its name: `episode_15_clip002` is of `episode_15`.

    A `pattern` has the last word where it matches; a name without a part's number is its own source.
    """
    match = pattern.search(name) if pattern is not None else _PART.fullmatch(name)
    return match[1] if match is not None and match[1] else name


def hold_out(clips: Sequence[Clip], fraction: float, seed: int, twins: Mapping[str, str]) -> None:
    """Give the split `val` to about `fraction` of the clips, source by source in an order of `seed`.

    `twins` maps the source of a clip's video to its content, for those that may be the same: equal
    content is one source too. Raises UsageError where all clips are of one source.
    """
    groups = _joined(clips, twins)
    if len(groups) < 2:
        raise UsageError(
            f"All {len(clips)} clips are of one source, so that none can be held out.",
            remedy="Leave out --val-fraction, or tell sources apart with --group.",
        )
    wanted, held = round(fraction * len(clips)), 0
    ordered = sorted(groups, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())
    chosen = []
    for name in ordered:
        if held + len(groups[name]) <= wanted:
            chosen.append(name)
            held += len(groups[name])
    for name in chosen or [min(ordered, key=lambda name: len(groups[name]))]:
        for clip in groups[name]:
            clip.split = "val"


def _joined(clips: Sequence[Clip], twins: Mapping[str, str]) -> dict[str, list[Clip]]:
    """The clips by source; sources that share a video's content are one, named by the first of them."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for clip in clips:
        content = twins.get(clip.source)
        names = sorted(
            {root(f"group {clip.group}"), root(f"bytes {content}")}
            if content
            else {root(f"group {clip.group}")}
        )
        for other in names[1:]:
            parent[other] = names[0]
    groups: dict[str, list[Clip]] = defaultdict(list)
    for clip in clips:
        groups[root(f"group {clip.group}")].append(clip)
    # The name must not depend on how the union went: the smallest of its groups.
    return {min(clip.group for clip in members): members for members in groups.values()}
