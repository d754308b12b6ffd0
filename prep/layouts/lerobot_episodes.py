"""Checks of the episode table and the task table: numbers, rows, names, routing, windows, texts.

All are array operations over columns that `lerobot_facts` has read, so that 57,000 episodes take
milliseconds. A finding names the first place and the count, one for each fault and file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from prep.findings import Finding, found
from prep.layouts.lerobot_facts import EPISODES, TASKS, THRESHOLDS, Facts, Needed
from prep.progress import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EPISODE_RULES", "TASK_RULES", "blank_parts", "joined"]

_SHOWN: Final = 5


def joined(names: Sequence[str]) -> str:
    """The first few of many names, with the number of the others."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _wrong(facts: Facts, code: str, wrong: NDArray[np.bool_], say: Callable[[int], str]) -> Iterator[Finding]:
    """One finding for all episodes where `wrong`, with the first as its place."""
    places = np.flatnonzero(wrong)
    if len(places):
        first = int(places[0])
        more = f" ({len(places)} of {facts.count} episodes)" if len(places) > 1 else ""
        yield found(code, EPISODES, f"{say(first)}{more}", place=facts.episode(first))


# --- episodes ----------------------------------------------------------------------------


def check_columns(facts: Facts) -> Iterator[Finding]:
    """LER021: columns without which no reader knows the episodes."""
    if not facts.rows_per_file:
        return  # LER020 says so
    for name in ("episode_index", "length", "dataset_from_index", "dataset_to_index", "tasks"):
        if facts.types and name not in facts.types:
            yield found("LER021", EPISODES, f"there is no column {name}", place=name)


def check_routing(facts: Facts) -> Iterator[Finding]:
    """LER022: the columns that say in which file an episode stands."""
    if not facts.types:
        return
    for camera in ("", *facts.root.cameras):
        stem = f"videos/{camera}" if camera else "data"
        names = ["chunk_index", "file_index", *(("from_timestamp", "to_timestamp") if camera else ())]
        missing = [name for name in names if f"{stem}/{name}" not in facts.types]
        if missing:
            message = (
                f"there is no column {stem}/ + {', '.join(missing)}: where an episode stands is not known"
            )
            yield found("LER022", EPISODES, message, place=stem, severity=facts.strict())


def check_numbers(facts: Facts) -> Iterator[Finding]:
    """LER025: episode numbers equal row positions, which is how lerobot looks them up."""
    numbers = facts.numbers.get("episode_index")
    if numbers is None:
        return
    yield from _wrong(
        facts,
        "LER025",
        numbers != np.arange(facts.count),
        lambda at: f"row {at} of the table has the episode number {int(numbers[at])}; expected {at}",
    )


def check_lengths(facts: Facts) -> Iterator[Finding]:
    """LER026 and LER028: `length` against the rows, and episodes without frames."""
    if not facts.usable:
        return
    length, first, end = (
        facts.numbers[name] for name in ("length", "dataset_from_index", "dataset_to_index")
    )
    yield from _wrong(
        facts,
        "LER026",
        (end - first != length) & (length >= 1),
        lambda at: f"length {length[at]}, and rows {first[at]} to {end[at]} are {end[at] - first[at]}",
    )
    yield from _wrong(
        facts, "LER028", length < 1, lambda at: f"length {length[at]}; expected at least 1 frame"
    )


def check_rows_abut(facts: Facts) -> Iterator[Finding]:
    """LER027: the first episode begins at row 0, and each at the end of the one before."""
    if not facts.usable or not facts.count:
        return
    # In the order of the rows: where the table has another order, the episode numbers say so (LER025).
    order = np.argsort(facts.numbers["dataset_from_index"], kind="stable")
    first, end, length = (
        facts.numbers[name][order] for name in ("dataset_from_index", "dataset_to_index", "length")
    )
    before = np.concatenate([[0], end[:-1]])
    # Where `length` and the rows of one disagree, LER026 says so: one fault, one finding.
    consistent = end - first == length
    doubtful = ~consistent | ~np.concatenate([[True], consistent[:-1]])
    wrong = np.zeros(facts.count, bool)
    wrong[order] = (first != before) & ~doubtful
    ends = np.zeros(facts.count, np.int64)
    ends[order] = before
    yield from _wrong(
        facts,
        "LER027",
        wrong,
        lambda at: (
            f"begins at row {facts.numbers['dataset_from_index'][at]}; the rows before end at {ends[at]}"
        ),
    )


def check_ids(facts: Facts) -> Iterator[Finding]:
    """LER029 and LER030: the episodes' own names, by which a filter finds them."""
    if not facts.types:
        return
    if facts.ids is None:
        if facts.needs_ids and "episode_id" not in facts.types:
            lost = counted(facts.count, "episode")
            message = f"there is no column episode_id; a filter cannot find {lost}"
            yield found("LER029", EPISODES, message, place="episode_id")
        return
    names = Counter(facts.ids.to_pylist())
    empty = sum(number for name, number in names.items() if not (name and name.strip()))
    if empty:
        yield found(
            "LER030", EPISODES, f"{empty} of {facts.count} episodes have no episode_id", place="episode_id"
        )
    for name, number in names.items():
        if number > 1 and name and name.strip():
            yield found("LER030", EPISODES, f"{number} episodes are named {name!r}", place="episode_id")


def check_own_place(facts: Facts) -> Iterator[Finding]:
    """LER031: the episode table's file that a row names is the one that it stands in."""
    chunk = facts.numbers.get("meta/episodes/chunk_index")
    file = facts.numbers.get("meta/episodes/file_index")
    if chunk is None or file is None:
        return
    start = 0
    for relative, rows in facts.rows_per_file.items():
        numbers = [
            int("".join(filter(str.isdigit, part)))
            for part in relative.removesuffix(".parquet").split("/")[-2:]
        ]
        part = slice(start, start + rows)
        wrong = np.flatnonzero((chunk[part] != numbers[0]) | (file[part] != numbers[1]))
        if len(wrong):
            at = start + int(wrong[0])
            message = (
                f"{len(wrong)} of {rows} rows name another file, the first chunk {chunk[at]}, file {file[at]}"
            )
            yield found("LER031", relative, message, place=facts.episode(at))
        start += rows


def check_windows(facts: Facts) -> Iterator[Finding]:
    """LER059 and LER060: windows as long as their episodes, that tile their file from its start."""
    if facts.fps is None or not facts.usable:
        return
    for camera in facts.root.cameras:
        windows, needed = facts.windows(camera), facts.needed(camera)
        if windows is None:
            continue
        tolerance = THRESHOLDS["window_tolerance_frames"] / facts.fps
        first, last = windows
        frames = facts.numbers["dataset_to_index"] - facts.numbers["dataset_from_index"]
        wanted = frames / facts.fps
        wrong = np.flatnonzero(~(np.abs(last - first - wanted) <= tolerance))
        if len(wrong):
            at = int(wrong[0])
            message = f"{camera}: {first[at]:.4f} to {last[at]:.4f} s is {last[at] - first[at]:.4f} s;"
            message += (
                f" {wanted[at]:.4f} s are its {frames[at]} frames ({len(wrong)} of {facts.count} episodes)"
            )
            yield found("LER060", EPISODES, message, place=f"{facts.episode(at)}, {camera}")
        for item in needed or ():
            yield from _check_tiling(facts, item, first, last, set(wrong.tolist()))


def _check_tiling(
    facts: Facts, item: Needed, first: NDArray[np.float64], last: NDArray[np.float64], wrong: set[int]
) -> Iterator[Finding]:
    assert facts.fps is not None
    tolerance = THRESHOLDS["window_tolerance_frames"] / facts.fps
    # In the order of time: episodes of one file may stand in any order in the table.
    order = item.episodes[np.argsort(first[item.episodes], kind="stable")]
    begin = first[order]
    before = np.concatenate([[0.0], last[order][:-1]])
    gaps = np.flatnonzero(~(np.abs(begin - before) <= tolerance))
    # A window of the wrong length is told by LER060; the gap behind it is the same fault.
    gaps = gaps[[int(order[at]) not in wrong and (not at or int(order[at - 1]) not in wrong) for at in gaps]]
    if len(gaps):
        at = int(gaps[0])
        frames = (begin[at] - before[at]) * facts.fps
        what = f"a gap of {frames:.1f} frames" if frames > 0 else f"an overlap of {-frames:.1f} frames"
        behind = "the window before ends" if at else "the file begins"
        message = f"{facts.episode(int(order[at]))} begins at {begin[at]:.4f} s, {behind} at"
        message += f" {before[at]:.4f} s: {what} ({len(gaps)} of {len(order)} windows in the file)"
        yield found("LER059", item.path, message, place=facts.episode(int(order[at])))


# --- tasks -------------------------------------------------------------------------------


def blank_parts(text: str) -> tuple[int, int]:
    """Of the instructions that a task joins by " | ", how many are blank, and how many there are."""
    parts = text.split(" | ")
    return sum(not part.strip() for part in parts), len(parts)


def check_task_texts(facts: Facts) -> Iterator[Finding]:
    """LER033, LER035, LER036 and LER037: what a reader gets as instruction."""
    tasks = facts.tasks
    if tasks is None:
        return
    if not tasks.is_index and facts.reader == "lerobot":
        seen = f"0 in place of {tasks.texts[0]!r}" if tasks.texts else "a number"
        message = f"the column {tasks.column!r} is no pandas index: lerobot reads {seen} as the text of row 0"
        yield found("LER033", TASKS, message, place=tasks.column)
    for row, text in enumerate(tasks.texts):
        if not isinstance(text, str):
            yield found("LER035", TASKS, f"row {row} of {len(tasks.texts)} holds no text", place=f"row {row}")
            continue
        blank, parts = blank_parts(text)
        if blank:
            message = f"{blank} of {parts} instructions in {text!r} are blank"
            yield found("LER036", TASKS, message, place=f"row {row}")
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(tasks.texts):
        if text is not None:
            rows.setdefault(text, []).append(row)
    for text, places in rows.items():
        if len(places) > 1:
            yield found("LER037", TASKS, f"{len(places)} rows hold {text!r}", place=f"row {places[0]}")


def check_task_numbers(facts: Facts) -> Iterator[Finding]:
    """LER034: lerobot goes by the row's position, upstream's own reader by the number."""
    tasks = facts.tasks
    if tasks is None:
        return
    numbers = list(tasks.numbers)
    if len(numbers) != len(tasks.texts):
        yield found("LER034", TASKS, "there is no column task_index", place="task_index")
        return
    wrong = [row for row, number in enumerate(numbers) if number != row]
    if wrong:
        distinct = len(set(numbers)) == len(numbers) and None not in numbers
        more = f" ({len(wrong)} of {len(numbers)} rows)" if len(wrong) > 1 else ""
        message = (
            f"row {wrong[0]} has the task_index {numbers[wrong[0]]}; lerobot takes the text by position{more}"
        )
        severity = facts.strict() if distinct else "error"
        yield found("LER034", TASKS, message, place=f"row {wrong[0]}", severity=severity)


def check_named_tasks(facts: Facts) -> Iterator[Finding]:
    """LER038: each text that an episode names stands in the task table."""
    if facts.tasks is None or facts.task_lists is None:
        return
    import pyarrow.compute as pc

    known = set(facts.tasks.texts)
    named = facts.task_lists.flatten()
    if not known.issuperset(pc.unique(named).to_pylist()):
        parents = pc.list_parent_indices(facts.task_lists).to_pylist()
        first: dict[str | None, int] = {}
        for text, at in zip(named.to_pylist(), parents, strict=True):
            if text not in known:
                first.setdefault(text, at)
        for text, at in first.items():
            message = (
                f"{facts.episode(at)} names the task {text!r}; {TASKS} has {len(known)} texts without it"
            )
            yield found("LER038", EPISODES, message, place=facts.episode(at))
    counts = facts.task_lists.value_lengths().to_pylist()
    without = [at for at, count in enumerate(counts) if not count]
    if without:
        message = f"{facts.episode(without[0])} names no task ({len(without)} of {facts.count} episodes)"
        yield found("LER038", EPISODES, message, place=facts.episode(without[0]))


Rule = Callable[[Facts], Iterator[Finding]]
EPISODE_RULES: Final[Sequence[Rule]] = (
    check_columns,
    check_routing,
    check_numbers,
    check_lengths,
    check_rows_abut,
    check_ids,
    check_own_place,
    check_windows,
)
TASK_RULES: Final[Sequence[Rule]] = (check_task_texts, check_task_numbers, check_named_tasks)
