"""What a loader's checkpoint holds.

A state is plain JSON: the identity of what it belongs to, and for each stream of this rank the position
after the last *delivered* batch, with the tickets of samples that a packer still held.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.dataflow.cursors import position_at
from prep.dataflow.engine import Mark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

__all__ = [
    "VERSION",
    "Progress",
    "dealt_anew",
    "decode_masks",
    "encode_masks",
    "first_epoch",
    "still_needed",
]

VERSION = 1


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
    done_before: int = 0
    """Samples that earlier passes delivered or left out, where the counts go on from them."""
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
            "done_before": self.done_before,
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
        counts = {**self.counts(), "discarded": Counter(self.discarded), "done_before": self._done}
        return Progress(self.workers, **counts)

    @property
    def _done(self) -> int:
        return self.own + sum(self.discarded.values()) + self.dropped

    def cut_off(self, due: int) -> None:
        """Count as dropped what of the `due` samples of this pass was neither delivered nor discarded."""
        self.dropped += max(due - (self._done - self.done_before), 0)

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
    streams: dict[int, dict[str, Any] | None] = {worker: position_at(epoch) for worker in range(workers)}
    return Progress(workers, streams, first_epoch=epoch, delivered=dict(delivered))


def still_needed(masks: Mapping[int, Mask], streams: Iterable[Mapping[str, Any] | None]) -> dict[int, Mask]:
    """The masks of epochs that some stream has not left behind."""
    if not masks:
        return {}
    begun = [first_epoch(stream) for stream in streams]
    return {epoch: mask for epoch, mask in masks.items() if epoch >= min(begun, default=0)}


def first_epoch(position: Mapping[str, Any] | None) -> int:
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
