"""Which items an epoch gives to which stream, by arithmetic alone: nothing here reads an item.

Stream i of N = dp_world_size * num_workers takes every N-th place of the epoch's order, from place i.
Epoch e is ordered by torch's `randperm(count, manual_seed(seed + e))` (contracts, section 7). Of spans
whole ones are dealt out in this way, and the windows of a span follow one another.
"""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from prep.dataflow.base import LoaderError
from prep.permutation import torch_permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    _Lookup = tuple[Callable[[int], int], Callable[[Numbers], Numbers]]

__all__ = ["EpochPlan", "MapPlanner", "OnUneven", "Place", "Planner", "SpanPlanner"]

OnUneven = Literal["pad", "drop", "error"]


@dataclass(frozen=True, slots=True)
class Place:
    """Which stream of how many, for how many epochs.

    `rank` is 0 to world - 1, `worker` 0 to workers - 1. `epochs` None means endless streams, whose
    epochs may be of unequal length. `delivered` says which items of an epoch (bool [count], by the
    dataset's own index) were given out before the streams were dealt anew.
    """

    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1
    epochs: int | None = None
    on_uneven: OnUneven = "pad"
    delivered: Mapping[int, Mask] = field(default_factory=dict)

    def of(self, worker: int) -> Place:
        """The place of another worker of this rank."""
        return replace(self, worker=worker)

    def with_delivered(self, delivered: Mapping[int, Mask]) -> Place:
        """The same place where part of some epochs was given out before."""
        return replace(self, delivered=dict(delivered))

    @property
    def stream(self) -> int:
        """This stream's number, 0 to `streams` - 1."""
        return self.rank * self.workers + self.worker

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return self.world * self.workers


class EpochPlan(NamedTuple):
    """One stream's part of one epoch.

    Positions are 0 to length - 1; from `own` on they repeat items, so that all streams are of one length.
    `at` gives the dataset's index of a position, `many` those of int64 [n] positions.
    """

    own: int
    length: int
    at: Callable[[int], int]
    many: Callable[[Numbers], Numbers]


class Planner(Protocol):
    """What a source's epochs are made of: `count` items, with indices 0 to extent - 1."""

    count: int
    extent: int

    def plan(self, epoch: int, place: Place) -> EpochPlan:
        """This stream's part of `epoch`."""


@lru_cache(maxsize=2)
def permutation(count: int, seed: int) -> Numbers:
    """int64 [count], read-only: torch's `randperm`, by torch itself where it is loaded (it is faster)."""
    torch = sys.modules.get("torch")
    order: Numbers
    if torch is None:
        order = torch_permutation(count, seed)
    else:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    order.flags.writeable = False
    return order


class MapPlanner:
    """The epochs of a dataset of `count` items, each item a place of its own."""

    def __init__(self, count: int, *, seed: int, shuffle: bool) -> None:
        self.count = self.extent = count
        self._seed = seed
        self._shuffle = shuffle

    def plan(self, epoch: int, place: Place) -> EpochPlan:
        """This stream's part of `epoch`."""
        mask = place.delivered.get(epoch)
        left = self.count if mask is None else int(self.count - np.count_nonzero(mask))
        own = len(range(place.stream, left, place.streams))
        length = _even(own, left // place.streams, -(-left // place.streams), place)
        if not self._shuffle and mask is None:
            return EpochPlan(own, length, *_strided(place.stream, place.streams, self.count))
        order = permutation(self.count, self._seed + epoch) if self._shuffle else np.arange(self.count)
        if mask is not None:
            order = order[~mask[order]]
        taken = order[place.stream :: place.streams][:length]
        if length > own:
            # The first places of the epoch again, so that every stream has as many.
            taken = np.append(taken, order[(own * place.streams + place.stream) % len(order)])
        taken = np.ascontiguousarray(taken)
        return EpochPlan(own, length, taken.data.__getitem__, taken.__getitem__)


class SpanPlanner:
    """The epochs of windows in spans: the order of spans is drawn, the windows of a span stay in order.

    `firsts` and `lengths` are int64 [spans]: the dataset's index of a span's first window, and how many
    windows follow one another from there.
    """

    def __init__(
        self, firsts: Sequence[int] | Numbers, lengths: Sequence[int] | Numbers, *, seed: int, shuffle: bool
    ) -> None:
        self.firsts = np.asarray(firsts, np.int64)
        self.lengths = np.asarray(lengths, np.int64)
        if self.firsts.shape != self.lengths.shape or self.firsts.ndim != 1:
            raise LoaderError(
                f"{self.firsts.shape} first windows and {self.lengths.shape} lengths make no spans.",
                remedy="Give one first index and one length a span.",
            )
        if len(self.lengths) and int(self.lengths.min()) < 1:
            raise LoaderError("A span has no window.", remedy="Leave empty spans out.")
        self._refuse_overlap()
        self.spans = len(self.lengths)
        self.count = int(self.lengths.sum())
        self.extent = int((self.firsts + self.lengths).max()) if self.spans else 0
        self._seed = seed
        self._shuffle = shuffle

    def plan(self, epoch: int, place: Place) -> EpochPlan:
        """This stream's part of `epoch`."""
        order = permutation(self.spans, self._seed + epoch) if self._shuffle else np.arange(self.spans)
        mask = place.delivered.get(epoch)
        left = self.lengths if mask is None else self._left(mask)
        order = order[left[order] > 0]
        totals = np.bincount(
            np.arange(len(order)) % place.streams, weights=left[order], minlength=place.streams
        ).astype(np.int64)
        own = int(totals[place.stream])
        length = _even(own, int(totals.min()), int(totals.max()), place)
        # A stream without a span of its own pads with those of the first.
        mine = order[(place.stream if own else 0) :: place.streams]
        return EpochPlan(own, length, *self._windows(mine, mask))

    def digest(self) -> str:
        """What names these spans: their number and a hash of their places."""
        places = hashlib.sha256(self.firsts.tobytes() + self.lengths.tobytes()).hexdigest()
        return f"{self.spans} {places[:16]}"

    def _refuse_overlap(self) -> None:
        order = np.argsort(self.firsts, kind="stable")
        ends = (self.firsts + self.lengths)[order]
        wrong = np.flatnonzero(self.firsts[order][1:] < ends[:-1])
        if len(wrong):
            one, other = (int(self.firsts[order[at]]) for at in (wrong[0], wrong[0] + 1))
            raise LoaderError(
                f"The spans from {one} and from {other} overlap: windows would be given twice an epoch.",
                remedy="Give spans that have no window in common.",
            )

    def _left(self, mask: Mask) -> Numbers:
        """int64 [spans]: how many windows of each span are still to be given."""
        given = np.flatnonzero(mask)
        before = np.searchsorted(given, self.firsts)
        left: Numbers = self.lengths - (np.searchsorted(given, self.firsts + self.lengths) - before)
        return left

    def _windows(self, spans: Numbers, mask: Mask | None) -> _Lookup:
        ends = np.cumsum(self.lengths[spans])
        shift = self.firsts[spans] - (ends - self.lengths[spans])
        if mask is None:
            return _resolved(ends, shift)
        every = np.arange(ends[-1] if len(ends) else 0) + np.repeat(shift, self.lengths[spans])
        return _repeated(every[~mask[every]])


def _even(own: int, fewest: int, most: int, place: Place) -> int:
    """How many positions a stream has: its own for endless streams, else as many as every other.

    Raises LoaderError where the streams are of unequal length and that is an error.
    """
    if place.epochs is None:
        return own
    if place.on_uneven == "error" and fewest != most:
        raise LoaderError(
            f"The {place.streams} streams get {fewest} to {most} samples an epoch.",
            remedy='Use on_uneven="pad" or "drop", or a count that the streams divide.',
        )
    return fewest if place.on_uneven == "drop" else most


def _strided(first: int, step: int, count: int) -> _Lookup:
    def at(position: int) -> int:
        return (first + position * step) % count

    def many(positions: Numbers) -> Numbers:
        return (first + positions * step) % count

    return at, many


def _repeated(numbers: Numbers) -> _Lookup:
    view, count = np.ascontiguousarray(numbers).data, len(numbers)

    def at(position: int) -> int:
        found: int = view[position % count]
        return found

    def many(positions: Numbers) -> Numbers:
        return numbers[positions % count]

    return at, many


def _resolved(ends: Numbers, shift: Numbers) -> _Lookup:
    end_view, shift_view, count = ends.data, shift.data, int(ends[-1]) if len(ends) else 0

    def at(position: int) -> int:
        place = position % count
        found: int = place + shift_view[bisect_right(end_view, place)]
        return found

    def many(positions: Numbers) -> Numbers:
        places = positions % count
        found: Numbers = places + shift[np.searchsorted(ends, places, side="right")]
        return found

    return at, many
