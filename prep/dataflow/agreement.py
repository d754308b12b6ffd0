"""Ranks that end together although their batches differ in number.

With batches of fixed size, equal numbers of samples are equal numbers of batches. A packing batcher makes
as many batches as the lengths of its samples ask for: then the ranks ask one another before each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from prep.dataflow.base import LoaderError, SampleBatcher
from prep.dataflow.engine import Mark
from prep.dataflow.plans import OnUneven

__all__ = ["Agreement"]


class Agreement:
    """Goes on while any rank has a batch (`pad`), or until one has none (`drop`)."""

    def __init__(self, world: int, on_uneven: OnUneven) -> None:
        self._world = world
        self._on_uneven = on_uneven
        # gloo, since the question is asked on the CPU whatever the trainer's own backend is.
        self._group = torch.distributed.new_group(backend="gloo")

    @classmethod
    def needed(
        cls, epochs: int | None, world: int, batcher: SampleBatcher, on_uneven: OnUneven
    ) -> Agreement | None:
        """An agreement if ranks could end apart, else None. Raises LoaderError where ranks cannot talk."""
        if epochs is None or world == 1 or batcher.draws_exactly:
            return None
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise LoaderError(
                f"{type(batcher).__name__} makes unequal numbers of batches on {world} ranks, which would "
                "end at different steps.",
                remedy="Call torch.distributed.init_process_group before, or leave epochs= out.",
            )
        return cls(world, on_uneven)

    def together(self, batches: Iterator[tuple[Any, Mark]]) -> Iterator[tuple[Any, Mark]]:
        """The batches of this rank, as many as every other rank has."""
        last: tuple[Any, Mark] | None = None
        while True:
            pair = next(batches, None)
            while pair is not None and not pair[1].samples:
                yield pair  # the end of one of this rank's streams
                pair = next(batches, None)
            having = self._having(pair is not None)
            if having == 0:
                return
            if having < self._world:
                if self._on_uneven == "drop":
                    return
                if self._on_uneven == "error":
                    raise LoaderError(
                        f"{having} of {self._world} ranks have a further batch, the others have ended.",
                        remedy='Use on_uneven="pad" or "drop".',
                    )
            if pair is None:
                pair = _repeated(last)
            last = pair
            yield pair

    def _having(self, mine: bool) -> int:
        count = torch.tensor(int(mine))
        torch.distributed.all_reduce(count, group=self._group)
        return int(count)


def _repeated(last: tuple[Any, Mark] | None) -> tuple[Any, Mark]:
    """The last batch again, all of it padding."""
    if last is None:
        raise LoaderError("This rank has no batch at all.", remedy="Use fewer ranks, or more data.")
    batch, mark = last
    again = Mark(mark.worker, mark.samples, mark.state, mark.obstacle, mark.epoch, mark.position, mark.known)
    again.padding = [True] * mark.samples
    return (dict(batch) if isinstance(batch, dict) else batch), again
