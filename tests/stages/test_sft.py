"""The SFT stage: captions and trees become JSONL files, finished datasets stay, and kills leave no trace."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from prep.errors import HeldError, IncompleteError, PrepError, UsageError, WouldChangeError
from prep.findings import explain
from prep.manifest import Manifest
from prep.workspace import Workspace
from tests.clips import make_clip
from tests.commands import PROJECT
from tests.runs import digests
from tests.sft_trees import (
    FRAMES,
    bridge_tree,
    build,
    lines,
    real_source,
    record,
    settled,
    source,
    write_lines,
)

LINES = "train/video_dataset_file.jsonl"
BRIDGE = "BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge"


def summary(root: Path, split: str = "train") -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        (root / split / "video_dataset_file.jsonl.summary.json").read_text()
    )
    return document


# --- from captions -----------------------------------------------------------------------


def test_real_captions_become_the_lines_that_upstreams_builder_writes(
    real_data: Path, tmp_path: Path
) -> None:
    result = build(tmp_path / "data", **real_source(tmp_path, real_data))
    assert (result.outcome, result.rows, result.kept) == ("complete", 7, 6)
    assert result.failed == {"too_few_frames": 1}
    records = {item["uuid"]: item for item in lines(result.root / LINES)}
    # Upstream's `captions_to_sft_jsonl` at the locked commit gives the same lines, byte for byte, but for the
    # duration of `a`: FFmpeg's versions differ on the length of its sound (7.059 s in 5.1, 7.035 s in 8).
    records["a"]["duration"] = 7.059
    text = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in records.values())
    assert hashlib.sha256(text.encode()).hexdigest() == UPSTREAM_LINES
    assert summary(result.root) == {
        "records_kept": 6,
        "records_with_caption_json": 6,
        "records_dropped": 1,
        "drops_by_reason": {"too_few_frames": 1},
        "filters": {
            "max_duration_s": 61.0,
            "min_window_frames": 61,
            "min_short_edge": 0,
            "num_video_frames": -1,
        },
    }


UPSTREAM_LINES = "3e7d1d2367aba408752813b0abea4a554489ed2dad4b4fadd8b6c8f19d119c89"


def test_what_training_will_keep_is_counted_with_the_clip_that_it_never_reads(
    real_data: Path, tmp_path: Path
) -> None:
    result = build(tmp_path / "data", **real_source(tmp_path, real_data))
    train = result.consumption["splits"]["train"]
    assert (train["records"], train["records_kept"], train["windows_kept"]) == (6, 5, 5)
    assert train["windows_dropped"] == {"no_frame_count": 1}
    assert train["captions"] == {"caption_json": 5}
    assert train["frames"] == 129 + 149 + 901 + 149 + 209  # as upstream's loader returned them
    assert result.consumption["samples"] == 5
    assert any("1 window dropped: no_frame_count" in note for note in result.notes)


def test_each_drop_has_upstreams_reason(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["good", "gone", "broken", "long", "short", "silent", "torn"])
    captions, videos = given["captions"], given["videos"]
    (videos / "gone.mp4").unlink()
    (videos / "broken.mp4").write_bytes(b"<!doctype html><html></html>")
    make_clip(videos / "long.mp4", frames=62, rate=1)
    make_clip(videos / "short.mp4", frames=60)
    (captions / "silent/caption.txt").write_text(" \n")
    (captions / "torn/caption.txt").write_bytes(b"Take \xff")
    with_faults = build(tmp_path / "data", **given)
    assert with_faults.exit_status == 1
    assert not (with_faults.root / "manifest.json").exists()
    result = build(tmp_path / "data", **given, min_coverage=0.4)
    assert result.failed == {
        "bad_bytes": 1,
        "duration_too_long": 1,
        "empty_caption": 1,
        "ffprobe_error": 1,
        "missing_video": 1,
        "too_few_frames": 1,
    }
    assert summary(result.root)["drops_by_reason"] == result.failed
    manifest = Manifest.load(result.root)
    assert manifest is not None
    assert [row.id for row in manifest.records() if row.status == "kept"] == ["good"]
    assert all(row.detail for row in manifest.records() if row.status == "failed")


def test_a_videos_folder_without_a_caption_is_counted(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b", "c"])
    (given["captions"] / "b/caption.txt").unlink()
    (given["captions"] / "notes").mkdir()  # no video's name: no clip
    result = build(tmp_path / "data", **given, min_coverage=0.6)
    assert (result.rows, result.kept, result.failed) == (3, 2, {"empty_caption": 1})
    assert build(tmp_path / "strict", **given).exit_status == 1


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("too_few_frames", "SFT008"),
        ("empty_caption", "SFT012"),
        ("missing_video", "SFT019"),
        ("no_frame_count", "SFT015"),
    ],
)
def test_a_reason_leads_to_the_catalogue(reason: str, code: str) -> None:
    assert explain(reason).startswith(code)


def test_rules_of_the_loader_are_no_faults(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b", "c"])
    result = build(tmp_path / "data", **given, num_video_frames=65, min_short_edge=48)
    assert (result.exit_status, result.failed) == (0, {"too_few_frames": 1})
    none = build(tmp_path / "none", **given, min_short_edge=49)
    assert (none.exit_status, none.failed) == (1, {"short_edge_too_small": 3})
    assert not none.root.exists() or not (none.root / "manifest.json").exists()


def test_both_forms_of_a_caption_are_kept_and_a_broken_one_falls_back(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["both", "dense", "broken", "array", "spoken"])
    captions = given["captions"]
    (captions / "both/caption.json").write_text('\ufeff{"temporal_caption": "x", "é": 1}', encoding="utf-8")
    (captions / "broken/caption.json").write_text('{"a": ')
    (captions / "array/caption.json").write_text("[1]")
    (captions / "spoken/caption.txt").unlink()
    (captions / "spoken/caption.json").write_text('{"temporal_caption": " It moves. "}')
    result = build(tmp_path / "data", **given)
    windows = {item["uuid"]: item["t2w_windows"][0] for item in lines(result.root / LINES)}
    assert windows["both"]["caption_json"] == {"temporal_caption": "x", "é": 1}
    assert windows["both"]["caption"] == "Take both."
    assert [name for name, window in windows.items() if "caption_json" in window] == ["both", "spoken"]
    assert windows["spoken"]["caption"] == "It moves."
    assert [(item.code, item.path) for item in result.findings] == [
        ("SFT016", "captions/array/caption.json"),
        ("SFT016", "captions/broken/caption.json"),
    ]


def test_endings_are_tried_in_upstreams_order(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a"])
    make_clip(given["videos"] / "a.mkv", frames=70)
    make_clip(given["videos"] / "a.avi", frames=80, codec="mpeg4")
    (given["videos"] / "a.mp4").unlink()
    (item,) = lines(build(tmp_path / "data", **given).root / LINES)
    assert item["vision_path"] == "videos/a.avi"


# --- held out ----------------------------------------------------------------------------


def test_clips_of_one_source_never_fall_on_both_sides(tmp_path: Path) -> None:
    names = [f"ep{episode}_clip{clip:03d}" for episode in range(6) for clip in range(episode % 3 + 1)]
    given = source(tmp_path / "src", names)
    sides = {}
    for seed in range(4):
        result = build(tmp_path / f"data{seed}", **given, val_fraction=0.3, seed=seed)
        split = {
            side: {item["uuid"] for item in lines(result.root / side / "video_dataset_file.jsonl")}
            for side in ("train", "val")
        }
        assert split["train"] | split["val"] == set(names)
        sources = {side: {name.partition("_")[0] for name in found} for side, found in split.items()}
        assert not sources["train"] & sources["val"]
        assert 1 <= len(split["val"]) <= round(0.3 * len(names))
        assert all((result.root / "val" / f"videos/{name}.mp4").is_file() for name in split["val"])
        sides[seed] = tuple(sorted(split["val"]))
    assert len(set(sides.values())) > 1
    again = build(tmp_path / "again", **given, val_fraction=0.3, seed=2)
    assert settled(again.root) == settled(tmp_path / "data2/sft_dataset")


def test_equal_bytes_are_one_source(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b", "c", "d"])
    for twin, original in (("b", "a"), ("d", "c")):
        shutil.copy(given["videos"] / f"{original}.mp4", given["videos"] / f"{twin}.mp4")
    for seed in range(4):
        result = build(tmp_path / f"data{seed}", **given, val_fraction=0.5, seed=seed)
        held = {item["uuid"] for item in lines(result.root / "val/video_dataset_file.jsonl")}
        assert held in ({"a", "b"}, {"c", "d"})


def test_a_pattern_says_what_a_source_is(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["x-1", "x-2", "y-1", "y-2"])
    result = build(tmp_path / "data", **given, val_fraction=0.5, group=r"^(\w)-")
    held = {item["uuid"] for item in lines(result.root / "val/video_dataset_file.jsonl")}
    assert held in ({"x-1", "x-2"}, {"y-1", "y-2"})
    with pytest.raises(UsageError, match="one source"):
        build(tmp_path / "one", **given, val_fraction=0.5, group="(-)")
    with pytest.raises(UsageError, match="no regular expression"):
        build(tmp_path / "bad", **given, val_fraction=0.5, group="(")
    with pytest.raises(UsageError, match="has no group"):
        build(tmp_path / "bad", **given, val_fraction=0.5, group="x")


def test_the_pattern_of_the_documentation_fits_its_names(tmp_path: Path) -> None:
    text = (PROJECT / "docs/sft.md").read_text(encoding="utf-8")
    said = re.search(r"`--group '([^']+)'` makes `(\S+)` and `(\S+)` clips of `(\S+)`", text)
    assert said is not None
    pattern, *names, of = said.groups()
    assert {re.search(pattern, name)[1] for name in names} == {of}  # type: ignore[index]
    given = source(tmp_path / "src", [*names, "walk-0001", "walk-0002"])
    result = build(tmp_path / "data", **given, val_fraction=0.5, group=pattern)
    held = {item["uuid"] for item in lines(result.root / "val/video_dataset_file.jsonl")}
    assert held in ({*names}, {"walk-0001", "walk-0002"})
    assert not any("--group" in note for note in result.notes)


def test_a_pattern_that_matches_no_name_is_refused(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["ride_clip001", "ride_clip002", "walk_clip001"])
    with pytest.raises(UsageError, match="matches no clip's name, such as 'ride_clip001'") as error:
        build(tmp_path / "data", **given, val_fraction=0.4, group=r"^(.+)_\d+$")
    assert error.value.remedy
    assert not (tmp_path / "data").exists()


def test_names_that_a_pattern_misses_are_counted_and_told_apart_without_it(tmp_path: Path) -> None:
    parts = [f"ride_clip{number:03d}" for number in range(3)]
    given = source(tmp_path / "src", [*parts, "x-1", "x-2"])
    for seed in range(4):
        result = build(tmp_path / f"data{seed}", **given, val_fraction=0.6, seed=seed, group=r"^(\w)-")
        held = {item["uuid"] for item in lines(result.root / "val/video_dataset_file.jsonl")}
        assert held in ({*parts}, {"x-1", "x-2"})
        assert any(note.startswith("3 of 5 clips do not match --group") for note in result.notes)


@pytest.mark.parametrize("group", ["(", "x"])
def test_a_broken_pattern_is_refused_though_nothing_is_held_out(group: str, tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a"])
    with pytest.raises(UsageError, match=r"no regular expression|has no group"):
        build(tmp_path / "data", **given, group=group)
    assert not (tmp_path / "data").exists()


def test_one_source_stays_in_training_however_much_is_held_out(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b", "c"])
    result = build(tmp_path / "data", **given, val_fraction=0.99)
    assert len(lines(result.root / LINES)) == 1
    assert len(lines(result.root / "val/video_dataset_file.jsonl")) == 2
    assert result.consumption["samples"] == 1
    with pytest.raises(UsageError, match="one source"):
        build(tmp_path / "one", **given, val_fraction=0.99, limit=1)


def test_another_share_moves_the_clips_and_copies_none(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b", "c", "d"])
    first = build(tmp_path / "data", **given)
    inodes = {path.stat().st_ino for path in (first.root / "train/videos").iterdir()}
    with pytest.raises(WouldChangeError, match=r"val_fraction: 0\.0 → 0\.5"):
        build(tmp_path / "data", **given, val_fraction=0.5)
    second = build(tmp_path / "data", **given, val_fraction=0.5, update=True)
    assert second.dataset_id != first.dataset_id
    assert {path.stat().st_ino for path in second.root.glob("*/videos/*")} == inodes
    third = build(tmp_path / "data", **given, update=True)
    assert third.dataset_id == first.dataset_id
    assert not (third.root / "val/video_dataset_file.jsonl").exists()
    settled(third.root)


# --- finished, refused, planned ----------------------------------------------------------


def test_a_finished_dataset_is_confirmed_and_a_changed_source_refused(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b"])
    first = build(tmp_path / "data", **given)
    before = settled(first.root)
    again = build(tmp_path / "data", **given)
    assert (again.outcome, again.dataset_id) == ("unchanged", first.dataset_id)
    assert settled(first.root) == before
    (given["captions"] / "a/caption.txt").write_text("Another take.")
    with pytest.raises(WouldChangeError, match="the captions or videos of the source have changed"):
        build(tmp_path / "data", **given)
    assert settled(first.root) == before
    changed = build(tmp_path / "data", **given, update=True)
    assert changed.dataset_id != first.dataset_id
    assert lines(changed.root / LINES)[0]["t2w_windows"][0]["caption"] == "Another take."
    make_clip(given["videos"] / "a.mp4", frames=FRAMES + 9)
    with pytest.raises(WouldChangeError, match="captions or videos"):
        build(tmp_path / "data", **given)


def test_what_is_damaged_is_mended(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b"])
    first = build(tmp_path / "data", **given)
    before = settled(first.root)
    (first.root / "train/videos/a.mp4").unlink()
    (first.root / LINES).write_text("")
    mended = build(tmp_path / "data", **given)
    assert (mended.outcome, mended.dataset_id) == ("complete", first.dataset_id)
    assert settled(first.root) == before


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a", "b"])
    result = build(tmp_path / "data", **given, dry_run=True)
    assert (result.outcome, result.kept) == ("planned", 2)
    assert not (tmp_path / "data").exists()
    build(tmp_path / "data", **given)
    before = digests(tmp_path / "data")
    changed = build(tmp_path / "data", **given, dry_run=True, limit=1)
    assert "would change limit: None → 1 (needs --update)" in changed.notes
    assert digests(tmp_path / "data") == before


def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a"])
    (tmp_path / "data/sft_dataset").mkdir(parents=True)
    (tmp_path / "data/sft_dataset/mine.txt").write_text("x")
    with pytest.raises(UsageError, match="no run of prep made"):
        build(tmp_path / "data", **given)
    assert digests(tmp_path / "data") == digests(tmp_path / "data")
    assert [path.name for path in (tmp_path / "data/sft_dataset").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "names no source"),
        ({"captions": Path("x")}, "needs the videos"),
        ({"captions": Path("nowhere"), "videos": Path("nowhere")}, "not a directory"),
        ({"curator": Path("nowhere")}, "not a directory"),
        ({"source": "some/where/else"}, "neither a local folder nor"),
        ({"source": ".", "curator": Path()}, "--from-curator and --source are given"),
        ({"source": ".", "name": "../x"}, "no name for a dataset"),
        ({"source": ".", "num_video_frames": 0}, "is 0 or below -1"),
        ({"source": "."}, "holds no train/video_dataset_file.jsonl"),
        ({"source": ".", "offline": True, "refresh": True}, "contradict"),
    ],
)
def test_wrong_usage_says_what_to_give(
    options: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(says)) as error:
        build(tmp_path / "data", **options)
    assert error.value.remedy
    assert not (tmp_path / "data").exists()


def test_a_mistyped_folder_is_told_from_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "br").mkdir()
    with pytest.raises(UsageError, match="br is a folder here, and holds no folder nope"):
        build(tmp_path / "data", recipe="bridge", source="br/nope")
    said = "There is no folder nobody/nope here, so it was taken for a Hub repository."
    with pytest.raises(PrepError, match=said) as error:
        build(tmp_path / "data", recipe="bridge", source="nobody/nope", offline=True)
    assert said in str(error.value)
    with pytest.raises(PrepError) as pinned:
        build(tmp_path / "data", recipe="bridge", source="br/nope@main", offline=True)
    assert "no folder" not in str(pinned.value)
    assert not (tmp_path / "data").exists()


def test_what_another_device_holds_counts_as_needed(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    with tempfile.TemporaryDirectory(dir=other) as folder:
        tree = bridge_tree(Path(folder) / "src")
        (tree / "train/captions").mkdir(exist_ok=True)
        with (tree / "train/captions/large.bin").open("wb") as file:
            file.truncate(1 << 50)  # bytes; a hole, which takes no room
        with pytest.raises(IncompleteError, match=r"about 1.* needed .* of files, .* to spare"):
            build(tmp_path / "data", recipe="bridge", source=str(tree))
    assert not (tmp_path / "data").exists()


def test_another_run_that_holds_the_dataset_is_named(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a"])
    with Workspace(tmp_path / "data/sft_dataset"), pytest.raises(HeldError):
        build(tmp_path / "data", **given)


def test_jobs_and_place_change_no_byte(tmp_path: Path) -> None:
    given = source(tmp_path / "src", [f"c{number}" for number in range(5)])
    shutil.copy(given["videos"] / "c0.mp4", given["videos"] / "c1.mp4")
    first = settled(build(tmp_path / "one", **given, jobs=1).root)
    shutil.copytree(tmp_path / "src", tmp_path / "moved/src")
    moved = {name: tmp_path / "moved/src" / name for name in given}
    assert settled(build(tmp_path / "two", **moved, jobs=8).root) == first


def test_copies_may_come_from_another_out_root(tmp_path: Path) -> None:
    """A damaged one is passed over: the source is at hand."""
    given = source(tmp_path / "src", ["a", "b"])
    whole = settled(build(tmp_path / "whole", **given, val_fraction=0.5).root)
    other = build(tmp_path / "one", **given).root / "train/videos/b.mp4"
    data = bytearray(other.read_bytes())
    data[-5] ^= 1
    other.unlink()
    other.write_bytes(data)
    result = build(tmp_path / "two", **given, reuse=tmp_path / "one", val_fraction=0.5)
    assert (result.outcome, result.reused) == ("complete", 2)
    assert settled(result.root) == whole


RUN = """
import os, sys
from pathlib import Path
from prep.sft import SftOptions, prepare_sft
from prep.workspace import Ledger

sys.path.insert(0, sys.argv[1])
count, stop = 0, int(sys.argv[3])
def killed(*args, _real=os.{name}, **kwargs):
    global count
    count += 1
    if count == stop:
        os._exit(9)
    return _real(*args, **kwargs)
os.{name} = killed
options = SftOptions(captions=Path(sys.argv[2]) / "captions", videos=Path(sys.argv[2]) / "videos",
                     jobs=1, val_fraction=0.4, update=True)
prepare_sft("sft", sys.argv[4], options=options)
"""


@pytest.mark.parametrize("name", ["replace", "fsync", "link"])
def test_a_kill_at_any_moment_leaves_nothing_that_the_next_run_does_not_mend(
    name: str, tmp_path: Path
) -> None:
    given = source(tmp_path / "src", ["a", "b", "c"])
    whole = settled(build(tmp_path / "whole", **given, val_fraction=0.4).root)
    script = RUN.replace("{name}", name)
    for stop in range(1, 60, 3):
        out = tmp_path / f"data{stop}"
        arguments = [str(PROJECT), str(tmp_path / "src"), str(stop), str(out)]
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=PROJECT, env=dict(os.environ), check=False
        )
        result = build(out, **given, val_fraction=0.4)
        assert settled(result.root) == whole
        if done.returncode == 0:
            break
    else:
        raise AssertionError("no run came to its end: the kills never stopped")


# --- a tree that is there ----------------------------------------------------------------


def test_bridge_from_a_local_folder_is_taken_byte_for_byte(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src/sft_dataset_bridge")
    result = build(tmp_path / "data", "bridge", source=str(tmp_path / "src"))
    assert (result.outcome, result.root) == ("complete", tmp_path / "data" / BRIDGE)
    made = {name: digest for name, digest in settled(result.root).items() if not name.startswith(".prep")}
    assert made.pop("manifest.json")
    assert made == digests(tree)
    assert (result.consumption["samples"], result.consumption["splits"]["val"]["records"]) == (2, 1)
    for where in (tree, tmp_path / "src"):
        assert build(tmp_path / "data", "bridge", source=str(where)).outcome == "unchanged"


def test_a_tree_is_taken_over_where_it_stands(tmp_path: Path) -> None:
    root = bridge_tree(tmp_path / "data" / BRIDGE)
    before = digests(root)
    with pytest.raises(UsageError, match="no run of prep made") as error:
        build(tmp_path / "data", "bridge")
    assert f"--source {root}" in error.value.remedy
    result = build(tmp_path / "data", "bridge", source=str(root))
    assert result.outcome == "complete"
    after = settled(root)
    assert {name: after[name] for name in before} == before
    assert build(tmp_path / "data", "bridge", source=str(root)).outcome == "unchanged"
    elsewhere = build(tmp_path / "other", "bridge", source=str(root))
    assert elsewhere.dataset_id == result.dataset_id


def test_a_tree_with_a_fault_is_not_rewritten_where_it_stands(tmp_path: Path) -> None:
    root = bridge_tree(tmp_path / "data" / BRIDGE)
    (root / "train/videos/ep1_clip000.mp4").unlink()
    before = digests(root)
    result = build(tmp_path / "data", "bridge", source=str(root))
    assert (result.exit_status, result.failed) == (1, {"missing_video": 1})
    (root / "train/videos/ep1_clip000.mp4").write_bytes(b"x")
    path = root / LINES
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(UsageError, match="would be rewritten"):
        build(tmp_path / "data", "bridge", source=str(root), min_coverage=0)
    path.write_bytes(path.read_bytes()[3:])
    (root / "train/videos/ep1_clip000.mp4").unlink()
    with pytest.raises(UsageError, match="would be rewritten"):
        build(tmp_path / "data", "bridge", source=str(root), min_coverage=0)
    (root / "train/videos/ep1_clip000.mp4").write_bytes(b"x")
    (root / "train/videos/ep1_clip000.mp4").unlink()
    assert {name: digest for name, digest in digests(root).items() if not name.startswith(".prep")} == before


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"vision_path": "../../x.mp4"}, "outside_source"),
        ({"vision_path": "/x.mp4"}, "absolute_path"),
        ({"vision_path": "videos/none.mp4"}, "missing_video"),
        ({"duration": None}, "bad_record"),
    ],
)
def test_records_of_a_tree_that_cannot_be_kept(edit: dict[str, Any], reason: str, tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src")
    records = [item | edit if item["uuid"] == "ep1_clip001" else item for item in lines(tree / LINES)]
    write_lines(tree / LINES, records)
    result = build(tmp_path / "data", "bridge", source=str(tree), min_coverage=0.5)
    assert result.failed == {reason: 1}
    assert [item["uuid"] for item in lines(result.root / LINES)] == ["ep1_clip000"]
    assert not (result.root / "train/videos/ep1_clip001.mp4").exists()


def test_what_is_borne_in_a_source_is_not_passed_on(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src")
    plain = (tree / LINES).read_bytes()
    (tree / LINES).write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n\r\n"))
    result = build(tmp_path / "data", "bridge", source=str(tree))
    assert (result.root / LINES).read_bytes() == plain
    assert [(item.code, item.message) for item in result.findings] == [
        ("TAB009", "2 blank lines are left out")
    ]


def test_the_first_records_of_each_split(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src", val=("ep2_clip000", "ep3_clip000"))
    result = build(tmp_path / "data", "bridge", source=str(tree), limit=1)
    assert (result.rows, result.kept) == (2, 2)
    names = sorted(
        path.name for path in result.root.rglob("*") if path.is_file() and ".prep" not in path.parts
    )
    assert not any("clip001" in name or "ep3" in name for name in names)
    assert (result.root / LINES).read_bytes() == (tree / LINES).read_bytes().split(b"\n")[0] + b"\n"


def test_prompts_are_aligned_as_upstreams_script_does(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src", val=("ep2_clip000", "ep3_clip000"))
    (tree / "val/captions/ep3_clip000/caption.json").write_text("{")
    planned = build(tmp_path / "data", "bridge", source=str(tree), align_prompts=True, dry_run=True)
    (told,) = (note for note in planned.notes if note.startswith("val/inference_prompt/ep2"))
    assert 'the prompt would be set: {"subjects": [], "temporal_caption": "Take ep2_clip000.' in told
    assert told.endswith("… (70 characters)")
    assert not (tmp_path / "data").exists()
    plain = build(tmp_path / "data", "bridge", source=str(tree))
    with pytest.raises(WouldChangeError, match="align_prompts"):
        build(tmp_path / "data", "bridge", source=str(tree), align_prompts=True)
    result = build(tmp_path / "data", "bridge", source=str(tree), align_prompts=True, update=True)
    prompt = result.root / "val/inference_prompt/ep2_clip000.json"
    assert json.loads(prompt.read_text(encoding="utf-8")) == {
        "name": "ep2_clip000",
        "prompt": '{"subjects": [], "temporal_caption": "Take ep2_clip000.", "note": "é"}',
        "num_frames": 61,
    }
    # The digest of what upstream's `inference_prompts_to_json` writes for the same two files.
    assert hashlib.sha256(prompt.read_bytes()).hexdigest() == UPSTREAM_PROMPT
    kept = result.root / "val/inference_prompt/ep3_clip000.json"
    assert kept.read_bytes() == (tree / "val/inference_prompt/ep3_clip000.json").read_bytes()
    assert any("ep3_clip000.json: its clip has no usable caption.json" in note for note in result.notes)
    assert result.dataset_id != plain.dataset_id
    assert build(tmp_path / "data", "bridge", source=str(tree)).outcome == "unchanged"


UPSTREAM_PROMPT = "5c0b0ae89b71b13d5f78385154d6a63f04ee95358a9876fdd9fa42846de2f0d1"


def test_more_frames_than_the_window_are_told_from_the_file(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src")
    write_lines(tree / LINES, [record("ep1_clip000", nb_frames=None, framerate=None)])
    counts = build(tmp_path / "data", "bridge", source=str(tree)).consumption["splits"]["train"]
    assert (counts["frames"], FRAMES) == (61, 64)
