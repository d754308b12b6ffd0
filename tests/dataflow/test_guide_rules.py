"""The guide's rules, `../shared/seeds/custom_datasets_guide.txt`: resuming, ranks, the FAQ, the checklists.

Tests bear the number of the guide's section. Where this loader does better than it says, the docstring has
the difference.
"""

from __future__ import annotations

import functools
import itertools
import os

import pytest

torch = pytest.importorskip("torch")

from loguru import logger  # noqa: E402

from prep.dataflow import (  # noqa: E402
    BatchCollator,
    CosmosDataLoader,
    CosmosDataLoaderStateCallback,
    DefaultBatchCollator,
    IterableDistributor,
    JointCosmosDataLoader,
    JointCosmosDataLoaderStateCallback,
    MapDistributor,
    PoolPackingBatcher,
    RankPartitionedDistributor,
    SequentialPackingBatcher,
    SimpleBatcher,
    VFMListCollator,
)
from tests.dataflow.guide_data import (  # noqa: E402
    PROCESSOR,
    Captions,
    Chunk,
    Dims,
    Padded,
    clip,
    images,
    numbers,
)


@pytest.fixture
def log():
    """(level, message) of what is logged; the library's log is off unless one asks for it."""
    found = []
    logger.enable("prep")
    sink = logger.add(lambda line: found.append((line.record["level"].name, line.record["message"])))
    yield found
    logger.remove(sink)
    logger.disable("prep")


@pytest.fixture
def clean(monkeypatch):
    yield
    for name in [name for name in os.environ if name.startswith("COSMOS_DL_STATE_")]:
        del os.environ[name]


# 5. Checkpoints


@pytest.mark.parametrize("workers", [0, 2])
def test_5_the_callback_resumes_a_map_source(workers, clean):
    """With `loader=` exactly, under any batcher and also in mid-turn; without, as the guide has it."""
    make = functools.partial(
        CosmosDataLoader,
        MapDistributor(Captions(30), seed=42),
        PROCESSOR,
        SimpleBatcher(1),
        num_workers=workers,
    )
    whole = images(make(), 12)
    callback = CosmosDataLoaderStateCallback()
    for batch in itertools.islice(make(), 6):
        callback.on_training_step_batch_end(None, batch, {}, None, iteration=0)
    state = callback.state_dict()
    assert set(state) == set(range(max(workers, 1)))
    CosmosDataLoaderStateCallback().load_state_dict(state)
    assert images(make(), 6) == whole[6:]


def test_5_an_iterable_begins_anew_and_says_why():
    """Better than the guide: one with a state of its own, as `datasets` streams have, is resumed."""
    make = functools.partial(CosmosDataLoader, IterableDistributor(Chunk(1, 2, 3, 4).samples), batch_size=1)
    first, second = make(), make()
    assert numbers(first, 2) == [[1], [2]]
    second.load_state_dict(first.state_dict())
    assert first.obstacle
    assert numbers(second, 1) == [[1]]


# 6. Ranks and workers


def test_6_streams_are_the_strided_parts_of_the_order():
    for source in (
        IterableDistributor(list(range(26))),
        MapDistributor(list(range(26)), shuffle=False),
    ):
        for rank, worker in itertools.product(range(2), range(3)):
            stream = source.stream(rank, 2, worker, 3)
            expected = [i for i in range(26) if i % (2 * 3) == rank * 3 + worker]
            assert list(itertools.islice(stream, len(expected))) == expected


class SelfSharding(torch.utils.data.IterableDataset):
    shard_world_size, shard_rank = 1, 0

    def __init__(self, name):
        self.name = name

    def __iter__(self):
        for n in range(self.shard_rank, 12, self.shard_world_size):
            yield {"n": (self.name, n)}


class Listed(BatchCollator):
    def collate(self, samples):
        return {"n": [sample["n"] for sample in samples]}


def test_6_whole_ranks_go_to_datasets_which_are_told_their_part():
    given = []
    for rank in range(4):
        parts = RankPartitionedDistributor(
            {
                "large": {"dataset": SelfSharding("large"), "ratio": 3},
                "small": {"dataset": SelfSharding("small"), "ratio": 1},
            }
        )
        loader = CosmosDataLoader(parts, batch_size=2, collator=Listed(), parallel_dims=Dims(rank, 4))
        given.append([n for batch in loader for n in batch["n"]])
    assert given[0] == [("large", n) for n in range(0, 12, 3)]
    assert sorted(n for rank in given for n in rank) == [
        (kind, n) for kind in ("large", "small") for n in range(12)
    ]


def test_6_persistent_workers_for_a_map_source_only():
    """`spawn` is supported too, which the guide excludes: see test_loader.py."""
    records = Chunk(*range(8))
    assert CosmosDataLoader(MapDistributor(records), batch_size=1, num_workers=1).persistent_workers
    assert not CosmosDataLoader(
        IterableDistributor(records.samples), batch_size=1, num_workers=1
    ).persistent_workers


# 7. Troubleshooting, entry by entry


@pytest.mark.parametrize(("halving", "expected"), [(True, [[0], [1], [2], [3]]), (False, [[0, 1, 2, 3]])])
def test_7_long_samples_halve_the_budget_unless_told_not_to(halving, expected):
    samples = [{"n": n, "input_ids": range(1000)} for n in range(4)]
    batcher = PoolPackingBatcher(3999, max_batch_size=0, apply_long_sample_halving=halving)
    found = CosmosDataLoader(IterableDistributor(samples), batcher=batcher, collator=Columns0())
    budget_of_4 = PoolPackingBatcher(4000, max_batch_size=0, apply_long_sample_halving=halving)
    whole = CosmosDataLoader(IterableDistributor(samples), batcher=budget_of_4, collator=Columns0())
    assert numbers(whole, 9) == ([[0, 1], [2, 3]] if halving else expected)
    assert numbers(found, 9) == ([[0], [1], [2], [3]] if halving else [[0, 1, 2], [3]])


class Columns0(BatchCollator):
    def collate(self, samples):
        return {"n": torch.tensor([sample["n"] for sample in samples])}


def test_7_a_batcher_or_a_batch_size():
    with pytest.raises(ValueError, match=r"Provide either a batcher= or a batch_size=\."):
        CosmosDataLoader(MapDistributor(Captions(4)), PROCESSOR)
    with pytest.raises(ValueError, match="Both batcher= and batch_size="):
        CosmosDataLoader(MapDistributor(Captions(4)), PROCESSOR, batcher=SimpleBatcher(1), batch_size=1)


def noted(loader, callback, steps):
    for batch in itertools.islice(loader, steps):
        callback.on_training_step_batch_end(None, batch, {}, None)


def test_7_a_reordering_batcher_over_a_map_source():
    """Better: the loader goes on and its state resumes exactly; a callback without `loader=` refuses."""
    make = functools.partial(
        CosmosDataLoader,
        MapDistributor(Captions(40)),
        PROCESSOR,
        PoolPackingBatcher(24, max_batch_size=3),
        Padded(),
    )
    whole = images(make(), 12)
    loader, again, guides = make(), make(), CosmosDataLoaderStateCallback()
    with pytest.raises(ValueError, match="Map-style resume cannot safely stamp a multi-sample batch"):
        noted(make(), guides, 12)
    assert images(loader, 5) == whole[:5]
    again.load_state_dict(loader.state_dict())
    assert images(again, 7) == whole[5:]


@pytest.mark.parametrize(
    ("source", "batcher"),
    [
        (MapDistributor(Captions(40)), PoolPackingBatcher(24, max_batch_size=1)),
        (MapDistributor(Captions(40)), SequentialPackingBatcher(max_samples_per_batch=3)),
        (IterableDistributor(Captions(40)), PoolPackingBatcher(24, max_batch_size=3)),
    ],
)
def test_7_the_ways_out_of_it_that_the_guide_names_work(source, batcher, clean):
    """The sequential one also over an epoch's border, where upstream raises."""
    callback = CosmosDataLoaderStateCallback()
    for batch in itertools.islice(CosmosDataLoader(source, PROCESSOR, batcher, Padded()), 15):
        if isinstance(source, MapDistributor):
            callback.on_training_step_batch_end(None, batch, {}, None)
    assert callback.state_dict() or isinstance(source, IterableDistributor)


def test_7_the_collator_makes_the_structure_that_the_model_reads():
    clips = [clip(5, 32, 32, 3) | {"fps": n} for n in range(2)]
    packed = VFMListCollator().collate(clips)
    assert [[media.shape for media in sample] for sample in packed["video"]] == [[(3, 5, 32, 32)]] * 2
    assert DefaultBatchCollator().collate(clips)["video"].shape == (2, 3, 5, 32, 32)
    with pytest.raises(RuntimeError, match="equal size"):
        DefaultBatchCollator().collate([clip(5, 32, 32, 3), clip(9, 32, 32, 3)])


def test_7_oversized_samples_are_discarded_with_an_error_in_the_log(log):
    """Better: `stats()` counts them, also where no log is shown (as by default) and from workers."""
    clips = [clip(5, 64, 96, words) for words in (5, 500, 5)]
    make = functools.partial(
        CosmosDataLoader,
        IterableDistributor(clips),
        batcher=SequentialPackingBatcher(max_sequence_length=61),
        collator=VFMListCollator(),
    )
    alone = make()
    assert [len(batch["video"]) for batch in alone] == [2]
    assert [level for level, message in log if "515 tokens" in message] == ["ERROR"]
    in_worker = make(num_workers=1)
    assert len(list(in_worker)) == 1
    assert alone.stats()["discarded"] == in_worker.stats()["discarded"] == {"oversized": 1}


def test_7_persistent_workers_are_ignored_with_a_log_where_there_are_none(log):
    loader = CosmosDataLoader(MapDistributor(Chunk(1, 2)), batch_size=1, persistent_workers=True)
    assert not loader.persistent_workers
    assert any("persistent_workers" in message for _, message in log)


# 10. The checklists: what the sections above leave over


def test_10_the_data_parallel_rank_comes_from_parallel_dims():
    found = [
        numbers(
            CosmosDataLoader(MapDistributor(Chunk(*range(6)), shuffle=False), batch_size=1, parallel_dims=at),
            3,
        )
        for at in (Dims(0, 2), Dims(1, 2))
    ]
    assert found == [[[0], [2], [4]], [[1], [3], [5]]]


def test_10_several_datasets_with_one_callback_for_all(clean):
    def make():
        loaders = {
            name: CosmosDataLoader(MapDistributor(Chunk(*range(9)), seed=seed, name=name), batch_size=1)
            for seed, name in enumerate(("a", "b"))
        }
        return JointCosmosDataLoader(
            {name: {"dataloader": loader, "ratio": 1 + n} for n, (name, loader) in enumerate(loaders.items())}
        )

    def taken(joint, most):
        return [(batch["dataset_name"], batch["n"].tolist()) for batch in itertools.islice(joint, most)]

    whole = taken(make(), 20)
    joint, again = make(), make()
    callback = JointCosmosDataLoaderStateCallback(outer_loader=joint)
    for batch in itertools.islice(joint, 8):
        callback.on_training_step_batch_end(None, batch, {}, None)
    JointCosmosDataLoaderStateCallback(outer_loader=again).load_state_dict(callback.state_dict())
    assert taken(again, 12) == whole[8:]
    with pytest.raises(ValueError, match="global_id"):
        JointCosmosDataLoader({"global_id": {"dataloader": make(), "ratio": 1}})
