"""Each reference that is installed, over a tree made here; skipped, with the reason, where it is not."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from prep.comparison import Side, compare, diff
from prep.errors import EnvironmentLacksError
from prep.readers.robot_torchcodec import load_torchcodec
from prep.upstream.adapters.lerobot import OurRows
from prep.upstream.adapters.reasoning import DaftReasoning, OurReasoning
from prep.upstream.adapters.requirements import LEROBOT, MODEL_INPUT, ROBOT
from prep.upstream.checkout import load_lock, local_copy
from tests import reasoning
from tests.commands import PROJECT
from tests.robot_fixture import prepare_fixture
from tests.robot_trees import NAME, run
from tests.robots import DROID, LIBERO, make_root

SHORT = (24, 20, 26)


def need(modules: Mapping[str, str], *, upstream: bool = False) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the reference needs {', '.join(missing)}")
    if "torchcodec" in modules:
        try:
            load_torchcodec()
        except EnvironmentLacksError as error:
            pytest.skip(error.message)
    lock = load_lock()
    if upstream and any(local_copy(lock, entry.path) is None for entry in lock.files):
        pytest.skip("upstream's files are not here: run `prep vendor sync`")


def prep_diff(*arguments: str | Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a reference switches the Hub off, and keeps decoders open."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path])}
    return subprocess.run(
        [sys.executable, "-m", "prep", "diff", *map(str, arguments), "-q"],
        env={**environment, "HF_DATASETS_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["droid_policy", "droid_forward_dynamics"])
def test_droid_is_what_upstreams_own_reader_gives(recipe: str, tmp_path: Path) -> None:
    need(ROBOT, upstream=True)
    shape = replace(DROID, lengths=SHORT, meta_files=(3,), data_files=(2, 1), packing=((3,), (2, 1), (1, 2)))
    for kind in ("success", "failure"):
        make_root(tmp_path / NAME / kind, replace(shape, tasks=("open it |  | open the drawer", "close it")))
    run(tmp_path / "out", recipe, root=tmp_path / NAME, chunk_length=8)
    index = f"{recipe}-train"
    done = prep_diff(
        tmp_path / "out" / NAME, "--reference", "cosmos", "--index", index, cache=tmp_path / "cache"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("size", [256, 64, 400])
def test_libero_is_what_upstreams_own_reader_gives(size: int, tmp_path: Path) -> None:
    """Pictures of 256 pixels are taken as they are; others are resized in float32, in torch's order."""
    need(ROBOT, upstream=True)
    make_root(tmp_path / "suites" / "libero_10", replace(LIBERO, size=(size, size)))
    result = run(tmp_path / "out", "libero_10", root=tmp_path / "suites")
    done = prep_diff(
        result.root, "--reference", "cosmos", "--index", "libero_10-train", cache=tmp_path / "cache"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need(MODEL_INPUT, upstream=True)
    return prepare_fixture(tmp_path_factory.mktemp("scenes"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "index"),
    [
        ("droid", "droid_policy-val-c32"),
        ("droid", "droid_policy-val-c32-filtered"),
        ("droid", "droid_policy-train-c32-filtered"),
        ("droid", "droid_policy_full-full-c32"),
        ("droid", "droid_forward_dynamics-val-c16"),
        ("droid", "droid_forward_dynamics-train-c16-filtered"),
        ("libero", "libero_10-val-c16"),
    ],
)
def test_each_split_is_upstreams(scenes: dict[str, Path], dataset: str, index: str, tmp_path: Path) -> None:
    words = ("--reference", "cosmos", "--index", index, "--samples", "4", "--format", "json")
    done = prep_diff(scenes[dataset], *words, cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["index"]["spans"]["same"]
    fields = {each["field"]: each["identical"] for each in document["fields"]}
    assert {"frame_files", "frame_seconds", "instruction_candidates"} <= set(fields)
    assert set(fields.values()) == {document["samples"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "index"),
    [
        ("droid", "droid_policy-train-c32"),
        ("droid", "droid_forward_dynamics-train-c16"),
        ("libero", "libero_10-train-c16"),
        ("libero_128", "libero_10-val-c16"),
    ],
)
def test_a_models_input_is_what_upstreams_transform_gives(
    scenes: dict[str, Path], dataset: str, index: str, tmp_path: Path
) -> None:
    words = ("--reference", "cosmos", "--index", index, "--samples", "2", "--model-input", "--format", "json")
    done = prep_diff(scenes[dataset], *words, cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    fields = {each["field"]: each["identical"] for each in json.loads(done.stdout)["fields"]}
    assert len(fields) == 13
    assert set(fields.values()) == {2}


@pytest.mark.slow
def test_the_real_robot_is_what_lerobot_gives(real_data: Path, tmp_path: Path) -> None:
    need(LEROBOT)
    result = run(tmp_path / "out", "lerobot", root=real_data / "g1_lerobot_v30_converted")
    done = prep_diff(result.root, "--reference", "lerobot", "--samples", "40", cache=tmp_path / "cache")
    assert done.returncode == 0, done.stdout + done.stderr


def test_our_rows_are_the_rows_and_frames_of_the_tree(tmp_path: Path) -> None:
    root = make_root(tmp_path / "robot")
    rows = OurRows([root, root])
    total = 136
    assert len(rows) == 2 * total
    first, again = rows[30], rows[30 + total]
    assert (first["id"], again["id"]) == ("0:1:6", "1:1:6")
    assert (int(first["episode_index"]), int(first["frame_index"]), int(first["index"])) == (1, 6, 30)
    assert first["observation.images.top"].shape == (3, 48, 64)
    assert first["task"] in ("pick up the cup", "open the drawer", "press the button")
    found = compare(Side("ours", rows), Side("reference", OurRows([root, root])), samples=9)
    assert found.exit_status == 0
    for place in (-1, 2 * total):
        with pytest.raises(IndexError):
            rows[place]


def made(tmp_path: Path, **around: object) -> Path:
    """A prepared split of three items, one without a reasoning, whose file names its own media root."""
    reasoning.clips(tmp_path / "media", "a.mp4", "b.mp4")
    items = [
        reasoning.item("a.mp4"),
        reasoning.item("b.mp4", "How?", reasoning=None),
        reasoning.item("a.mp4", "When?"),
    ]
    file = reasoning.annotation(tmp_path / "one.json", items, media_root="media")
    (result,) = reasoning.run(tmp_path / "out", [file], mode="hybrid", **around)
    return result.root


def test_tao_daft_says_the_same_but_looks_for_videos_elsewhere(tmp_path: Path) -> None:
    need({"nvidia_tao_daft": ""})
    root = made(tmp_path, stride=2)
    found = diff(root, "tao-daft")
    assert found.samples == 4
    assert [tally.name for tally in found.fields.values() if tally.outside] == ["video"]
    assert found.intended.keys() == {"video"}  # declared in the recipe, with its reason
    assert found.exit_status == 0


def test_samples_of_a_reader_that_orders_them_otherwise_are_found(tmp_path: Path) -> None:
    import prep

    ours = OurReasoning(prep.open(made(tmp_path, stride=2)))

    class Ordered:
        """All answers, then all reasonings, as tao-daft has it."""

        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> list[dict[str, object]]:
            form = "think" if index >= 3 else "answer"
            content = [{"type": "video", "video": "x.mp4"}, {"type": "text", "text": f"{index % 3}"}]
            return [{"role": "user", "content": content}, {"role": "assistant", "content": form}]

    reference = DaftReasoning(Ordered(), ours.reader.sampling)
    assert len(reference) == len(ours) == 4
    told = [(reference[at]["item"], reference[at]["messages"][1]["content"]) for at in range(4)]
    assert told == [(0, "answer"), (0, "think"), (2, "answer"), (2, "think")]
    assert [reference[at]["id"] for at in range(4)] == [ours[at]["id"] for at in range(4)]
    assert reference[0]["messages"][0]["content"][0]["video"] == "<video>"
    assert reference[0]["video"] == "x.mp4"
