"""The state callbacks: with a loader exact, without one as the guide has it, and what they refuse."""

from __future__ import annotations

import itertools
import json
import os
import pickle

import pytest

torch = pytest.importorskip("torch")

from prep.dataflow import (  # noqa: E402
    CosmosDataLoader,
    CosmosDataLoaderStateCallback,
    IterableDistributor,
    JointCosmosDataLoader,
    JointCosmosDataLoaderStateCallback,
    LoaderError,
    MapDistributor,
    SimpleBatcher,
    SpanDistributor,
)
from tests.dataflow.sources import BATCHERS, COUNT, SOURCES, SPANS, ListCollator, Numbers  # noqa: E402

IN_ORDER = ("one", "simple", "pool of one", "counted")
"""The batchers that deliver a stream in its order: stamps alone can speak for them."""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("COSMOS_DL_STATE_")]:
        monkeypatch.delenv(name)
    yield
    for name in [name for name in os.environ if name.startswith("COSMOS_DL_STATE_")]:
        del os.environ[name]


def loader_of(source="map", batcher="pool", *, workers=0, **more):
    distributor = SOURCES[source](Numbers(COUNT)) if isinstance(source, str) else source
    return CosmosDataLoader(
        distributor,
        batcher=BATCHERS[batcher](),
        collator=ListCollator(),
        num_workers=workers,
        **more,
    )


def trained(batches, callback, steps):
    """The batches of some steps of a trainer that calls the callback by position, as upstream's does."""
    found = []
    for step, batch in enumerate(itertools.islice(batches, steps)):
        found.append(batch["numbers"])
        callback.on_training_step_batch_end(None, batch, {}, torch.tensor(0.0), step)
        callback.on_training_step_end(None, batch, {}, torch.tensor(0.0), iteration=step)
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batcher", ["simple", "pool", "sequential"])
@pytest.mark.parametrize("source", ["map", "spans", "mixture"])
def test_with_its_loader_a_resume_is_exact_under_every_batcher(source, batcher, workers):
    whole = [batch["numbers"] for batch in itertools.islice(loader_of(source, batcher, workers=workers), 9)]
    first = loader_of(source, batcher, workers=workers)
    callback = CosmosDataLoaderStateCallback(loader=first)
    assert trained(first, callback, 4) == whole[:4]
    # Upstream's checkpoint is a pickle for each rank; JSON would do too.
    state = pickle.loads(pickle.dumps(callback.state_dict()))
    second = loader_of(source, batcher, workers=workers)
    CosmosDataLoaderStateCallback(loader=second).load_state_dict(json.loads(json.dumps(state)))
    assert [batch["numbers"] for batch in itertools.islice(second, 5)] == whole[4:]
    assert not [name for name in os.environ if name.startswith("COSMOS_DL_STATE_")]


@pytest.mark.parametrize("batcher", IN_ORDER)
@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_loader_the_next_one_begins_after_the_stamps(batcher, workers):
    # 20 batches of up to 4 samples: over the border of an epoch, which upstream refuses.
    whole = [batch["numbers"] for batch in itertools.islice(loader_of("map", batcher), 24)]
    for cut in (1, 7, 20):
        callback = CosmosDataLoaderStateCallback()
        assert trained(loader_of("map", batcher, workers=workers), callback, cut) == whole[:cut]
        state = callback.state_dict()
        assert set(state) == {0}
        assert set(state[0]) == {"epoch", "index"}
        CosmosDataLoaderStateCallback().load_state_dict(json.loads(json.dumps(state)))
        again = itertools.islice(loader_of("map", batcher, workers=workers), 4)
        assert [batch["numbers"] for batch in again] == whole[cut : cut + 4]


def test_without_a_loader_each_worker_begins_after_its_own_stamps():
    """As upstream: the turn begins with worker 0 again. With loader= the very sequence goes on."""
    callback = CosmosDataLoaderStateCallback()
    trained(loader_of("in order", "one", workers=2), callback, 5)
    assert callback.state_dict() == {0: {"epoch": 0, "index": 2}, 1: {"epoch": 0, "index": 1}}
    CosmosDataLoaderStateCallback().load_state_dict(callback.state_dict())
    again = itertools.islice(loader_of("in order", "one", workers=2), 4)
    assert [batch["numbers"] for batch in again] == [[6], [5], [8], [7]]


def test_a_state_written_by_upstream_is_understood_with_and_without_a_loader():
    state = {0: {"epoch": 1, "index": 3}}
    expected = [[number] for number in range(4, 7)]
    for exact in (False, True):
        loader = loader_of("in order", "one")
        callback = CosmosDataLoaderStateCallback(loader=loader) if exact else CosmosDataLoaderStateCallback()
        callback.load_state_dict(state)
        batches = list(itertools.islice(loader, 3))
        assert [batch["numbers"] for batch in batches] == expected
        assert [int(batch["sample_epoch"][0]) for batch in batches] == [1, 1, 1]
        assert callback.state_dict()[0] == state[0]


def test_names_keep_loaders_of_one_process_apart_in_the_environment():
    for name, index in (("a", 4), ("b", 9)):
        CosmosDataLoaderStateCallback(name=name).load_state_dict({0: {"epoch": 0, "index": index}})
    assert dict(os.environ).items() >= {"COSMOS_DL_STATE_b_WORKER_0_INDEX": "9"}.items()
    for name, number in (("b", 10), ("a", 5), ("", 0)):
        loader = loader_of(MapDistributor(Numbers(COUNT), shuffle=False, name=name), "one")
        assert next(iter(loader))["numbers"] == [number]


def test_spans_go_on_from_the_environment_too():
    """More than upstream, whose stream of episodes has no position."""
    make = lambda: loader_of(SpanDistributor(Numbers(COUNT), SPANS, name="robot"), "one")  # noqa: E731
    whole = [batch["numbers"] for batch in itertools.islice(make(), 8)]
    CosmosDataLoaderStateCallback("robot").load_state_dict({"0": {"epoch": 0, "index": 4}})
    assert [batch["numbers"] for batch in itertools.islice(make(), 3)] == whole[5:]


@pytest.mark.parametrize("batcher", ["pool", "sequential"])
def test_without_a_loader_a_batch_with_samples_pending_before_it_is_refused(batcher):
    """The guide's ValueError; upstream raises it in the loader, whether or not a state is kept."""
    with pytest.raises(ValueError, match="Map-style resume cannot safely stamp a multi-sample batch"):
        trained(loader_of("map", batcher), CosmosDataLoaderStateCallback(), COUNT)


def test_nothing_is_refused_that_a_stamp_can_speak_for():
    """Better than upstream, which asks for places without a gap even where none is pending."""
    loader = CosmosDataLoader(
        MapDistributor(Numbers(COUNT)), batcher=SimpleBatcher(4), collator=ListCollator(), num_workers=1
    )
    callback = CosmosDataLoaderStateCallback()
    trained(loader, callback, 13)
    assert callback.state_dict() == {0: {"epoch": 1, "index": 4}}


def test_an_empty_state_and_a_batch_without_stamps_are_nothing():
    callback = CosmosDataLoaderStateCallback(distributor_type="map")
    callback.on_training_step_batch_end(None, {"numbers": [1]}, {}, None)
    assert callback.state_dict() == {}
    callback.load_state_dict({})
    assert not [name for name in os.environ if name.startswith("COSMOS_DL_STATE_")]


def test_a_checkpointer_finds_what_it_asks_for():
    """Upstream's takes the callback with this component and asks it twice: for a state, then with one."""
    joint = JointCosmosDataLoader({"a": {"dataloader": loader_of(), "ratio": 1}})
    for callback in (CosmosDataLoaderStateCallback(), JointCosmosDataLoaderStateCallback(joint)):
        assert callback.checkpoint_component == "dataloader"
        assert callback.has_checkpoint_state() is True


def test_a_state_of_another_loader_is_refused_through_the_callback_too():
    first = CosmosDataLoaderStateCallback(loader=loader_of("map", "pool"))
    with pytest.raises(LoaderError, match=r"batcher\.batcher"):
        CosmosDataLoaderStateCallback(loader=loader_of("map", "simple")).load_state_dict(first.state_dict())


def test_the_positions_of_an_iterable_reach_no_other_loader():
    records = [{"number": number} for number in range(9)]
    callback = CosmosDataLoaderStateCallback()
    trained(loader_of(IterableDistributor(records), "one"), callback, 4)
    CosmosDataLoaderStateCallback().load_state_dict(callback.state_dict())
    assert next(iter(loader_of("in order", "one")))["numbers"] == [0]


def test_a_loader_that_ran_before_takes_its_position_from_the_environment():
    loader = loader_of("in order", "one", workers=1)
    callback = CosmosDataLoaderStateCallback()
    trained(loader, callback, 3)
    callback.load_state_dict(callback.state_dict())
    assert next(iter(loader))["numbers"] == [3]
