"""Checks of the frame tables of a root: each parquet file is read once, column by column.

Memory is that of one column of one file (a file holds some 100 MB at most by the format) and the few
number columns that tell where an episode stands. The values themselves are judged in `lerobot_values`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from prep.findings import Finding, found
from prep.layouts.lerobot_columns import batches, is_numeric, series, type_findings
from prep.layouts.lerobot_facts import THRESHOLDS, Facts, Needed
from prep.layouts.lerobot_values import Extremes, Spans, check_cells, check_values, place_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

__all__ = ["check_rows", "check_schema"]

_PLACES: Final = ("index", "episode_index", "frame_index", "timestamp", "task_index")
_FLOAT32_STEP: Final = 2.0**-23


def check_schema(facts: Facts) -> Iterator[Finding]:
    """LER009 to LER011 on the first frame table that can be read, for a check that reads no rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for item in facts.readable("")[:1]:
        try:
            yield from type_findings(facts, item.path, pq.read_schema(facts.root.path / item.path))
        except (OSError, pa.ArrowException) as error:
            yield _unreadable(item.path, error)


def check_rows(facts: Facts, item: Needed, seen: set[str], extremes: Extremes) -> Iterator[Finding]:
    """All checks of one frame table. `seen` are messages on types that another file has given already."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(facts.root.path / item.path) as file:
            for finding in type_findings(facts, item.path, file.schema_arrow):
                if finding.message not in seen:
                    seen.add(finding.message)
                    yield finding
            yield from _check_table(facts, item, file, extremes)
    except (OSError, pa.ArrowException) as error:
        yield _unreadable(item.path, error)


def _unreadable(path: str, error: Exception) -> Finding:
    return found("LER044", path, f"cannot be read: {str(error).splitlines()[0]}")


def _check_table(facts: Facts, item: Needed, file: pq.ParquetFile, extremes: Extremes) -> Iterator[Finding]:
    names = file.schema_arrow.names
    table = file.read(columns=[name for name in _PLACES if name in names])
    places = {name: series(table[name], name) for name in table.column_names}
    for name, column in places.items():
        yield from check_cells(item.path, name, column)
    whole = {
        name: column.values for name, column in places.items() if column.whole and column.values.ndim == 1
    }
    spans = None
    if facts.usable:
        wanted = _expected(facts, item)
        spans, findings = _spans(facts, item, wanted, file.metadata.num_rows, whole.get("episode_index"))
        yield from findings
        yield from _check_places(facts, item, spans, wanted, whole)
    extremes.rows += file.metadata.num_rows
    wanted_names = [
        name
        for name in facts.root.features
        if name in names and name not in _PLACES and is_numeric(file.schema_arrow.field(name).type)
    ]
    for part in batches(facts, file.metadata.num_rows, wanted_names):
        table = file.read(columns=part)
        for name in part:
            column = series(table[name], name)
            yield from check_cells(item.path, name, column, facts.root.features[name])
            yield from check_values(facts, item, name, column, spans, extremes)


def _expected(facts: Facts, item: Needed) -> Spans:
    """The spans that the episode table promises, in the order of the rows."""
    first = facts.numbers["dataset_from_index"][item.episodes]
    positions = item.episodes[np.argsort(first, kind="stable")]
    lengths = np.maximum(
        facts.numbers["dataset_to_index"][positions] - facts.numbers["dataset_from_index"][positions], 0
    )
    return Spans(positions, np.cumsum(lengths) - lengths, lengths)


def _spans(
    facts: Facts, item: Needed, wanted: Spans, rows: int, episode: NDArray[Any] | None
) -> tuple[Spans | None, list[Finding]]:
    """The spans that the file has: the promised ones, or its own runs where it keeps no promise."""
    promised = int(wanted.lengths.sum())
    findings = []
    if promised != rows:
        message = (
            f"{rows} rows; the {len(wanted.positions)} episodes that name this file have {promised} frames"
        )
        findings.append(found("LER045", item.path, message))
    if episode is None or not rows:
        return (wanted if promised == rows else None), findings
    numbers = facts.numbers["episode_index"][wanted.positions]
    if promised == rows:
        expected = np.repeat(numbers, wanted.lengths)
        wrong = episode != expected
        count = int(np.count_nonzero(wrong))
        if not count:
            return wanted, findings
        at = int(np.argmax(wrong))
        message = f"row {at} has the episode number {episode[at]}; the episode table has {expected[at]} there"
        findings.append(found("LER047", item.path, f"{message} ({count} of {rows} rows)", place=f"row {at}"))
        # A few wrong cells are no runs of their own; the promise still tells where frames begin.
        if count < rows / 2:
            return wanted, findings
    starts = np.concatenate([[0], np.flatnonzero(episode[1:] != episode[:-1]) + 1]).astype(np.int64)
    lengths = np.diff(np.concatenate([starts, [rows]]))
    own = episode[starts]
    foreign = sorted(set(own.tolist()) - set(numbers.tolist()))
    if foreign and promised != rows:
        message = (
            f"holds rows of episode {foreign[0]}, which names another file ({len(foreign)} such episodes)"
        )
        findings.append(found("LER047", item.path, message, place=f"episode {foreign[0]}"))
    order = np.argsort(facts.numbers["episode_index"], kind="stable")
    at_table = np.searchsorted(facts.numbers["episode_index"][order], own).clip(max=facts.count - 1)
    return Spans(order[at_table], starts, lengths), findings


# --- where rows stand --------------------------------------------------------------------


def _check_places(
    facts: Facts, item: Needed, spans: Spans | None, wanted: Spans, whole: Mapping[str, NDArray[Any]]
) -> Iterator[Finding]:
    yield from _check_index(facts, item, wanted, whole.get("index"))
    if spans is None or not len(spans.starts):
        return
    frame = spans.frame
    yield from _check_frames(facts, item, spans, frame, whole.get("frame_index"))
    yield from _check_times(facts, item, spans, frame, whole.get("timestamp"))
    yield from _check_tasks(facts, item, spans, whole.get("task_index"))


def _check_index(facts: Facts, item: Needed, wanted: Spans, index: NDArray[Any] | None) -> Iterator[Finding]:
    """LER046: the row number over the whole dataset."""
    if index is None or not len(index) or not len(wanted.positions):
        return
    first = facts.numbers["dataset_from_index"][wanted.positions]
    # Gaps between episodes are LER027's; rows too many or too few are LER045's.
    start = first[0] if len(index) == int(wanted.lengths.sum()) else index[0]
    expected = np.arange(start, start + len(index))
    yield from _differs(facts, item, "LER046", "index", index, expected, wanted)


def _check_frames(
    facts: Facts, item: Needed, spans: Spans, frame: Numbers, stated: NDArray[Any] | None
) -> Iterator[Finding]:
    """LER048: the frame's number in its episode."""
    if stated is not None:
        yield from _differs(facts, item, "LER048", "frame_index", stated, frame, spans)


def _differs(
    facts: Facts, item: Needed, code: str, name: str, stated: NDArray[Any], expected: Numbers, spans: Spans
) -> Iterator[Finding]:
    if np.array_equal(stated, expected):
        return
    wrong = stated != expected
    at = int(np.argmax(wrong))
    message = f"row {at} has the {name} {stated[at]}; expected {expected[at]}"
    message += f" ({int(np.count_nonzero(wrong))} of {len(stated)} rows)"
    yield found(code, item.path, message, place=place_of(facts, spans, at))


def _check_times(
    facts: Facts, item: Needed, spans: Spans, frame: Numbers, times: NDArray[Any] | None
) -> Iterator[Finding]:
    """LER049: a frame's time is its number over the frame rate."""
    if times is None or facts.fps is None:
        return
    expected = frame / facts.fps
    # A float32 of some thousand seconds is itself coarser than the tolerance.
    tolerance = THRESHOLDS["timestamp_tolerance_seconds"] + _FLOAT32_STEP * float(expected.max(initial=0.0))
    off = np.abs(times - expected)
    if off.max(initial=0.0) <= tolerance:
        return
    wrong = ~(off <= tolerance)
    at = int(np.argmax(wrong))
    message = f"row {at} has the timestamp {times[at]:.6f} s; frame {frame[at]} at {facts.fps:g} a second is"
    message += f" {expected[at]:.6f} s ({int(np.count_nonzero(wrong))} of {len(times)} rows)"
    yield found("LER049", item.path, message, place=place_of(facts, spans, at))


def _check_tasks(facts: Facts, item: Needed, spans: Spans, tasks: NDArray[Any] | None) -> Iterator[Finding]:
    """LER039 and LER040: the row's task is in the task table, and among its episode's tasks."""
    if tasks is None or facts.tasks is None or not len(tasks):
        return
    positional = facts.reader == "lerobot" or len(facts.tasks.numbers) != len(facts.tasks.texts)
    numbers = range(len(facts.tasks.texts)) if positional else facts.tasks.numbers
    texts = dict(zip(numbers, facts.tasks.texts, strict=True))
    changes = np.concatenate([[0], np.flatnonzero(tasks[1:] != tasks[:-1]) + 1])
    changes = np.union1d(changes, spans.starts[spans.lengths > 0])
    values, positions = (
        tasks[changes],
        spans.positions[np.searchsorted(spans.starts, changes, side="right") - 1],
    )
    unknown = [int(at) for at, value in zip(changes, values.tolist(), strict=True) if value not in texts]
    if unknown:
        at = unknown[0]
        message = f"row {at} has the task_index {tasks[at]}; the task table has {len(texts)} rows"
        yield found("LER039", item.path, message, place=place_of(facts, spans, at))
    if facts.task_lists is None:
        return
    other = []
    known = set(texts.values())
    # A text that the task table lacks is LER038's.
    named = {
        position: known.intersection(facts.task_lists[position].as_py() or ())
        for position in set(positions.tolist())
    }
    for at, value, position in zip(changes.tolist(), values.tolist(), positions.tolist(), strict=True):
        if value in texts and named[position] and texts[value] not in named[position]:
            other.append((at, value, position))
    if other:
        at, value, position = other[0]
        message = f"row {at} has the task {value}, {texts[value]!r}; {facts.episode(position)} names"
        message += f" {sorted(filter(None, named[position]))} ({len(other)} places)"
        yield found("LER040", item.path, message, place=place_of(facts, spans, at))
