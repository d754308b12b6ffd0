"""Clips held out for validation: whole sources, drawn by a seed, so that no source stands on both sides."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from prep.errors import UsageError
from prep.stages.sft_plan import Clip

__all__ = ["hold_out"]


def hold_out(clips: Sequence[Clip], fraction: float, seed: int, twins: Mapping[str, str]) -> None:
    """Give the split `val` to about `fraction` of the clips, source by source in an order of `seed`.

    `twins` maps the source of a clip's video to its content, for those that may be the same: equal
    content is one source too. One source at least stays in training, however large the fraction.
    Raises UsageError where all clips are of one source.
    """
    groups = _joined(clips, twins)
    if len(groups) < 2:
        raise UsageError(
            f"All {len(clips)} clips are of one source, so that none can be held out.",
            remedy="Leave out --val-fraction, or tell sources apart with --group.",
        )
    wanted, held = min(round(fraction * len(clips)), len(clips) - 1), 0
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
