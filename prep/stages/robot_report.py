"""What a robot run tells: episodes, windows with and without the filter, what matched, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.findings import Finding, found
from prep.progress import bytes_text
from prep.stages.options import Result

if TYPE_CHECKING:
    from prep.stages.robot import Prepared
    from prep.stages.robot_windows import SplitIndex

__all__ = ["counted", "incomplete", "report"]

SHARE_TOLERANCE = 0.02
"""How far the kept share may be from the pinned figure before it is said."""
_MISSING_SHOWN = 8


def counted(count: int, noun: str) -> str:
    """A count with its noun, such as "1 span" or "2,000 spans"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


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
    for name, state in prepared.presences.items():
        start = f"{name}/" if name else ""
        for camera, (present, needed) in state.by_camera.items():
            missing = f", {needed - present} missing" if present < needed else ""
            result.notes.append(f"{start}{camera}: {present} of {counted(needed, 'file')} present{missing}")
        result.notes += [f"missing {start}{path}" for path in state.missing[:_MISSING_SHOWN]]
        if state.missing_count > _MISSING_SHOWN:
            more = counted(state.missing_count - _MISSING_SHOWN, "more file")
            result.notes.append(f"{start}: … and {more}".replace("/:", ":").lstrip(": "))
    result.consumption = {index.split: index.facts() for index in prepared.indices}
    for index in prepared.indices:
        usable = result.consumption[index.split]["windows_usable"] = _usable_windows(prepared, index)
        result.notes.append(f"{index.split}: {usable:,} of {counted(len(index.index), 'window')} usable now")
    missing_count = sum(state.missing_count for state in prepared.presences.values())
    missing = f"{counted(missing_count, 'data and video file')} of {prepared.tree.folder}"
    verb = "is" if missing_count == 1 else "are"
    result.message = f"{missing} {verb} missing; nothing was written, and the tree is untouched."
    result.remedy = (
        "Finish the download and run the same command again, or index what the metadata says "
        "with --metadata-only."
    )
    return result


def _usable_windows(prepared: Prepared, index: SplitIndex) -> int:
    usable = 0
    spans = index.index.spans
    for place, (group, state) in enumerate(zip(prepared.groups, prepared.presences.values(), strict=True)):
        here = spans["dataset_index"] == place
        lost = np.concatenate([np.empty(0, np.int64), *state.lost]).astype(np.int64)
        bad = np.isin(spans["episode_index"][here], group.root.episodes().numbers[lost])
        usable += int(spans["length"][here][~bad].sum())
    return usable


def report(prepared: Prepared) -> Result:
    """The result with its figures and findings; `failed` if an error is among them."""
    result = _begun(prepared)
    result.consumption = {index.split: index.facts() for index in prepared.indices}
    found_all = [
        *_frame_rate(prepared),
        *_form(prepared),
        *_filter_findings(prepared),
        *_index_findings(prepared),
        *_blank_instructions(prepared),
    ]
    accepted = prepared.options.ignore
    result.findings = [
        replace(item, severity="warning") if item.code in accepted else item for item in found_all
    ]
    result.notes = [
        *_index_notes(prepared),
        *_filter_notes(prepared),
        *_file_notes(prepared),
        *_reader_notes(prepared),
        *_statistics_note(prepared),
    ]
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
            stated = "no rate" if group.root.fps is None else f"{group.root.fps:g} frames a second"
            message = f"info.json states {stated}; the recipe expects {expected:g}"
            yield found("ROB001", f"{group.name}/meta/info.json".lstrip("/"), message)


def _form(prepared: Prepared) -> Iterator[Finding]:
    """A tree of institutions where upstream's launcher looks for a root in one place."""
    group = prepared.recipe.document["roots"].get("needs_group")
    if group is not None and prepared.tree.form == "sharded":
        readers = ", ".join(prepared.recipe.consumers)
        message = f"there is no {group}/meta/info.json: the launcher of {readers} refuses such a tree"
        yield found("ROB004", group, message)


def _filter_findings(prepared: Prepared) -> Iterator[Finding]:
    keep = prepared.keep
    if keep is None:
        return
    yield from keep.findings
    sides = (
        (keep.unmatched_episode_count, "episode", "in no key", keep.unmatched_episodes),
        (keep.unmatched_key_count, "key", "of no episode here", keep.unmatched_keys),
    )
    for count, noun, what, examples in sides:
        if count:
            verb = "is" if count == 1 else "are"
            message = f"{counted(count, noun)} {verb} {what}, such as {', '.join(examples)}"
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
    document = prepared.recipe.document
    if prepared.options.chunk_length not in (None, document["windows"]["chunk_length"]):
        return None  # the figures are those of the recipe's own windows
    figures: Mapping[str, Any] = document.get("figures", {}).get(split, {})
    return figures["kept"] / figures["windows"] if {"kept", "windows"} <= set(figures) else None


def _index_findings(prepared: Prepared) -> Iterator[Finding]:
    options = prepared.options
    streams = options.ranks * options.workers
    for index in prepared.indices:
        if index.split == "val":
            continue
        spans, name = len(index.index.spans["length"]), index.path.name
        if not spans:
            chunk = index.index.parameters["chunk_length"]
            message = f"{index.split}: no window of {chunk} actions is left"
            yield found("ROB003", name, message, remedy="Take more episodes, or a shorter --chunk-length.")
        elif spans < streams:
            of = f"{counted(options.ranks, 'rank')} of {counted(options.workers, 'worker')}"
            yield found(
                "ROB003", name, f"{index.split}: {counted(spans, 'span')} for {streams} streams ({of})"
            )


def _blank_instructions(prepared: Prepared) -> Iterator[Finding]:
    for group in prepared.groups:
        if group.blank_instructions:
            verb = "has" if group.blank_instructions == 1 else "have"
            message = f"{counted(group.blank_instructions, 'task text')} {verb} a blank instruction"
            yield found("ROB002", f"{group.name}/meta/tasks.parquet".lstrip("/"), message)


def _index_notes(prepared: Prepared) -> Iterator[str]:
    for index in prepared.indices:
        facts = index.facts()
        text = f"{index.split}: {counted(facts['windows'], 'window')}"
        share = _share(index)
        if prepared.keep is not None and share is not None:
            pinned = _pinned_share(prepared, index.split)
            beside = f", {pinned:.2%} on the full release" if pinned is not None else ""
            text += f" of {index.unfiltered:,} ({share:.2%} kept{beside})"
        yield (
            f"{text}, {counted(facts['spans'], 'span')} over {counted(facts['episodes'], 'episode')}, "
            f"{facts['episodes_with_several_spans']:,} with more than one"
        )


def _filter_notes(prepared: Prepared) -> Iterator[str]:
    keep = prepared.keep
    if keep is not None:
        total = sum(len(group.episodes.numbers) for group in prepared.groups)
        prefix = f"keys under {keep.ranges.prefix}" if keep.ranges.prefix is not None else "keys are bare ids"
        yield (
            f"filter: {keep.matched:,} of {counted(total, 'episode')} matched, "
            f"{counted(len(keep.ranges), 'key')} ({prefix})"
        )


def _file_notes(prepared: Prepared) -> Iterator[str]:
    plan = prepared.hub
    if plan is not None:
        total = plan.bytes_left_out() if plan.left_out else None
        if total is not None:
            files = counted(len(plan.left_out), "data and video file")
            yield f"{files} not fetched: {total} bytes ({bytes_text(total)})"
        return
    for name, state in prepared.presences.items():
        start = f"{name}: " if name else ""
        if state.missing_count:
            files = counted(state.missing_count, "data and video file")
            yield f"{start}{files} not there: indexed from the metadata alone"


def _statistics_note(prepared: Prepared) -> Iterator[str]:
    """By which file upstream normalises the actions, and at which rate it was made."""
    statistics = prepared.recipe.document.get("statistics")
    if statistics is not None:
        name, rate = statistics["upstream_file"].rpartition("/")[2], prepared.recipe.document["roots"]["fps"]
        yield f"upstream normalises the actions by {name} ({statistics['block']}, {rate:g} frames a second)"


def _reader_notes(prepared: Prepared) -> Iterator[str]:
    """Which upstream recipes open the result, and which groups of the recipe are not in it."""
    there = {name.split("/")[0] for name, _ in prepared.tree.roots}
    groups = prepared.recipe.document["roots"].get("groups", ())
    absent = [group for group in groups if group not in there]
    if absent:
        yield f"{', '.join(absent)} not in the tree; upstream's reader takes what is there"
    if prepared.recipe.consumers:
        yield f"for upstream's {', '.join(prepared.recipe.consumers)}"
