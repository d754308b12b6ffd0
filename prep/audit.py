"""`prep audit-loader`: what the loader would deliver of a prepared dataset, proved without decoding anything.

The dataset gives its length and, for robot data, its spans. Numbers stand in for its samples and go
through the loader's own planner, cursor, engine and progress, for every rank and worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from prep.audit_checks import (
    EpochCover,
    Findings,
    Problem,
    capture,
    cover_epoch,
    drawn_points,
    reshard,
    resume,
)
from prep.audit_streams import LONG, Expected, Layout, Loading, Remembered
from prep.dataflow.base import LoaderError
from prep.dataflow.combined import refuse_undealt
from prep.dataflow.cursors import Cursor, MapCursor
from prep.dataflow.distributors import MapDistributor, SpanDistributor
from prep.dataflow.plans import OnUneven, Place, Planner, SpanPlanner
from prep.errors import UsageError
from prep.readers import Reader
from prep.readers import open as open_reader

__all__ = ["Audit", "audit", "audit_planner"]

_WALKED = 200_000  # samples of all ranks and epochs up to which a whole run is walked
_EVERY = 200  # batches of a rank up to which each is a point of resume
_EVERY_RESHARD = 24  # and of a reshard
_DRAWN = 20
_FOLLOWED = 200_000  # samples that are read after the points of resume, in all; of a long run fewer
_FOLLOWED_LONG = 40_000
_DEALT = 1_000_000  # positions that are planned after the points of reshard, in all


@dataclass
class Audit:
    """What was proved of one dataset under one layout, and what does not hold."""

    subject: str
    samples: int
    spans: int | None
    layout: Layout
    seed: int
    epochs: int
    batch_size: int
    on_uneven: OnUneven
    covers: list[EpochCover] = field(default_factory=list)
    batches: int | None = None
    """Of each rank, all epochs together."""
    resumed: int = 0
    followed: int = 0
    """Batches that were compared after each resume."""
    whole: bool = True
    """Whether every batch went through the engine, from the first to the last."""
    resharded: int = 0
    targets: list[Layout] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    not_checked: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def problems(self) -> list[Problem]:
        """What does not hold, the first of each kind with its counter-example."""
        return self.findings.problems

    @property
    def exit_status(self) -> int:
        """0 if all was proved, 1 if something does not hold."""
        return 1 if self.findings.count else 0

    @property
    def counted_up(self) -> bool:
        """Whether of each span the first, middle and last window were asked for, and the rest counted up."""
        return self.spans is not None and self.samples > LONG * self.layout.streams

    @property
    def covered_once(self) -> bool:
        """Whether each epoch gives every sample once."""
        return not self.findings.of("coverage") and bool(self.covers)

    @property
    def end_together(self) -> bool:
        """Whether no rank ends before another."""
        return not self.findings.of("ends", "walk") and bool(self.covers)

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        first = next(iter(self.findings.of("coverage")), None)
        return {
            "subject": self.subject,
            "samples": self.samples,
            "spans": self.spans,
            "ranks": self.layout.ranks,
            "workers": self.layout.workers,
            "streams": self.layout.streams,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "on_uneven": self.on_uneven,
            "epochs": [_epoch(cover) for cover in self.covers],
            "covered_once": self.covered_once,
            "counter_example": asdict(first) if first else None,
            "ranks_end_together": self.end_together,
            "batches_a_rank": self.batches,
            "resume": {"points": self.resumed, "batches_compared_after_each": self.followed},
            "reshard": {"points": self.resharded, "to": [str(each) for each in self.targets]},
            "refused": self.findings.refused,
            "walked": {
                "samples": self.findings.samples,
                "positions": self.findings.positions,
                "whole_run": self.whole,
                "counted_up_inside_spans": self.counted_up,
            },
            "not_checked": self.not_checked,
            "problems": [asdict(problem) for problem in self.problems],
            "problem_count": self.findings.count,
            "seconds": round(self.seconds, 2),
        }


def _epoch(cover: EpochCover) -> dict[str, Any]:
    return {
        "epoch": cover.epoch,
        "least_of_a_rank": min(cover.own),
        "most_of_a_rank": max(cover.own),
        "with_padding": [min(cover.with_padding), max(cover.with_padding)],
        "padding": cover.padding,
        "dropped": cover.dropped,
        "covered_once": cover.problem is None,
        "end_together": cover.uneven is None,
    }


def audit(
    directory: str | Path,
    *,
    ranks: int = 1,
    workers: int = 0,
    seed: int = 0,
    epochs: int = 2,
    batch_size: int = 1,
    spans: bool = True,
    on_uneven: OnUneven = "pad",
    resume_points: int | None = None,
    reshard_to: Sequence[Layout] = (),
    index: str | None = None,
) -> Audit:
    """Audit the loader over the prepared dataset at `directory`.

    `workers` 0 is one stream a rank, as with 1. `spans`: whole spans of robot data are dealt out (other
    data has none). `resume_points`: so many drawn points beside the borders; None: all, where they are few.
    `reshard_to`: the layouts tried after each; by default one more worker, twice the ranks, one rank.
    `index` names the window index of robot data. Raises UsageError if there is no finished dataset, or
    too little of it for so many streams.
    """
    began = time.perf_counter()
    reader = open_reader(directory, **({"index": index} if index else {}))
    layout = Layout(ranks, max(workers, 1))
    distributor = _distributor(reader, seed, spans=spans)
    refuse_undealt(distributor, Place(0, layout.ranks, 0, layout.workers, epochs, on_uneven))
    planner = distributor.planner
    in_spans = planner.spans if isinstance(planner, SpanPlanner) else None
    dealt = len(reader) if in_spans is None else in_spans
    targets, left_out = _targets(layout, reshard_to, dealt)
    found = audit_planner(
        planner,
        len(reader),
        layout,
        seed=seed,
        epochs=epochs,
        batch_size=batch_size,
        on_uneven=on_uneven,
        resume_points=resume_points,
        targets=targets,
    )
    found.subject, found.spans = str(directory), in_spans
    found.not_checked += left_out
    found.seconds = time.perf_counter() - began
    return found


class _Length:
    """The stand-in for the dataset where only its length is asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


def _distributor(reader: Reader, seed: int, *, spans: bool) -> MapDistributor | SpanDistributor:
    blocks = getattr(reader, "blocks", None)
    data = _Length(len(reader))
    if spans and blocks is not None:
        return SpanDistributor(data, list(blocks()), seed=seed)
    return MapDistributor(data, seed=seed)


def _targets(layout: Layout, asked: Sequence[Layout], dealt: int) -> tuple[list[Layout], list[str]]:
    """The layouts to reshard to, and which of the usual ones there is too little data for.

    Raises UsageError for one that was asked for and cannot be.
    """
    ranks, workers = layout
    usual = (Layout(ranks, workers + 1), Layout(ranks * 2, workers), Layout(1, workers))
    chosen, left_out = [], []
    for target in dict.fromkeys(asked or usual):
        if target.streams <= dealt:
            chosen.append(target)
        elif asked:
            raise UsageError(
                f"--reshard-to {target}: {dealt} cannot be dealt to {target.streams} streams.",
                remedy="Give fewer ranks or workers.",
            )
        else:
            left_out.append(f"a reshard to {target}: {target.streams} streams, {dealt} to deal out")
    return [target for target in chosen if target != layout or asked], left_out


def audit_planner(
    planner: Planner,
    samples: int,
    layout: Layout,
    *,
    seed: int = 0,
    epochs: int = 2,
    batch_size: int = 1,
    on_uneven: OnUneven = "pad",
    resume_points: int | None = None,
    targets: Sequence[Layout] = (),
    cursor: Callable[[Any, Planner, Place], Cursor] = MapCursor,
    walked: int = _WALKED,
) -> Audit:
    """Audit a planner over items 0 to `samples` - 1, and a cursor; see `audit`.

    Up to `walked` samples (all ranks, all epochs) a whole run goes through the engine.
    """
    loading = Loading(Remembered(planner), layout, epochs, on_uneven, batch_size, cursor=cursor)
    found = Audit("", samples, None, layout, seed, epochs, batch_size, on_uneven)
    _cover(loading, found)
    if any(cover.problem or cover.uneven for cover in found.covers) or len(found.covers) < epochs:
        found.not_checked.append("resume and reshard, since the epochs' plans are wrong already")
        return found
    total = sum(sum(cover.with_padding) for cover in found.covers)
    found.whole = total <= walked
    _prove(Expected(loading), found, resume_points, targets)
    return found


def _prove(expected: Expected, found: Audit, asked: int | None, targets: Sequence[Layout]) -> None:
    """Walk all ranks, resume them, and deal their rest anew."""
    layout, findings = expected.loading.layout, found.findings
    found.batches, found.targets = expected.steps, list(targets)
    points = _points(expected, asked, found.seed, every=_EVERY if found.whole else 0)
    lead = None if found.whole else 2 * layout.workers + 1
    states = capture(expected, sorted({*points, expected.steps}), findings, lead=lead)
    found.resumed = len(points)
    found.followed = _follow(expected, len(points), _FOLLOWED if found.whole else _FOLLOWED_LONG)
    for point in points:
        resume(expected, point, states[point], found.followed, findings)
    dealt = _reshard_points(points, found, asked) if targets else []
    found.resharded = len(dealt)
    # Each is followed in as many ranks as there are, resumed twice, and dealt back.
    follow = _follow(expected, len(dealt) * sum(target.ranks for target in targets), _FOLLOWED_LONG)
    for point in dealt:
        reshard(expected, point, states[point], targets, found.samples, follow, findings)


def _cover(loading: Loading, found: Audit) -> None:
    for epoch in range(loading.epochs):
        try:
            cover = cover_epoch(loading, epoch, found.samples, found.findings)
        except LoaderError as error:
            # The loader looks at the first epoch when it is made; this one ends a training that has begun.
            found.findings.add(Problem("ends", f"epoch {epoch} cannot be dealt: {error.message}", epoch))
            return
        found.covers.append(cover)


def _points(expected: Expected, asked: int | None, seed: int, *, every: int) -> list[int]:
    """The points of resume, in batches of a rank: all, or drawn ones and those around the borders."""
    if asked is None and expected.steps <= every:
        return list(range(expected.steps + 1))
    borders = [expected.loading.layout.workers, *expected.epoch_ends()]
    return list(drawn_points(expected.steps, borders, _DRAWN if asked is None else asked, seed))


def _follow(expected: Expected, points: int, samples: int) -> int:
    """How many batches to compare after each resume: all, if those are not more than `samples` in all."""
    loading = expected.loading
    least = 2 * loading.layout.workers + 2
    return min(
        expected.steps, max(least, samples // max(1, points * loading.layout.ranks * loading.batch_size))
    )


def _reshard_points(points: Sequence[int], found: Audit, asked: int | None) -> list[int]:
    """Those of the points of resume from which the rest is dealt anew, which costs more."""
    room = max(1, _DEALT // (found.samples * max(1, len(found.targets)) * 2))
    few = len(points) if asked is not None and found.samples <= LONG else _EVERY_RESHARD
    few = min(len(points), few, room)
    # Evenly over the run.
    inside = [point for point in points if point] or list(points)
    step = len(inside) / few
    return sorted({inside[int((at + 0.5) * step)] for at in range(few)})
