"""Which item goes to which stream: covered once, in the order of the contract."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.dataflow.base import LoaderError
from prep.dataflow.plans import MapPlanner, Place, SpanPlanner
from prep.permutation import torch_permutation

COUNTS = st.integers(1, 60)
WORLDS = st.integers(1, 4)
WORKERS = st.integers(1, 3)


def places(world, workers, **more):
    return [Place(rank, world, worker, workers, **more) for rank in range(world) for worker in range(workers)]


def items(planner, epoch, place):
    plan = planner.plan(epoch, place)
    found = [plan.at(position) for position in range(plan.length)]
    assert plan.many(np.arange(plan.length)).tolist() == found
    return found, plan


@given(COUNTS, WORLDS, WORKERS, st.integers(0, 3), st.integers(0, 9))
def test_a_map_epoch_is_the_strided_slices_of_torchs_permutation(count, world, workers, epoch, seed):
    order = torch_permutation(count, seed + epoch).tolist()
    planner = MapPlanner(count, seed=seed, shuffle=True)
    for place in places(world, workers):
        found, plan = items(planner, epoch, place)
        assert found == order[place.stream :: place.streams]
        assert plan.own == plan.length


@given(COUNTS, WORLDS, WORKERS)
def test_without_shuffle_every_nth_item_is_taken(count, world, workers):
    planner = MapPlanner(count, seed=0, shuffle=False)
    for place in places(world, workers):
        assert items(planner, 5, place)[0] == list(range(count))[place.stream :: place.streams]


@given(COUNTS, WORLDS, WORKERS, st.booleans(), st.integers(0, 2))
def test_padding_makes_streams_of_one_length_and_covers_all(count, world, workers, shuffle, epoch):
    planner = MapPlanner(count, seed=1, shuffle=shuffle)
    every = [items(planner, epoch, place) for place in places(world, workers, epochs=3)]
    assert len({len(found) for found, _ in every}) == 1
    own = [item for found, plan in every for item in found[: plan.own]]
    assert sorted(own) == list(range(count))
    assert all(0 <= item < count for found, _ in every for item in found)


@given(COUNTS, WORLDS, WORKERS, st.booleans())
def test_dropping_makes_streams_of_one_length_and_repeats_nothing(count, world, workers, shuffle):
    planner = MapPlanner(count, seed=1, shuffle=shuffle)
    every = [items(planner, 0, place) for place in places(world, workers, epochs=1, on_uneven="drop")]
    assert {len(found) for found, _ in every} == {count // (world * workers)}
    given_out = Counter(item for found, _ in every for item in found)
    assert max(given_out.values(), default=1) == 1
    assert sum(plan.own - plan.length for _, plan in every) == count - sum(given_out.values())


def test_unequal_streams_are_an_error_where_that_is_asked():
    planner = MapPlanner(10, seed=0, shuffle=True)
    with pytest.raises(LoaderError, match="3 streams get 3 to 4 samples"):
        planner.plan(0, Place(0, 3, 0, 1, epochs=1, on_uneven="error"))
    assert planner.plan(0, Place(0, 5, 0, 1, epochs=1, on_uneven="error")).length == 2


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def spans_of(lengths, gaps=0):
    firsts = np.cumsum([0, *(length + gaps for length in lengths[:-1])])
    return SpanPlanner(firsts, lengths, seed=4, shuffle=True)


@given(LENGTHS, WORLDS, WORKERS, st.integers(0, 2), st.integers(0, 2))
def test_spans_are_dealt_whole_in_the_drawn_order(lengths, world, workers, epoch, gaps):
    planner = spans_of(lengths, gaps)
    blocks = list(zip(planner.firsts.tolist(), planner.lengths.tolist(), strict=True))
    order = torch_permutation(len(lengths), 4 + epoch).tolist()
    for place in places(world, workers):
        expected = [
            index
            for span in order[place.stream :: place.streams]
            for index in range(blocks[span][0], sum(blocks[span]))
        ]
        assert items(planner, epoch, place)[0] == expected


@given(LENGTHS, WORLDS, WORKERS)
def test_padded_spans_end_together_and_cover_all(lengths, world, workers):
    planner = spans_of(lengths)
    every = [items(planner, 0, place) for place in places(world, workers, epochs=1)]
    assert len({len(found) for found, _ in every}) == 1
    assert sorted(item for found, plan in every for item in found[: plan.own]) == list(range(sum(lengths)))


@given(LENGTHS, st.data())
def test_what_was_delivered_before_is_left_out_and_nothing_else(lengths, data):
    total = sum(lengths)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)))
    left = sorted(np.flatnonzero(~mask).tolist())
    for planner in (spans_of(lengths), MapPlanner(total, seed=2, shuffle=True)):
        for more in ({}, {"epochs": 2}):
            every = [items(planner, 0, place) for place in places(2, 2, delivered={0: mask}, **more)]
            assert sorted(item for found, plan in every for item in found[: plan.own]) == left
        assert len({len(found) for found, _ in every}) == 1


@pytest.mark.parametrize(
    ("firsts", "lengths", "message"),
    [
        ([0, 1], [1], "make no spans"),
        ([0], [0], "has no window"),
        ([[0]], [[1]], "make no spans"),
        ([5, 0], [2, 6], "from 0 and from 5 overlap"),
    ],
)
def test_spans_that_are_none_are_refused(firsts, lengths, message):
    with pytest.raises(LoaderError, match=message):
        SpanPlanner(firsts, lengths, seed=0, shuffle=True)
