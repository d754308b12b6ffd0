"""The checks of `prep audit-loader`: epochs are covered once, ranks end together, resumes are exact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.audit_streams import LONG, Expected, Given, Layout, Loading, Run, items_at
from prep.dataflow.base import LoaderError
from prep.dataflow.plans import EpochPlan, Place
from prep.dataflow.resharding import delivered_masks
from prep.progress import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    State = dict[str, Any]

__all__ = ["EpochCover", "Findings", "Problem", "capture", "cover_epoch", "drawn_points", "reshard", "resume"]

_STRETCH = 4096  # batches that are held at a time
_MOST = 20  # problems that are told; the rest is counted


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that does not hold, with the first counter-example.

    `check` is coverage, ends, walk, resume or reshard.
    """

    check: str
    message: str
    epoch: int | None = None
    item: int | None = None
    rank: int | None = None
    worker: int | None = None
    position: int | None = None


@dataclass
class Findings:
    """What was found, and how much was looked at."""

    problems: list[Problem] = field(default_factory=list)
    count: int = 0
    positions: int = 0
    """Positions of the plans whose item was looked at or counted up."""
    samples: int = 0
    """Samples that went through the engine."""
    refused: dict[str, str] = field(default_factory=dict)
    """For each reshard that the loader refuses, why."""

    def add(self, problem: Problem) -> None:
        """Take in one."""
        self.count += 1
        if len(self.problems) < _MOST:
            self.problems.append(problem)

    def of(self, *checks: str) -> list[Problem]:
        """Those of some checks."""
        return [problem for problem in self.problems if problem.check in checks]


@dataclass(frozen=True, slots=True)
class EpochCover:
    """One epoch of one layout: samples of each rank with and without padding, and what does not hold."""

    epoch: int
    own: list[int]
    with_padding: list[int]
    dropped: int
    problem: Problem | None
    uneven: Problem | None

    @property
    def padding(self) -> int:
        """Samples that only fill up a stream, over all ranks."""
        return sum(self.with_padding) - sum(self.own)


def cover_epoch(
    loading: Loading,
    epoch: int,
    samples: int,
    findings: Findings,
    *,
    seen: Mask | None = None,
    when: str = "",
) -> EpochCover:
    """Whether the streams' own parts of an epoch give each of 0 to `samples` - 1 once, and are of one length.

    `seen` says what was given before and counts. Raises LoaderError where the epoch cannot be dealt.
    """
    check = "reshard" if when else "coverage"
    plans = [(place, loading.planner.plan(epoch, place)) for place in loading.places()]
    mask = np.zeros(samples, bool)
    if seen is not None:
        mask[: len(seen)] = seen
    problem = None
    own, padded = [0] * loading.layout.ranks, [0] * loading.layout.ranks
    for place, plan in plans:
        given = min(plan.own, plan.length)
        own[place.rank] += given
        padded[place.rank] += plan.length
        items = items_at(plan, 0, given, loading.planner)
        findings.positions += given
        problem = _taken(items, mask, place, epoch, check, when) or _padding(plan, samples, place, epoch)
        if problem is not None:
            break
    dropped = sum(max(plan.own - plan.length, 0) for _, plan in plans)
    problem = problem or _lost(mask, dropped, epoch, check, when)
    uneven = _uneven(plans, epoch, when)
    for each in (problem, uneven):
        if each is not None:
            findings.add(each)
    return EpochCover(epoch, own, padded, dropped, problem, uneven)


def _taken(items: Numbers, seen: Mask, place: Place, epoch: int, check: str, when: str) -> Problem | None:
    """Mark items as given; the first that is outside or was given before."""
    outside = (items < 0) | (items >= len(seen))
    wrong, what = outside, f"is outside 0 to {len(seen) - 1}"
    if not outside.any():
        before = int(np.count_nonzero(seen))
        wrong, what = seen[items], "is given a second time"
        seen[items] = True
        if int(np.count_nonzero(seen)) == before + len(items):
            return None
        if not wrong.any():
            wrong = np.ones(len(items), bool)
            wrong[np.unique(items, return_index=True)[1]] = False
    position = int(np.flatnonzero(wrong)[0])
    item = int(items[position])
    return Problem(
        check,
        f"{when}epoch {epoch}: item {item} {what}, at {_at(place)}, position {position}.",
        *(epoch, item, place.rank, place.worker, position),
    )


def _padding(plan: EpochPlan, samples: int, place: Place, epoch: int) -> Problem | None:
    """The first repeat that is no item of the dataset; of many the first and last are asked for."""
    many = range(plan.own, plan.length)
    for position in many if len(many) <= 2000 else (*many[:1000], *many[-1000:]):
        item = int(plan.at(position))
        if not 0 <= item < samples:
            text = f"epoch {epoch}: the padding at {_at(place)}, position {position}, is {item}, outside."
            return Problem("coverage", text, epoch, item, place.rank, place.worker, position)
    return None


def _lost(seen: Mask, dropped: int, epoch: int, check: str, when: str) -> Problem | None:
    missing = len(seen) - int(np.count_nonzero(seen))
    if missing == dropped:
        return None
    item = int(np.argmin(seen)) if missing else None
    text = f"{when}epoch {epoch}: {counted(missing, 'item')} given to no stream, {dropped} said to be dropped"
    return Problem(check, f"{text}; the first is {item}." if missing else f"{text}.", epoch, item)


def _uneven(plans: Sequence[tuple[Place, EpochPlan]], epoch: int, when: str) -> Problem | None:
    """Two streams that do not end together."""
    least = min(plans, key=lambda pair: pair[1].length)
    most = max(plans, key=lambda pair: pair[1].length)
    if least[1].length == most[1].length:
        return None
    text = (
        f"{when}epoch {epoch}: {_at(least[0])} ends after {counted(least[1].length, 'sample')}, "
        f"{_at(most[0])} after {most[1].length}."
    )
    return Problem("ends", text, epoch, None, least[0].rank, least[0].worker, least[1].length)


def _at(place: Place) -> str:
    return f"rank {place.rank}, worker {place.worker}"


def capture(
    expected: Expected, points: Sequence[int], findings: Findings, *, lead: int | None = None
) -> Mapping[int, list[State]]:
    """Every rank walked to each point (batches of a rank): the states there, by point, in order of ranks.

    Batches and positions are compared with those expected. `lead` None walks all batches; else a walk
    begins that many before a point, at a position that was computed.
    """
    states: dict[int, list[State]] = {point: [] for point in points}
    for rank in range(expected.loading.layout.ranks):
        at, run = 0, Run(expected.loading, rank)
        for point in sorted(points):
            if lead is not None and point - at > lead:
                at = point - lead
                run = Run(expected.loading, rank, expected.progress(at))
            _follow(run, expected, at, point - at, findings, "walk", "")
            at = point
            state = run.state()
            _positions(state, expected, point, findings)
            states[point].append(state)
    return states


def _follow(
    run: Run, expected: Expected, first: int, count: int, findings: Findings, check: str, when: str
) -> bool:
    """Whether a run's next `count` batches are those expected from `first` on, its end included."""
    for start in range(first, first + count, _STRETCH):
        wanted = expected.batches(run.rank, start, min(_STRETCH, first + count - start))
        found = list(islice(run, len(wanted)))
        findings.samples += sum(map(len, found))
        if found != wanted:
            findings.add(_differing(run.rank, start, found, wanted, check, when))
            return False
    if first + count >= expected.steps:
        more = next(run, None)
        if more is not None:
            text = f"{when}rank {run.rank} goes on after its {expected.steps} batches with {_words(more)}."
            findings.add(Problem(check, text, rank=run.rank))
            return False
    return True


def _differing(
    rank: int, start: int, found: Sequence[list[Given]], wanted: Sequence[list[Given]], check: str, when: str
) -> Problem:
    place = next(
        (at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), None
    )
    if place is None:
        return Problem(check, f"{when}rank {rank} ends after {start + len(found)} batches.", rank=rank)
    one, other = found[place], wanted[place]
    first = next((each for each, right in zip(one, other, strict=False) if each != right), (one or other)[-1])
    text = f"{when}batch {start + place} of rank {rank} is {_words(one)}, expected {_words(other)}."
    return Problem(check, text, first.epoch, first.item, rank, None, first.position)


def _words(batch: Sequence[Given]) -> str:
    items = ", ".join(f"{each.item} (epoch {each.epoch}, position {each.position})" for each in batch[:3])
    return f"[{items}{', …' if len(batch) > 3 else ''}]"


def _positions(state: State, expected: Expected, point: int, findings: Findings) -> None:
    for worker, stream in state["streams"].items():
        wanted = expected.samples(point, int(worker))
        found = expected.samples_before(stream["epoch"], stream["position"]) if stream else 0
        if found != wanted or (stream and stream["pending"]):
            text = (
                f"after {point} batches the state of rank {state['dp_rank']}, worker {worker}, tells of "
                f"{counted(found, 'sample')}, given were {wanted}."
            )
            findings.add(Problem("walk", text, rank=state["dp_rank"], worker=int(worker)))


def resume(
    expected: Expected, point: int, states: Sequence[State], follow: int, findings: Findings, when: str = ""
) -> None:
    """Resume every rank from its state after `point` batches, and once more after the next `follow`."""
    check = "reshard" if when else "resume"
    for state in states:
        at = point
        for again in ("", "second "):
            run = Run.resumed(expected.loading, state)
            text = f"{when}{again}resume after {at} batches: "
            count = min(follow, expected.steps - at)
            if not _follow(run, expected, at, count, findings, check, text):
                break
            state, at = run.state(), at + count


def reshard(
    expected: Expected,
    point: int,
    states: Sequence[State],
    targets: Sequence[Layout],
    samples: int,
    follow: int,
    findings: Findings,
) -> None:
    """Deal the rest after `point` batches to each target, and from there back again; see `_dealt`."""
    when = f"{expected.loading.layout} after {point} batches"
    here = _masks(expected, point, states, findings, when)
    if here is None:
        return
    for number, target in enumerate(targets):
        dealt = f"{when}, dealt to {target}"
        try:
            new = _dealt(expected.loading.dealt_anew(target, *here), samples, follow, findings, dealt)
            if new is None:
                continue
            step = min(follow, new.steps) // 2 + target.workers // 2
            step = min(step, new.steps)
            later = capture(new, [step], findings, lead=None)[step]
            resume(new, step, later, follow, findings, f"{dealt}: ")
            if number and samples > LONG:
                continue  # of many samples only the first is dealt back
            dealt = f"{dealt}, {step} batches later dealt to {expected.loading.layout}"
            back = _masks(new, step, later, findings, dealt)
            if back is not None:
                _dealt(
                    new.loading.dealt_anew(expected.loading.layout, *back), samples, follow, findings, dealt
                )
        except LoaderError as error:
            findings.refused.setdefault(str(target), f"{dealt}: {error.message}")


def _masks(
    expected: Expected, point: int, states: Sequence[State], findings: Findings, when: str
) -> tuple[int, dict[int, Mask]] | None:
    """What the loader takes for delivered, if that is just what was."""
    first, masks = delivered_masks(states, expected.loading.planner)
    for epoch, (wanted, over) in expected.given(point).items():
        if epoch < first:
            if not over:
                text = f"{when}: epoch {epoch} counts as over and is not."
                findings.add(Problem("reshard", text, epoch))
                return None
            continue
        found = masks.get(epoch, np.zeros(0, bool))
        wrong = np.flatnonzero(found != wanted) if len(found) == len(wanted) else np.arange(1)
        if len(wrong):
            item = int(wrong[0])
            text = (
                "was delivered and is to be given again" if wanted[item] else "counts as delivered, wrongly"
            )
            text = f"{when}: item {item} of epoch {epoch} {text}."
            findings.add(Problem("reshard", text, epoch, item))
            return None
    return first, masks


def _dealt(loading: Loading, samples: int, follow: int, findings: Findings, when: str) -> Expected | None:
    """Check what a loading deals anew: the begun epochs are completed, and ranks give what is planned.

    None where the plans are wrong already. Raises LoaderError where the loader refuses the reshard.
    """
    for epoch, seen in sorted(loading.delivered.items()):
        if epoch >= loading.epochs:
            continue
        cover = cover_epoch(loading, epoch, samples, findings, seen=seen, when=f"{when}: ")
        if cover.problem or cover.uneven:
            return None
    expected = Expected(loading)
    for rank in range(loading.layout.ranks):
        run = Run(loading, rank)
        _follow(run, expected, 0, min(follow, expected.steps), findings, "reshard", f"{when}: ")
    return expected


def drawn_points(steps: int, borders: Sequence[int], count: int, seed: int) -> Iterator[int]:
    """`count` of the points 0 to `steps`, drawn, and those around the borders; in order, each once."""
    near = {border + step for border in (0, *borders, steps) for step in (-1, 0, 1)}
    random = np.random.RandomState(seed & 0xFFFFFFFF)
    near |= set(random.randint(0, steps + 1, size=count).tolist())
    yield from sorted(point for point in near if 0 <= point <= steps)
