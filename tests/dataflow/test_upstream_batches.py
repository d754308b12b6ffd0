"""The batches of upstream's loader, as digests of sample indices, for each distributor with each batcher.

Taken by hand from upstream's own classes at the commit of vendor/upstream.lock.json, over the data below: for
every place of `PLACES` and seed of `SEEDS` the first 200 batches of a rank.

Upstream's loader itself raises within these batches for both map sources and the mixture, with every batcher
that gives more than one sample: at the border of an epoch ("simple", "count"), in a batch out of order or
with a gap (all that pack), or where only some samples have a position (mixture). Ours goes on; the digest is
that of upstream's distributor and batcher without its loader. Up to there, and for every pair without the
partition, the two loaders were seen to agree in real processes too, with 0, 1 and 2 workers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import prep.dataflow
from prep.dataflow.base import BatchCollator, DataDistributor, SampleBatcher
from prep.dataflow.combined import cursor_of
from prep.dataflow.engine import Engine, Roles
from prep.dataflow.plans import Place
from prep.dataflow.processors import IdentityProcessor

SEEDS = (0, 7)
PLACES = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1))
"""(ranks, workers of each); no worker is the stream of one."""

BATCHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("SimpleBatcher", {"batch_size": 1}),
    "simple": ("SimpleBatcher", {"batch_size": 5}),
    "pool of one": ("PoolPackingBatcher", {"max_tokens": 4000}),
    "closest 5": ("PoolPackingBatcher", {"max_tokens": 3000, "pool_size": 5, "max_batch_size": 0}),
    "closest 16": (
        "PoolPackingBatcher",
        {"max_tokens": 8000, "max_batch_size": 4, "long_threshold": 2000, "apply_long_sample_halving": False},
    ),
    "closest 64": ("PoolPackingBatcher", {"max_tokens": 6000, "pool_size": 64, "max_batch_size": 0}),
    "first 16": (
        "PoolPackingBatcher",
        {"max_tokens": 4000, "max_batch_size": 6, "batching_strategy": "prefer_first"},
    ),
    "tokens": ("SequentialPackingBatcher", {"max_sequence_length": 2000}),
    "tokens, ahead 2": ("SequentialPackingBatcher", {"max_sequence_length": 700, "lookahead_limit": 2}),
    "count": ("SequentialPackingBatcher", {"max_samples_per_batch": 4}),
}

SOURCES = ("iterable", "map", "map in order", "partition", "mixture", "spans")


class Records:
    """Samples that every batcher can size: texts, images and clips, of 1 to 2,500 tokens."""

    def __init__(self, count: int, first: int) -> None:
        draw = np.random.RandomState(first + 1)
        self._first = first
        self._sizes = (1 + draw.randint(0, 2500, count) * draw.randint(0, 2500, count) // 2500).tolist()
        self._shapes = draw.randint(1, 6, (count, 3)).tolist()

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self):
            raise IndexError(index)
        size, (frames, high, wide) = self._sizes[index], self._shapes[index]
        sample = {
            "index": self._first + index,
            "input_ids": range(size),
            "text_token_ids": list(range(size % 97)),
            "video": np.broadcast_to(np.uint8(0), (3, 5 * frames, 70 * high, 80 * wide)),
        }
        kind = size % 3
        return {**sample, ("other", "pixel_values", "pixel_values_videos")[kind]: 0}

    def get_shuffle_blocks(self) -> list[tuple[int, int]]:
        edges = [*range(0, len(self), 11), len(self)]
        return [(start, end - start) for start, end in itertools.pairwise(edges)]


class Shards:
    """A stream that shards itself over its ranks and workers, as upstream's partition wants it."""

    worker = (0, 1)
    shard_world_size, shard_rank = 1, 0

    def __init__(self, records: Records) -> None:
        self._records = records

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, workers = Shards.worker
        first, step = self.shard_rank * workers + worker, self.shard_world_size * workers
        while True:
            for index in range(first, len(self._records), step):
                yield self._records[index]


def source(name: str, seed: int, world: int, kit: Any, shards: type[Shards] = Shards) -> DataDistributor:
    """A distributor of `kit`: this project's module, or upstream's."""
    records = Records(311, 0)
    if name == "iterable":
        return kit.IterableDistributor([records[index] for index in range(seed, 311)])
    if name.startswith("map"):
        return kit.MapDistributor(records, seed=seed, shuffle=name == "map")
    if name == "partition":
        small = {"dataset": shards(Records(90, 1000)), "ratio": min(world - 1, 1)}
        return kit.RankPartitionedDistributor(
            {"small": small, "large": {"dataset": shards(records), "ratio": 2 + seed}}
        )
    if name == "spans":
        return kit.SpanDistributor(records, seed=seed)
    small = Records(40, 1000)
    return kit.MixtureDistributor(
        {
            "a": (kit.MapDistributor(records, seed=1), 3.0),
            "b": (kit.IterableDistributor(list(small)), 1.0),
            "c": (kit.MapDistributor(Records(57, 2000), shuffle=False), 0.5),
        },
        seed=seed,
    )


def made(name: str, kit: Any) -> SampleBatcher:
    kind, options = BATCHERS[name]
    return getattr(kit, kind)(**options)


class Indices(BatchCollator):
    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {"numbers": [sample["index"] for sample in samples]}


def stream(name: str, batcher: str, seed: int, place: Place) -> list[list[int]]:
    """Up to 200 batches of a rank, divided by its workers."""
    Shards.worker = (place.worker, place.workers)
    roles = Roles(IdentityProcessor(), made(batcher, prep.dataflow), Indices())
    engine = Engine(
        cursor_of(source(name, seed, place.world, prep.dataflow), place), roles, worker=place.worker
    )
    pairs = itertools.islice(engine.run(), 200 // place.workers)
    return [batch["numbers"] for batch, _ in pairs if batch]


def digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, separators=(",", ":")).encode()).hexdigest()[:16]


def places() -> Iterator[Place]:
    for world, workers in PLACES:
        for rank in range(world):
            for worker in range(workers):
                yield Place(rank, world, worker, workers)


UPSTREAM = {
    "iterable": {
        "one": "f4df26b72f5c3f47",
        "simple": "2238ad11d477663f",
        "pool of one": "f4df26b72f5c3f47",
        "closest 5": "57b33783f024f174",
        "closest 16": "4d37481d8b2440d4",
        "closest 64": "d6e14d1c4e09f56f",
        "first 16": "3b8fe9904460fe6c",
        "tokens": "d90550fc33605cc9",
        "tokens, ahead 2": "e19687c559cdcca8",
        "count": "76ff24ce13214cff",
    },
    "map": {
        "one": "7e813c403fca6918",
        "simple": "f040e9abc64f15e7",
        "pool of one": "7e813c403fca6918",
        "closest 5": "5b5925b1af9e347a",
        "closest 16": "254bb792a4ab2ee9",
        "closest 64": "e0c54f5429ea839a",
        "first 16": "047c0b7b8fbe0551",
        "tokens": "594783d7e8f4842f",
        "tokens, ahead 2": "2fbf5c9cd7c6c5a6",
        "count": "e958e8a93d2a4be4",
    },
    "map in order": {
        "one": "dfc82913e7000275",
        "simple": "c50dcc05d5a4f61d",
        "pool of one": "dfc82913e7000275",
        "closest 5": "4b3fffae1148c534",
        "closest 16": "d8460ad019ddb5f5",
        "closest 64": "cea229afae6db672",
        "first 16": "fb66b977a40f5dc8",
        "tokens": "4d5d92621d3d5959",
        "tokens, ahead 2": "78adab15cc552e55",
        "count": "82850b3214445990",
    },
    "partition": {
        "one": "d4ab81f17e0eed01",
        "simple": "cf89f4aec6e5968c",
        "pool of one": "d4ab81f17e0eed01",
        "closest 5": "d9c549824c0a8b17",
        "closest 16": "b7f60066de2a01ee",
        "closest 64": "90ec66f991af5aca",
        "first 16": "7ceb35ee10917bc5",
        "tokens": "344fecb2412bd2bc",
        "tokens, ahead 2": "4b59f4e878560a57",
        "count": "01fdab3b258b8e29",
    },
    "mixture": {
        "one": "5839c222062a4e96",
        "simple": "6d67bd0f0ce6f166",
        "pool of one": "5839c222062a4e96",
        "closest 5": "fe17d71ffc8914d1",
        "closest 16": "1a32efa2f4aeea41",
        "closest 64": "9edf867f3bcf81d6",
        "first 16": "0d846fac6c079fd9",
        "tokens": "02dc58437f7fc979",
        "tokens, ahead 2": "97a6a031cfb541f0",
        "count": "5228c7a3364996d9",
    },
    "spans": {
        "one": "27d3488b7c9ff0c4",
        "simple": "77ce62313b305edb",
        "pool of one": "27d3488b7c9ff0c4",
        "closest 5": "1dafbdb600ffff88",
        "closest 16": "7fec0842fe7cf765",
        "closest 64": "8ad3f6e31a1fe7bd",
        "first 16": "0d84012cd1e26f45",
        "tokens": "d1c6e05b46145aa2",
        "tokens, ahead 2": "747eb3701029bab0",
        "count": "59b2046ad7a593cf",
    },
}
"""The first 16 digits of the SHA-256 of upstream's batches, as `stream` gives them, by place and seed."""


@pytest.mark.parametrize(
    ("name", "batcher", "expected"),
    [(name, batcher, each) for name, found in UPSTREAM.items() for batcher, each in found.items()],
)
def test_the_batches_are_upstreams(name, batcher, expected):
    assert digest([stream(name, batcher, seed, place) for seed in SEEDS for place in places()]) == expected


class Dims:
    def __init__(self, rank: int, world: int) -> None:
        self.dp_coord = (rank, world)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "batcher"),
    [
        ("iterable", "closest 16"),
        ("map", "first 16"),
        ("map in order", "count"),
        ("mixture", "tokens"),
        ("spans", "simple"),
    ],
)
def test_workers_take_turns_as_upstreams_do(name, batcher, workers):
    pytest.importorskip("torch")
    most = 60
    streams = [
        stream(name, batcher, 7, Place(1, 2, worker, max(workers, 1))) for worker in range(max(workers, 1))
    ]
    turns = [batch for turn in itertools.zip_longest(*streams) for batch in turn if batch]
    loader = prep.dataflow.CosmosDataLoader(
        source(name, 7, 2, prep.dataflow),
        batcher=made(batcher, prep.dataflow),
        collator=Indices(),
        num_workers=workers,
        parallel_dims=Dims(1, 2),
    )
    assert [batch["numbers"] for batch in itertools.islice(loader, most)] == turns[:most]


JOINT = {0: "c8eadaeb8c3ca7b6", 7: "184576a9b6a29b85", 42: "9c4891b8430cc780"}
"""Digests of the first 1,000 names that upstream's joint loader draws, by seed."""


@pytest.mark.parametrize("seed", JOINT)
def test_the_joint_loader_draws_upstreams_names(seed):
    pytest.importorskip("torch")
    ratios = {"vlm": 1, "none": 0, "vfm": 3, "c": 0.7}
    joint = prep.dataflow.JointCosmosDataLoader(
        {name: {"dataloader": itertools.repeat({}), "ratio": ratio} for name, ratio in ratios.items()},
        seed=seed,
    )
    assert digest([batch["dataset_name"] for batch in itertools.islice(joint, 1000)]) == JOINT[seed]
