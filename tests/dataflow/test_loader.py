"""The loader in real workers: stamps, states, finite epochs, refusals, counts."""

from __future__ import annotations

import itertools
import json
import random

import pytest

torch = pytest.importorskip("torch")

from prep.dataflow import (  # noqa: E402
    CosmosDataLoader,
    IterableDistributor,
    LoaderError,
    MapDistributor,
    RawItemProcessor,
    SimpleBatcher,
    SpanDistributor,
)
from tests.dataflow.loaders import loader_of, taken  # noqa: E402
from tests.dataflow.sources import COUNT, SOURCES, SPANS, ListCollator, Numbers  # noqa: E402


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("batcher", ["simple", "pool", "sequential"])
def test_resume_after_any_number_of_batches_is_exact(workers, batcher):
    whole = taken(loader_of(batcher=batcher, workers=workers), 14)
    for cut in (0, 1, 2, 5, 9):
        first = loader_of(batcher=batcher, workers=workers)
        assert taken(first, cut) == whole[:cut]
        second = loader_of(batcher=batcher, workers=workers)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken(second, 14 - cut) == whole[cut:]


@pytest.mark.parametrize("source", [*SOURCES])
def test_twice_in_a_row_with_fewer_steps_than_workers(source):
    whole = taken(loader_of(source, workers=3), 8)
    found, state = [], None
    for steps in (1, 1, 2, 4):
        loader = loader_of(source, workers=3)
        if state is not None:
            loader.load_state_dict(state)
        found += taken(loader, steps)
        state = json.loads(json.dumps(loader.state_dict()))
    assert found == whole


@pytest.mark.slow
@pytest.mark.parametrize("source", ["map", "spans", "iterable"])
def test_spawned_workers_resume_as_forked_ones(source):
    whole = taken(loader_of(source, workers=2), 6)
    first = loader_of(source, workers=2, multiprocessing_context="spawn")
    assert taken(first, 3) == whole[:3]
    second = loader_of(source, workers=2, multiprocessing_context="spawn")
    second.load_state_dict(first.state_dict())
    assert taken(second, 3) == whole[3:]


def test_a_loader_goes_back_to_an_earlier_state_of_its_own():
    loader = loader_of(workers=2)
    whole = taken(loader, 9)
    first = loader_of(workers=2)
    taken(first, 4)
    state = first.state_dict()
    for _ in range(2):
        loader.load_state_dict(state)
        assert taken(loader, 5) == whole[4:]
    assert taken(loader, 9) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_finite_epochs_resume_at_every_place_and_end(workers):
    make = {"workers": workers, "epochs": 2, "batcher": "simple"}
    whole = taken(loader_of(**make), 999)
    assert len(loader_of(**make)) == len(whole)
    for cut in range(0, len(whole) + 1, 3):
        first = loader_of(**make)
        taken(first, cut)
        second = loader_of(**make)
        second.load_state_dict(first.state_dict())
        assert taken(second, 999) == whole[cut:]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("source", ["map", "spans"])
def test_ranks_end_together_and_padding_is_marked(workers, source):
    batches = [
        list(loader_of(source, "simple", workers=workers, rank=rank, world=2, epochs=2)) for rank in range(2)
    ]
    assert len(batches[0]) == len(batches[1])
    assert [len(batch["numbers"]) for batch in batches[0]] == [len(batch["numbers"]) for batch in batches[1]]
    own = [
        number
        for rank in batches
        for batch in rank
        for number, padding in zip(batch["numbers"], batch["is_padding"].tolist(), strict=True)
        if not padding
    ]
    assert sorted(own) == sorted([*range(COUNT)] * 2)


def test_what_is_dropped_is_counted():
    loaders = [
        loader_of("map", "simple", rank=rank, world=2, epochs=2, on_uneven="drop") for rank in range(2)
    ]
    kept = [sum(map(len, taken(loader, 999))) for loader in loaders]
    assert kept[0] == kept[1]
    assert sum(loader.stats()["dropped"] for loader in loaders) == 2 * COUNT - sum(kept)


def test_stamps_hold_the_furthest_sample_for_each_of_the_batch():
    loader = loader_of("in order", SimpleBatcher(4), workers=2)
    batches = list(itertools.islice(loader, 3))
    assert [batch["sample_worker_id"].tolist() for batch in batches] == [[0] * 4, [1] * 4, [0] * 4]
    assert [batch["sample_index"].tolist() for batch in batches] == [[3] * 4, [3] * 4, [7] * 4]
    assert [batch["sample_epoch"].tolist() for batch in batches] == [[0] * 4] * 3
    assert batches[0]["sample_index"].dtype == torch.int64
    assert "is_padding" not in batches[0]


def test_the_default_collator_stacks_and_identity_is_the_default():
    loader = CosmosDataLoader(MapDistributor([{"x": torch.tensor([n])} for n in range(6)]), batch_size=3)
    assert next(iter(loader))["x"].shape == (3, 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": Numbers(COUNT + 1)}, "distributor.count"),
        ({"source": MapDistributor(Numbers(COUNT), seed=4)}, "distributor.seed"),
        ({"source": SpanDistributor(Numbers(COUNT), SPANS, seed=3)}, "distributor.distributor"),
        ({"workers": 3}, "num_workers"),
        ({"world": 2}, "dp_world_size"),
        ({"batcher": "simple"}, "batcher.batcher"),
        ({"epochs": 3}, "epochs"),
    ],
)
def test_a_state_of_something_else_is_refused_by_name(change, named):
    state = loader_of(workers=2).state_dict()
    with pytest.raises(LoaderError, match=named.replace(".", r"\.")):
        loader_of(**{"workers": 2, **change}).load_state_dict(state)


def test_a_state_of_another_rank_is_refused():
    state = loader_of(rank=0, world=2).state_dict()
    with pytest.raises(LoaderError, match="Rank 1 was given the states of the ranks \\[0\\]"):
        loader_of(rank=1, world=2).load_state_dict(state)
    with pytest.raises(LoaderError, match="no state of a loader"):
        loader_of().load_state_dict({"epoch": 1})


def test_no_worker_and_one_worker_are_the_same_stream():
    first = loader_of(workers=0)
    head = taken(first, 3)
    second = loader_of(workers=1)
    second.load_state_dict(first.state_dict())
    assert head + taken(second, 3) == taken(loader_of(), 6)


@pytest.mark.parametrize("source", ["map", "spans"])
@pytest.mark.parametrize("batcher", ["simple", "pool"])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 3), (3, 1), (2, 0)])
def test_dealing_anew_loses_and_repeats_nothing(source, batcher, ranks, workers):
    delivered, states = [], []
    # Ranks of a packing batcher end together by asking one another: here one rank has all streams.
    first = (2, 2) if batcher == "simple" else (1, 4)
    for rank, steps in zip(range(first[0]), (3, 5), strict=False):
        loader = loader_of(source, batcher, workers=first[1], rank=rank, world=first[0], epochs=2)
        delivered += own_numbers(itertools.islice(loader, steps))
        states.append(loader.state_dict())
    again = []
    for rank in range(ranks):
        loader = loader_of(source, "simple", workers=workers, rank=rank, world=ranks, epochs=2)
        loader.load_state_dict(states, reshard=True)
        head = list(itertools.islice(loader, 2))
        # A second stop, in the middle of what was dealt anew.
        last = loader_of(source, "simple", workers=workers, rank=rank, world=ranks, epochs=2)
        last.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        again += own_numbers([*head, *last])
    assert sorted(delivered + again) == sorted([*range(COUNT)] * 2)


def own_numbers(batches):
    return [
        number
        for batch in batches
        for number, padding in zip(batch["numbers"], batch["is_padding"].tolist(), strict=True)
        if not padding
    ]


def test_dealing_anew_again_and_with_states_missing():
    first = [loader_of(workers=2, rank=rank, world=2) for rank in range(2)]
    heads = [number for loader in first for batch in taken(loader, 2) for number in batch]
    states = [loader.state_dict() for loader in first]
    with pytest.raises(LoaderError, match=r"states of all 2 ranks; there are those of \[0\]"):
        loader_of().load_state_dict(states[:1], reshard=True)
    second = loader_of(workers=3)
    second.load_state_dict(states, reshard=True)
    middle = [number for batch in taken(second, 4) for number in batch]
    third = loader_of("map", "one")
    third.load_state_dict([second.state_dict()], reshard=True)
    rest = [batch[0] for batch in taken(third, COUNT - len(heads) - len(middle))]
    assert sorted(heads + middle + rest) == [*range(COUNT)]


def test_a_mixture_cannot_be_dealt_anew():
    loader = loader_of("mixture")
    taken(loader, 2)
    with pytest.raises(LoaderError, match="MixtureDistributor cannot be dealt anew"):
        loader_of("mixture", workers=2).load_state_dict([loader.state_dict()], reshard=True)


def test_an_iterable_without_state_begins_anew_and_says_why():
    records = [{"number": number, "input_ids": [0]} for number in range(20)]
    loader = loader_of(IterableDistributor(records), "simple")
    assert taken(loader, 2) == [[0, 1, 2], [3, 4, 5]]
    assert "list has no state_dict" in loader.obstacle
    second = loader_of(IterableDistributor(records), "simple")
    second.load_state_dict(loader.state_dict())
    assert taken(second, 1) == [[0, 1, 2]]


class Flips(RawItemProcessor):
    def process(self, item):
        return {**item, "number": (item["number"], random.random(), float(torch.rand(())))}


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_is_alike_for_any_workers_and_leaves_the_trainers_generators_alone(workers):
    random.seed(7)
    torch.manual_seed(7)
    expected = random.random(), float(torch.rand(()))
    random.seed(7)
    torch.manual_seed(7)
    loader = CosmosDataLoader(
        MapDistributor(Numbers(12)),
        Flips(),
        batcher=SimpleBatcher(2),
        collator=ListCollator(),
        num_workers=workers,
        epochs=1,
    )
    found = {number: draws for batch in loader for number, *draws in batch["numbers"]}
    assert (random.random(), float(torch.rand(()))) == expected
    alone = CosmosDataLoader(
        MapDistributor(Numbers(12)), Flips(), batcher=SimpleBatcher(1), collator=ListCollator(), epochs=1
    )
    assert found == {number: draws for batch in alone for number, *draws in batch["numbers"]}


def test_stats_add_up():
    loader = loader_of("map", "sequential short", workers=2, epochs=1)
    kept = sum(map(len, taken(loader, 999)))
    stats = loader.stats()
    assert stats["samples"] == kept
    assert stats["samples"] - stats["padding"] + stats["discarded"]["oversized"] in (COUNT, COUNT + 1)
    assert 0 < stats["fill"] <= 1
    assert 0 <= stats["wait_share"] <= 1
