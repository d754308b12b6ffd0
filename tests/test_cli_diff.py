"""`prep diff` as a user runs it: what it prints, where, and its status."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from prep import schemas
from prep.upstream.adapters.requirements import CONVERSATIONS
from tests.commands import prep, told
from tests.robot_fixture import prepare_fixture
from tests.trees import make_tree


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A dataset and another of the same records whose second answer differs."""
    first = make_tree(tmp_path / "a" / "videophy2_val", 4, manifest=True)
    answers = {2: "1"}
    second = make_tree(
        tmp_path / "b" / "videophy2_val",
        4,
        manifest=True,
        answer=lambda row: answers.get(row, str(row % 5 + 1)),
    )
    return first, second


def test_a_dataset_is_no_different_from_itself(trees: tuple[Path, Path]) -> None:
    done = prep("diff", trees[0], "--reference", trees[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("no difference outside the tolerances")
    assert done.stderr == ""


def test_a_difference_is_status_1_and_the_report_says_where(trees: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "new" / "diff.json"
    done = prep("diff", *(trees[0], "--reference", trees[1], "--format", "json", "--report", report))
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert list(schemas.errors("diff", document)) == []
    assert json.loads(report.read_text()) == document
    fields = {each["field"]: each for each in document["fields"]}
    assert [name for name, each in fields.items() if each["outside"]] == ["texts"]
    first = fields["texts"]["first"]
    assert (first["index"], first["identity"]) == (1, "conversation_0002")
    text = prep("diff", trees[0], "--reference", trees[1])
    assert text.returncode == 1
    assert text.stdout.rstrip().endswith("DIFFERENT: texts")
    assert prep("diff", trees[0], "--reference", trees[1], "--fields", "id,media").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--reference", "nothing"),
        ("--reference", "tao-daft"),
        ("--reference", "SELF", "--fields", "vidoe"),
        ("--reference", "SELF", "--atol", "texts"),
        ("--reference", "SELF", "--atol", "texts=-1"),
        ("--reference", "SELF", "--atol", "texts=nan"),
        ("--reference", "SELF", "--png", "picture.jpg"),
        ("--reference", "SELF", "--index", "train"),
        ("--reference", "SELF", "--model-input"),
        ("--reference", "SELF", "--samples", "0"),
        (),
    ],
)
def test_wrong_usage_is_status_2(words: tuple[str, ...], trees: tuple[Path, Path]) -> None:
    told(prep("diff", trees[0], *(str(trees[0]) if word == "SELF" else word for word in words)), 2)


def test_a_reference_that_is_not_installed_is_status_4(trees: tuple[Path, Path]) -> None:
    if all(importlib.util.find_spec(name) is not None for name in CONVERSATIONS):
        pytest.skip("what upstream's reader imports is installed here")
    assert "pip install " in told(prep("diff", trees[0], "--reference", "cosmos"), 4)


def test_robot_windows_are_compared_as_samples_or_as_a_model_is_given_them(tmp_path: Path) -> None:
    place = prepare_fixture(tmp_path, ("droid",))["droid"]
    words = ("--index", "droid_policy-val-c32", "--samples", "1", "--format", "json", "-q")
    done = prep("diff", place, "--reference", place, *words)
    assert done.returncode == 0, done.stderr
    samples = json.loads(done.stdout)
    assert list(schemas.errors("diff", samples)) == []
    assert samples["index"]["spans"] == {"ours": 1, "reference": 1, "same": True, "first": None}
    assert {"video", "frame_seconds", "ai_caption"} <= {each["field"] for each in samples["fields"]}
    done = prep("diff", place, "--reference", place, *words, "--model-input")
    assert done.returncode == 0, done.stderr
    inputs = {each["field"]: each["ours"] for each in json.loads(done.stdout)["fields"]}
    assert len(inputs) == 13
    assert inputs["video"] == {"dtype": "float32", "shape": [3, 33, 544, 736]}
    told(prep("diff", place, "--reference", "lerobot", "--model-input"), 2)
