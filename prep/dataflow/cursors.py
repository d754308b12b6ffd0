"""A stream whose position can be saved: tickets first, items after.

A ticket says which item comes next, before anything is read. So a position is restored by arithmetic,
and an item that was delivered is not read again. `state(pending)` is plain JSON, and takes in the
tickets that were drawn and not delivered (the open bins of a packer): they come first again.
"""

from __future__ import annotations

import base64
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prep.dataflow.base import LoaderError, SkipSample
from prep.dataflow.plans import EpochPlan, Place, Planner

__all__ = ["Cursor", "MapCursor", "MixtureCursor", "Origin", "position_at"]

_PLANS_KEPT = 2  # the epoch in hand, and the one before it, whose items a packer may still hold


class Origin(NamedTuple):
    """Where a sample came from: epoch, position in the stream's part of it, the item's own index."""

    epoch: int
    position: int
    item: int
    is_padding: bool


class Cursor(ABC):
    """One stream."""

    dropped = 0
    """Items that the epochs left out so far, so that no rank ends before another."""

    single = True
    """Whether (epoch, position) of one sample tells what came before it."""

    stamps = False
    """Whether batches say where they come from, as those of a map-style dataset do."""

    pads = False
    """Whether an item may be there only to fill up a stream."""

    obstacle = ""
    """Why there is no position to save, where `state` gives None."""

    @abstractmethod
    def advance(self) -> Any:
        """The ticket of the next item. Raises StopIteration at the end."""

    @abstractmethod
    def read(self, ticket: Any) -> Any:
        """The raw item of a ticket."""

    @abstractmethod
    def origin(self, ticket: Any) -> Origin:
        """Where the item of a ticket came from."""

    def where(self, ticket: Any) -> tuple[int, int]:
        """The epoch and the position of a ticket, as stamps tell them."""
        origin = self.origin(ticket)
        return origin.epoch, origin.position

    @abstractmethod
    def state(self, pending: Sequence[Any]) -> dict[str, Any] | None:
        """The position after all tickets but `pending`, which are in drawing order; None if it has none."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""

    @abstractmethod
    def restart(self) -> None:
        """Begin anew after the end."""


def position_at(epoch: int = 0, position: int = 0) -> dict[str, Any]:
    """What a MapCursor's `state` is when just the items before a place were delivered."""
    return {"epoch": epoch, "position": position, "pending": [], "dropped": 0}


class MapCursor(Cursor):
    """A dataset with `dataset[index]`, epoch after epoch. Tickets are (epoch, position)."""

    stamps = True

    def __init__(self, dataset: Any, planner: Planner, place: Place) -> None:
        self._dataset = dataset
        self._planner = planner
        self._place = place
        self._plans: dict[int, EpochPlan] = {}
        self._again: deque[tuple[int, int]] = deque()
        self._epoch = 0
        self._position = 0
        self._length: int | None = None  # positions of the epoch in hand, once it is planned
        self._before = (0, -1)  # the last ticket of the epochs before it
        self.pads = place.epochs is not None and place.on_uneven == "pad"

    def advance(self) -> tuple[int, int]:
        """The ticket of the next item. Raises StopIteration after the last epoch."""
        if self._again:
            return self._again.popleft()
        while self._length is None or self._position >= self._length:
            self._next_epoch()
        ticket = (self._epoch, self._position)
        self._position += 1
        return ticket

    def _next_epoch(self) -> None:
        if self._length is not None:
            self._before = self.last
            self.dropped += max(self._plan(self._epoch).own - self._length, 0)
            self._epoch, self._position, self._length = self._epoch + 1, 0, None
        if self._ended():
            raise StopIteration
        self._length = self._plan(self._epoch).length

    def _ended(self) -> bool:
        return self._place.epochs is not None and self._epoch >= self._place.epochs

    def _plan(self, epoch: int) -> EpochPlan:
        plan = self._plans.get(epoch)
        if plan is None:
            plan = self._plans[epoch] = self._planner.plan(epoch, self._place)
            while len(self._plans) > _PLANS_KEPT:
                del self._plans[min(self._plans)]
        return plan

    def read(self, ticket: tuple[int, int]) -> Any:
        """The dataset's item of a ticket."""
        plan = self._plans.get(ticket[0]) or self._plan(ticket[0])
        return self._dataset[plan.at(ticket[1])]

    def items(self, skipped: Callable[[SkipSample], None]) -> Iterator[Any]:
        """The items from here to the end: `advance` and `read`, a whole epoch at a time.

        `skipped` is told of the items that the dataset itself leaves out.
        """
        dataset = self._dataset
        while True:
            try:
                first = self.advance()
            except StopIteration:
                return
            try:
                item = self.read(first)
            except SkipSample as skip:
                skipped(skip)
            else:
                yield item
            if self._again or self._length is None:
                continue
            at = self._plan(self._epoch).at
            for position in range(self._position, self._length):
                self._position = position + 1
                try:
                    item = dataset[at(position)]
                except SkipSample as skip:
                    skipped(skip)
                    continue
                except Exception as error:
                    error.add_note(f"at item {at(position)} of epoch {self._epoch}, position {position}")
                    raise
                yield item

    @property
    def last(self) -> tuple[int, int]:
        """The ticket drawn last, where none is pending."""
        return (self._epoch, self._position - 1) if self._position else self._before

    def origin(self, ticket: tuple[int, int]) -> Origin:
        """Where the item of a ticket came from."""
        epoch, position = ticket
        plan = self._plan(epoch)
        return Origin(epoch, position, int(plan.at(position)), position >= plan.own)

    def where(self, ticket: tuple[int, int]) -> tuple[int, int]:
        """The ticket itself."""
        return ticket

    def state(self, pending: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """The position after all tickets but `pending`."""
        left = [*pending, *self._again]
        return {"epoch": self._epoch, "position": self._position, "pending": left, "dropped": self.dropped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._epoch, self._position = state["epoch"], state["position"]
        self._again = deque((epoch, position) for epoch, position in state["pending"])
        self._length = None if self._ended() else self._plan(self._epoch).length
        self.dropped = state["dropped"]

    def restart(self) -> None:
        """Begin anew with the first epoch."""
        self._epoch = self._position = 0
        self._length = None


class MixtureCursor(Cursor):
    """Several cursors, one drawn by its weight for each item. Tickets are (source, its own ticket)."""

    single = False

    def __init__(self, names: Sequence[str], cursors: Sequence[Cursor], ratios: Sequence[float], seed: int):
        self._names = list(names)
        self._cursors = list(cursors)
        self._ratios = list(ratios)
        self._choices = range(len(self._cursors))
        self.stamps = all(cursor.stamps for cursor in self._cursors)
        self._random = random.Random(seed)
        self._again: deque[tuple[int, Any]] = deque()

    def advance(self) -> tuple[int, Any]:
        """The ticket of the next item. Raises LoaderError for a source that has no item at all."""
        if self._again:
            source, _ = self._again.popleft()
            return source, self._cursors[source].advance()
        source = self._random.choices(self._choices, weights=self._ratios, k=1)[0]
        try:
            return source, self._cursors[source].advance()
        except StopIteration:
            self._cursors[source].restart()
        try:
            return source, self._cursors[source].advance()
        except StopIteration:
            raise LoaderError(
                f"The source {self._names[source]!r} of the mixture has no item for this stream.",
                remedy="Leave it out, or give it at least one item a stream (ranks times workers).",
            ) from None

    def read(self, ticket: tuple[int, Any]) -> Any:
        """The item of a ticket."""
        return self._cursors[ticket[0]].read(ticket[1])

    def origin(self, ticket: tuple[int, Any]) -> Origin:
        """Where the item of a ticket came from, in its own source."""
        return self._cursors[ticket[0]].origin(ticket[1])

    def state(self, pending: Sequence[tuple[int, Any]]) -> dict[str, Any] | None:
        """The position after all tickets but `pending`, or None if a source has none."""
        own: list[list[Any]] = [[] for _ in self._choices]
        for source, ticket in pending:
            own[source].append(ticket)
        states = [cursor.state(tickets) for cursor, tickets in zip(self._cursors, own, strict=True)]
        if any(state is None for state in states):
            lacking = next(place for place, state in enumerate(states) if state is None)
            self.obstacle = f"its source {self._names[lacking]!r}: {self._cursors[lacking].obstacle}"
            return None
        version, words, spare = self._random.getstate()
        packed = base64.b64encode(np.array(words, np.uint32).astype("<u4").tobytes()).decode("ascii")
        return {
            "generator": [version, packed, spare],
            "order": [source for source, _ in (*pending, *self._again)],
            "sources": dict(zip(self._names, states, strict=True)),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        version, packed, spare = state["generator"]
        words = np.frombuffer(base64.b64decode(packed), "<u4")
        self._random.setstate((version, tuple(int(word) for word in words), spare))
        for name, cursor in zip(self._names, self._cursors, strict=True):
            cursor.restore(state["sources"][name])
        self._again = deque((source, None) for source in state["order"])

    def restart(self) -> None:
        """Begin every source anew."""
        for cursor in self._cursors:
            cursor.restart()
