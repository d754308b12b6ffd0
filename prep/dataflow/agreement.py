"""Ranks that end together although their batches differ in number.

With batches of fixed size, equal numbers of samples are equal numbers of batches. A packing batcher makes
as many batches as the lengths of its samples ask for, a processor may skip samples, and the parts of a
partition have lengths of their own: then the ranks ask one another before each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from prep.dataflow.base import LoaderError
from prep.dataflow.engine import Mark
from prep.dataflow.plans import OnUneven

__all__ = ["Agreement", "ranks_can_talk"]


def ranks_can_talk() -> bool:
    """Whether torch.distributed is up."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


class Agreement:
    """Goes on while any rank has a batch (`pad`), or until one has none (`drop`).

    All ranks of the default group take part, those too that share their data with others.
    """

    def __init__(self, on_uneven: OnUneven) -> None:
        self._on_uneven = on_uneven
        # gloo, since the question is asked on the CPU whatever the trainer's own backend is.
        self._group = torch.distributed.new_group(backend="gloo")
        self._world = torch.distributed.get_world_size(self._group)

    def together(
        self, batches: Iterator[tuple[Any, Mark]], spare: Callable[[], tuple[Any, Mark]]
    ) -> Iterator[tuple[Any, Mark]]:
        """The batches of this rank, as many as every other rank has; `spare` makes one that only fills up.

        The mark of a filling batch has no state: it moves no position.
        """
        while True:
            pair = next(batches, None)
            while pair is not None and not pair[1].samples:
                yield pair  # the end of one of this rank's streams
                pair = next(batches, None)
            having = self._having(pair is not None)
            if having == 0 or (having < self._world and self._on_uneven == "drop"):
                return
            if having < self._world and self._on_uneven == "error":
                raise LoaderError(
                    f"{having} of {self._world} ranks have a further batch, the others have ended.",
                    remedy='Use on_uneven="pad" or "drop".',
                )
            yield spare() if pair is None else pair

    def _having(self, mine: bool) -> int:
        count = torch.tensor(int(mine))
        torch.distributed.all_reduce(count, group=self._group)
        return int(count)
