"""One stream: what is in its batches, what is counted, and where it goes on."""

from __future__ import annotations

import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.dataflow.base import LoaderError, RawItemProcessor, SampleBatcher, SkipSample
from prep.dataflow.batchers import SimpleBatcher
from prep.dataflow.combined import cursor_of
from prep.dataflow.cursors import MixtureCursor
from prep.dataflow.distributors import IterableDistributor, MapDistributor
from prep.dataflow.engine import Engine, Roles, sample_seed
from prep.dataflow.iterables import IterableCursor, Source
from prep.dataflow.plans import Place
from prep.dataflow.processors import IdentityProcessor
from tests.dataflow.sources import (
    BATCHERS,
    COUNT,
    SOURCES,
    ListCollator,
    Numbers,
    Resumable,
    numbers_of,
    walk,
)


@pytest.mark.parametrize("batcher", BATCHERS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_resumed_after_any_batch_is_the_undisturbed_one(source, batcher):
    place = Place(0, 2, 1, 2)
    whole = walk(SOURCES[source](Numbers(COUNT)), BATCHERS[batcher](), place, 25)
    for cut in range(len(whole)):
        again = walk(
            SOURCES[source](Numbers(COUNT)), BATCHERS[batcher](), place, 24 - cut, whole[cut][1].state
        )
        assert numbers_of(again) == numbers_of(whole[cut + 1 :])
        if source not in ("iterable", "mixture"):  # an iterable may go back to another of its points
            assert [mark.state for _, mark in again] == [mark.state for _, mark in whole[cut + 1 :]]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(BATCHERS)),
    st.sampled_from(["map", "spans"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from(["pad", "drop"]),
    st.lists(st.integers(0, 5), max_size=4),
)
def test_finite_epochs_resumed_several_times_give_the_undisturbed_sequence(
    batcher, source, world, workers, on_uneven, cuts
):
    place = Place(world - 1, world, 0, workers, epochs=2, on_uneven=on_uneven)
    whole = walk(SOURCES[source](Numbers(COUNT)), BATCHERS[batcher](), place, 10_000)
    found, state = [], None
    for cut in [*cuts, 10_000]:
        part = walk(SOURCES[source](Numbers(COUNT)), BATCHERS[batcher](), place, cut, state)
        found += part
        state = part[-1][1].state if part else state
    assert numbers_of(found) == numbers_of(whole)


@pytest.mark.parametrize("batcher", [name for name in BATCHERS if "short" not in name])
@pytest.mark.parametrize("source", ["map", "in order", "spans"])
def test_streams_cover_an_epoch_once(source, batcher):
    given_out = Counter()
    for rank in range(2):
        for worker in range(3):
            pairs = walk(
                SOURCES[source](Numbers(COUNT)), BATCHERS[batcher](), Place(rank, 2, worker, 3, epochs=1), 999
            )
            padding = [flag for _, mark in pairs for flag in mark.padding]
            numbers = [number for batch, _ in pairs for number in batch]
            given_out.update(number for number, flag in zip(numbers, padding, strict=True) if not flag)
    assert given_out == Counter(range(COUNT))


@pytest.mark.parametrize("batcher", BATCHERS)
def test_a_resume_reads_no_item_that_was_delivered(batcher):
    place = Place()
    whole = walk(MapDistributor(Numbers(COUNT)), BATCHERS[batcher](), place, 9)
    state = whole[4][1].state
    data = Numbers(COUNT)
    later = walk(MapDistributor(data), BATCHERS[batcher](), place, 2, state)
    delivered = {number for batch, _ in whole[:5] for number in batch}
    assert not delivered & set(data.reads)
    assert {number for batch, _ in later for number in batch} <= set(data.reads)
    assert len(data.reads) == len(set(data.reads))


class OddOnly(RawItemProcessor):
    def process(self, item):
        if item["number"] % 2 == 0:
            raise SkipSample("even")
        return item


@pytest.mark.parametrize("batcher", ["simple", "pool", "sequential"])
def test_skipped_items_are_counted_by_their_reason(batcher):
    cursor = cursor_of(MapDistributor(Numbers(COUNT)), Place(epochs=1))
    engine = Engine(cursor, Roles(OddOnly(), BATCHERS[batcher](), ListCollator()), worker=0)
    counts, numbers = Counter(), []
    for batch, mark in engine.run():
        counts.update(mark.discarded or {})
        numbers += batch["numbers"] if batch else []
    assert sorted(numbers) == list(range(1, COUNT, 2))
    assert counts == {"even": (COUNT + 1) // 2}


def test_discarded_samples_are_counted_and_not_pending():
    pairs = walk(MapDistributor(Numbers(COUNT)), BATCHERS["sequential short"](), Place(epochs=1), 999)
    lost = sum((mark.discarded or {}).get("oversized", 0) for _, mark in pairs)
    kept = sum(len(batch) for batch, _ in pairs)
    assert lost > 0
    assert kept + lost == COUNT
    assert pairs[-1][1].state["pending"] == []


def test_the_last_batch_that_drop_last_leaves_out_is_counted():
    pairs = walk(MapDistributor(Numbers(COUNT)), SimpleBatcher(10, drop_last=True), Place(epochs=1), 999)
    assert [len(batch) for batch, _ in pairs] == [10, 10, 10, 10, 0]
    assert pairs[-1][1].discarded == {"incomplete batch": 7}


class Forgetful(SampleBatcher):
    """Leaves every third sample out, and says nothing."""

    def batches(self, samples):
        for place, sample in enumerate(samples):
            if place % 3:
                yield [dict(sample)]


def test_what_a_batcher_leaves_out_in_silence_is_counted():
    pairs = walk(MapDistributor(Numbers(COUNT)), Forgetful(), Place(epochs=1), 999)
    counts = sum((Counter(mark.discarded or {}) for _, mark in pairs), Counter())
    assert counts == {"left out by the batcher": COUNT - sum(len(batch) for batch, _ in pairs)}


class Backwards(SampleBatcher):
    """Four at a time, the last first."""

    def batches(self, samples):
        held = []
        for sample in samples:
            held.append(sample)
            if len(held) == 4:
                yield [held.pop()]
        while held:
            yield [held.pop()]


def test_a_batcher_of_the_users_own_resumes_too():
    whole = walk(MapDistributor(Numbers(COUNT)), Backwards(), Place(epochs=1), 999)
    assert sum(len(batch) for batch, _ in whole) == COUNT
    for cut in (0, 7, 40, 44):
        again = walk(MapDistributor(Numbers(COUNT)), Backwards(), Place(epochs=1), 999, whole[cut][1].state)
        assert numbers_of(again) == numbers_of(whole[cut + 1 :])


def test_the_same_record_given_twice_is_two_samples():
    record = {"number": 0, "input_ids": [0]}
    whole = walk(MapDistributor([record] * 9), BATCHERS["pool"](), Place(epochs=1), 99)
    assert sum(len(batch) for batch, _ in whole) == 9
    assert record == {"number": 0, "input_ids": [0]}


class Draws(RawItemProcessor):
    def process(self, item):
        return {"number": (item["number"], random.random(), float(np.random.rand()))}


def drawn(place, batcher=None):
    cursor = cursor_of(MapDistributor(Numbers(COUNT), seed=3), place)
    engine = Engine(cursor, Roles(Draws(), batcher or SimpleBatcher(2), ListCollator()), worker=0, seed=3)
    return {entry[0]: entry[1:] for batch, _ in engine.run() for entry in batch["numbers"]}


def test_draws_belong_to_seed_epoch_and_item_whatever_the_streams():
    alone = drawn(Place(epochs=1))
    parts = [drawn(Place(0, 1, worker, 3, epochs=1, on_uneven="drop")) for worker in range(3)]
    assert all(alone[number] == draws for part in parts for number, draws in part.items())
    assert len(set(alone.values())) == COUNT


def test_seeds_of_neighbours_differ():
    seeds = {sample_seed(seed, epoch, item) for seed in range(9) for epoch in range(9) for item in range(99)}
    assert len(seeds) == 9 * 9 * 99
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_a_failing_item_is_named():
    class Broken(RawItemProcessor):
        def process(self, item):
            raise OSError("cut short")

    cursor = cursor_of(MapDistributor(Numbers(3), shuffle=False), Place())
    with pytest.raises(OSError, match="cut short") as caught:
        list(Engine(cursor, Roles(Broken(), SimpleBatcher(1), ListCollator()), worker=0).run())
    assert caught.value.__notes__ == ["at item 0 of epoch 0, position 0"]


def test_an_iterable_without_state_says_so():
    cursor = IterableCursor(Source(iter([{"number": 1}])), Place())
    cursor.advance()
    assert cursor.state([]) is None
    assert "no state_dict" in cursor.obstacle


def test_a_mixture_names_the_source_that_has_no_position():
    mixed = SOURCES["mixture"](Numbers(COUNT))
    mixed._sources["c"] = (IterableDistributor([{"number": 1}]), 1.0)
    cursor = cursor_of(mixed, Place())
    assert isinstance(cursor, MixtureCursor)
    cursor.advance()
    assert cursor.state([]) is None
    assert "'c'" in cursor.obstacle


def test_a_mixture_of_nothing_is_an_error_not_a_spin():
    mixed = MixtureCursor(["empty"], [IterableCursor(Source([]), Place())], [1.0], 0)
    with pytest.raises(LoaderError, match="'empty' of the mixture has no item"):
        mixed.advance()


def test_states_are_plain_json_and_small():
    for name, source in SOURCES.items():
        state = walk(source(Numbers(COUNT)), BATCHERS["pool"](), Place(), 5)[-1][1].state
        assert len(json.dumps(state)) < 6000, name


def test_a_restarted_source_begins_from_its_own_start():
    cursor = IterableCursor(Source(Resumable(4)), Place())
    assert [cursor.read(cursor.advance())["number"] for _ in range(3)] == [0, 1, 2]
    other = IterableCursor(Source(Resumable(4)), Place())
    other.restore(cursor.state([]))
    assert other.read(other.advance())["number"] == 3
    other.restart()
    assert other.read(other.advance())["number"] == 0


def test_identity_gives_back_what_it_is_given():
    item = {"number": 1}
    assert IdentityProcessor().process(item) is item


@pytest.mark.parametrize("batch_size", [1, 4, 10, COUNT])
def test_the_position_of_the_last_batch_is_its_own(batch_size):
    place = Place(epochs=2, on_uneven="drop")
    pairs = walk(MapDistributor(Numbers(COUNT)), SimpleBatcher(batch_size), place, 999)
    for cut, (_, mark) in enumerate(pairs):
        drawn = sum(len(batch) for batch, _ in pairs[: cut + 1])
        assert (mark.epoch, mark.position) == divmod(drawn - 1, COUNT)
