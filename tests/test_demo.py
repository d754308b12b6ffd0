"""The embedded first run: from nothing to a validated dataset, and once more."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import prep as library
from prep.demo import run
from prep.keep_ranges import UPSTREAM_PREFIX
from prep.manifest import short_id
from prep.window_lists import open_index
from tests.commands import PROJECT, prep
from tests.runs import digests

ID = r"videophy2_[a-z]+@[0-9a-f]{12}"
STEPS = ("1. A raw world", "2. prep videophy2", "3. prep validate", "4. prep show", "5. prep env")
ROBOT_STEPS = ("6. A robot tree", "7. prep droid", "8. prep validate", "9. prep windows", "10. prep env")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that was run once, with what it said."""
    folder = tmp_path_factory.mktemp("demo")
    done = prep("demo", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "err.txt").write_text(done.stderr)
    (folder / "out.txt").write_text(done.stdout)
    return folder


def test_the_steps_are_told_in_order(world: Path) -> None:
    said = (world / "err.txt").read_text()
    places = [said.index(f"\n{step}") for step in STEPS]
    assert places == sorted(places)
    assert "prep videophy2 --split val" in said.splitlines()[-1]


def test_the_bad_rows_are_told_and_the_good_ones_kept(world: Path) -> None:
    said = (world / "err.txt").read_text()
    for reason in ("http_404", "not_media", "not_an_integer", "TAB003"):
        assert reason in said
    assert len(library.open(world / "prep-demo" / "data" / "videophy2_train")) == 9
    assert len(library.open(world / "prep-demo" / "data" / "videophy2_val")) == 5


def test_the_results_are_on_stdout(world: Path) -> None:
    said = (world / "out.txt").read_text()
    assert "0 errors" in said
    assert f"export VIDEOPHYSICS_ROOT={world / 'prep-demo' / 'data'}" in said
    assert (world / "prep-demo" / "sample.png").is_file()


def test_what_it_makes_is_valid_to_the_last_byte(world: Path) -> None:
    report = library.validate(world / "prep-demo" / "data", level="deep")
    assert report.exit_status == 0
    assert [group.code for group in report.ordered()] == ["MAN005"]


def test_a_second_run_changes_nothing(world: Path) -> None:
    before = digests(world / "prep-demo" / "data")
    done = prep("demo", cwd=world)
    assert done.returncode == 0
    assert "nothing to do" in done.stderr
    assert digests(world / "prep-demo" / "data") == before


def test_another_folder_gets_the_same_dataset(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://before")
    monkeypatch.delenv("HF_HOME", raising=False)
    assert run(tmp_path / "another folder") == 0
    assert os.environ["HF_ENDPOINT"] == "http://before"
    assert "HF_HOME" not in os.environ
    for name in ("videophy2_train", "videophy2_val", "droid_plus_lerobot_320x180_20260406"):
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
    directory = world / "prep-demo" / "data" / "droid_plus_lerobot_320x180_20260406"
    index = open_index(directory, "droid_policy-train").index
    episodes = index.spans["episode_index"].tolist()
    assert max(episodes.count(each) for each in episodes) == 2
    (written,) = (directory / "filters").iterdir()
    assert all(key.startswith(UPSTREAM_PREFIX) for key in json.loads(written.read_text()))
    said, shown = (world / "err.txt").read_text(), (world / "out.txt").read_text()
    places = [said.index(f"\n{step}") for step in ROBOT_STEPS]
    assert places == sorted(places)
    assert "frame" in shown
    assert f"filter_dict_path={directory}/filters/" in shown


def test_the_robot_tree_is_clean_to_the_last_frame(world: Path) -> None:
    prepared = world / "prep-demo/data/droid_plus_lerobot_320x180_20260406"
    assert library.validate(prepared, level="deep").ordered() == []
    by_itself = library.validate(world / "prep-demo/raw/droid", level="deep")
    assert [group.code for group in by_itself.ordered()] == ["MAN004"]
