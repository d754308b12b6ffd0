"""The audit of a loader: true plans are proved, and each planted fault is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.audit import Audit, audit, audit_planner
from prep.audit_streams import Expected, Layout, Loading, Run, items_at
from prep.dataflow.base import LoaderError
from prep.dataflow.cursors import MapCursor
from prep.dataflow.plans import EpochPlan, MapPlanner, Place, Planner, SpanPlanner
from prep.errors import UsageError
from prep.snapshots import SnapshotOptions, prepare_snapshots
from tests import reasoning, sft_trees
from tests.llava import parquet, row
from tests.robot_trees import droid_tree, run
from tests.trees import make_tree

COUNT = 47
SPANS = [(0, 5), (5, 7), (12, 1), (13, 8), (21, 3), (24, 16), (40, 3), (43, 4)]
HERE = Layout(2, 2)
TARGETS = [Layout(2, 3), Layout(4, 2), Layout(1, 2)]


def map_planner(shuffle: bool = True) -> MapPlanner:
    return MapPlanner(COUNT, seed=3, shuffle=shuffle)


def span_planner() -> SpanPlanner:
    return SpanPlanner([first for first, _ in SPANS], [count for _, count in SPANS], seed=3, shuffle=True)


@pytest.mark.parametrize("make", [map_planner, span_planner])
@pytest.mark.parametrize("on_uneven", ["pad", "drop"])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("walked", [0, 10_000])
def test_the_loaders_own_planners_are_proved(
    make: Callable[[], Planner], on_uneven: Any, batch_size: int, walked: int
) -> None:
    found = audit_planner(
        make(),
        COUNT,
        HERE,
        targets=TARGETS,
        on_uneven=on_uneven,
        batch_size=batch_size,
        walked=walked,
        resume_points=2,
    )
    assert found.problems == []
    assert (found.exit_status, found.covered_once, found.end_together) == (0, True, True)
    assert found.whole == (walked > 0)
    assert found.resumed >= 6
    assert found.resharded >= 2
    uneven = sum(cover.padding + cover.dropped for cover in found.covers)
    assert uneven > 0
    assert sum(sum(cover.own) + cover.dropped for cover in found.covers) == 2 * COUNT


@settings(max_examples=15)
@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["pad", "drop"]),
)
def test_any_even_layout_is_proved(count: int, ranks: int, workers: int, size: int, on_uneven: Any) -> None:
    here = Layout(ranks, workers)
    planner = MapPlanner(count + here.streams, seed=count, shuffle=True)
    found = audit_planner(
        planner,
        planner.count,
        here,
        batch_size=size,
        on_uneven=on_uneven,
        targets=[Layout(workers, ranks)],
        resume_points=1,
    )
    assert found.problems == []


class Planted:
    """A planner whose plans are changed for some places."""

    def __init__(self, planner: Planner, change: Callable[[EpochPlan, int, Place], EpochPlan]) -> None:
        self._planner = planner
        self._change = change
        self.count, self.extent = planner.count, planner.extent

    def plan(self, epoch: int, place: Place) -> EpochPlan:
        return self._change(self._planner.plan(epoch, place), epoch, place)


def planted(change: Callable[[EpochPlan, int, Place], EpochPlan], **more: Any) -> Audit:
    return audit_planner(Planted(map_planner(), change), COUNT, HERE, targets=TARGETS, **more)


def elsewhere(position: int, index: int) -> Callable[[EpochPlan, int, Place], EpochPlan]:
    """Rank 1, worker 0 gives another item at a position of epoch 1."""

    def change(plan: EpochPlan, epoch: int, place: Place) -> EpochPlan:
        if (epoch, place.rank, place.worker) != (1, 1, 0):
            return plan
        return plan._replace(at=lambda at: plan.at(index) if at == position else plan.at(at))

    return change


def test_an_item_given_twice_is_found_with_its_place() -> None:
    found = planted(elsewhere(6, 2))
    [problem] = found.problems
    assert found.exit_status == 1
    assert not found.covered_once
    place = (problem.epoch, problem.rank, problem.worker, problem.position)
    assert (problem.check, *place) == ("coverage", 1, 1, 0, 6)
    assert problem.item == map_planner().plan(1, Place(1, 2, 0, 2, 2)).at(2)
    assert "a second time" in problem.message
    assert found.not_checked == ["resume and reshard, since the epochs' plans are wrong already"]


def test_an_item_of_another_stream_is_found_where_it_stands_second() -> None:
    def change(plan: EpochPlan, epoch: int, place: Place) -> EpochPlan:
        if place.stream != 3:
            return plan
        other = map_planner().plan(epoch, place.of(0))
        return plan._replace(at=lambda at: other.at(0) if at == 4 else plan.at(at))

    problem = planted(change).problems[0]
    assert (problem.epoch, problem.rank, problem.worker, problem.position) == (0, 1, 1, 4)


def test_an_item_outside_is_found() -> None:
    def change(plan: EpochPlan, _epoch: int, place: Place) -> EpochPlan:
        return plan._replace(at=lambda at: COUNT if at == 5 else plan.at(at)) if place.stream == 1 else plan

    problem = planted(change).problems[0]
    assert (problem.check, problem.item, problem.worker, problem.position) == ("coverage", COUNT, 1, 5)


def test_a_lost_item_is_found() -> None:
    def change(plan: EpochPlan, epoch: int, place: Place) -> EpochPlan:
        # The stream's last item is taken for padding.
        return plan._replace(own=plan.own - 1) if (epoch, place.stream) == (0, 2) else plan

    problem = planted(change).problems[0]
    lost = map_planner().plan(0, Place(1, 2, 0, 2, 2)).at(11)
    assert (problem.check, problem.epoch, problem.item) == ("coverage", 0, lost)
    assert "1 item given to no stream" in problem.message


def test_a_rank_that_ends_early_is_found() -> None:
    def change(plan: EpochPlan, epoch: int, place: Place) -> EpochPlan:
        short = plan.length - 1
        return plan._replace(own=short, length=short) if (epoch, place.stream) == (1, 3) else plan

    found = planted(change)
    assert not found.end_together
    [problem] = [each for each in found.problems if each.check == "ends"]
    assert problem.message == "epoch 1: rank 1, worker 1 ends after 11 samples, rank 0, worker 0 after 12."


class OneOff(MapCursor):
    """Resumes one place too far."""

    def restore(self, state: Any) -> None:
        super().restore({**state, "position": state["position"] + 1})


class Forgetful(MapCursor):
    """Says that it stands one place before where it does."""

    def state(self, pending: Any) -> dict[str, Any]:
        state = super().state(pending)
        return {**state, "position": max(state["position"] - 1, 0)}


class Early(MapCursor):
    """Ends one item early on rank 1, whatever the planner says."""

    def __init__(self, dataset: Any, planner: Planner, place: Place) -> None:
        super().__init__(dataset, Planted(planner, self._shorter), place)

    @staticmethod
    def _shorter(plan: EpochPlan, epoch: int, place: Place) -> EpochPlan:
        return plan._replace(length=plan.length - 1) if (epoch, place.rank) == (1, 1) else plan


@pytest.mark.parametrize("walked", [0, 10_000])
def test_a_cursor_that_resumes_one_off_is_found(walked: int) -> None:
    found = audit_planner(map_planner(), COUNT, HERE, cursor=OneOff, walked=walked, batch_size=3)
    assert found.exit_status == 1
    assert {problem.check for problem in found.problems} <= {"resume", "walk"}
    assert found.findings.of("resume")
    assert found.covered_once


@pytest.mark.parametrize("walked", [0, 10_000])
def test_a_state_that_is_one_off_is_found(walked: int) -> None:
    found = audit_planner(map_planner(), COUNT, HERE, cursor=Forgetful, walked=walked, targets=TARGETS)
    assert found.exit_status == 1
    assert any("tells of" in problem.message for problem in found.problems)


def test_a_cursor_that_ends_early_is_found_by_the_walk() -> None:
    found = audit_planner(map_planner(), COUNT, HERE, cursor=Early)
    assert not found.end_together
    assert found.problems[0].rank == 1
    assert found.problems[0].check == "walk"


def test_a_plan_that_is_wrong_only_after_a_reshard_is_found() -> None:
    def change(plan: EpochPlan, _epoch: int, place: Place) -> EpochPlan:
        if not place.delivered or place.stream or plan.own < 2:
            return plan
        return plan._replace(at=lambda at: plan.at(0) if at == 1 else plan.at(at))

    found = planted(change)
    assert found.covered_once
    assert found.exit_status == 1
    assert {problem.check for problem in found.problems} == {"reshard"}


def test_an_epoch_that_cannot_be_dealt_after_the_first_is_found() -> None:
    # Epoch 0 gives both streams 3 windows, epoch 1 of this seed does not.
    def first_even(seed: int) -> bool:
        planner = SpanPlanner([0, 1, 3, 5], [1, 2, 2, 1], seed=seed, shuffle=True)
        try:
            planner.plan(0, Place(0, 2, 0, 1, 2, "error"))
        except LoaderError:
            return False
        try:
            planner.plan(1, Place(0, 2, 0, 1, 2, "error"))
        except LoaderError:
            return True
        return False

    seed = next(filter(first_even, range(100)))
    planner = SpanPlanner([0, 1, 3, 5], [1, 2, 2, 1], seed=seed, shuffle=True)
    found = audit_planner(planner, 6, Layout(2, 1), on_uneven="error")
    assert found.exit_status == 1
    assert found.problems[0].message.startswith("epoch 1 cannot be dealt: The 2 streams get 2 to 4")


def test_long_plans_over_spans_are_counted_up_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prep.audit_streams.LONG", 0)
    planner = span_planner()
    for stream in range(3):
        plan = planner.plan(0, Place(stream, 3))
        assert items_at(plan, 0, plan.own, planner).tolist() == list(map(plan.at, range(plan.own)))
        assert items_at(plan, 2, plan.own - 1, planner).tolist() == list(map(plan.at, range(2, plan.own - 1)))
    turned = plan._replace(at=lambda at: plan.at(plan.own - 1 - at))
    assert items_at(turned, 0, plan.own, planner).tolist() == list(map(turned.at, range(plan.own)))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_rank_here_delivers_what_the_loader_delivers(workers: int) -> None:
    pytest.importorskip("torch")
    from prep.dataflow import CosmosDataLoader, MapDistributor

    class Numbers:
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> dict[str, int]:
            return {"number": index}

    loading = Loading(map_planner(), Layout(1, workers), 2, "pad", 3)
    loader = CosmosDataLoader(
        MapDistributor(Numbers(), seed=3), batch_size=3, num_workers=workers, epochs=2, on_uneven="pad"
    )
    ours = Run(loading, 0)
    for theirs, mine in zip(loader, ours, strict=True):
        assert theirs["number"].tolist() == [given.item for given in mine]
        assert theirs["is_padding"].tolist() == [given.is_padding for given in mine]
        state = ours.state()
        assert {key: loader.state_dict()[key] for key in ("streams", "next_stream", "counts")} == {
            key: state[key] for key in ("streams", "next_stream", "counts")
        }


def test_expected_batches_are_those_of_a_run() -> None:
    loading = Loading(span_planner(), HERE, 3, "pad", 4)
    expected = Expected(loading)
    for rank in range(2):
        assert list(Run(loading, rank)) == expected.batches(rank, 0, expected.steps)


def sft(folder: Path) -> Path:
    tree = sft_trees.bridge_tree(folder / "tree", train=[f"ep{n}_clip000" for n in range(6)])
    return sft_trees.build(folder / "out", "bridge", source=str(tree)).root


def snapshot(folder: Path) -> Path:
    source = folder / "rows.parquet"
    source.write_bytes(parquet([row(n) for n in range(30)]))
    [result] = prepare_snapshots(
        "llava_ov", folder / "out", subsets=["default"], options=SnapshotOptions(source=str(source))
    )
    return result.root


def reasoned(folder: Path) -> Path:
    reasoning.clips(folder, "a.mp4", "b.mp4")
    items = [reasoning.item(name, f"Why {n}?") for n in range(6) for name in ("a.mp4", "b.mp4")]
    file = reasoning.annotation(folder / "train.json", items)
    return reasoning.run(folder / "out", [file], [file])[0].root


def conversations(folder: Path) -> Path:
    return make_tree(folder / "videophy2_val", 9, manifest=True)


@pytest.mark.parametrize("make", [conversations, snapshot, sft, reasoned])
def test_a_prepared_dataset_is_proved(make: Callable[[Path], Path], tmp_path: Path) -> None:
    found = audit(make(tmp_path), ranks=2, workers=1, resume_points=2)
    assert found.problems == []
    assert found.spans is None
    assert [sum(cover.own) for cover in found.covers] == [found.samples] * 2
    assert found.targets == [Layout(2, 2), Layout(4, 1), Layout(1, 1)]


def test_robot_windows_are_dealt_in_spans_or_alone(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree", "flat", lengths=(40, 47, 52, 39, 60, 41))
    root = run(tmp_path / "out", root=tree).root
    whole = audit(root, ranks=2, workers=2, resume_points=1)
    alone = audit(root, ranks=2, workers=2, resume_points=0, spans=False)
    assert (whole.problems, alone.problems) == ([], [])
    assert whole.samples == alone.samples > 50
    assert alone.spans is None
    assert whole.spans is not None
    assert 1 < whole.spans < whole.samples
    assert alone.covers[0].padding < whole.covers[0].padding


def test_fewer_samples_than_streams_is_wrong_usage(tmp_path: Path) -> None:
    root = conversations(tmp_path)
    with pytest.raises(UsageError, match="9 samples cannot be dealt to 10 streams"):
        audit(root, ranks=5, workers=2)
    with pytest.raises(UsageError, match="--reshard-to 5x2: 9 cannot be dealt to 10 streams"):
        audit(root, reshard_to=[Layout(5, 2)])
    found = audit(root, ranks=8)
    assert found.not_checked == [
        "a reshard to 8x2: 16 streams, 9 to deal out",
        "a reshard to 16x1: 16 streams, 9 to deal out",
    ]
    assert dataclasses.asdict(found)["targets"] == [Layout(1, 1)]
