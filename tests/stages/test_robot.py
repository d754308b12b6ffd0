"""The robot stage on local trees: which is taken, under which name, what is written and what is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prep.errors import PrepError, UsageError, WouldChangeError
from prep.manifest import Manifest
from prep.permutation import torch_permutation
from tests.robot_trees import (
    LENGTHS,
    NAME,
    SMALL,
    droid_root,
    droid_tree,
    episode_id,
    fill,
    identities,
    index,
    keep,
    listing,
    literal_windows,
    run,
)
from tests.robots import DROID, edit_json, make_root
from tests.runs import digests


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine names a tree."""
    for name in ("DROID_ROOT", "DATASET_PATH", "LIBERO_ROOT", "DROID_FILTER_SOURCE_PREFIX"):
        monkeypatch.delenv(name, raising=False)


# --- which tree, under which name ----------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "size", "name", "links"),
    [
        ("flat", (640, 360), NAME, {"success": ""}),
        ("flat", (320, 180), SMALL, {"success": ""}),
        ("groups", (640, 360), NAME, {"success": "success", "failure": "failure"}),
        ("groups", (320, 180), SMALL, {"success": "success", "failure": "failure"}),
        ("sharded", (640, 360), f"{NAME}_sharded", {"success": "success", "failure": "failure"}),
        ("sharded", (320, 180), f"{SMALL}_sharded", {"success": "success", "failure": "failure"}),
        ("groups", (64, 48), NAME, {"success": "success", "failure": "failure"}),
    ],
)
def test_a_tree_is_linked_under_the_name_that_upstream_looks_for(
    form: str, size: tuple[int, int], name: str, links: dict[str, str], tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree", form, size=size)
    before = listing(tree)
    result = run(tmp_path / "data", root=tree)
    assert (result.outcome, result.root) == ("complete", tmp_path / "data" / name)
    there = {path.name: path.resolve() for path in result.root.iterdir() if path.is_symlink()}
    assert there == {link: (tree / target).resolve() for link, target in links.items()}
    assert listing(tree) == before
    location = json.loads((result.root / ".prep/location.json").read_text())
    assert location == {link: str(path) for link, path in there.items()}
    manifest = Manifest.load(result.root)
    assert manifest is not None
    assert str(tmp_path) not in (result.root / "manifest.json").read_text()
    assert manifest.dataset_id == result.dataset_id


def test_a_tree_of_institutions_is_indexed_root_by_root_and_the_policy_launcher_is_named(
    tmp_path: Path,
) -> None:
    tree = droid_tree(tmp_path / "tree", "sharded")
    result = run(tmp_path / "data", root=tree)
    assert [item.code for item in result.findings if item.severity == "warning"] == ["ROB004"]
    assert "action_policy_droid_nano" in result.findings[0].message
    windows = index(result.root, "droid_policy-train-c32")
    assert windows.parameters["roots"] == ["success/IRIS", "success/RAIL"]
    order = torch_permutation(40, 42)[1:].tolist()
    literal = literal_windows(LENGTHS, order, 32) + literal_windows(LENGTHS, order, 32, dataset_index=1)
    assert identities(windows) == literal
    both = run(tmp_path / "data", "droid_forward_dynamics")
    assert both.findings == []
    roots = index(both.root, "droid_forward_dynamics-val-c16").parameters["roots"]
    assert roots == ["success/IRIS", "success/RAIL", "failure/IRIS", "failure/RAIL"]


@pytest.mark.parametrize("name", [NAME, f"{NAME}_sharded"])
def test_the_folder_above_a_known_name_will_do(name: str, tmp_path: Path) -> None:
    droid_tree(tmp_path / "download" / name, "sharded" if "sharded" in name else "groups")
    assert run(tmp_path / "data", root=tmp_path / "download").root.name == name


def test_a_tree_that_stands_under_the_out_root_is_taken_as_it_is(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "data" / NAME)
    before = listing(tree / "success")
    result = run(tmp_path / "data")
    assert (result.outcome, result.root) == ("complete", tree)
    assert listing(tree / "success") == before
    assert not (tree / "success").is_symlink()
    manifest = Manifest.load(tree)
    assert manifest is not None
    assert {row.known for row in manifest.files()} == {"computed", "size_only"}
    assert run(tmp_path / "data").outcome == "unchanged"


@pytest.mark.parametrize("variable", ["DROID_ROOT", "DATASET_PATH"])
def test_the_environment_may_name_the_tree(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = droid_tree(tmp_path / "tree")
    monkeypatch.setenv(variable, f"{tree}/")
    result = run(tmp_path / "data")
    assert (result.root / "success").resolve() == (tree / "success").resolve()
    # What is under the out-root comes before the environment.
    monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
    assert run(tmp_path / "data").outcome == "unchanged"


def test_a_variable_that_names_no_tree_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bridge").mkdir()
    monkeypatch.setenv("DATASET_PATH", str(tmp_path / "bridge"))
    with pytest.raises(UsageError, match=r"^DATASET_PATH: "):
        run(tmp_path / "data")


def test_a_tree_below_the_given_folder_is_named(tmp_path: Path) -> None:
    droid_root(tmp_path / "all" / "mine")
    with pytest.raises(UsageError, match="holds mine") as error:
        run(tmp_path / "data", root=tmp_path / "all")
    assert str(tmp_path / "all" / "mine") in error.value.remedy


def test_a_saved_dataset_is_named(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    for name in ("state.json", "dataset_info.json"):
        (saved / name).write_text("{}")
    with pytest.raises(UsageError, match="saved by `datasets`"):
        run(tmp_path / "data", root=saved)


def test_an_older_format_is_refused_with_the_command_that_converts(tmp_path: Path, real_data: Path) -> None:
    with pytest.raises(PrepError, match=r"v2\.1") as error:
        run(tmp_path / "data", "lerobot", root=real_data / "g1_lerobot_v21")
    assert "convert_dataset_v21_to_v30" in error.value.remedy
    assert error.value.exit_status == 1
    assert not (tmp_path / "data").exists()


def test_an_out_root_inside_the_tree_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = droid_tree(tmp_path / "tree", "flat")
    before = listing(tree)
    monkeypatch.chdir(tree)
    for recipe in ("droid_policy", "lerobot"):
        with pytest.raises(UsageError, match="never written to"):
            run(Path("data"), recipe, root=Path())
    assert listing(tree) == before


def test_a_recipe_of_one_root_does_not_take_a_tree_of_several(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds 2 roots"):
        run(tmp_path / "data", "lerobot", root=droid_tree(tmp_path / "tree"))


def test_a_folder_in_the_place_of_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data" / NAME / "success").mkdir(parents=True)
    with pytest.raises(UsageError, match="is no link"):
        run(tmp_path / "data", root=droid_tree(tmp_path / "tree"))
    assert list((tmp_path / "data" / NAME).rglob("*")) == [tmp_path / "data" / NAME / "success"]


def test_copy_makes_a_tree_of_its_own_and_follows_links_in_the_source(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    videos = tree / "success/videos"
    videos.rename(tmp_path / "other-disk")
    videos.symlink_to(tmp_path / "other-disk")
    result = run(tmp_path / "data", root=tree, copy=True)
    copied = digests(tree)
    shutil.rmtree(tree)
    shutil.rmtree(tmp_path / "other-disk")
    assert {name: copied[name] for name in copied if name.startswith("failure/")} == {
        f"failure/{name}": digest for name, digest in digests(result.root / "failure").items()
    }
    assert len(list((result.root / "success/videos").rglob("*.mp4"))) == 3
    assert not (result.root / ".prep/location.json").exists()
    assert run(tmp_path / "data").outcome == "unchanged"


def test_a_link_becomes_a_copy_only_with_update(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    run(tmp_path / "data", root=tree)
    with pytest.raises(WouldChangeError):
        run(tmp_path / "data", root=tree, copy=True)
    before = listing(tree)
    result = run(tmp_path / "data", root=tree, copy=True, update=True)
    assert not (result.root / "success").is_symlink()
    assert listing(tree) == before
    shutil.rmtree(tree)
    assert run(tmp_path / "data").outcome == "unchanged"


# --- what is there of the tree ---------------------------------------------------------------


def test_metadata_alone_is_enough_and_is_completed_without_update(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree", files=False)
    first = run(tmp_path / "data", root=tree)
    assert first.outcome == "complete"
    assert "success: 4 data and video files not there: indexed from the metadata alone" in first.notes
    for kind in ("success", "failure"):
        fill(tree / kind)
    second = run(tmp_path / "data", root=tree)
    assert (second.outcome, second.dataset_id != first.dataset_id) == ("complete", True)
    third = run(tmp_path / "other", root=tree)
    assert third.dataset_id == second.dataset_id
    assert digests(third.root) == digests(second.root)


def test_a_half_downloaded_tree_is_told_by_camera_and_left_alone(tmp_path: Path) -> None:
    tree = make_root(tmp_path / "tree" / "success", DROID)
    wrist = "videos/observation.image.wrist_image_left/chunk-000/file-001.mp4"
    left = "videos/observation.image.exterior_image_1_left/chunk-000/file-000.mp4"
    (tree / wrist).unlink()
    (tree / left).unlink()
    before = listing(tmp_path / "tree")
    result = run(tmp_path / "data", root=tmp_path / "tree", chunk_length=8)
    assert (result.exit_status, result.outcome) == (3, "incomplete")
    assert listing(tmp_path / "tree") == before
    assert not (tmp_path / "data").exists()
    assert "success/data: 3 of 3 files present" in result.notes
    assert "success/observation.image.wrist_image_left: 1 of 2 files present, 1 missing" in result.notes
    assert f"missing success/{wrist}" in result.notes
    assert f"missing success/{left}" in result.notes
    # The wrist's second file holds episodes 3 to 5, the left camera's first one 0 and 1: 2 is whole.
    assert result.consumption["train"]["windows_usable"] == 30 - 8
    assert "2 data and video files" in result.message
    allowed = run(tmp_path / "data", root=tmp_path / "tree", chunk_length=8, metadata_only=True)
    assert allowed.outcome == "complete"


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    before = listing(tmp_path)
    result = run(tmp_path / "data", root=tree, dry_run=True)
    assert (result.outcome, result.exit_status) == ("planned", 0)
    assert result.consumption["train"]["windows"] > 0
    assert listing(tmp_path) == before


# --- a second run ------------------------------------------------------------------------------


def test_a_second_run_changes_nothing_wherever_the_tree_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = droid_tree(tmp_path / "tree")
    first = run(tmp_path / "data", root=tree)
    before = listing(tmp_path / "data")
    for options in ({"root": tree}, {}, {"root": first.root}):
        again = run(tmp_path / "data", **options)
        assert (again.outcome, again.dataset_id) == ("unchanged", first.dataset_id)
    monkeypatch.setenv("DROID_ROOT", str(tree))
    assert run(tmp_path / "data").outcome == "unchanged"
    assert listing(tmp_path / "data") == before


def test_another_recipe_chunk_or_filter_adds_an_index_and_leaves_the_dataset(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    first = run(tmp_path / "data", root=tree)
    manifest = (first.root / "manifest.json").read_bytes()
    ranges = keep(tmp_path / "keep.json", {episode_id(number): [[0, 90]] for number in range(40)})
    more: list[dict[str, Any]] = [
        {"chunk_length": 8},
        {"recipe": "droid_forward_dynamics"},
        {"keep_ranges": str(ranges)},
    ]
    for options in more:
        result = run(tmp_path / "data", **options)
        assert (result.outcome, result.dataset_id) == ("complete", first.dataset_id)
    assert (first.root / "manifest.json").read_bytes() == manifest
    assert {path.stem for path in (first.root / "windows").iterdir()} == {
        f"{recipe}-{split}-{rest}"
        for recipe, rest in (
            ("droid_policy", "c32"),
            ("droid_policy", "c8"),
            ("droid_policy", "c32-filtered"),
            ("droid_forward_dynamics", "c16"),
        )
        for split in ("train", "val")
    }


def test_another_filter_needs_update(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    first = keep(tmp_path / "first.json", {episode_id(number): [[0, 90]] for number in range(40)})
    other = keep(tmp_path / "other.json", {episode_id(number): [[5, 90]] for number in range(40)})
    made = run(tmp_path / "data", root=tree, keep_ranges=str(first))
    before = digests(made.root)
    with pytest.raises(WouldChangeError, match="droid_policy-train-c32-filtered"):
        run(tmp_path / "data", keep_ranges=str(other))
    assert digests(made.root) == before
    updated = run(tmp_path / "data", keep_ranges=str(other), update=True)
    assert updated.dataset_id == made.dataset_id
    assert (made.root / "manifest.json").read_bytes() == (updated.root / "manifest.json").read_bytes()
    # The same ranges in another spelling are the same filter.
    bare = keep(tmp_path / "bare.json", {episode_id(number): [[5, 90]] for number in range(40)}, prefix=None)
    assert run(tmp_path / "data", keep_ranges=str(bare)).outcome == "unchanged"


def test_what_was_removed_of_the_views_is_made_again(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    ranges = str(keep(tmp_path / "keep.json", {episode_id(number): [[0, 90]] for number in range(40)}))
    made = run(tmp_path / "data", root=tree, keep_ranges=ranges)
    before = digests(made.root)
    shutil.rmtree(made.root / "filters")
    (made.root / "windows/droid_policy-val-c32-filtered.arrow").unlink()
    assert run(tmp_path / "data", keep_ranges=ranges).outcome == "complete"
    assert digests(made.root) == before


def test_a_changed_tree_is_refused_and_its_index_too(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    made = run(tmp_path / "data", root=tree)
    edit_json(tree / "success/meta/info.json", lambda info: info.update(robot_type="another"))
    with pytest.raises(PrepError, match=r"success/meta/info\.json"):
        index(made.root, "droid_policy-train-c32")
    with pytest.raises(WouldChangeError, match=r"1 files changed \(success/meta/info\.json\)"):
        run(tmp_path / "data")
    updated = run(tmp_path / "data", update=True)
    assert updated.dataset_id != made.dataset_id
    assert len(index(made.root, "droid_policy-train-c32")) > 0


def test_a_tree_that_was_moved_is_linked_anew(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    made = run(tmp_path / "data", root=tree)
    moved = tree.rename(tmp_path / "moved")
    again = run(tmp_path / "data", root=moved)
    assert again.dataset_id == made.dataset_id
    assert (made.root / "success").resolve() == (moved / "success").resolve()
