"""What a loader's checkpoint holds, when it is refused, and how it is dealt to another number of streams.

A state is plain JSON: the identity of what it belongs to, and for each stream of this rank the position
after the last *delivered* batch, with the tickets of samples that a packer still held.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.dataflow.base import LoaderError
from prep.dataflow.engine import Mark
from prep.dataflow.plans import Place, Planner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

__all__ = [
    "VERSION",
    "Progress",
    "dealt_anew",
    "decode_masks",
    "delivered_masks",
    "encode_masks",
    "refuse_broken",
    "refuse_other",
    "refuse_states",
    "still_needed",
]

VERSION = 1
_KEYS = frozenset(
    (
        "version",
        "identity",
        "dp_rank",
        "next_stream",
        "streams",
        "delivered",
        "first_epoch",
        "obstacle",
        "counts",
        "distributor",
    )
)

# What may differ where the rest of an epoch is dealt out anew.
_DEALT_ANEW = ("batcher", "dp_world_size", "num_workers", "on_uneven")


@dataclass(slots=True)
class Progress:
    """Where the streams of one rank stand, by the batches that were delivered, and the counts so far."""

    workers: int
    streams: dict[int, dict[str, Any] | None] = field(default_factory=dict)
    next_stream: int = 0
    obstacle: str = ""
    batches: int = 0
    samples: int = 0
    padding: int = 0
    dropped: int = 0
    tokens: int = 0
    capacity: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    first_epoch: int = 0
    delivered: dict[int, Mask] = field(default_factory=dict)
    """What was given out of which epochs before the rest was dealt anew."""

    def note(self, mark: Mark) -> None:
        """Take in the mark of a batch that is being delivered, or of a stream's end."""
        if not mark.fills:
            self.streams[mark.worker] = mark.state
            self.obstacle = mark.obstacle
        if mark.discarded:
            self.discarded.update(mark.discarded)
        self.dropped += mark.dropped
        if not mark.samples:
            return
        if not mark.fills:
            self.next_stream = (mark.worker + 1) % self.workers
        self.batches += 1
        self.samples += mark.samples
        if mark.padding:
            self.padding += sum(mark.padding)
        if mark.load is not None:
            self.tokens += mark.load[0]
            self.capacity += mark.load[1]

    def counts(self) -> dict[str, Any]:
        """The counts, as a state keeps them."""
        return {
            "batches": self.batches,
            "samples": self.samples,
            "padding": self.padding,
            "dropped": self.dropped,
            "tokens": self.tokens,
            "capacity": self.capacity,
            "discarded": dict(self.discarded),
        }

    @property
    def own(self) -> int:
        """Samples that were delivered, without padding."""
        return self.samples - self.padding

    def saved(self) -> dict[str, Any]:
        """The part of a state that is this progress."""
        return {
            "next_stream": self.next_stream,
            "streams": {str(worker): self.streams.get(worker) for worker in range(self.workers)},
            "first_epoch": self.first_epoch,
            "delivered": encode_masks(still_needed(self.delivered, self.streams.values())),
            "obstacle": self.obstacle,
            "counts": self.counts(),
        }

    def copy(self) -> Progress:
        """What workers begin from; this one goes on."""
        return replace(self, streams=dict(self.streams), discarded=Counter(self.discarded))

    def again(self) -> Progress:
        """From the beginning once more, counting on."""
        counts = {**self.counts(), "discarded": Counter(self.discarded)}
        return Progress(self.workers, **counts)

    @classmethod
    def restored(cls, state: Mapping[str, Any], workers: int) -> Progress:
        """The progress that a state of this very loader tells of."""
        counts = dict(state["counts"])
        streams = {int(worker): position for worker, position in state["streams"].items()}
        discarded: Counter[str] = Counter(counts.pop("discarded"))
        return cls(
            workers,
            streams,
            state["next_stream"],
            discarded=discarded,
            first_epoch=state["first_epoch"],
            delivered=decode_masks(state["delivered"]),
            **counts,
        )


def dealt_anew(workers: int, epoch: int, delivered: Mapping[int, Mask]) -> Progress:
    """The progress of a rank whose streams begin with what is left of `epoch`; counts begin at 0."""
    start = {"epoch": epoch, "position": 0, "pending": [], "dropped": 0}
    streams: dict[int, dict[str, Any] | None] = {worker: dict(start) for worker in range(workers)}
    return Progress(workers, streams, first_epoch=epoch, delivered=dict(delivered))


def refuse_broken(state: Any) -> None:
    """Raise LoaderError if `state` is not what a loader's `state_dict()` gives."""
    if not isinstance(state, Mapping) or state.get("version") != VERSION:
        raise LoaderError(
            "This is no state of a loader of this version.",
            remedy="Give what state_dict() returned, or with reshard=True the list of all ranks.",
        )
    missing = sorted(_KEYS - state.keys())
    streams: Any = state.get("streams")
    workers = dict(state.get("identity") or {}).get("num_workers", 0)
    sound = isinstance(streams, Mapping) and sorted(streams) == sorted(map(str, range(workers)))
    if missing or not sound or not all(each is None or _is_position(each) for each in streams.values()):
        found = f"it lacks {', '.join(missing)}" if missing else f"its streams are {streams!r:.80}"
        raise LoaderError(
            f"The saved state is damaged: {found}.", remedy="Load another checkpoint, or begin anew."
        )


def _is_position(state: Any) -> bool:
    """Whether it could be a stream's position: a planned source's, an iterable's or a mixture's."""
    kinds = (
        {"epoch", "position", "pending", "dropped"},
        {"source", "seen", "number"},
        {"generator", "order"},
    )
    return isinstance(state, Mapping) and any(kind <= state.keys() for kind in kinds)


def refuse_states(states: Any, identity: Mapping[str, Any], rank: int, *, reshard: bool) -> None:
    """Raise LoaderError if a loader of this identity and rank cannot go on from these states."""
    if not isinstance(states, Sequence) or not states:
        raise LoaderError(
            f"A state was expected, not {states!r:.60}.",
            remedy="Give what state_dict() returned, or with reshard=True the list of all ranks.",
        )
    for state in states:
        refuse_broken(state)
        refuse_other(state["identity"], identity, reshard=reshard)
    given = [state["dp_rank"] for state in states]
    if not reshard and given != [rank]:
        raise LoaderError(
            f"Rank {rank} was given the states of the ranks {given}.",
            remedy="Give each rank its own, or all of them with reshard=True.",
        )


def refuse_other(saved: Mapping[str, Any], here: Mapping[str, Any], *, reshard: bool) -> None:
    """Raise LoaderError if a state belongs to something else, by the name of what differs."""
    left_out = _DEALT_ANEW if reshard else ()
    for path, before, now in _differences(saved, here):
        if path.split(".")[0] in left_out or (path == "epochs" and None not in (before, now)):
            continue  # more epochs, or fewer, change no position
        may = path.split(".")[0] in _DEALT_ANEW
        raise LoaderError(
            f"The saved state belongs to another loader: {path} was {before!r} and is {now!r}.",
            remedy="Give reshard=True with the states of all ranks to deal the rest of the epoch anew."
            if may
            else "Load it into a loader over the same data, made with the same arguments.",
        )


def _differences(saved: Any, here: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(saved, Mapping) and isinstance(here, Mapping):
        for key in [*saved, *(key for key in here if key not in saved)]:
            yield from _differences(saved.get(key), here.get(key), f"{path}.{key}" if path else str(key))
    elif saved != here:
        yield path, saved, here


def still_needed(masks: Mapping[int, Mask], streams: Iterable[Mapping[str, Any] | None]) -> dict[int, Mask]:
    """The masks of epochs that some stream has not left behind."""
    if not masks:
        return {}
    begun = [_first_epoch(stream) for stream in streams]
    return {epoch: mask for epoch, mask in masks.items() if epoch >= min(begun, default=0)}


def _first_epoch(position: Mapping[str, Any] | None) -> int:
    """The epoch of the earliest item that a stream has yet to deliver."""
    if position is None:
        return 0
    epochs: list[int] = [position["epoch"], *(epoch for epoch, _ in position["pending"])]
    return min(epochs)


def encode_masks(masks: Mapping[int, Mask]) -> dict[str, Any]:
    """Masks by epoch as JSON: a count, and the bits, deflated, in base 64."""
    return {
        str(epoch): {
            "count": len(mask),
            "bits": base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode("ascii"),
        }
        for epoch, mask in masks.items()
    }


def decode_masks(encoded: Mapping[str, Any]) -> dict[int, Mask]:
    """What `encode_masks` gave, as masks again."""
    found = {}
    for epoch, entry in encoded.items():
        packed = np.frombuffer(zlib.decompress(base64.b64decode(entry["bits"])), np.uint8)
        found[int(epoch)] = np.unpackbits(packed, count=entry["count"]).astype(bool)
    return found


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
        self.first_epoch = _first_epoch(position)
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
