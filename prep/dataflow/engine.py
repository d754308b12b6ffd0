"""One stream of one worker: distribute, process, batch, collate, in this order, with a mark on each batch.

A mark says what a batch is made of and where the stream stands once it is delivered. It travels with
the batch from the worker to the main process, which is the only place that knows what was delivered:
what workers have prepared ahead is simply not in the position that a checkpoint keeps.
"""

from __future__ import annotations

import random
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

from prep.dataflow.base import (
    BatchCollator,
    LoaderError,
    RawItemProcessor,
    SampleBatcher,
    SkipSample,
)
from prep.dataflow.cursors import Cursor, MapCursor
from prep.dataflow.processors import IdentityProcessor

__all__ = ["TICKET", "Engine", "Mark", "Roles", "sample_seed"]

TICKET = "_dp_ticket"
"""The key under which a sample carries its ticket through a batcher; no collator sees it."""

_MASK = (1 << 64) - 1

_Finish = Callable[[list[Any]], tuple[list[Any], list[Any]]]


@dataclass(slots=True)
class Mark:
    """What a batch is made of, and the stream's position after it.

    `epoch` and `position` are the furthest of its samples; `behind` counts earlier ones that are still
    pending. `discarded` counts by reason what was left out since the batch before.
    """

    worker: int
    samples: int
    state: dict[str, Any] | None = None
    obstacle: str = ""
    epoch: int = 0
    position: int = 0
    known: bool = False
    fills: bool = False
    behind: int = 0
    padding: Sequence[bool] = ()
    load: tuple[int, int] | None = None
    discarded: Mapping[str, int] | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Roles:
    """The three roles after the distributor."""

    processor: RawItemProcessor
    batcher: SampleBatcher
    collator: BatchCollator


class _Drawn:
    """A ticket in a batcher's hands; once nothing refers to it, the batcher has let the sample go."""

    __slots__ = ("__weakref__", "number", "ticket")

    def __init__(self, ticket: Any, number: int) -> None:
        self.ticket = ticket
        self.number = number


class Engine:
    """The batches of one stream; see the module.

    `seed` not None: before an item is read, the global generators are seeded by (seed, epoch, index).
    `keep` guards them where they are the trainer's own, in the main process. Without `may_skip`, an item
    that the processor leaves out is an error, since ranks would end apart.
    """

    def __init__(
        self,
        cursor: Cursor,
        roles: Roles,
        *,
        worker: int,
        seed: int | None = None,
        may_skip: bool = True,
        keep: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._cursor = cursor
        self._roles = roles
        self._worker = worker
        self._seed = seed
        self._keep = keep
        self._may_skip = may_skip
        self._numbers = count()
        self._pending: dict[int, weakref.ref[_Drawn]] = {}  # in drawing order
        self._since: list[Any] = []  # tickets
        self._unmarked: dict[int, deque[tuple[Any, _Drawn]]] = {}
        self._bare = (
            roles.batcher.draws_exactly
            and type(roles.processor) is IdentityProcessor
            and seed is None
            and isinstance(cursor, MapCursor)
            and not cursor.pads
        )
        self._discarded: Counter[str] = Counter()
        self._dropped = cursor.dropped

    def run(self) -> Iterator[tuple[Any, Mark]]:
        """Each batch with its mark; at the end, if samples were left over, one mark with no batch."""
        groups, finish = self._groups()
        for group in groups:
            clean, tickets = finish(group)
            mark = self._mark(clean, tickets)
            yield self._roles.collator.collate(clean), mark
        left = self._left_over()
        if left is not None:
            yield None, left

    def _groups(self) -> tuple[Iterator[list[Any]], _Finish]:
        """The batcher over the stream, and what tells the tickets of a batch that it gives."""
        batcher, cursor = self._roles.batcher, self._cursor
        batcher._on_discard = self._discard
        if not batcher.draws_exactly:
            return batcher.batches(self._tagged()), self._finish_tagged
        if self._bare and isinstance(cursor, MapCursor):
            # Nothing to do for a sample by itself: the whole batch ends at the last ticket drawn.
            return batcher.batches(cursor.items(self._skipped)), lambda group: (group, [cursor.last])
        return batcher.batches(self._samples()), self._finish_exact

    def _left_over(self) -> Mark | None:
        """What the stream's end leaves in no batch, such as the last of `drop_last`."""
        rest = len(self._since)
        if rest:
            self._since.clear()
            self._discarded["in no batch at the end"] += rest
        mark = self._mark([], [])
        return mark if mark.discarded or mark.dropped else None

    def _samples(self) -> Iterator[Any]:
        cursor, since, seeded = self._cursor, self._since, self._seed is not None
        advance, read, process = cursor.advance, cursor.read, self._roles.processor.process
        while True:
            try:
                ticket = advance()
            except StopIteration:
                return
            try:
                sample = self._seeded(ticket) if seeded else process(read(ticket))
            except SkipSample as skip:
                self._skipped(skip)
                continue
            except Exception as error:
                origin = cursor.origin(ticket)
                error.add_note(f"at item {origin.item} of epoch {origin.epoch}, position {origin.position}")
                raise
            since.append(ticket)
            yield sample

    def _skipped(self, skip: SkipSample) -> None:
        self._discarded[skip.reason] += 1
        if not self._may_skip:
            raise LoaderError(
                f"An item was skipped ({skip.reason}) in finite epochs: the ranks would end apart.",
                remedy="Call torch.distributed.init_process_group before the loader is made.",
            ) from None

    def _seeded(self, ticket: Any) -> Any:
        cursor, process = self._cursor, self._roles.processor.process
        origin = cursor.origin(ticket)
        with self._keep():
            _seed_all(sample_seed(self._seed or 0, origin.epoch, origin.item))
            return process(cursor.read(ticket))

    def _finish_exact(self, group: list[Any]) -> tuple[list[Any], list[Any]]:
        tickets = self._since.copy()
        self._since.clear()
        return group, tickets

    def _tagged(self) -> Iterator[Any]:
        for sample in self._samples():
            drawn = _Drawn(self._since.pop(), next(self._numbers))
            self._pending[drawn.number] = weakref.ref(drawn)
            if isinstance(sample, dict):
                # A copy: the dataset may give the same object again.
                yield {**sample, TICKET: drawn}
            else:
                self._unmarked.setdefault(id(sample), deque()).append((sample, drawn))
                yield sample
            del drawn, sample

    def _finish_tagged(self, group: list[Any]) -> tuple[list[Any], list[Any]]:
        tickets, pending = [], self._pending
        for sample in group:
            drawn = self._taken(sample)
            if drawn is not None:
                tickets.append(drawn.ticket)
                pending.pop(drawn.number, None)
        return group, tickets

    def _taken(self, sample: Any) -> _Drawn | None:
        if isinstance(sample, dict):
            # Taken off in place: the dict is the copy that was made for the batcher.
            found: _Drawn | None = sample.pop(TICKET, None)
            return found
        waiting = self._unmarked.get(id(sample))
        if not waiting:
            return None
        drawn = waiting.popleft()[1]
        if not waiting:
            del self._unmarked[id(sample)]
        return drawn

    def _discard(self, sample: Any, reason: str) -> None:
        self._discarded[reason] += 1
        if self._since:
            del self._since[0]
            return
        drawn = self._taken(sample)
        if drawn is not None:
            self._pending.pop(drawn.number, None)

    def _mark(self, group: list[Any], tickets: list[Any]) -> Mark:
        merged = not self._bare and len(tickets) < len(group)
        pending, cursor = self._still_pending(merged=merged), self._cursor
        mark = Mark(self._worker, len(group), cursor.state(pending))
        if mark.state is None:
            mark.obstacle = cursor.obstacle
        if tickets and not merged:
            mark.known = cursor.stamps
            self._place(mark, tickets, pending)
            if cursor.pads:
                mark.padding = [cursor.origin(ticket).is_padding for ticket in tickets]
        if group:
            batcher = self._roles.batcher
            mark.load = batcher.measured if batcher.measured is not None else batcher.load(group)
        if self._discarded:
            mark.discarded = dict(self._discarded)
            self._discarded.clear()
        if self._cursor.dropped != self._dropped:
            mark.dropped, self._dropped = self._cursor.dropped - self._dropped, self._cursor.dropped
        return mark

    def _place(self, mark: Mark, tickets: list[Any], pending: list[Any]) -> None:
        """The furthest of a batch's samples, and how many before it are pending."""
        cursor = self._cursor
        if cursor.single:
            last = max(tickets)
            mark.epoch, mark.position = cursor.where(last)
            if pending:
                mark.behind = sum(ticket < last for ticket in pending)
        else:
            mark.epoch, mark.position = max(map(cursor.where, tickets))
            mark.behind = max(len(pending), 1)  # no position of one source speaks for all

    def _still_pending(self, *, merged: bool) -> list[Any]:
        """The tickets of samples that the batcher holds, in drawing order.

        Where it made new samples of those that it was given, what is gone is in them.
        """
        if not self._pending:
            return []
        tickets, gone = [], []
        for number, reference in self._pending.items():
            drawn = reference()
            if drawn is None:
                gone.append(number)
            else:
                tickets.append(drawn.ticket)
        for number in gone:
            del self._pending[number]
        if gone and not merged:
            # A batcher of the user's may leave samples out without `discard`: they are counted all the same.
            self._discarded["left out by the batcher"] += len(gone)
        return tickets


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """64 bits from (seed, epoch, index), alike in every process, for any order of samples.

    Each number is mixed in by the finaliser of SplitMix64, so that neighbours share nothing.
    """
    mixed = 0
    for number in (seed, epoch, index):
        mixed = (mixed + 0x9E3779B97F4A7C15 + number) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return mixed


def _seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators, those that augmentations draw from."""
    import sys

    import numpy as np

    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed >> 1)
