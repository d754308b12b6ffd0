"""Streams of what can only be iterated: dealt out item by item, or dealt out by the source itself."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prep.dataflow.cursors import Cursor, Origin
from prep.dataflow.plans import Place

__all__ = ["IterableCursor", "Source", "StreamCursor"]


class Source:
    """An iterable, and the state that it had before anything read it.

    `obstacle` says why its position cannot be saved; it is empty if it can.
    """

    def __init__(self, iterable: Any, *, obstacle: str = "") -> None:
        self.iterable = iterable
        self.obstacle = obstacle or _obstacle(iterable)
        # A stream of `datasets` that was read before tells where it stopped; it begins at what it was given.
        self.start = copy.deepcopy(getattr(iterable, "_starting_state_dict", self.state()))
        self._moved = False

    def state(self) -> Any:
        """Where the source stands, or None if it cannot say."""
        return None if self.obstacle else copy.deepcopy(self.iterable.state_dict())

    def load(self, state: Any) -> None:
        """Let the next iteration begin at a state, if the source can."""
        if not self.obstacle:
            self.iterable.load_state_dict(copy.deepcopy(state))
            self._moved = True

    def rewind(self) -> None:
        """Let the next iteration begin at the start, where another was loaded before."""
        if self._moved:
            self.load(self.start)


class IterableCursor(Cursor):
    """Anything that can be iterated, dealt out item by item. Tickets are numbers from 0.

    The position can be saved where the source has `state_dict` and `load_state_dict`, as the streams of
    `datasets` have; such a source is read again from its last point before the oldest pending item.
    """

    def __init__(self, source: Source, place: Place) -> None:
        self._source = source
        self._place = place
        self.obstacle = source.obstacle
        self._resumable = not source.obstacle
        self._points: deque[tuple[int, int, Any]] = deque()  # number of our next item, place in source, state
        self._held: dict[int, Any] = {}
        self._skip: set[int] = set()
        self._iterator: Iterator[Any] | None = None
        self._seen = 0  # items of the whole source, in this pass
        self._next = 0  # number of our next item
        self._passes = 0

    def advance(self) -> int:
        """The ticket of the next item of this stream. Raises StopIteration at the source's end."""
        if self._iterator is None:
            self._begin()
        iterator: Any = self._iterator
        stream, streams = self._place.stream, self._place.streams
        while True:
            item = next(iterator)
            place = self._seen
            self._seen = place + 1
            if place % streams != stream:
                continue
            number = self._next
            self._next = number + 1
            if number in self._skip:
                self._skip.discard(number)
                continue
            self._held[number] = item
            return number

    def _begin(self) -> None:
        self._source.rewind()
        self._points.append((self._next, self._seen, self._source.start))
        self._iterator = self._opened()

    def _opened(self) -> Iterator[Any]:
        return _unsharded(self._source.iterable)

    def read(self, ticket: int) -> Any:
        """The item of a ticket; each is given once."""
        return self._held.pop(ticket)

    def origin(self, ticket: int) -> Origin:
        """Where an item came from: the pass, its number in this stream, its place in the source."""
        index = ticket * self._place.streams + self._place.stream
        return Origin(self._passes, ticket, index, is_padding=False)

    def state(self, pending: Sequence[int]) -> dict[str, Any] | None:
        """The position after all tickets but `pending`, or None if the source has no state."""
        if not self._resumable:
            return None
        if self._iterator is not None:
            self._points.append((self._next, self._seen, self._source.state()))
        oldest = min(pending, default=self._next)
        while len(self._points) > 1 and self._points[1][0] <= oldest:
            self._points.popleft()
        number, seen, source = self._points[0] if self._points else (0, 0, self._source.start)
        waiting = set(pending)
        delivered = [each for each in range(number, self._next) if each not in waiting]
        return {
            "source": source,
            "seen": seen,
            "number": number,
            "passes": self._passes,
            "delivered": delivered + sorted(self._skip),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        self._source.load(state["source"])
        self._seen, self._next, self._passes = state["seen"], state["number"], state["passes"]
        self._skip = set(state["delivered"])
        self._points.clear()
        self._points.append((self._next, self._seen, state["source"]))
        self._iterator = self._opened()

    def restart(self) -> None:
        """Iterate the source anew."""
        self._seen = self._next = 0
        self._passes += 1
        self._points.clear()
        self._begin()


class StreamCursor(IterableCursor):
    """A stream that is dealt out already: all that `opened` gives is this place's own.

    The position can be saved where `source` has a state; a distributor of the user's with nothing but
    `stream` has none.
    """

    def __init__(self, opened: Callable[[], Iterator[Any]], source: Source, place: Place) -> None:
        super().__init__(source, Place())
        self._stream = opened
        self._numbered = place

    def _opened(self) -> Iterator[Any]:
        return self._stream()

    def origin(self, ticket: int) -> Origin:
        """Where an item came from; its number is one that no other stream gives."""
        return super().origin(ticket)._replace(item=ticket * self._numbered.streams + self._numbered.stream)


def _unsharded(iterable: Iterable[Any]) -> Iterator[Any]:
    """The items of the whole source, in a DataLoader's worker too.

    A source that looks at torch's worker info takes every n-th item (or shard) by itself, at its beginning
    or at any item; dealing those out once more would lose all others without a word.
    """
    workers: Any = sys.modules.get("torch.utils.data._utils.worker")
    if workers is None or workers._worker_info is None:
        yield from iterable
        return
    info, iterator = workers._worker_info, None
    while True:
        workers._worker_info = None
        try:
            iterator = iter(iterable) if iterator is None else iterator
            item = next(iterator, _END)
        finally:
            workers._worker_info = info
        if item is _END:
            return
        yield item


_END = object()


def _obstacle(source: Any) -> str:
    """Why a source's position cannot be saved; empty if it can."""
    if not all(hasattr(source, name) for name in ("state_dict", "load_state_dict")):
        return f"{type(source).__name__} has no state_dict"
    if _shuffles(getattr(source, "_ex_iterable", None)):
        return "the source has a shuffle buffer, whose items its state_dict leaves out"
    return ""


def _shuffles(step: Any) -> bool:
    """Whether a stream of `datasets` draws from a buffer, in any of its steps."""
    if step is None:
        return False
    if type(step).__name__ == "BufferShuffledExamplesIterable":
        return True
    before = [getattr(step, "ex_iterable", None), *(getattr(step, "ex_iterables", None) or ())]
    return any(_shuffles(each) for each in before)
