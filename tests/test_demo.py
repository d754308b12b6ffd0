"""The embedded first run: from nothing to a validated dataset, and once more."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import prep as library
from prep.demo import run
from prep.demo_steps import Steps
from prep.errors import PrepError, UsageError
from prep.keep_ranges import UPSTREAM_PREFIX
from prep.manifest import short_id
from prep.window_lists import open_index
from tests.commands import PROJECT, prep
from tests.runs import digests

ID = r"videophy2_[a-z]+@[0-9a-f]{12}"
STEPS = (
    "A raw world",
    "prep videophy2",
    "prep show",
    "prep env",
    "A robot tree",
    "prep droid",
    "prep windows",
    "Captions in",
    "prep sft",
    "prep show",
    "prep validate",
    "Parquet with images",
    "prep llava-ov",
    "python -c",
    "Questions about",
    "prep video-reasoning",
    "prep show",
    "prep validate",
)
ROBOT = "droid_plus_lerobot_320x180_20260406"
DATASETS = {
    "videophy2_train": 9,
    "videophy2_val": 5,
    ROBOT: 301,
    "my_clips": 4,
    "llava_ov/shapes_drawn-ec7e1feb/train": 5,
    "video_reasoning/train": 8,
    "video_reasoning/val": 2,
}
"""The datasets that are made, with the samples that a reader of each gives."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that was run once, with what it said."""
    folder = tmp_path_factory.mktemp("demo")
    done = prep("demo", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (folder / "out.txt").write_text(done.stdout)
    return folder


def commands(folder: Path) -> list[str]:
    """The commands that a demo told, as a user would type them."""
    return re.findall(r"(?m)^\d+\. (prep .*)", (folder / "out.txt").read_text())


def test_the_steps_are_told_in_order(world: Path) -> None:
    said = (world / "out.txt").read_text()
    titles = re.findall(r"(?m)^(\d+)\. (.*)", said)
    assert [int(number) for number, _ in titles] == list(range(1, len(STEPS) + 1))
    assert all(title.startswith(step) for (_, title), step in zip(titles, STEPS, strict=True))
    assert "prep videophy2 --split val" in said.splitlines()[-1]
    assert len(said.splitlines()) < 180


def test_a_dataset_of_each_kind_is_made_and_opens(world: Path) -> None:
    data = world / "prep-demo" / "data"
    assert {name: len(library.open(data / name)) for name in DATASETS} == DATASETS
    assert len(list(data.rglob("manifest.json"))) == len(DATASETS)
    assert len(library.open(data / "my_clips", split="val")) == 2


def test_what_is_bad_on_purpose_is_told(world: Path) -> None:
    said = (world / "out.txt").read_text()
    rows = ("http_404", "not_media", "not_an_integer", "too_few_frames", "missing_video", "image_broken")
    found = (
        "TAB003",
        "TAB007",
        "KEP004",
        "SFT016",
        "FIL016 Truncated file",
        "REA005",
        "1 no_image, 1 too_few",
    )
    assert [word for word in rows + found if word not in said] == []


def test_the_defect_is_found_in_the_copy_alone(world: Path) -> None:
    copy = library.validate(world / "prep-demo" / "damaged")
    assert {group.code for group in copy.ordered()} == {"FIL003", "FIL016"}
    assert {place.path for group in copy.ordered() for place in group.findings} == {
        "train/videos/ramp_clip000.mp4"
    }
    assert library.validate(world / "prep-demo" / "data" / "my_clips", level="deep").ordered() == []


def test_the_log_holds_what_is_not_shown(world: Path) -> None:
    log = world / "prep-demo" / "log"
    assert len(list(log.iterdir())) == len([step for step in STEPS if step.startswith(("prep ", "python "))])
    said = (world / "out.txt").read_text()
    question = "Watch the video and judge"
    assert question not in said
    assert question in (log / "step-03.txt").read_text()


def test_the_results_are_on_stdout(world: Path) -> None:
    said = (world / "out.txt").read_text()
    assert "0 errors" in said.splitlines()[-3]
    assert f"export VIDEOPHYSICS_ROOT={world / 'prep-demo' / 'data'}" in said
    assert (world / "prep-demo" / "sample.png").is_file()


@pytest.mark.parametrize("name", ["videophy2", "droid", "sft", "llava-ov", "video-reasoning"])
def test_a_user_who_types_what_is_told_gets_the_same(world: Path, name: str) -> None:
    (line,) = (line for line in commands(world) if line.startswith(f"prep {name} "))
    before = digests(world / "prep-demo" / "data")
    done = prep(*shlex.split(line)[1:], cwd=world, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode == 0, done.stderr
    assert "complete, nothing to do" in done.stderr
    assert digests(world / "prep-demo" / "data") == before


def test_what_it_makes_is_valid_to_the_last_byte(world: Path) -> None:
    report = library.validate(world / "prep-demo" / "data", level="deep")
    assert report.exit_status == 0
    assert [group.code for group in report.ordered()] == ["MAN005", "REA005"]


def test_a_second_run_changes_nothing(world: Path) -> None:
    before = digests(world / "prep-demo" / "data")
    done = prep("demo", cwd=world)
    assert done.returncode == 0
    assert done.stdout.count("complete, nothing to do") == len(DATASETS)
    assert digests(world / "prep-demo" / "data") == before


def test_another_folder_gets_the_same_dataset(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://before")
    monkeypatch.delenv("HF_HOME", raising=False)
    assert run(tmp_path / "another folder") == 0
    assert os.environ["HF_ENDPOINT"] == "http://before"
    assert "HF_HOME" not in os.environ
    for name in DATASETS:
        first, second = (
            dataset_id(root / "data" / name) for root in (world / "prep-demo", tmp_path / "another folder")
        )
        assert first == second


def test_the_pages_show_the_ids_that_the_demo_gets(world: Path, tmp_path: Path) -> None:
    data = world / "prep-demo" / "data"
    ids = {name: short_id(dataset_id(data / name)) for name in ("videophy2_train", "videophy2_val")}
    for page, names in {"videophy2.md": ["videophy2_val"], "env.md": list(ids)}.items():
        shown = re.findall(ID, (PROJECT / "docs" / page).read_text(encoding="utf-8"))
        assert sorted(set(shown)) == sorted(ids[name] for name in names)
    # docs/adopt.md: clips of the validation set lost, emptied and cut, with the raw world to mend it from.
    tree = shutil.copytree(data / "videophy2_val", tmp_path / "videophy2_val")
    media = tree / "media"
    (media / "video_0002.mp4").unlink()
    (media / "video_0003.mp4").write_bytes(b"")
    (media / "video_0005.mp4").write_bytes((media / "video_0005.mp4").read_bytes()[:2000])
    mirror = f"https://videos.example/={(world / 'prep-demo' / 'raw').as_uri()}/"
    done = prep("adopt", tree, "--prompt", "builtin", "--mirror", mirror, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    shown = re.findall(ID, (PROJECT / "docs" / "adopt.md").read_text(encoding="utf-8"))
    assert shown == [short_id(dataset_id(tree))]


def dataset_id(directory: Path) -> str:
    document = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    return str(document["dataset_id"])


def test_the_robot_tree_is_indexed_with_its_split_episodes(world: Path) -> None:
    directory = world / "prep-demo" / "data" / ROBOT
    index = open_index(directory, "droid_policy-train").index
    episodes = index.spans["episode_index"].tolist()
    assert max(episodes.count(each) for each in episodes) == 2
    (written,) = (directory / "filters").iterdir()
    assert all(key.startswith(UPSTREAM_PREFIX) for key in json.loads(written.read_text()))


def test_the_robot_tree_is_clean_to_the_last_frame(world: Path) -> None:
    prepared = world / "prep-demo/data" / ROBOT
    assert library.validate(prepared, level="deep").ordered() == []
    by_itself = library.validate(world / "prep-demo/raw/droid", level="deep")
    assert [group.code for group in by_itself.ordered()] == ["MAN004"]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("raw/train/A_red_square,_it_falls;_take_0.mp4", "prep videophy2"),
        ("raw/droid/success/meta/info.json", "no success episodes"),
        ("raw/sft/videos/ramp_clip000.mp4", "prep sft"),
        ("data/llava_ov", "llava_ov"),
        ("data/video_reasoning", "video_reasoning"),
    ],
)
def test_a_stage_that_fails_ends_the_demo(tmp_path: Path, place: str, told: str) -> None:
    """Something that was there before, in place of what the demo makes, breaks one kind."""
    (tmp_path / "raw").mkdir()
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("not what it should be")
    done = prep("demo", tmp_path)
    assert done.returncode in (1, 2, 3), done.stdout
    assert told in done.stderr.splitlines()[-2]
    assert "Traceback" not in done.stderr
    assert "The real thing" not in done.stdout


def test_interrupted_it_goes_on(world: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(
        [sys.executable, "-m", "prep", "demo"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert any(line.startswith("6. prep droid") for line in running.stdout)
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        said = running.stderr.read()
    assert running.returncode == 3, said
    assert said.splitlines()[-1] == "      Run the same command again to go on."
    assert "Traceback" not in said
    done = prep("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in DATASETS:
        first, second = (dataset_id(root / "prep-demo/data" / name) for root in (world, tmp_path))
        assert first == second


def test_a_step_is_judged_by_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps(tmp_path / "log")
    steps.run("explain", "VID003", shown="^VID003")
    with pytest.raises(PrepError, match=r"the status of prep validate .* found 1, expected 0"):
        steps.run("validate", tmp_path)
    with pytest.raises(PrepError, match="found 7, expected 0"):
        steps.run_python("print('said before'); raise SystemExit(7)", why="It fails.")
    with pytest.raises(PrepError, match="found 1, expected 2"):
        steps.expect("a number", 1, 2)
    with pytest.raises(UsageError, match="nothing at"):
        steps.run("validate", tmp_path / "not there")
    assert "said before" in capsys.readouterr().err
