"""What a robot run tells: episodes, windows with and without the filter, what matched, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.findings import Finding, found
from prep.stages.options import Result

if TYPE_CHECKING:
    from prep.stages.robot import Prepared
    from prep.stages.robot_windows import SplitIndex

__all__ = ["incomplete", "report"]

SHARE_TOLERANCE = 0.02
"""How far the kept share may be from the pinned figure before it is said."""
_MISSING_SHOWN = 8


def _begun(prepared: Prepared) -> Result:
    episodes = sum(len(group.episodes.numbers) for group in prepared.groups)
    return Result(
        name=prepared.root.name,
        root=prepared.root,
        outcome="planned" if prepared.options.dry_run else "complete",
        rows=episodes,
        kept=episodes,
        unit="episodes",
        files_unit="files",
        fetched=prepared.hub.files if prepared.hub is not None else 0,
        bytes=prepared.hub.bytes if prepared.hub is not None else 0,
    )


def incomplete(prepared: Prepared) -> Result:
    """The result for a half-downloaded tree: what is there by camera, what is missing, what is usable now."""
    result = _begun(prepared)
    result.outcome = "incomplete"
    missing = 0
    for name, state in prepared.presences.items():
        missing += state.missing_count
        for camera, (present, needed) in state.by_camera.items():
            result.notes.append(f"{name}: {camera}: {present} of {needed} files present")
        result.notes += [f"{name}: missing {path}" for path in state.missing[:_MISSING_SHOWN]]
        if state.missing_count > _MISSING_SHOWN:
            result.notes.append(f"{name}: … and {state.missing_count - _MISSING_SHOWN} more files")
    for index in prepared.indices:
        usable = _usable_windows(prepared, index)
        result.notes.append(f"{index.split}: {usable} of {len(index.index)} windows usable now")
    result.message = f"{missing} data and video files of the tree are missing; the tree was left untouched."
    result.remedy = (
        "Finish the download, then run the same command again (or use --metadata-only from the Hub)."
    )
    return result


def _usable_windows(prepared: Prepared, index: SplitIndex) -> int:
    usable = 0
    spans = index.index.spans
    for place, (group, state) in enumerate(zip(prepared.groups, prepared.presences.values(), strict=True)):
        here = spans["dataset_index"] == place
        good = np.isin(spans["episode_index"][here], group.episodes.numbers[state.usable])
        usable += int(spans["length"][here][good].sum())
    return usable


def report(prepared: Prepared) -> Result:
    """The result with its figures and findings; `failed` if an error is among them."""
    result = _begun(prepared)
    result.consumption = {index.split: index.facts() for index in prepared.indices}
    result.findings = [*_frame_rate(prepared), *_filter_findings(prepared), *_index_findings(prepared)]
    result.notes = [*_index_notes(prepared), *_filter_notes(prepared), *_file_notes(prepared)]
    errors = [item for item in result.findings if item.severity == "error"]
    if errors:
        result.outcome = "failed"
        result.message = f"{errors[0].message}; nothing was written."
        result.remedy = errors[0].remedy
    return result


def _frame_rate(prepared: Prepared) -> Iterator[Finding]:
    expected = prepared.recipe.document["roots"].get("fps")
    for group in prepared.groups:
        if expected is not None and group.root.fps != expected:
            message = f"{group.root.fps} frames a second, the recipe expects {expected}"
            yield found("ROB001", f"{group.name}/meta/info.json".lstrip("/"), message)


def _filter_findings(prepared: Prepared) -> Iterator[Finding]:
    keep = prepared.keep
    if keep is None:
        return
    yield from keep.findings
    if keep.unmatched_episode_count:
        message = (
            f"{keep.unmatched_episode_count} episodes are in no key, such as {keep.unmatched_episodes[0]}"
        )
        yield found("KEP004", keep.path.name, message)
    if keep.unmatched_key_count:
        message = f"{keep.unmatched_key_count} keys match no episode, such as {keep.unmatched_keys[0]}"
        yield found("KEP004", keep.path.name, message)
    for index in prepared.indices:
        pinned = _pinned_share(prepared, index.split)
        share = _share(index)
        if pinned is not None and share is not None and abs(share - pinned) > SHARE_TOLERANCE:
            message = f"{index.split}: {share:.2%} of the windows kept, {pinned:.2%} on the full release"
            yield found("KEP003", keep.path.name, message)


def _share(index: SplitIndex) -> float | None:
    return len(index.index) / index.unfiltered if index.unfiltered else None


def _pinned_share(prepared: Prepared, split: str) -> float | None:
    figures: Mapping[str, Any] = prepared.recipe.document.get("figures", {}).get(split, {})
    return figures["kept"] / figures["windows"] if {"kept", "windows"} <= set(figures) else None


def _index_findings(prepared: Prepared) -> Iterator[Finding]:
    streams = prepared.options.ranks * prepared.options.workers
    for index in prepared.indices:
        spans = len(index.index.spans["length"])
        if not len(index.index) and index.split != "val":
            yield found("ROB003", index.path.name, f"{index.split}: no window is left")
        elif index.split != "val" and spans < streams:
            yield found("ROB003", index.path.name, f"{index.split}: {spans} spans for {streams} streams")
    blank = sum(group.blank_instructions for group in prepared.groups)
    if blank:
        yield found("ROB002", "meta/tasks.parquet", f"{blank} task texts have a blank instruction")


def _index_notes(prepared: Prepared) -> Iterator[str]:
    for index in prepared.indices:
        facts = index.facts()
        text = f"{index.split}: {facts['windows']:,} windows"
        share = _share(index)
        if prepared.keep is not None and share is not None:
            pinned = _pinned_share(prepared, index.split)
            beside = f", {pinned:.2%} on the full release" if pinned is not None else ""
            text += f" of {index.unfiltered:,} ({share:.2%} kept{beside})"
        yield (
            f"{text}, {facts['spans']:,} spans over {facts['episodes']:,} episodes, "
            f"{facts['episodes_with_several_spans']:,} with more than one"
        )


def _filter_notes(prepared: Prepared) -> Iterator[str]:
    keep = prepared.keep
    if keep is not None:
        total = sum(len(group.episodes.numbers) for group in prepared.groups)
        yield f"filter: {keep.matched:,} of {total:,} episodes matched, {len(keep.ranges):,} keys"


def _file_notes(prepared: Prepared) -> Iterator[str]:
    for name, state in prepared.presences.items():
        if state.missing_count:
            yield f"{name}: metadata only: {state.missing_count:,} data and video files are not there"
