"""The guide to custom datasets, `../shared/seeds/custom_datasets_guide.txt`, by its section numbers.

Each example is written anew over tiny data, with `prep.dataflow` for upstream's package and no other change.
Where this loader does better than the guide says, the test's docstring has the difference.
"""

from __future__ import annotations

import functools
import itertools

import pytest

torch = pytest.importorskip("torch")

from prep.dataflow import (  # noqa: E402
    BatchCollator,
    CosmosDataLoader,
    DataDistributor,
    DefaultBatchCollator,
    IdentityProcessor,
    IterableDistributor,
    JointCosmosDataLoader,
    MapDistributor,
    MixtureDistributor,
    PoolPackingBatcher,
    RawItemProcessor,
    SampleBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
    VFMListCollator,
    VLMCollator,
)
from tests.dataflow.guide_data import (  # noqa: E402
    PROCESSOR,
    CaptionProcessor,
    Captions,
    Chunk,
    Dims,
    Padded,
    clip,
    image_loader,
    images,
    numbers,
    tokenizer,
)

# 1. Quickstart


def test_1_a_map_dataset_in_shuffled_batches():
    finished = [{"x": torch.tensor([float(n)]), "y": n} for n in range(64)]
    loader = CosmosDataLoader(
        distributor=MapDistributor(finished, shuffle=True, seed=0),
        processor=IdentityProcessor(),
        batch_size=32,
    )
    model = torch.nn.Linear(1, 1)
    batches = list(itertools.islice(loader, 2))
    assert all(model(batch["x"]).shape == (32, 1) for batch in batches)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0)).tolist()
    assert [n for batch in batches for n in batch["y"].tolist()] == order


def test_1_a_batch_size_is_short_for_the_simple_batcher_and_the_stacking_collator():
    short = CosmosDataLoader(MapDistributor(Captions(20, fixed=True)), PROCESSOR, batch_size=6)
    long = CosmosDataLoader(
        MapDistributor(Captions(20, fixed=True)),
        PROCESSOR,
        batcher=SimpleBatcher(6),
        collator=DefaultBatchCollator(),
    )
    for one, other in itertools.islice(zip(short, long, strict=True), 5):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


# 2. The four roles, written by a user


class EveryNth(DataDistributor):
    def __init__(self, count):
        self.count = count

    def stream(self, dp_rank, dp_world_size, worker_id, num_workers):
        yield from range(dp_rank * num_workers + worker_id, self.count, dp_world_size * num_workers)


class Squared(RawItemProcessor):
    def process(self, item):
        return {"n": item, "squared": item * item}


class Pairs(SampleBatcher):
    def batches(self, samples):
        while group := list(itertools.islice(samples, 2)):
            yield group


class Columns(BatchCollator):
    def collate(self, samples):
        return {key: torch.tensor([sample[key] for sample in samples]) for key in samples[0]}


@pytest.mark.parametrize("workers", [0, 2])
def test_2_roles_of_ones_own_in_their_fixed_order(workers):
    found = [
        list(
            CosmosDataLoader(
                EveryNth(16), Squared(), Pairs(), Columns(), num_workers=workers, parallel_dims=at
            )
        )
        for at in (Dims(0, 2), Dims(1, 2))
    ]
    given = [n for rank in found for batch in rank for n in batch["n"].tolist()]
    assert sorted(given) == list(range(16))
    assert all(torch.equal(batch["squared"], batch["n"] ** 2) for rank in found for batch in rank)
    assert found[1][0]["n"].tolist() == ([1, 3] if workers == 0 else [2, 6])


def test_2_a_distributors_own_state_is_kept_and_given_back():
    class Counting(EveryNth):
        at = 0

        def stream(self, *place):
            for at in range(self.at, self.count):
                self.at = at
                yield at

        def state_dict(self):
            return {"at": self.at + 1}

        def load_state_dict(self, state):
            self.at = state["at"]

    first = CosmosDataLoader(Counting(12), Squared(), Pairs(), Columns())
    assert numbers(first, 2) == [[0, 1], [2, 3]]
    second = CosmosDataLoader(Counting(12), Squared(), Pairs(), Columns())
    second.load_state_dict(first.state_dict())
    assert numbers(second, 9)[0] == [4, 5]


def test_2_only_packing_batchers_ask_for_sizes():
    with pytest.raises(NotImplementedError):
        Pairs().sample_size({"n": 1})


@pytest.mark.parametrize(
    ("options", "defaults"),
    [
        (MapDistributor, {"seed": 0, "shuffle": True, "name": ""}),
        (MixtureDistributor, {"seed": 0}),
        (SimpleBatcher, {"drop_last": False}),
        (
            PoolPackingBatcher,
            {
                "pool_size": 16,
                "max_batch_size": 1,
                "long_threshold": 6400,
                "batching_strategy": "prefer_closest",
                "apply_long_sample_halving": True,
                "size_fn": None,
            },
        ),
        (SequentialPackingBatcher, {"max_samples_per_batch": None, "max_sequence_length": None}),
    ],
)
def test_2_the_built_ins_have_the_guides_defaults(options, defaults):
    import inspect

    found = inspect.signature(options).parameters
    assert {name: found[name].default for name in defaults} == defaults


# 3. Recipes by use-case


@pytest.mark.parametrize("workers", [0, 2])
def test_3_a_streamed_dataset_is_dealt_out_over_ranks_and_workers(workers):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(Captions(24, fixed=True).records)
    found = [
        image
        for rank in range(2)
        for batch in images(
            CosmosDataLoader(
                distributor=IterableDistributor(rows.to_iterable_dataset(num_shards=3)),
                processor=PROCESSOR,
                batch_size=8,
                num_workers=workers,
                parallel_dims=Dims(rank, 2),
            ),
            99,
        )
        for image in batch
    ]
    assert sorted(found) == list(range(24))


def test_3_token_budget_packing():
    loader = CosmosDataLoader(
        distributor=IterableDistributor(Captions(30)),
        processor=PROCESSOR,
        batcher=PoolPackingBatcher(max_tokens=24, pool_size=16, max_batch_size=0),
        collator=Padded(),
    )
    batches = list(loader)
    assert sum(len(batch["input_ids"]) for batch in batches) == 30
    assert all(batch["input_ids"].numel() <= 24 for batch in batches)
    assert max(len(batch["input_ids"]) for batch in batches) > 2


def test_3_a_cost_of_ones_own_by_function_or_by_subclass():
    class Sized(PoolPackingBatcher):
        def sample_size(self, sample):
            return sample["n"]

    make = {"max_tokens": 9, "pool_size": 4, "max_batch_size": 0}
    sizes = Chunk(5, 4, 3, 3, 2, 1, 9)
    by_function = PoolPackingBatcher(size_fn=lambda sample: sample["n"], **make)
    found = [
        [
            batch["n"].tolist()
            for batch in CosmosDataLoader(IterableDistributor(sizes.samples), batcher=batcher)
        ]
        for batcher in (by_function, Sized(**make))
    ]
    assert found[0] == found[1] == [[5], [4, 3], [3, 2, 1], [9]]


def test_3_packing_in_order_by_the_generators_tokens():
    # 1 + 4 // 4 latent frames of 2 x 3, and 2: 14 tokens; with the words and their end 20 or 30.
    clips = [clip(5, 64, 96, words) for words in (5, 15, 5, 5, 15)]
    loader = CosmosDataLoader(
        distributor=IterableDistributor(clips),
        batcher=SequentialPackingBatcher(
            max_sequence_length=61,
            tokenizer_spatial_compression_factor=16,
            tokenizer_temporal_compression_factor=4,
            patch_spatial=2,
        ),
        collator=VFMListCollator(),
    )
    packed = [[len(ids) for (ids,) in batch["text_token_ids"]] for batch in loader]
    assert packed == [[5, 15], [5, 5], [15]]


@pytest.mark.parametrize("options", [{}, {"max_sequence_length": 9, "max_samples_per_batch": 9}])
def test_3_a_budget_or_a_count_is_given_not_both(options):
    """A ValueError where the guide says `must`; upstream asserts."""
    with pytest.raises(ValueError, match="Exactly one of max_sequence_length and max_samples_per_batch"):
        SequentialPackingBatcher(**options)


def test_3_datasets_mixed_by_ratio_in_one_stream():
    mixed = MixtureDistributor(
        {
            "webvid": (IterableDistributor(Chunk(*range(100)).samples), 3.0),
            "internal": (IterableDistributor(Chunk(*range(100, 150)).samples), 1.0),
        },
        seed=0,
    )
    found = [n for batch in numbers(CosmosDataLoader(mixed, batch_size=10), 40) for n in batch]
    own = [n for n in found if n < 100]
    assert 270 <= len(own) <= 330
    assert own[:100] == list(range(100))
    assert own[100:110] == list(range(10))  # an exhausted source begins anew


def test_3_pipelines_of_unlike_roles_side_by_side():
    vlm = CosmosDataLoader(MapDistributor(Captions(9, fixed=True), name="vlm"), PROCESSOR, batch_size=3)
    vfm = CosmosDataLoader(
        IterableDistributor([clip(1, 32, 32, 3)] * 50),
        batcher=SequentialPackingBatcher(max_samples_per_batch=2),
        collator=VFMListCollator(),
    )
    joint = JointCosmosDataLoader(
        dataloaders={"vlm": {"dataloader": vlm, "ratio": 1}, "vfm": {"dataloader": vfm, "ratio": 3}},
        seed=42,
    )
    batches = list(itertools.islice(joint, 40))
    names = [batch["dataset_name"] for batch in batches]
    assert 22 <= names.count("vfm") <= 38
    assert all(
        ("pixel_values" in batch) == (name == "vlm") for batch, name in zip(batches, names, strict=True)
    )


# 4. A recipe as configuration


def lazy(target, **arguments):
    return {"target": target, **arguments}


def built(node):
    """What such a configuration makes, inner nodes first, as Hydra does."""
    if not isinstance(node, dict) or "target" not in node:
        return node
    return functools.partial(node["target"], **{k: built(v) for k, v in node.items() if k != "target"})()


def test_4_a_nested_configuration_builds_the_loader_and_takes_overrides():
    recipe = lazy(
        CosmosDataLoader,
        distributor=lazy(MapDistributor, dataset=lazy(Captions, count=20), shuffle=True),
        processor=lazy(CaptionProcessor, tokenizer=tokenizer, image_loader=image_loader),
        batcher=lazy(PoolPackingBatcher, max_tokens=30, max_batch_size=1),
        collator=lazy(Padded),
        num_workers=0,
    )
    assert len(next(iter(built(recipe)))["input_ids"]) == 1
    # The flat keys max_samples_per_batch and max_sequence_length of a TOML recipe go to these two.
    recipe["batcher"] |= {"max_batch_size": 5, "max_tokens": 24}
    shapes = [batch["input_ids"].shape for batch in itertools.islice(built(recipe), 8)]
    assert max(rows for rows, _ in shapes) in range(2, 6)
    assert all(rows * columns <= 24 for rows, columns in shapes)


# 8. From a folder of captions to a training step


@pytest.mark.parametrize("workers", [0, 2])
def test_8_a_dataset_of_ones_own_trains(workers):
    loader = CosmosDataLoader(
        distributor=MapDistributor(Captions(64, fixed=True), shuffle=True, seed=0),
        processor=CaptionProcessor(tokenizer, image_loader),
        batcher=SimpleBatcher(batch_size=16),
        collator=DefaultBatchCollator(),
        num_workers=workers,
    )
    weight = torch.ones((), requires_grad=True)

    def model(pixel_values, input_ids, **stamps):
        assert set(stamps) == {"sample_worker_id", "sample_epoch", "sample_index"}
        return (pixel_values.mean() + input_ids.float().mean()) * weight

    for batch in itertools.islice(loader, 4):
        assert (batch["pixel_values"].shape, batch["input_ids"].shape) == ((16, 3, 4, 6), (16, 4))
        model(**batch).backward()
    assert weight.grad > 0


def test_8_packing_instead_needs_another_batcher_and_collator_only():
    loader = CosmosDataLoader(
        MapDistributor(Captions(20)), PROCESSOR, PoolPackingBatcher(max_tokens=12, max_batch_size=1), Padded()
    )
    lengths = [batch["input_ids"].shape for batch in itertools.islice(loader, 20)]
    assert sorted(columns for _, columns in lengths) == sorted(n * 5 % 12 + 1 for n in range(20))


# 9. The three real recipes, by their roles


@pytest.mark.parametrize("streamed", [True, False])
def test_9_the_reasoners_recipes(streamed):
    class Chat(RawItemProcessor):
        def process(self, item):
            ids = tokenizer(item["caption"])
            return {
                "input_ids": ids,
                "labels": ids,
                "token_mask": ids > 0,
                "attention_mask": ids > 0,
                "pixel_values": torch.zeros(4, 8),
            }

    rows = Captions(10)
    loader = CosmosDataLoader(
        IterableDistributor(rows) if streamed else MapDistributor(rows, shuffle=False),
        Chat(),
        PoolPackingBatcher(max_tokens=16000, max_batch_size=1),
        VLMCollator(0, 2),
    )
    batches = list(itertools.islice(loader, 10))
    assert [batch["input_ids"].shape for batch in batches] == [(1, 16)] * 10
    assert [int((batch["input_ids"] != 0).sum()) for batch in batches] == [n * 5 % 12 + 1 for n in range(10)]


def test_3_a_streams_batch_has_the_collators_keys_only():
    loader = CosmosDataLoader(IterableDistributor(Chunk(1, 2).samples), batch_size=2)
    assert set(next(iter(loader))) == {"n"}
