"""Checks of the values in frame tables: empty cells, NaN, absurd values, constants, what stands still.

Values are looked at in as few passes as can be: the least and the greatest tell NaN, infinity, constants
and absurd values at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.findings import Finding, found
from prep.layouts.lerobot_columns import Series
from prep.layouts.lerobot_facts import THRESHOLDS, Facts, Needed, positive
from prep.layouts.lerobot_structure import STATS, statistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

__all__ = ["Extremes", "Spans", "check_cells", "check_extremes", "check_values", "place_of"]


@dataclass(slots=True)
class Extremes:
    """The least and the greatest value of each feature over all files, each [dimensions]."""

    least: dict[str, NDArray[Any]] = field(default_factory=dict)
    greatest: dict[str, NDArray[Any]] = field(default_factory=dict)
    rows: int = 0

    def add(self, name: str, least: NDArray[Any], greatest: NDArray[Any]) -> None:
        """Take one file's."""
        before = self.least.get(name)
        if before is not None and before.shape == least.shape:
            least, greatest = np.minimum(before, least), np.maximum(self.greatest[name], greatest)
        self.least[name], self.greatest[name] = least, greatest


@dataclass(frozen=True, slots=True)
class Spans:
    """The episodes of one file: positions in the table, first rows in the file, lengths, each [episodes]."""

    positions: Numbers
    starts: Numbers
    lengths: Numbers

    @property
    def frame(self) -> Numbers:
        """The frame number that each row should have."""
        return np.arange(int(self.lengths.sum())) - np.repeat(self.starts, self.lengths)

    def at(self, row: int) -> int:
        """Which span a row is in."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1


def place_of(facts: Facts, spans: Spans, row: int) -> str:
    """How findings name a row, with its episode."""
    if not len(spans.starts):
        return f"row {row}"
    span = spans.at(row)
    return f"row {row}, {facts.episode(int(spans.positions[span]))}"


def check_cells(
    path: str, name: str, column: Series, feature: Mapping[str, Any] | None = None
) -> Iterator[Finding]:
    """LER051 and LER052: empty cells, and vectors of several lengths."""
    if column.empty:
        message = f"{name}: {column.empty} cells are empty, the first in row {column.first_empty}"
        yield found("LER051", path, message, place=f"row {column.first_empty}, {name}")
    if column.uneven is not None:
        row, length, usual = column.uneven
        declared = f"; the shape is {feature['shape']}" if feature and "shape" in feature else ""
        message = f"{name}: row {row} has {length} values, others have {usual}{declared}"
        yield found("LER052", path, message, place=f"row {row}, {name}")
    shape = feature.get("shape") if feature else None
    if positive(shape) and column.values.ndim == 2 and len(column.values):
        width = column.values.shape[1]
        if width != math.prod(shape):
            message = f"{name}: every row has {width} values; the declared shape is {shape}"
            yield found("LER052", path, message, place=name)


def check_values(
    facts: Facts, item: Needed, name: str, column: Series, spans: Spans | None, extremes: Extremes
) -> Iterator[Finding]:
    """LER050, LER054 and LER055: NaN and infinity, values that stand still, absurd values."""
    values = column.values
    if not column.whole or not len(values):
        return
    least, greatest = column.extremes()
    if not (np.isfinite(least).all() and np.isfinite(greatest).all()):
        wrong = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        message = (
            f"{name}: NaN or infinity in {len(wrong)} of {len(values)} rows, the first is row {wrong[0]}"
        )
        yield found("LER050", item.path, message, place=f"row {wrong[0]}, {name}")
        return
    limit = THRESHOLDS["absurd_value"]
    if values.dtype.kind == "f" and (least.min() < -limit or greatest.max() > limit):
        extreme = greatest.max() if greatest.max() > limit else least.min()
        row = int(np.argmax((values == extreme).reshape(len(values), -1).any(axis=1)))
        message = f"{name}: row {row} holds {extreme:g}; beyond {limit:g} it is no measurement"
        yield found("LER055", item.path, message, place=f"row {row}, {name}")
        return
    extremes.add(name, least, greatest)
    if bool((least == greatest).all()):
        return  # LER053, if it is so in every file
    if spans is not None and facts.fps is not None and values.ndim == 2 and values.shape[1] > 1:
        yield from _check_frozen(facts, item, name, column, spans)


def _check_frozen(facts: Facts, item: Needed, name: str, column: Series, spans: Spans) -> Iterator[Finding]:
    """LER054: a vector that stays bit by bit the same for a large part of an episode."""
    assert facts.fps is not None
    still = column.repeated()
    if not len(still):
        return
    least = max(THRESHOLDS["frozen_seconds"] * facts.fps, 1)
    first = np.concatenate([[0], np.flatnonzero(np.diff(still) != 1) + 1])
    rows, frames = still[first], np.diff(np.concatenate([first, [len(still)]])) + 1
    long = frames >= least
    runs = zip(rows[long].tolist(), frames[long].tolist(), strict=True)
    hits = []
    for row, length in runs:
        # A run may go over a border; each episode has its own part of it.
        for span in range(spans.at(row), spans.at(row + length - 1) + 1):
            start, size = int(spans.starts[span]), int(spans.lengths[span])
            part = min(row + length, start + size) - max(row, start)
            if part >= least and part >= THRESHOLDS["frozen_share"] * size:
                hits.append((max(row, start), part, span))
    if hits:
        row, part, span = hits[0]
        message = (
            f"{name}: the same values for {part} of {int(spans.lengths[span])} frames ({len(hits)} episodes)"
        )
        yield found("LER054", item.path, message, place=place_of(facts, spans, row))


def check_extremes(facts: Facts, extremes: Extremes) -> Iterator[Finding]:
    """LER053 and LER018: features that never change, and values that the statistics do not know."""
    known = statistics(facts)
    for name, least in extremes.least.items():
        greatest = extremes.greatest[name]
        if extremes.rows > 1 and bool((least == greatest).all()):
            message = f"{name} is {_few(least)} in all {extremes.rows} rows"
            yield found("LER053", "data", message, place=name)
        yield from _check_covered(name, least, greatest, known.get(name, {}))


def _check_covered(
    name: str, least: NDArray[Any], greatest: NDArray[Any], measures: Mapping[str, Any]
) -> Iterator[Finding]:
    try:
        low, high = (np.asarray(measures[key], np.float64).ravel() for key in ("min", "max"))
    except (KeyError, TypeError, ValueError):
        return  # LER015 to LER017 say what is wrong with them
    if not low.shape == high.shape == least.ravel().shape or not (
        np.isfinite(low).all() and np.isfinite(high).all()
    ):
        return
    slack = (
        THRESHOLDS["statistics_tolerance_share"] * (high - low)
        + 1e-6 * np.maximum(np.abs(high), np.abs(low))
        + 1e-9
    )
    beyond = np.flatnonzero((least.ravel() < low - slack) | (greatest.ravel() > high + slack))
    if len(beyond):
        at = int(beyond[0])
        message = f"{name}[{at}] runs from {least.ravel()[at]:g} to {greatest.ravel()[at]:g}; {STATS} says"
        message += f" {low[at]:g} to {high[at]:g} ({len(beyond)} of {len(low)} values)"
        yield found("LER018", STATS, message, place=f"/{name}")


def _few(values: NDArray[Any]) -> str:
    shown = ", ".join(f"{value:g}" for value in values.ravel()[:3].tolist())
    return f"[{shown}, ...]" if values.size > 3 else shown
