"""The distributors of one dataset: who owns the dataset, and which items each (rank, worker) gets.

Names, order and arithmetic are the guide's (contracts, section 7). `SpanDistributor` is this project's:
the training framework's stream of whole episodes, with a position that can be saved.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from prep.dataflow.base import DataDistributor, LoaderError
from prep.dataflow.cursors import Cursor, MapCursor, position_at
from prep.dataflow.iterables import IterableCursor, Source
from prep.dataflow.plans import MapPlanner, Place, Planner, SpanPlanner

__all__ = [
    "IterableDistributor",
    "MapDistributor",
    "Planned",
    "SpanDistributor",
    "Streaming",
    "dataset_identity",
    "environment_prefix",
]


class Streaming(DataDistributor):
    """A distributor whose stream is its cursor's."""

    def stream(self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int) -> Iterator[Any]:
        """The raw items of this rank and worker."""
        place = Place(dp_rank, dp_world_size, worker_id, num_workers)
        cursor = self.cursor(place)
        assert cursor is not None
        while True:
            try:
                ticket = cursor.advance()
            except StopIteration:
                return
            yield cursor.read(ticket)


class IterableDistributor(Streaming):
    """Any iterable, dealt out item by item: stream i of N takes the items with number % N == i.

    A source with `state_dict` and `load_state_dict`, such as a stream of `datasets`, is resumed exactly;
    any other begins anew. Each stream reads the whole source.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.source = Source(iterable)

    def cursor(self, place: Place) -> Cursor:
        """The stream of one place."""
        return IterableCursor(self.source, place)

    def fingerprint(self) -> Mapping[str, Any]:
        """What a saved position belongs to."""
        return {"distributor": "IterableDistributor", "dataset": dataset_identity(self.source.iterable)}


class Planned(Streaming):
    """A map-style dataset under a planner."""

    _dataset: Any
    _planner: Planner
    _name: str
    seed: int

    def __len__(self) -> int:
        return self._planner.count

    @property
    def planner(self) -> Planner:
        """The order of the epochs."""
        return self._planner

    def cursor(self, place: Place) -> MapCursor:
        """The stream of one place, after what the environment says was delivered, if it says so.

        Raises LoaderError where a stream would have no item.
        """
        cursor = self.fresh_cursor(place)
        position = self.environment_position(place.worker)
        if position is not None:
            cursor.restore(position)
        return cursor

    def fresh_cursor(self, place: Place) -> MapCursor:
        """The stream of one place from its beginning, whatever the environment says."""
        self.refuse_uneven(place)
        return MapCursor(self._dataset, self._planner, place)

    def refuse_uneven(self, place: Place) -> None:
        """Raise LoaderError if the data cannot be dealt to so many streams, or only unevenly."""
        self._refuse_few(place)
        if place.epochs is not None and place.on_uneven == "error":
            for epoch in range(place.epochs):
                self._planner.plan(epoch, place)

    def _refuse_few(self, place: Place) -> None:
        dealt, what = self._dealt()
        if dealt < place.streams:
            raise LoaderError(
                f"{dealt} {what} cannot be dealt to {place.streams} streams "
                f"({place.world} ranks times {place.workers} workers): some would never give a sample.",
                remedy=f"Use at most {dealt // place.world} workers a rank, fewer ranks, or more data."
                if dealt >= place.world
                else "Use fewer ranks, or more data.",
            )

    def _dealt(self) -> tuple[int, str]:
        return self._planner.count, "samples"

    @property
    def name(self) -> str:
        """The name under which the environment's positions are looked up; empty for none."""
        return self._name

    def environment_position(self, worker_id: int) -> dict[str, Any] | None:
        """The position that the environment gives a worker, if any, taken out of the environment."""
        prefix = environment_prefix(self._name)
        epoch, index = (
            os.environ.pop(f"{prefix}WORKER_{worker_id}_{what}", None) for what in ("EPOCH", "INDEX")
        )
        if epoch is None and index is None:
            return None
        try:
            position = 0 if index is None else int(index) + 1  # the index is the last delivered
            return position_at(int(epoch or 0), position)
        except ValueError:
            raise LoaderError(
                f"{prefix}WORKER_{worker_id}_EPOCH and _INDEX are {epoch!r} and {index!r}; "
                "whole numbers were expected.",
                remedy="Unset them, or load the checkpoint again.",
            ) from None


class MapDistributor(Planned):
    """A map-style dataset: shuffled anew each epoch, each stream every N-th place of the order.

    Epoch e is in the order of torch's `randperm` seeded with `seed + e`. `name` keeps several loaders
    of one process apart in the environment (`COSMOS_DL_STATE_{name}_WORKER_{id}_{EPOCH,INDEX}`).
    """

    def __init__(self, dataset: Any, seed: int = 0, shuffle: bool = True, name: str = "") -> None:
        self._dataset = dataset
        self._name = name
        self._shuffle = bool(shuffle)
        self.seed = int(seed)
        self._planner = MapPlanner(_length(dataset), seed=self.seed, shuffle=self._shuffle)

    def fingerprint(self) -> Mapping[str, Any]:
        """What a saved position belongs to."""
        return {
            "distributor": "MapDistributor",
            "dataset": dataset_identity(self._dataset),
            "count": self._planner.count,
            "seed": self.seed,
            "shuffle": self._shuffle,
        }


class SpanDistributor(Planned):
    """Windows in spans: whole spans are dealt out in a drawn order, their windows follow one another.

    `spans` are the blocks (first index, count) of the dataset, by default what its `get_shuffle_blocks()`
    gives: the windows of one episode, or of one kept range of it. Reading windows in order decodes each
    frame once. Epoch e orders the spans by torch's `randperm` seeded with `seed + e`.
    """

    def __init__(
        self,
        dataset: Any,
        spans: Sequence[tuple[int, int]] | None = None,
        seed: int = 42,
        shuffle: bool = True,
        name: str = "",
    ) -> None:
        blocks = _blocks(dataset) if spans is None else list(spans)
        self._dataset = dataset
        self._name = name
        self._shuffle = bool(shuffle)
        self.seed = int(seed)
        planner = SpanPlanner(
            [int(first) for first, _ in blocks],
            [int(count) for _, count in blocks],
            seed=self.seed,
            shuffle=self._shuffle,
        )
        _refuse_outside(planner, _length(dataset))
        self._planner: SpanPlanner = planner

    def _dealt(self) -> tuple[int, str]:
        return self._planner.spans, "spans"

    def fingerprint(self) -> Mapping[str, Any]:
        """What a saved position belongs to."""
        return {
            "distributor": "SpanDistributor",
            "dataset": dataset_identity(self._dataset),
            "count": self._planner.count,
            "spans": self._planner.digest(),
            "seed": self.seed,
            "shuffle": self._shuffle,
        }


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise LoaderError(
            f"{type(dataset).__name__} has no length: it is no map-style dataset.",
            remedy="Use IterableDistributor, or give an object with len() and [index].",
        ) from None


def _blocks(dataset: Any) -> list[tuple[int, int]]:
    blocks: Callable[[], Iterable[tuple[int, int]]] | None = getattr(
        dataset, "get_shuffle_blocks", getattr(dataset, "blocks", None)
    )
    if blocks is None:
        raise LoaderError(
            f"{type(dataset).__name__} does not say which windows make a span.",
            remedy="Give spans=[(first index, count), ...], or a dataset with get_shuffle_blocks().",
        )
    return list(blocks())


def _refuse_outside(planner: SpanPlanner, count: int) -> None:
    if planner.spans and (planner.extent > count or int(planner.firsts.min()) < 0):
        raise LoaderError(
            f"The spans reach from {int(planner.firsts.min())} to {planner.extent - 1}, "
            f"the dataset from 0 to {count - 1}.",
            remedy="Make the spans of the same dataset.",
        )


def environment_prefix(name: str) -> str:
    """How the variables begin that give the workers of a loader of this name (or none) their positions."""
    return f"COSMOS_DL_STATE_{name}_" if name else "COSMOS_DL_STATE_"


def dataset_identity(dataset: Any) -> str:
    """What names the data, where it tells: its `fingerprint`, a prepared dataset's id, else its class.

    A torch Subset is told by what it is of, and by which items.
    """
    for attribute in ("fingerprint", "dataset_id", "_fingerprint"):
        value = getattr(dataset, attribute, None)
        if isinstance(value, str):
            return value
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:
        chosen = hashlib.sha256(np.asarray(list(indices), np.int64).tobytes()).hexdigest()[:16]
        return f"{dataset_identity(inner)} at {chosen}"
    return type(dataset).__name__
