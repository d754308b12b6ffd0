"""`prep audit-loader` as a user runs it: what it prints, where, and its status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prep.audit import audit_planner
from prep.audit_streams import Layout
from prep.cli_audit import print_audit
from prep.dataflow.plans import EpochPlan, MapPlanner, Place
from tests.commands import prep, told
from tests.robot_trees import droid_tree, run
from tests.trees import make_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("data") / "videophy2_val", 9, manifest=True)


def test_a_table_for_people_and_json_for_programs(tree: Path) -> None:
    text = prep("audit-loader", tree, "--ranks", "2", "--workers", "2", "--resume-points", "2")
    assert text.returncode == 0, text.stderr
    assert text.stdout == ""
    facts = dict(line.strip().split("  ", 1) for line in text.stderr.splitlines()[1:-1])
    told_facts = {name: value.strip() for name, value in facts.items()}
    assert told_facts["samples"] == "9"
    assert told_facts["epoch 1"] == "4 to 5 samples a rank, 3 padding, 0 dropped"
    assert told_facts["covered once"] == told_facts["ranks end together"] == "yes"
    assert text.stderr.splitlines()[-1].strip() == "all proved"
    machine = prep("audit-loader", tree, "--ranks", "2", "--on-uneven", "drop", "--format", "json")
    document = json.loads(machine.stdout)
    assert machine.returncode == 0
    assert document["streams"] == 2
    assert [epoch["dropped"] for epoch in document["epochs"]] == [1, 1]
    assert (document["covered_once"], document["ranks_end_together"]) == (True, True)
    assert document["reshard"]["to"] == ["2x2", "4x1", "1x1"]
    assert document["problems"] == []


def test_what_does_not_hold_is_told_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    class Twice(MapPlanner):
        def plan(self, epoch: int, place: Place) -> EpochPlan:
            plan = super().plan(epoch, place)
            return plan._replace(at=lambda at: plan.at(0) if at == 3 else plan.at(at))

    print_audit(audit_planner(Twice(20, seed=0, shuffle=False), 20, Layout(2, 1)))
    lines = capsys.readouterr().err.splitlines()
    assert "  covered once        NO" in lines
    assert (
        "  error coverage: epoch 0: item 0 is given a second time, at rank 0, worker 0, position 3." in lines
    )
    assert lines[-1] == "  2 things wrong"


@pytest.mark.parametrize(
    "words",
    [
        ("--ranks", "5", "--workers", "2"),
        ("--reshard-to", "10x1"),
        ("--reshard-to", "two"),
        ("--reshard-to", "0x1"),
        ("--ranks", "2", "--on-uneven", "error"),
        ("--index", "train"),
        ("--ranks", "0"),
    ],
)
def test_wrong_usage_is_status_2(words: tuple[str, ...], tree: Path) -> None:
    told(prep("audit-loader", tree, *words), 2)


def test_what_is_no_dataset_is_status_2(tmp_path: Path) -> None:
    told(prep("audit-loader", tmp_path), 2)
    told(prep("audit-loader", tmp_path / "nothing"), 2)


def test_robot_data_names_its_spans(tmp_path: Path) -> None:
    root = run(tmp_path / "out", root=droid_tree(tmp_path / "tree", "flat")).root
    done = prep("audit-loader", root, "--workers", "2", "--resume-points", "0", "--format", "json")
    assert done.returncode == 0, done.stderr
    spans = json.loads(done.stdout)["spans"]
    assert spans > 1
    few = told(prep("audit-loader", root, "--ranks", str(spans + 1)), 2)
    assert f"{spans} spans cannot be dealt" in " ".join(few.split())
