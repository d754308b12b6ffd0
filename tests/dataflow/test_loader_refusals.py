"""What the loader refuses, in one line each; and sources with a state, or none, of their own."""

from __future__ import annotations

import json

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
        ({"batch_size": 1, "epochs": 0}, "epochs=0 is less than 1"),
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
        (lambda state: {**state, "streams": {"0": {"epoch": 1}}}, "damaged: its streams"),
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
