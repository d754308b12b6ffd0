"""The loader's ranks without its processes: the same planner, cursor, engine and progress, over numbers.

`Run` is one rank: its streams' batches in the order in which a DataLoader hands them out, and the state
after them. `Expected` is the same rank by arithmetic on the plans alone, so that each tells on the other.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prep.dataflow.base import BatchCollator
from prep.dataflow.batchers import SimpleBatcher
from prep.dataflow.cursors import Cursor, MapCursor
from prep.dataflow.engine import Engine, Mark, Roles
from prep.dataflow.plans import EpochPlan, OnUneven, Place, Planner
from prep.dataflow.processors import IdentityProcessor
from prep.dataflow.state import VERSION, Progress, dealt_anew, decode_masks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    State = dict[str, Any]

__all__ = ["LONG", "Expected", "Given", "Layout", "Loading", "Remembered", "Run", "items_at"]

_KEPT = 24_000_000  # positions of all plans that are remembered at a time; eight bytes each at most


class Layout(NamedTuple):
    """Ranks, and workers of each; at least 1 of both."""

    ranks: int
    workers: int

    def __str__(self) -> str:
        return f"{self.ranks}x{self.workers}"

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return self.ranks * self.workers


class Given(NamedTuple):
    """One sample of a batch: the dataset's index, and its place in the stream's part of an epoch."""

    item: int
    epoch: int
    position: int
    is_padding: bool


class _Label(int):
    """An index that knows for which place it was asked, whichever way it goes through the loader."""

    epoch: int
    position: int


class _Labels:
    """A planner whose plans give labels."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.count, self.extent = planner.count, planner.extent

    def plan(self, epoch: int, place: Place) -> EpochPlan:
        """The planner's own plan."""
        plan = self._planner.plan(epoch, place)

        def at(position: int) -> int:
            label = _Label(plan.at(position))
            label.epoch, label.position = epoch, position
            return label

        return plan._replace(at=at)


class _Indices:
    """The stand-in dataset: item i is the number i, as it was asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return index


class _AsItIs(BatchCollator):
    def collate(self, samples: list[Any]) -> Any:
        return list(samples)


class Remembered:
    """A planner whose latest plans are kept: they are asked for at each point of resume."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.count, self.extent = planner.count, planner.extent
        self._kept: OrderedDict[Any, tuple[EpochPlan, Any]] = OrderedDict()
        self._positions = 0

    def plan(self, epoch: int, place: Place) -> EpochPlan:
        """This stream's part of `epoch`, as the planner gives it; raises what it raises."""
        given = place.delivered
        key = (epoch, place.stream, place.streams, place.epochs, place.on_uneven, id(given) if given else 0)
        if key not in self._kept:
            plan = self.planner.plan(epoch, place)
            # With the masks beside it, no others can have their id meanwhile.
            self._kept[key] = plan, given
            self._positions += plan.length
        while self._positions > _KEPT and len(self._kept) > 1:
            self._positions -= self._kept.popitem(last=False)[1][0].length
        return self._kept[key][0] if key in self._kept else self.planner.plan(epoch, place)


@dataclass(frozen=True)
class Loading:
    """What the ranks of a run share. `first` is the epoch that they begin with, after a reshard."""

    planner: Planner
    layout: Layout
    epochs: int
    on_uneven: OnUneven = "pad"
    batch_size: int = 1
    delivered: Mapping[int, Mask] = field(default_factory=dict)
    first: int = 0
    cursor: Callable[[Any, Planner, Place], Cursor] = MapCursor

    def place(self, rank: int, worker: int = 0) -> Place:
        """The place of one stream."""
        ranks, workers = self.layout
        return Place(rank, ranks, worker, workers, self.epochs, self.on_uneven, self.delivered)

    def places(self) -> Iterator[Place]:
        """The places of all streams, in the order of their numbers."""
        for rank in range(self.layout.ranks):
            for worker in range(self.layout.workers):
                yield self.place(rank, worker)

    def dealt_anew(self, layout: Layout, first: int, delivered: Mapping[int, Mask]) -> Loading:
        """The loading that deals what is left to other streams, from epoch `first`."""
        return replace(self, layout=layout, first=first, delivered=dict(delivered))

    def beginning(self) -> Progress:
        """Where a rank begins: with nothing, or after a reshard with the first epoch that is not done."""
        workers = self.layout.workers
        fresh = not self.delivered and not self.first
        return Progress(workers) if fresh else dealt_anew(workers, self.first, self.delivered)


class Run:
    """One rank: an iterator of its batches, as `CosmosDataLoader` delivers them."""

    def __init__(self, loading: Loading, rank: int, progress: Progress | None = None) -> None:
        self.loading = loading
        self.rank = rank
        self.progress = progress or loading.beginning()
        workers, starts = loading.layout.workers, dict(self.progress.streams)
        order = [(self.progress.next_stream + turn) % workers for turn in range(workers)]
        self._streams = deque(self._stream(worker, starts.get(worker)) for worker in order)

    @classmethod
    def resumed(cls, loading: Loading, state: State) -> Run:
        """The rank that a state tells of, in a run of the same layout."""
        masks = decode_masks(state["delivered"])
        # Of equal masks the old ones are taken, by which plans are remembered.
        here = loading if _same(masks, loading.delivered) else replace(loading, delivered=masks)
        return cls(here, state["dp_rank"], Progress.restored(state, loading.layout.workers))

    def _stream(self, worker: int, start: State | None) -> Iterator[tuple[Any, Mark]]:
        loading = self.loading
        place = loading.place(self.rank, worker)
        planner = _Labels(loading.planner)
        cursor = loading.cursor(_Indices(planner.extent), planner, place)
        if start is not None:
            cursor.restore(start)
        roles = Roles(IdentityProcessor(), SimpleBatcher(loading.batch_size), _AsItIs())
        return Engine(cursor, roles, worker=worker).run()

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> list[Given]:
        while self._streams:
            pair = next(self._streams[0], None)
            if pair is None:
                self._streams.popleft()
                continue
            self._streams.rotate(-1)
            batch, mark = pair
            self.progress.note(mark)
            if mark.samples:
                padding = mark.padding or [False] * mark.samples
                return [
                    Given(int(label), label.epoch, label.position, pads)
                    for label, pads in zip(batch, padding, strict=True)
                ]
        raise StopIteration

    def state(self) -> State:
        """The position after the last batch, through JSON and back."""
        loading, progress = self.loading, self.progress
        ranks, workers = loading.layout
        state = {
            "version": VERSION,
            "identity": {
                "dp_world_size": ranks,
                "num_workers": workers,
                "epochs": loading.epochs,
                "on_uneven": loading.on_uneven,
            },
            "dp_rank": self.rank,
            **progress.saved(),
        }
        kept: State = json.loads(json.dumps(state))
        return kept


def _same(masks: Mapping[int, Mask], others: Mapping[int, Mask]) -> bool:
    return masks.keys() == others.keys() and all(np.array_equal(masks[key], others[key]) for key in masks)


class Expected:
    """What each rank of a loading has to deliver, from its plans; all streams must be of one length."""

    def __init__(self, loading: Loading) -> None:
        self.loading = loading
        self._epochs = list(range(loading.first, loading.epochs))
        first = next(loading.places())
        self._ends = np.cumsum([self._plan(epoch, first).length for epoch in self._epochs], dtype=np.int64)
        self._total = int(self._ends[-1]) if self._epochs else 0
        self.steps = -(-self._total // loading.batch_size) * loading.layout.workers
        """Batches of one rank."""

    def _plan(self, epoch: int, place: Place) -> EpochPlan:
        return self.loading.planner.plan(epoch, place)

    def epoch_ends(self) -> list[int]:
        """After how many batches of a rank each epoch is over."""
        workers, size = self.loading.layout.workers, self.loading.batch_size
        return [-(-int(end) // size) * workers for end in self._ends]

    def batches(self, rank: int, first: int, count: int) -> list[list[Given]]:
        """The batches `first` to `first + count - 1` of a rank, as far as there are so many."""
        return [self._batch(rank, step) for step in range(first, min(first + count, self.steps))]

    def _batch(self, rank: int, step: int) -> list[Given]:
        turn, worker = divmod(step, self.loading.layout.workers)
        size, place = self.loading.batch_size, self.loading.place(rank, worker)
        last = min((turn + 1) * size, self._total)
        return [self._given(place, sample) for sample in range(turn * size, last)]

    def _given(self, place: Place, sample: int) -> Given:
        at = int(self._ends.searchsorted(sample, side="right"))
        position = sample - (int(self._ends[at - 1]) if at else 0)
        plan = self._plan(self._epochs[at], place)
        return Given(int(plan.at(position)), self._epochs[at], position, position >= plan.own)

    def samples(self, step: int, worker: int) -> int:
        """Samples that a stream has given after `step` batches of its rank."""
        turns = max(0, -(-(step - worker) // self.loading.layout.workers))
        return min(turns * self.loading.batch_size, self._total)

    def samples_before(self, epoch: int, position: int) -> int:
        """Samples that a stream has given where it stands there; at the end that is behind the last epoch."""
        at = epoch - self.loading.first
        return position + (int(self._ends[min(at, len(self._ends)) - 1]) if at > 0 and len(self._ends) else 0)

    def _position(self, samples: int) -> tuple[int, int]:
        """(epoch, position) of a stream after so many samples; a whole epoch ends in itself."""
        if not samples:
            return self.loading.first, 0
        at = int(self._ends.searchsorted(samples, side="left"))
        return self._epochs[at], samples - (int(self._ends[at - 1]) if at else 0)

    def progress(self, step: int) -> Progress:
        """Where a rank stands after `step` batches."""
        workers = self.loading.layout.workers
        streams: dict[int, State | None] = {}
        for worker in range(workers):
            samples = self.samples(step, worker)
            if samples or self.loading.delivered:
                epoch, position = self._position(samples)
                streams[worker] = {"epoch": epoch, "position": position, "pending": [], "dropped": 0}
        return Progress(workers, streams, step % workers)

    def given(self, step: int) -> dict[int, tuple[Mask, bool]]:
        """What all ranks have given by `step` batches of each, by epoch: the items, and whether it is over.

        Padding counts for nothing. Epochs of which nothing was given are left out.
        """
        at = [self._position(self.samples(step, worker)) for worker in range(self.loading.layout.workers)]
        return {epoch: self._given_of(epoch, at) for epoch in self._epochs if epoch <= max(at)[0]}

    def _given_of(self, epoch: int, at: Sequence[tuple[int, int]]) -> tuple[Mask, bool]:
        before = self.loading.delivered.get(epoch)
        extent = self.loading.planner.extent
        mask = np.zeros(extent, bool) if before is None else before.copy()
        over = True
        for place in self.loading.places():
            plan = self._plan(epoch, place)
            reached, position = at[place.worker]
            end = plan.length if epoch < reached else position if epoch == reached else 0
            mask[items_at(plan, 0, min(plan.own, end), self.loading.planner)] = True
            over = over and end == plan.length
        return mask, over


def items_at(plan: EpochPlan, first: int, end: int, planner: Planner) -> Numbers:
    """int64: the items at the positions `first` to `end` - 1 of a plan.

    Of long plans over spans the first, middle and last item of each span are asked for, and the ones
    between are counted up; where those three do not fit, and without spans, each item is asked for.
    """
    starts = getattr(getattr(planner, "planner", planner), "firsts", None)
    if starts is None or end - first <= LONG:
        return np.fromiter(map(plan.at, range(first, end)), np.int64, max(end - first, 0))
    return _counted_up(plan, first, end, *_sorted_spans(planner))


LONG = 20_000
"""Positions from which on those inside a span are counted up."""


def _sorted_spans(planner: Any) -> tuple[Numbers, Numbers]:
    inner = getattr(planner, "planner", planner)
    order = np.argsort(inner.firsts, kind="stable")
    return inner.firsts[order], inner.lengths[order]


def _counted_up(plan: EpochPlan, first: int, end: int, starts: Numbers, lengths: Numbers) -> Numbers:
    from bisect import bisect_right

    start_view, stop_view = starts.data, (starts + lengths).data
    heads: list[int] = []
    counts: list[int] = []
    position = first
    while position < end:
        item = int(plan.at(position))
        span = bisect_right(start_view, item) - 1
        count = min(stop_view[span] - item, end - position) if span >= 0 else 1
        count = count if count > 0 and _in_row(plan, position, item, count) else 1
        heads.append(item)
        counts.append(count)
        position += count
    return _spread(heads, counts)


def _in_row(plan: EpochPlan, position: int, item: int, count: int) -> bool:
    return all(plan.at(position + step) == item + step for step in (count // 2, count - 1))


def _spread(heads: Sequence[int], counts: Sequence[int]) -> Numbers:
    """int64: `counts[i]` numbers from `heads[i]` on, for each i in turn."""
    head, count = np.array(heads, np.int64), np.array(counts, np.int64)
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    found: Numbers = np.arange(total, dtype=np.int64) + np.repeat(head - (ends - count), count)
    return found
