"""The robot stage on local trees: which is taken, under which name, what is written and what is told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prep.errors import PrepError, UsageError, WouldChangeError
from prep.keep_ranges import upstream_key
from prep.manifest import Manifest
from prep.permutation import sampled_fraction, torch_permutation
from prep.robots import RobotOptions, prepare_robots
from prep.stages.options import Result
from prep.windows import Identity, WindowIndex
from tests.robot_trees import LENGTHS, droid_root, droid_tree, episode_id, fill, listing, literal_windows
from tests.robots import LIBERO, edit_json, make_root
from tests.runs import digests
from tests.window_trees import draw_libero, write_frames, write_root

NAME = "droid_plus_lerobot_640x360_20260412"
SMALL = "droid_plus_lerobot_320x180_20260406"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine names a tree."""
    for name in ("DROID_ROOT", "DATASET_PATH", "LIBERO_ROOT", "DROID_FILTER_SOURCE_PREFIX"):
        monkeypatch.delenv(name, raising=False)


def run(out: Path, recipe: str = "droid_policy", *, datasets: str = "all", **options: Any) -> Result:
    (result,) = prepare_robots(recipe, out, datasets=datasets, options=RobotOptions(**options))
    return result


def index(directory: Path, name: str) -> WindowIndex:
    return WindowIndex.open(directory / "windows" / f"{name}.arrow", inputs_below=directory)


def identities(windows: WindowIndex) -> list[Identity]:
    return [windows.resolve(place).identity for place in range(len(windows))]


def keep(path: Path, ranges: dict[str, list[list[int]]], prefix: str | None = "gs://elsewhere/r2d2") -> Path:
    """A filter under another prefix than upstream's, or under bare ids."""

    def key(name: str) -> str:
        head = f"{prefix}/{name}"
        return name if prefix is None else f"{head}/recordings/MP4--{head}/trajectory.h5"

    path.write_text(json.dumps({key(name): pairs for name, pairs in ranges.items()}))
    return path


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
    with pytest.raises(UsageError, match="^DATASET_PATH: "):
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
    tree = make_root(tmp_path / "tree" / "success", droid_with_lengths())
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


def droid_with_lengths() -> Any:
    from tests.robots import DROID

    return DROID


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
    assert sorted(path.name for path in (first.root / "windows").iterdir()) == [
        f"{name}.arrow"
        for name in (
            "droid_forward_dynamics-train-c16",
            "droid_forward_dynamics-val-c16",
            "droid_policy-train-c32",
            "droid_policy-train-c32-filtered",
            "droid_policy-train-c8",
            "droid_policy-val-c32",
            "droid_policy-val-c32-filtered",
            "droid_policy-val-c8",
        )
    ]


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


# --- filter and report ---------------------------------------------------------------------------


def test_the_report_counts_what_a_literal_reading_counts(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    ranges: dict[int, list[list[int]]] = {
        number: [[0, 38], [40, LENGTHS[number]]] if number % 3 else [[3, LENGTHS[number] + 9]]
        for number in range(36)
    }
    named = {episode_id(number): pairs for number, pairs in ranges.items()}
    path = keep(tmp_path / "keep.json", {**named, "LAB/success/none/such": [[0, 9]]})
    result = run(tmp_path / "data", root=tree, keep_ranges=str(path))
    order = torch_permutation(40, 42).tolist()
    for split, episodes in {"val": order[:1], "train": order[1:]}.items():
        literal = literal_windows(LENGTHS, episodes, 32, ranges)
        assert identities(index(result.root, f"droid_policy-{split}-c32-filtered")) == literal
        facts = result.consumption[split]
        assert facts["windows"] == len(literal)
        assert facts["windows_without_filter"] == len(literal_windows(LENGTHS, episodes, 32))
        assert facts["episodes"] == len({each.episode_index for each in literal})
        spans = {
            (number, start)
            for number in episodes
            for start, end in ranges.get(number, [])
            if min(end, LENGTHS[number]) - 32 > start
        }
        assert facts["spans"] == len(spans)
        several = [number for number in episodes if sum(number == each for each, _ in spans) > 1]
        assert facts["episodes_with_several_spans"] == len(several)
    told = {item.code: item.message for item in result.findings}
    assert "12 ranges are past the episode's end" in told["KEP002"]
    assert "74.41% on the full release" in told["KEP003"]
    unmatched = [item.message for item in result.findings if item.code == "KEP004"]
    assert unmatched[0].startswith("4 episodes are in no key, such as LAB/success/")
    assert unmatched[1] == "1 key is of no episode here, such as LAB/success/none/such"
    assert any(
        "filter: 36 of 40 episodes matched, 37 keys (keys under gs://elsewhere/r2d2)" in note
        for note in result.notes
    )


@pytest.mark.parametrize("prefix", [None, "gs://elsewhere/r2d2", "/a/b/c"])
def test_the_filter_is_written_in_upstreams_key_form(prefix: str | None, tmp_path: Path) -> None:
    ranges = {episode_id(number): [[0, 90]] for number in range(40)}
    path = keep(tmp_path / "keep.json", ranges, prefix)
    result = run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), keep_ranges=str(path))
    (written,) = (result.root / "filters").iterdir()
    assert json.loads(written.read_text()) == {upstream_key(name): pairs for name, pairs in ranges.items()}


def test_the_kept_share_near_the_pinned_figure_is_not_reported(tmp_path: Path) -> None:
    kept = {
        episode_id(number): [[0, 32 + round((length - 32) * 0.75)]] for number, length in enumerate(LENGTHS)
    }
    path = keep(tmp_path / "keep.json", kept)
    result = run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), keep_ranges=str(path))
    assert [item.message for item in result.findings if "train" in item.message] == []
    assert any(note.startswith("train: ") and "74.41% on the full release" in note for note in result.notes)


GOOD = {episode_id(number): [[0, 90]] for number in range(40)}
REFUSED: dict[str, Any] = {
    "not an object": [],
    "no episode": {},
    "cut short": '{"a": [[0, 1]',
    "no pairs": {**GOOD, episode_id(3): [[0]]},
    "no whole numbers": {**GOOD, episode_id(3): [[0, 1.5]]},
    "a truth value": {**GOOD, episode_id(3): [[0, True]]},
    "end before start": {**GOOD, episode_id(3): [[9, 3]]},
    "mixed keys": {**GOOD, upstream_key(episode_id(1)): [[0, 5]]},
    "mixed prefixes": {
        upstream_key(episode_id(1)): [[0, 5]],
        upstream_key(episode_id(2)).replace("gs://", "s3://"): [[0, 5]],
    },
    "nothing matched": {"LAB/success/none/such": [[0, 90]]},
    "overlap": {**GOOD, episode_id(3): [[0, 20], [10, 30]]},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_filter_that_would_select_the_wrong_windows_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "keep.json"
    path.write_text(REFUSED[what] if isinstance(REFUSED[what], str) else json.dumps(REFUSED[what]))
    with pytest.raises(PrepError) as error:
        run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), keep_ranges=str(path))
    assert error.value.exit_status == 1
    assert "\n" not in str(error.value)
    assert error.value.remedy
    assert not (tmp_path / "data").exists()


def test_a_prefix_that_the_user_names_wrongly_is_shown_beside_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, path = droid_tree(tmp_path / "tree"), keep(tmp_path / "keep.json", GOOD)
    monkeypatch.setenv("DROID_FILTER_SOURCE_PREFIX", "gs://wrong")
    with pytest.raises(PrepError, match=r"gs://elsewhere.*gs://wrong.*LAB/success"):
        run(tmp_path / "data", root=tree, keep_ranges=str(path))
    right = run(
        tmp_path / "data", root=tree, keep_ranges=str(path), source_prefix="gs://elsewhere/r2d2/"
    )
    assert right.outcome == "complete"


def test_an_overlap_may_be_accepted(tmp_path: Path) -> None:
    path = keep(tmp_path / "keep.json", {**GOOD, episode_id(3): [[0, 40], [0, 40]]})
    result = run(
        tmp_path / "data",
        root=droid_tree(tmp_path / "tree"),
        keep_ranges=str(path),
        ignore=("KEP001",),
    )
    assert [item.message for item in result.findings if item.code == "KEP001"] == [
        "1 episodes of success have ranges that overlap; accepted"
    ]
    assert result.exit_status == 0


def test_fewer_spans_than_streams_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    spans = run(tmp_path / "dry", root=tree, dry_run=True).consumption["train"]["spans"]
    refused = run(tmp_path / "data", root=tree, ranks=spans + 1, workers=1)
    assert (refused.exit_status, [item.code for item in refused.findings]) == (1, ["ROB003"])
    assert f"{spans} spans for {spans + 1} streams" in refused.message
    assert not (tmp_path / "data").exists()
    assert run(tmp_path / "data", root=tree, ranks=spans, workers=1).exit_status == 0
    accepted = run(tmp_path / "more", root=tree, ranks=spans, workers=2, ignore=("ROB003",))
    assert [(item.code, item.severity) for item in accepted.findings] == [("ROB003", "warning")]


def test_no_window_at_all_is_an_error(tmp_path: Path) -> None:
    result = run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), chunk_length=500)
    assert (result.exit_status, [item.code for item in result.findings]) == (1, ["ROB003"])


@pytest.mark.parametrize(("text", "count"), [("pick | place", 0), ("pick |  | place", 1), (" ", 1)])
def test_blank_instructions_are_counted_as_the_reader_draws_them(
    text: str, count: int, tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree")
    for kind in ("success", "failure"):
        path = tree / kind / "meta/tasks.parquet"
        table = pq.read_table(path)
        place = table.schema.get_field_index("__index_level_0__")
        pq.write_table(table.set_column(place, "__index_level_0__", pa.array([text])), path)
    found = run(tmp_path / "data", root=tree).findings
    assert [item.code for item in found] == ["ROB002"] * count


def test_a_code_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="KEP999"):
        run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), ignore=("KEP999",))


# --- LIBERO ------------------------------------------------------------------------------------------


def libero_root(path: Path, *, fps: int = 20, seed: int = 1) -> list[tuple[int, int]]:
    """A suite whose rows stand in several files in no order; its (episode, length) pairs."""
    root, numbers = draw_libero(seed, 30)
    write_root(path, root, fps=fps)
    write_frames(path, root, numbers, files=3)
    for camera in ("observation.image.wrist_image_left",):
        assert camera in json.loads((path / "meta/info.json").read_text())["features"]
    edit_json(path / "meta/info.json", lambda info: info["features"].clear())
    return list(zip(numbers, root.lengths.tolist(), strict=True))


def test_a_suite_is_indexed_in_ascending_order_with_one_episode_in_a_hundred_held_out(
    tmp_path: Path,
) -> None:
    episodes = libero_root(tmp_path / "all" / "libero_10")
    result = run(tmp_path / "data", "libero_10", root=tmp_path / "all")
    assert result.root == tmp_path / "data/LIBERO_LeRobot_v3/libero_10"
    assert sorted(path.name for path in result.root.iterdir() if path.is_symlink()) == ["data", "meta"]
    lengths = dict(episodes)
    held_out = sampled_fraction(sorted(lengths), 0.01, 0)
    assert len(held_out) == 1
    train = [number for number in sorted(lengths) if number not in held_out]
    numbers = range(max(lengths) + 1)
    every = [lengths.get(number, 0) for number in numbers]
    assert identities(index(result.root, "libero_10-train-c16")) == literal_windows(every, train, 16)
    assert identities(index(result.root, "libero_10-val-c16")) == literal_windows(every, sorted(held_out), 16)


def test_rows_of_an_orphan_file_are_trained_on_and_a_change_of_rows_is_noticed(tmp_path: Path) -> None:
    libero_root(tmp_path / "libero_10")
    before = run(tmp_path / "before", "libero_10", root=tmp_path / "libero_10").consumption
    table = pq.read_table(tmp_path / "libero_10/data/chunk-000/file-000.parquet").slice(0, 40)
    rows = pa.array(range(10**6, 10**6 + 40))
    table = table.set_column(table.schema.get_field_index("index"), "index", rows)
    table = table.set_column(
        table.schema.get_field_index("episode_index"), "episode_index", pa.array([999] * 40)
    )
    orphan = tmp_path / "libero_10/data/chunk-007/file-000.parquet"
    orphan.parent.mkdir()
    pq.write_table(table, orphan)
    result = run(tmp_path / "after", "libero_10", root=tmp_path / "libero_10")
    total = sum(facts["windows"] for facts in result.consumption.values())
    assert total == sum(facts["windows"] for facts in before.values()) + 40 - 16
    pq.write_table(table.slice(0, 20), orphan)
    with pytest.raises(PrepError, match="chunk-007"):
        index(result.root, "libero_10-train-c16")


def test_a_suite_at_another_rate_is_an_error(tmp_path: Path) -> None:
    libero_root(tmp_path / "libero_10", fps=10)
    result = run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10")
    assert (result.exit_status, [item.code for item in result.findings]) == (1, ["ROB001"])
    assert "10 frames a second; the recipe expects 20" in result.message
    assert not (tmp_path / "data").exists()


def test_a_chunk_that_upstream_does_not_take_is_refused(tmp_path: Path) -> None:
    libero_root(tmp_path / "libero_10")
    with pytest.raises(UsageError, match="not a multiple of 4") as error:
        run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10", chunk_length=18)
    assert "16" in error.value.remedy


def test_all_suites_are_datasets_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suites = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
    for seed, suite in enumerate(suites):
        libero_root(tmp_path / "all" / suite, seed=seed)
    options = RobotOptions(root=tmp_path / "all")
    results = prepare_robots("libero_all", tmp_path / "data", options=options)
    assert [result.root.relative_to(tmp_path / "data") for result in results] == [
        Path("LIBERO_LeRobot_v3", suite) for suite in suites
    ]
    assert len({result.dataset_id for result in results}) == 4
    monkeypatch.setenv("LIBERO_ROOT", str(tmp_path / "all"))
    by_variable = prepare_robots("libero_all", tmp_path / "other")
    assert [result.dataset_id for result in by_variable] == [result.dataset_id for result in results]
    monkeypatch.setenv("LIBERO_ROOT", str(tmp_path / "all/libero_goal"))
    assert run(tmp_path / "one", "libero_all", datasets="libero_goal").root.name == "libero_goal"
    with pytest.raises(UsageError, match="is libero_goal, not libero_10"):
        run(tmp_path / "one", "libero_10")


def test_a_blank_part_beside_an_instruction_is_none_for_liberos_reader(tmp_path: Path) -> None:
    from dataclasses import replace

    make_root(tmp_path / "libero_10", replace(LIBERO, tasks=("open it | ", "close it", " | ")))
    result = run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10")
    assert [item.message for item in result.findings] == ["1 task text has a blank instruction"]


# --- any tree ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["g1_lerobot_v30_converted", "rebot_lerobot_v30_novideo"])
def test_a_real_tree_is_indexed(name: str, tmp_path: Path, real_data: Path) -> None:
    root = real_data / name
    before = listing(root)
    result = run(tmp_path / "data", "lerobot", root=root)
    assert result.outcome == "complete"
    lengths = []
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        lengths += pq.read_table(path, columns=["length"])["length"].to_pylist()
    assert result.consumption["full"]["windows"] == sum(max(length - 16, 0) for length in lengths)
    assert listing(root) == before


def test_a_tree_without_ids_takes_no_filter(tmp_path: Path, real_data: Path) -> None:
    path = keep(tmp_path / "keep.json", GOOD)
    with pytest.raises(PrepError, match="no column episode_id"):
        run(tmp_path / "data", root=real_data / "g1_lerobot_v30_converted", keep_ranges=str(path))
    with pytest.raises(UsageError, match="takes no filter"):
        run(tmp_path / "data", "lerobot", root=real_data / "g1_lerobot_v30_converted", keep_ranges=str(path))


def test_the_same_tree_gives_the_same_bytes_at_any_place(tmp_path: Path) -> None:
    made = []
    for place in ("here", "there"):
        tree = droid_tree(tmp_path / place / "tree")
        result = run(tmp_path / place / "data", root=tree)
        (result.root / ".prep/location.json").unlink()
        made.append(digests(result.root))
    assert made[0] == made[1]
