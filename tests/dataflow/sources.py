"""Datasets, roles and walks that the tests of the loader share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prep.dataflow.base import BatchCollator, DataDistributor, SampleBatcher
from prep.dataflow.batchers import PoolPackingBatcher, SimpleBatcher
from prep.dataflow.combined import MixtureDistributor, cursor_of
from prep.dataflow.distributors import IterableDistributor, MapDistributor, SpanDistributor
from prep.dataflow.engine import Engine, Mark, Roles
from prep.dataflow.plans import Place
from prep.dataflow.processors import IdentityProcessor
from prep.dataflow.sequential import SequentialPackingBatcher


class Numbers:
    """`count` records that know their own index; counts which were read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.reads.append(index)
        return {"number": index, "input_ids": [0] * (1 + index * 7919 % 61)}


class Resumable:
    """An iterable with a state of its own, as the streams of `datasets` have."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._from = self._at = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._from, self.count):
            self._at = number + 1
            yield {"number": number, "input_ids": [0] * (1 + number * 7919 % 61)}

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._from = self._at = state["at"]


class ListCollator(BatchCollator):
    """The numbers of a batch's samples."""

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"numbers": [sample["number"] for sample in samples]}


class Sequential(SequentialPackingBatcher):
    """Sequential packing by the length of `input_ids`."""

    def sample_size(self, sample: dict[str, Any]) -> int:
        return len(sample["input_ids"])


SPANS = [(0, 5), (5, 7), (12, 1), (13, 8), (21, 3), (24, 16), (40, 7)]
"""The spans of a dataset of 47 windows."""

COUNT = 47

BATCHERS: dict[str, Callable[[], SampleBatcher]] = {
    "one": lambda: SimpleBatcher(1),
    "simple": lambda: SimpleBatcher(3),
    "pool": lambda: PoolPackingBatcher(100, pool_size=7, max_batch_size=0),
    "pool of one": lambda: PoolPackingBatcher(100, pool_size=7, max_batch_size=1),
    "first": lambda: PoolPackingBatcher(90, pool_size=5, max_batch_size=3, batching_strategy="prefer_first"),
    "sequential": lambda: Sequential(max_sequence_length=100),
    "sequential short": lambda: Sequential(max_sequence_length=50, lookahead_limit=2),
    "counted": lambda: Sequential(max_samples_per_batch=4),
}

SOURCES: dict[str, Callable[[Any], DataDistributor]] = {
    "map": lambda data: MapDistributor(data, seed=3),
    "in order": lambda data: MapDistributor(data, shuffle=False),
    "spans": lambda data: SpanDistributor(data, SPANS, seed=1),
    "iterable": lambda data: IterableDistributor(Resumable(len(data))),
    "mixture": lambda data: MixtureDistributor(
        {
            "a": (MapDistributor(data, seed=1), 3.0),
            "b": (SpanDistributor(data, SPANS, seed=2), 1.0),
            "c": (IterableDistributor(Resumable(len(data))), 0.5),
        },
        seed=5,
    ),
}


def walk(
    source: DataDistributor,
    batcher: SampleBatcher,
    place: Place,
    most: int,
    start: dict[str, Any] | None = None,
) -> list[tuple[list[int], Mark]]:
    """Up to `most` batches of one stream, as numbers, with their marks."""
    cursor = cursor_of(source, place)
    if start is not None:
        cursor.restore(json.loads(json.dumps(start)))
    engine = Engine(cursor, Roles(IdentityProcessor(), batcher, ListCollator()), worker=place.worker)
    pairs = itertools.islice(engine.run(), most)
    return [(batch["numbers"] if batch else [], mark) for batch, mark in pairs]


def numbers_of(pairs: Sequence[tuple[list[int], Mark]]) -> list[list[int]]:
    """The batches alone."""
    return [batch for batch, _ in pairs]
