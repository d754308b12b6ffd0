"""The rest of begun epochs, dealt to other streams: what was delivered, from the states of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.dataflow.base import LoaderError
from prep.dataflow.plans import Place, Planner
from prep.dataflow.refusals import refuse_other
from prep.dataflow.state import decode_masks, first_epoch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

__all__ = ["delivered_masks"]


def delivered_masks(states: Sequence[Mapping[str, Any]], planner: Planner) -> tuple[int, dict[int, Mask]]:
    """The first epoch that is not done, and for each begun one which items (by index) were delivered.

    `states` are those of all ranks. A repeat that only filled up a stream counts for nothing: its own
    stream gives the item. Raises LoaderError if a rank's state is missing or there twice.
    """
    world, epochs = states[0]["identity"]["dp_world_size"], states[0]["identity"]["epochs"]
    _refuse_incomplete([state["dp_rank"] for state in states], world)
    for state in states[1:]:
        refuse_other(state["identity"], states[0]["identity"], reshard=False)
    # A rank whose streams have left an epoch behind no longer has its mask; the others have the same one.
    masks = {epoch: mask for state in states for epoch, mask in decode_masks(state["delivered"]).items()}
    streams = [_Stream(state, worker, masks) for state in states for worker in state["streams"]]
    first = min(stream.first_epoch for stream in streams)
    last = max(stream.epoch for stream in streams)
    if epochs is not None:
        last = min(last, epochs - 1)
    found = {epoch: mask for epoch, mask in masks.items() if first <= epoch}
    for epoch in range(first, last + 1):
        mask = found[epoch].copy() if epoch in found else np.zeros(planner.extent, bool)
        for stream in streams:
            stream.mark(epoch, planner, mask)
        found[epoch] = mask
    return first, found


def _refuse_incomplete(ranks: Sequence[int], world: int) -> None:
    if sorted(ranks) != list(range(world)):
        missing = sorted(set(range(world)) - set(ranks))
        raise LoaderError(
            f"Dealing anew needs the states of all {world} ranks; there are those of {sorted(ranks)}.",
            remedy=f"Gather them into one list; missing: {missing}." if missing else "Give each state once.",
        )


class _Stream:
    """One stream of a saved state."""

    def __init__(self, state: Mapping[str, Any], worker: str, masks: Mapping[int, Mask]) -> None:
        identity, position = state["identity"], state["streams"][worker]
        self.epoch = position["epoch"] if position else 0
        self._position = position["position"] if position else 0
        self._pending = [(epoch, place) for epoch, place in (position["pending"] if position else [])]
        self.first_epoch = first_epoch(position)
        self._place = Place(
            state["dp_rank"],
            identity["dp_world_size"],
            int(worker),
            identity["num_workers"],
            identity["epochs"],
            identity["on_uneven"],
            masks,
        )

    def mark(self, epoch: int, planner: Planner, mask: Mask) -> None:
        """Set what this stream has delivered of an epoch."""
        if epoch > self.epoch:
            return
        plan = planner.plan(epoch, self._place)
        given = min(plan.own, plan.length)
        end = given if epoch < self.epoch else min(given, self._position)
        waiting = [place for of, place in self._pending if of == epoch and place < end]
        done = np.ones(end, bool)
        done[waiting] = False
        mask[plan.many(np.flatnonzero(done))] = True
