"""Ranks that are processes, over gloo: each item once, ending together, one killed, going on as fewer."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import signal
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from prep.dataflow import (  # noqa: E402
    CosmosDataLoader,
    DataDistributor,
    LoaderError,
    MapDistributor,
    RankPartitionedDistributor,
    RawItemProcessor,
    SkipSample,
    SpanDistributor,
)
from tests.dataflow.ranks import run  # noqa: E402
from tests.dataflow.sources import BATCHERS, COUNT, SOURCES, ListCollator, Numbers  # noqa: E402


class Dims:
    def __init__(self, rank, world):
        self.dp_coord = (rank, world)


def loader_of(source="map", batcher="simple", *, workers=0, count=COUNT, **more):
    """Its rank is that of torch.distributed."""
    return CosmosDataLoader(
        SOURCES[source](Numbers(count)) if isinstance(source, str) else source,
        batcher=BATCHERS[batcher](),
        collator=ListCollator(),
        num_workers=workers,
        **more,
    )


def listed(batches):
    """Batches as JSON: numbers, and which of them are padding."""
    return [(batch["numbers"], batch["is_padding"].tolist()) for batch in batches]


def own(batches):
    return [n for numbers, padding in batches for n, more in zip(numbers, padding, strict=True) if not more]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("batcher", ["simple", "pool"])
def test_every_item_is_given_once_an_epoch_and_ranks_end_together(world, batcher, tmp_path):
    cases = [*itertools.product(("map", "spans") if world == 2 else ("map",), (0, 2))]

    def job(rank):
        return [listed(loader_of(source, batcher, workers=workers, epochs=2)) for source, workers in cases]

    for case, ranks in zip(cases, zip(*run(world, job, tmp_path), strict=True), strict=True):
        assert len({len(batches) for batches in ranks}) == 1, case
        given = Counter(n for batches in ranks for n in own(batches))
        assert given == dict.fromkeys(range(COUNT), 2), case


@pytest.mark.parametrize("world", [2, 4])
def test_endless_streams_are_disjoint_and_complete_in_every_epoch(world, tmp_path):
    def job(rank):
        loader = loader_of("map", "one", workers=2, count=48)
        steps = itertools.islice(loader, 3 * 48 // world)
        return [[int(batch["sample_epoch"][0]), batch["numbers"][0]] for batch in steps]

    given = [pair for rank in run(world, job, tmp_path) for pair in rank]
    assert sorted(given) == [[epoch, number] for epoch in range(3) for number in range(48)]


def uneven(**more):
    """46 samples, which are 12 packed batches on one of two ranks and 13 on the other."""
    return loader_of(MapDistributor(Numbers(46)), "pool", epochs=1, **more)


@pytest.mark.parametrize(("on_uneven", "batches"), [("pad", [13, 13]), ("drop", [12, 12]), ("error", None)])
def test_ranks_whose_packed_batches_differ_in_number_end_together(on_uneven, batches, tmp_path):
    def job(rank):
        try:
            return listed(uneven(on_uneven=on_uneven))
        except LoaderError as error:
            return str(error)

    found = run(2, job, tmp_path)
    if batches is None:
        assert all("1 of 2 ranks have a further batch" in message for message in found)
        return
    assert [len(rank) for rank in found] == batches
    given = Counter(n for rank in found for n in own(rank))
    assert set(given.values()) == {1}
    assert len(given) == (46 if on_uneven == "pad" else 45)
    if on_uneven == "pad":
        first, last = found[0][0], found[0][-1]
        assert last == [first[0], [True] * len(first[0])]


@pytest.mark.parametrize(
    ("world", "batcher", "workers"),
    [
        (2, "simple", 0),
        (2, "pool", 0),
        (4, "pool", 0),
        # The workers of the killed rank keep its connections for some seconds more.
        pytest.param(4, "simple", 2, marks=pytest.mark.slow),
        pytest.param(2, "pool", 2, marks=pytest.mark.slow),
    ],
)
def test_after_one_rank_is_killed_all_go_on_from_their_states(world, batcher, workers, tmp_path):
    make = functools.partial(loader_of, "map", batcher, workers=workers, epochs=2)
    saved = tmp_path / "states"
    saved.mkdir()
    whole = run(world, lambda rank: listed(make()), tmp_path)

    def training(rank):
        loader = make()
        for step, batch in enumerate(loader, start=1):
            if step == 4 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                torch.distributed.all_reduce(torch.ones(1))  # the step, which needs every rank
            except RuntimeError:
                os._exit(1)  # its workers end by themselves
            (saved / f"{step}-{rank}.json").write_text(json.dumps([listed([batch]), loader.state_dict()]))
        return

    assert run(world, training, tmp_path) == [None] * world
    assert sorted({path.name.split("-")[0] for path in saved.iterdir()}) == ["1", "2", "3"]

    def resumed(rank):
        loader = make()
        loader.load_state_dict(json.loads((saved / f"3-{rank}.json").read_text())[1])
        return listed(loader)

    for rank, rest in enumerate(run(world, resumed, tmp_path)):
        before = [json.loads((saved / f"{step}-{rank}.json").read_text())[0][0] for step in (1, 2, 3)]
        assert before + rest == whole[rank]


@pytest.mark.parametrize(("source", "batcher"), [("map", "pool"), ("spans", "simple")])
def test_four_ranks_go_on_as_two(source, batcher, tmp_path):
    def first(rank):
        loader = loader_of(source, batcher, epochs=2, workers=rank % 2 and 1)
        return listed(itertools.islice(loader, 2)), loader.state_dict()

    found = run(4, first, tmp_path)
    states = [state for _, state in found]

    def second(rank):
        loader = loader_of(source, batcher, epochs=2, workers=2)
        with pytest.raises(LoaderError, match="reshard=True"):
            loader.load_state_dict(states[rank])
        loader.load_state_dict(states, reshard=True)
        return listed(loader)

    again = run(2, second, tmp_path)
    assert len(again[0]) == len(again[1])
    given = Counter(own([batch for batches, _ in found for batch in batches]))
    given.update(own([batch for batches in again for batch in batches]))
    assert given == dict.fromkeys(range(COUNT), 2)


def parts(**counts):
    """Datasets of some lengths, each with its length as ratio."""
    return RankPartitionedDistributor(
        {name: {"dataset": Numbers(count), "ratio": count} for name, count in counts.items()}
    )


def test_whole_ranks_go_to_datasets_by_ratio(tmp_path):
    def job(rank):
        source = parts(small=12, large=36)
        name, _, _ = source.chosen(rank, 4)
        return name, listed(loader_of(source, "simple", workers=2, epochs=1))

    found = run(4, job, tmp_path)
    assert [name for name, _ in found] == ["small", "large", "large", "large"]
    assert sorted(own(found[0][1])) == list(range(12))
    assert sorted(n for _, batches in found[1:] for n in own(batches)) == list(range(36))
    assert len({len(batches) for _, batches in found}) == 1


def test_a_partition_needs_a_rank_for_each_dataset(tmp_path):
    def job(rank):
        try:
            loader_of(parts(a=9, b=9, c=9))
        except LoaderError as error:
            return str(error)

    assert all("2 ranks cannot read 3 datasets" in message for message in run(2, job, tmp_path))


def test_without_a_group_packed_ranks_are_refused_that_could_end_apart():
    with pytest.raises(LoaderError, match="init_process_group"):
        loader_of("map", "pool", epochs=1, parallel_dims=Dims(0, 2))
    loader_of("map", "pool", parallel_dims=Dims(0, 2))  # endless: none ends


# What does not hold yet.


def test_a_rank_resumes_among_its_repeats(tmp_path):
    def job(rank):
        first, second = uneven(), uneven()
        list(itertools.islice(first, 12))
        second.load_state_dict(first.state_dict())
        try:
            return listed(second)
        except (LoaderError, RuntimeError):
            os._exit(1)

    found = run(2, job, tmp_path)
    assert found[0] is not None
    assert [len(rank) for rank in found] == [1, 1]
    assert all(found[0][0][1])


def test_what_a_trainer_does_to_a_batch_does_not_reach_its_repeat(tmp_path):
    def job(rank):
        return [len(batch.pop("numbers", [])) for batch in uneven()]

    assert all(0 not in sizes for sizes in run(2, job, tmp_path))


@pytest.mark.parametrize("world", [2, 4])
def test_all_that_is_dropped_is_counted(world, tmp_path):
    def job(rank):
        loader = uneven(on_uneven="drop")
        return len(own(listed(loader))) + loader.stats()["dropped"]

    assert sum(run(world, job, tmp_path)) == 46


class Long(Numbers):
    """The first eight fill a batch each."""

    def __getitem__(self, index):
        return {"number": index, "input_ids": [0] * (100 if index < 8 else 10)}


def test_what_the_end_of_another_rank_cuts_off_is_counted(tmp_path):
    def job(rank):
        source = SpanDistributor(Long(12), [(0, 8), (8, 4)], shuffle=False)
        loader = loader_of(source, "pool", epochs=1, on_uneven="drop")
        return len(own(listed(loader))) + loader.stats()["dropped"]

    assert sum(run(2, job, tmp_path)) == 12


def test_all_ranks_refuse_what_one_could_not_read(tmp_path):
    def job(rank):
        source = RankPartitionedDistributor(
            {"a": {"dataset": Numbers(10), "ratio": 1}, "b": {"dataset": Numbers(1), "ratio": 1}}
        )
        with pytest.raises(LoaderError, match="1 samples cannot be dealt to 2 streams"):
            loader_of(source, "simple", workers=2, epochs=1)
        return True

    assert run(2, job, tmp_path) == [True, True]


def test_ranks_that_share_their_data_count_once(tmp_path):
    def job(rank):
        return len(listed(uneven(on_uneven="drop", parallel_dims=Dims(rank // 2, 2))))

    assert run(4, job, tmp_path) == [12] * 4


class EvensAreBroken(RawItemProcessor):
    def process(self, item):
        if item["number"] < 10 and item["number"] % 2 == 0:
            raise SkipSample("broken")
        return item


def test_ranks_end_together_where_one_skips_samples(tmp_path):
    def job(rank):
        source = MapDistributor(Numbers(20), shuffle=False)
        return len(listed(loader_of(source, "one", epochs=1, processor=EvensAreBroken())))

    assert len({*run(2, job, tmp_path)}) == 1


def test_ranks_of_a_partition_end_together(tmp_path):
    source = RankPartitionedDistributor(
        {"a": {"dataset": Numbers(10), "ratio": 1}, "b": {"dataset": Numbers(30), "ratio": 1}}
    )
    assert len({*run(2, lambda rank: len(listed(loader_of(source, epochs=1))), tmp_path)}) == 1


def test_a_part_with_too_few_samples_is_refused_before_any_worker_starts():
    with pytest.raises(LoaderError, match="cannot be dealt"):
        loader_of(parts(a=1), workers=2)


@pytest.mark.parametrize("other", [{"shuffle": False}, {"count": 99}])
def test_a_state_of_another_partition_is_refused(other):
    def make(count=10, **more):
        entries = {"a": {"dataset": Numbers(count), "ratio": 1}}
        return loader_of(RankPartitionedDistributor(entries, **more))

    with pytest.raises(LoaderError, match="belongs to another loader"):
        make(**other).load_state_dict(make().state_dict())


@pytest.mark.parametrize("kind", ["list", "datasets"])
def test_a_list_and_a_table_of_datasets_are_dealt_out_in_a_partition(kind):
    rows = [{"number": number} for number in range(12)]
    if kind == "datasets":
        rows = pytest.importorskip("datasets").Dataset.from_list(rows)
    given = []
    for rank in range(2):
        source = RankPartitionedDistributor({"a": {"dataset": rows, "ratio": 1}})
        loader = loader_of(source, "one", parallel_dims=Dims(rank, 2))
        given += [batch["numbers"][0] for batch in itertools.islice(loader, 6)]
    assert sorted(given) == list(range(12))


def test_a_pass_after_the_one_that_was_dealt_anew_is_whole():
    first, second = loader_of(batcher="one", epochs=1), loader_of(batcher="one", epochs=1)
    list(itertools.islice(first, 20))
    second.load_state_dict([first.state_dict()], reshard=True)
    assert len(list(second)) == COUNT - 20
    assert len(list(second)) == COUNT


class Draws(RawItemProcessor):
    def process(self, item):
        return {"number": random.random()}


class OwnStreams(DataDistributor):
    def stream(self, dp_rank, dp_world_size, worker_id, num_workers):
        yield from range(9)


class Augmented(Numbers):
    def __getitem__(self, index):
        return {"number": random.random()}


@pytest.mark.parametrize(
    ("source", "more"),
    [(OwnStreams(), {"processor": Draws()}), (MapDistributor(Augmented(9)), {"workers": 1})],
)
def test_ranks_do_not_draw_alike(source, more):
    """In a stream of the user's, whose items have no index; and in a dataset, behind IdentityProcessor."""
    found = [
        next(iter(loader_of(source, "one", parallel_dims=Dims(rank, 2), **more)))["numbers"]
        for rank in range(2)
    ]
    assert found[0] != found[1]
