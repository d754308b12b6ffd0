"""Several pipelines as one: who is drawn, what is refused, and a resume in the middle."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from prep.dataflow import (  # noqa: E402
    CosmosDataLoader,
    IterableDistributor,
    JointCosmosDataLoader,
    JointCosmosDataLoaderStateCallback,
    LoaderError,
    MapDistributor,
)
from tests.dataflow.sources import BATCHERS, COUNT, SOURCES, ListCollator, Numbers, Resumable  # noqa: E402

RATIOS = {"pool": 3, "sequential": 1.5, "simple": 1}


def inner(batcher="one", workers=0, source="map", **more):
    return CosmosDataLoader(
        SOURCES[source](Numbers(COUNT)) if isinstance(source, str) else source,
        batcher=BATCHERS[batcher](),
        collator=ListCollator(),
        num_workers=workers,
        **more,
    )


def joint_of(workers=0, seed=42, source="map", ratios=RATIOS):
    return JointCosmosDataLoader(
        {
            name: {"dataloader": inner(name, workers, source), "ratio": ratio}
            for name, ratio in ratios.items()
        },
        seed=seed,
    )


def taken(batches, most):
    return [(batch["dataset_name"], batch["numbers"]) for batch in itertools.islice(batches, most)]


@pytest.mark.parametrize("seed", [0, 42, 1234])
def test_each_step_draws_with_the_state_of_seed_and_step(seed):
    joint = joint_of(seed=seed)
    shares = np.array([*RATIOS.values()], float) / sum(RATIOS.values())
    expected = [[*RATIOS][np.random.RandomState(seed + step).choice(3, p=shares)] for step in range(200)]
    assert [name for name, _ in taken(joint, 200)] == expected
    assert joint.step == 200
    assert joint.names == [*RATIOS]


def test_the_default_seed_is_the_guides():
    make = {"a": {"dataloader": inner(), "ratio": 1}, "b": {"dataloader": inner(), "ratio": 1}}
    unnamed = [name for name, _ in taken(JointCosmosDataLoader(make), 50)]
    assert unnamed == [name for name, _ in taken(JointCosmosDataLoader(make, seed=42), 50)]


def test_each_loader_gives_its_batches_in_its_own_order():
    found = taken(joint_of(), 60)
    for name in RATIOS:
        own = [numbers for drawn, numbers in found if drawn == name]
        assert own == [batch["numbers"] for batch in itertools.islice(inner(name), len(own))]


def test_a_step_set_by_the_trainer_goes_on_with_the_draws():
    names = [name for name, _ in taken(joint_of(), 40)]
    joint = joint_of()
    joint.set_start_iteration(25)
    assert [name for name, _ in taken(joint, 15)] == names[25:]


def test_a_ratio_of_nothing_leaves_a_loader_out():
    joint = joint_of(ratios={"simple": 1, "one": 0, "pool": -2})
    assert joint.names == ["simple"]
    assert {name for name, _ in taken(joint, 20)} == {"simple"}
    with pytest.raises(ValueError, match="No loader has a ratio above 0"):
        joint_of(ratios={"simple": 0})
    with pytest.raises(ValueError, match="No loader has a ratio above 0"):
        JointCosmosDataLoader({"simple": {"dataloader": inner()}})


def test_the_name_of_the_step_is_reserved():
    with pytest.raises(ValueError, match="'global_id' is reserved"):
        JointCosmosDataLoader({"global_id": {"dataloader": inner(), "ratio": 1}})
    # Left out, it is in no checkpoint: as upstream.
    left_out = {"global_id": {"dataloader": inner(), "ratio": 0}, "a": {"dataloader": inner(), "ratio": 1}}
    assert JointCosmosDataLoader(left_out).names == ["a"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", ["map", "spans", "mixture"])
def test_a_resume_in_the_middle_is_exact(source, workers):
    whole = taken(joint_of(workers, source=source), 24)
    found, state = [], None
    for steps in (1, 2, 9, 12):
        joint = joint_of(workers, source=source)
        if state is not None:
            joint.load_state_dict(state)
        found += taken(joint, steps)
        state = json.loads(json.dumps(joint.state_dict()))
        assert state["global_id"] == len(found)
    assert found == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_one_callback_keeps_all_of_them(workers):
    whole = taken(joint_of(workers), 16)
    joint = joint_of(workers)
    callback = JointCosmosDataLoaderStateCallback(outer_loader=joint)
    for batch in itertools.islice(joint, 7):
        callback.on_training_step_batch_end(None, batch, {}, None)
    state = json.loads(json.dumps(callback.state_dict()))
    assert set(state) == {"global_id", "_draws", *RATIOS}
    again = joint_of(workers)
    JointCosmosDataLoaderStateCallback(outer_loader=again).load_state_dict(state)
    assert taken(again, 9) == whole[7:]


def test_a_state_that_upstream_wrote_is_understood():
    named = {
        name: {
            "dataloader": inner("one", source=MapDistributor(Numbers(COUNT), shuffle=False, name=name)),
            "ratio": 1,
        }
        for name in ("a", "b")
    }
    joint = JointCosmosDataLoader(named)
    positions = {"a": {0: {"epoch": 0, "index": 4}}, "b": {0: {"epoch": 2, "index": 9}}}
    JointCosmosDataLoaderStateCallback(joint).load_state_dict({"global_id": 16, **positions})
    assert joint.step == 16
    found = taken(joint, 20)
    assert [numbers[0] for name, numbers in found if name == "a"][:3] == [5, 6, 7]
    assert [numbers[0] for name, numbers in found if name == "b"][:3] == [10, 11, 12]


def test_a_state_of_other_loaders_is_refused():
    state = joint_of().state_dict()
    with pytest.raises(LoaderError, match="another loader: of pool, sequential, simple, not pool, simple"):
        joint_of(ratios={"simple": 1, "pool": 1}).load_state_dict(state)


def test_a_loader_that_ends_begins_anew_and_one_without_a_batch_is_told():
    ending = inner("simple", source=IterableDistributor([{"number": number} for number in range(7)]))
    joint = JointCosmosDataLoader({"ending": {"dataloader": ending, "ratio": 1}})
    assert [numbers for _, numbers in taken(joint, 4)] == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]
    empty = inner("simple", source=IterableDistributor([]))
    with pytest.raises(LoaderError, match="'empty' gives no batch at all"):
        next(iter(JointCosmosDataLoader({"empty": {"dataloader": empty, "ratio": 1}})))


@pytest.mark.parametrize("workers", [0, 2])
def test_finite_loaders_resume_over_their_ends(workers):
    def make():
        loaders = {
            name: {"dataloader": inner(name, workers, epochs=1), "ratio": ratio}
            for name, ratio in RATIOS.items()
        }
        return JointCosmosDataLoader(loaders)

    whole = taken(make(), 80)
    for cut in (5, 33, 61):
        first, second = make(), make()
        taken(first, cut)
        second.load_state_dict(first.state_dict())
        assert taken(second, 80 - cut) == whole[cut:]


def test_stats_are_each_loaders_own():
    joint = joint_of()
    names = Counter(name for name, _ in taken(joint, 30))
    stats = joint.stats()
    assert {name: stats[name]["batches"] for name in RATIOS} == names
    assert stats["simple"]["samples"] == 3 * names["simple"]
    assert stats["pool"]["fill"] > 0
    assert stats["simple"]["fill"] is None


def test_a_joint_loader_that_ran_before_goes_back_by_its_callback():
    whole = taken(joint_of(), 9)
    joint = joint_of()
    callback = JointCosmosDataLoaderStateCallback(joint)
    taken(joint, 3)
    state = callback.state_dict()
    taken(joint, 3)
    callback.load_state_dict(state)
    assert taken(joint, 6) == whole[3:]


def test_counts_go_on_where_a_loader_begins_anew():
    ending = inner("simple", source=IterableDistributor([{"number": number} for number in range(7)]))
    joint = JointCosmosDataLoader({"ending": {"dataloader": ending, "ratio": 1}})
    taken(joint, 5)
    assert joint.stats()["ending"]["batches"] == 5


def test_a_stream_that_was_resumed_begins_anew_with_its_first_item():
    def make():
        ending = inner("simple", source=IterableDistributor(Resumable(20)))
        return JointCosmosDataLoader({"ending": {"dataloader": ending, "ratio": 1}})

    whole = taken(make(), 14)
    first, second = make(), make()
    taken(first, 3)
    second.load_state_dict(first.state_dict())
    assert taken(second, 11) == whole[3:]


def test_a_second_pass_over_a_stream_resumes_with_its_first_items_pending():
    loader = inner("pool", source=IterableDistributor(Resumable(20)))
    whole = [batch["numbers"] for batch in loader]
    for cut in range(1, len(whole)):
        assert [batch["numbers"] for batch in itertools.islice(loader, cut)] == whole[:cut]
        again = inner("pool", source=IterableDistributor(Resumable(20)))
        again.load_state_dict(loader.state_dict())
        assert [batch["numbers"] for batch in again] == whole[cut:]


@pytest.mark.parametrize("other", [{"seed": 1}, {"ratios": {**RATIOS, "pool": 9}}])
def test_a_state_of_other_draws_is_refused(other):
    with pytest.raises(LoaderError, match="belongs to another"):
        joint_of(**other).load_state_dict(joint_of().state_dict())


def test_a_refused_state_changes_nothing():
    def make(count):
        loaders = {"a": inner(), "b": inner(source=MapDistributor(Numbers(count)))}
        return JointCosmosDataLoader(
            {name: {"dataloader": loader, "ratio": 1} for name, loader in loaders.items()}
        )

    first, other = make(COUNT), make(COUNT + 1)
    taken(first, 6)
    with pytest.raises(LoaderError):
        other.load_state_dict(first.state_dict())
    assert taken(other, 4) == taken(make(COUNT + 1), 4)
