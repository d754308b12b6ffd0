"""What the loader refuses, in one line each; and sources with a state, or none, of their own."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from prep.dataflow import (  # noqa: E402
    CosmosDataLoader,
    IterableDistributor,
    LoaderError,
    MapDistributor,
    MixtureDistributor,
    RankPartitionedDistributor,
    RawItemProcessor,
    SampleBatcher,
    SimpleBatcher,
    SkipSample,
    SpanDistributor,
)
from tests.dataflow.loaders import Dims, loader_of, taken  # noqa: E402
from tests.dataflow.sources import COUNT, Numbers, Resumable  # noqa: E402


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Provide either a batcher= or a batch_size="),
        ({"batcher": SimpleBatcher(1), "batch_size": 1}, "Both batcher= and batch_size="),
        ({"batch_size": 1, "epochs": 0}, "epochs=0 is no whole number of at least 1"),
        ({"batch_size": 1, "epochs": 1, "on_uneven": "cut"}, "on_uneven='cut' is unknown"),
        ({"batch_size": 1, "num_workers": 9}, "5 samples cannot be dealt to 9 streams"),
        ({"batch_size": 1, "epochs": 1, "num_workers": 2, "on_uneven": "error"}, "streams get 2 to 3"),
        ({"batch_size": 1, "parallel_dims": Dims(0, 9)}, "Use fewer ranks, or more data"),
    ],
)
def test_wrong_arguments_are_value_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        CosmosDataLoader(MapDistributor(Numbers(5)), **arguments)


def test_finite_epochs_need_a_known_length():
    with pytest.raises(LoaderError, match="source of known length"):
        loader_of("iterable", epochs=1)
    with pytest.raises(LoaderError, match="no meaning for a mixture"):
        loader_of("mixture", epochs=1)
    with pytest.raises(TypeError, match="not known beforehand"):
        len(loader_of("map"))


def test_persistent_workers_follow_the_guide():
    assert loader_of("map", workers=1).persistent_workers
    assert not loader_of("iterable", workers=1).persistent_workers
    assert not loader_of("map", workers=0, persistent_workers=True).persistent_workers


def test_positions_of_the_environment_are_honoured_and_used_up(monkeypatch):
    monkeypatch.setenv("COSMOS_DL_STATE_here_WORKER_0_EPOCH", "1")
    monkeypatch.setenv("COSMOS_DL_STATE_here_WORKER_0_INDEX", "2")
    loader = loader_of(MapDistributor(Numbers(9), shuffle=False, name="here"), "one")
    assert taken(loader, 2) == [[3], [4]]
    assert taken(loader, 2) == [[0], [1]]
    monkeypatch.setenv("COSMOS_DL_STATE_here_WORKER_0_EPOCH", "one")
    with pytest.raises(LoaderError, match="whole numbers were expected"):
        taken(loader, 1)


def test_a_self_sharding_stream_loses_nothing_in_workers():
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_list(
        [{"number": n, "input_ids": [0]} for n in range(COUNT)]
    ).to_iterable_dataset(num_shards=3)
    for workers in (0, 2, 3):
        found = taken(loader_of(IterableDistributor(stream), "simple", workers=workers), 999)
        assert sorted(number for batch in found for number in batch) == [*range(COUNT)]


@pytest.mark.parametrize("batcher", ["simple", "pool"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_datasets_resumes_exactly(workers, batcher):
    datasets = pytest.importorskip("datasets")
    rows = [{"number": n, "input_ids": [0] * (n % 9 + 1)} for n in range(COUNT)]

    def make():
        stream = datasets.Dataset.from_list(rows).to_iterable_dataset(num_shards=4)
        return loader_of(IterableDistributor(stream), batcher, workers=workers)

    whole = taken(make(), 999)
    for cut in (1, 3, 5):
        first, second = make(), make()
        taken(first, cut)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert taken(second, 999) == whole[cut:]


def test_a_shuffle_buffer_is_told_of():
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_list([{"number": n} for n in range(50)]).to_iterable_dataset()
    loader = loader_of(IterableDistributor(stream.shuffle(seed=1, buffer_size=10)), "simple")
    taken(loader, 2)
    assert "shuffle buffer" in loader.obstacle


def test_spans_that_are_uneven_only_in_a_later_epoch_are_refused_at_once():
    spans = SpanDistributor(Numbers(8), [(0, 1), (1, 2), (3, 2), (5, 1)], seed=4)
    loader_of(spans, "one", world=2, epochs=1, on_uneven="error")
    with pytest.raises(LoaderError, match="streams get"):
        loader_of(spans, "one", world=2, epochs=2, on_uneven="error")


def test_more_epochs_can_be_asked_for_afterwards():
    first = loader_of("map", "simple", workers=2, epochs=1)
    head = taken(first, 999)
    second = loader_of("map", "simple", workers=2, epochs=2)
    second.load_state_dict(first.state_dict())
    tail = taken(second, 999)
    assert sorted({number for batch in tail for number in batch}) == [*range(COUNT)]
    assert len(tail) == len(head)


def test_states_of_unlike_loaders_are_not_dealt_together():
    states = [loader_of(workers=2, rank=0, world=2).state_dict()]
    states.append(loader_of(workers=1, rank=1, world=2).state_dict())
    with pytest.raises(LoaderError, match="num_workers was 1 and is 2"):
        loader_of().load_state_dict(states, reshard=True)


def test_a_resume_from_the_environment_is_kept_for_workers_that_gave_nothing_yet(monkeypatch):
    for worker in range(2):
        monkeypatch.setenv(f"COSMOS_DL_STATE_WORKER_{worker}_EPOCH", "0")
        monkeypatch.setenv(f"COSMOS_DL_STATE_WORKER_{worker}_INDEX", "4")
    loader = loader_of("in order", "one", workers=2)
    head = taken(loader, 1)
    second = loader_of("in order", "one", workers=2)
    second.load_state_dict(loader.state_dict())
    assert head + taken(second, 3) == [[10], [11], [12], [13]]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: None, "A state was expected, not None"),
        (lambda state: [], "A state was expected"),
        (lambda state: {**state, "version": 0}, "no state of a loader of this version"),
        (lambda state: {key: value for key, value in state.items() if key != "counts"}, "it lacks counts"),
        (lambda state: {**state, "streams": {}}, "its streams are {}"),
        (lambda state: {**state, "streams": {"0": {"epoch": 1}}}, "damaged: the position of stream 0"),
    ],
)
def test_damaged_states_are_refused_in_one_line(spoil, message):
    loader = loader_of()
    with pytest.raises(LoaderError, match=message):
        loader.load_state_dict(spoil(loader.state_dict()))


class Merges(SampleBatcher):
    """Makes one sample of two."""

    def batches(self, samples):
        for one, other in zip(samples, samples, strict=False):
            yield [{"number": (one["number"], other["number"])}]


def test_samples_that_a_batcher_merges_are_not_counted_as_left_out():
    loader = loader_of("in order", Merges(), epochs=1)
    assert taken(loader, 2) == [[(0, 1)], [(2, 3)]]
    assert loader.stats()["discarded"] == {}


def test_one_stream_under_two_names_is_refused():
    stream = Resumable(9)
    with pytest.raises(LoaderError, match="'a' and 'b' are the same object"):
        MixtureDistributor({name: (IterableDistributor(stream), 1.0) for name in "ab"})


def test_without_a_group_skipping_in_finite_epochs_is_an_error_not_a_hang():
    class OddOnly(RawItemProcessor):
        def process(self, item):
            raise SkipSample("even")

    loader = CosmosDataLoader(
        MapDistributor(Numbers(8)), OddOnly(), batch_size=2, epochs=1, parallel_dims=Dims(0, 2)
    )
    with pytest.raises(LoaderError, match=r"skipped \(even\) in finite epochs"):
        next(iter(loader))


@pytest.mark.parametrize("given", [lambda: Numbers(9), Numbers])
def test_a_partition_makes_its_dataset_where_it_is_read(given):
    if isinstance(given, type):
        given = type("Nine", (Numbers,), {"__init__": lambda self: Numbers.__init__(self, 9)})
    source = RankPartitionedDistributor({"a": {"dataset": given, "ratio": 1}}, shuffle=False)
    assert taken(loader_of(source, "simple"), 2) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(LoaderError, match="is a mapping with the keys _target_"):
        loader_of(RankPartitionedDistributor({"a": {"dataset": {"_target_": "x"}, "ratio": 1}}), "simple")


def at(**change):
    """A state's streams, of which one stands at a place that is changed."""
    return {"streams": {"0": {"epoch": 0, "position": 1, "pending": [], "dropped": 0, **change}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (at(position=999), "stands at 998 of 47"),
        (at(pending=[[0, 77]]), "stands at 77 of"),
        (at(epoch=-1), "position of stream 0"),
        (at(epoch="a"), "position of stream 0"),
        ({"streams": {"0": {"generator": [], "order": [], "sources": {}}}}, "position of stream 0"),
        ({"next_stream": 9}, "next_stream is 9, of 1 streams"),
        ({"next_stream": "x"}, "next_stream is 'x'"),
        ({"identity": "abc"}, "its identity is 'abc'"),
        ({"counts": {}}, "its counts are {}"),
        ({"delivered": {"0": {"count": 3, "bits": "AAAA"}}}, "what it says was delivered cannot be read"),
    ],
)
def test_a_position_that_cannot_be_is_refused(change, message):
    loader = loader_of()
    with pytest.raises(LoaderError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert taken(loader, 1) == taken(loader_of(), 1)


def test_other_data_of_the_same_length_is_another_state():
    halves = [torch.utils.data.Subset(Numbers(COUNT), range(first, first + 20)) for first in (0, 20)]
    pairs = [
        [MapDistributor(half) for half in halves],
        [SpanDistributor(Numbers(10), spans) for spans in ([(0, 5), (5, 5)], [(0, 2), (2, 8)])],
    ]
    for one, other in pairs:
        state = loader_of(one, "one").state_dict()
        loader_of(one, "one").load_state_dict(state)
        with pytest.raises(LoaderError, match="belongs to another loader: distributor"):
            loader_of(other, "one").load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"distributor": Numbers(9)}, "distributor= is a Numbers; a DataDistributor was expected"),
        ({"processor": len}, "processor= is a builtin_function_or_method; a RawItemProcessor"),
        ({"batch_size": 2.5}, "batch_size=2.5 is no whole number"),
        ({"batch_size": "2"}, "batch_size='2' is no whole number"),
        ({"epochs": 1.5}, "epochs=1.5 is no whole number"),
    ],
)
def test_arguments_of_another_kind_are_told(arguments, message):
    given = {"distributor": MapDistributor(Numbers(9)), "batch_size": 2, **arguments}
    with pytest.raises(LoaderError, match=message):
        CosmosDataLoader(**given)


def test_numbers_of_numpy_are_numbers():
    loader = loader_of(MapDistributor(Numbers(9), seed=np.int64(3)), SimpleBatcher(np.int64(2)))
    assert taken(loader, 1) == taken(loader_of(MapDistributor(Numbers(9), seed=3), SimpleBatcher(2)), 1)
    json.dumps(loader.state_dict())


class AtEachItem(torch.utils.data.IterableDataset):
    """Asks at each item and at each pass which worker it is in."""

    def __iter__(self):
        for _ in range(2):
            info = torch.utils.data.get_worker_info()
            for number in range(20):
                if (info or self) is self or number % info.num_workers == info.id:
                    yield {"number": number}
                info = torch.utils.data.get_worker_info()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_that_asks_for_its_worker_at_any_time_loses_nothing(workers):
    found = taken(loader_of(IterableDistributor(AtEachItem()), "one", workers=workers), 999)
    assert sorted(number for batch in found for number in batch) == sorted([*range(20)] * 2)


class Holey(Numbers):
    def __getitem__(self, index):
        if index % 5 == 0:
            raise SkipSample("hole")
        return super().__getitem__(index)


@pytest.mark.parametrize("more", [{}, {"epochs": 1}, {"epochs": 1, "on_uneven": "drop"}])
def test_a_dataset_may_skip_items_as_well(more):
    loader = loader_of(MapDistributor(Holey(20)), "simple", **more)
    found = [number for batch in taken(loader, 6) for number in batch]
    assert set(found) == {number for number in range(20) if number % 5}
    assert loader.stats()["discarded"]["hole"] >= 3
