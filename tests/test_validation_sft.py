"""SFT datasets under check: real ones, and one planted defect a rule."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prep.findings import Report
from prep.manifest import Manifest
from prep.schemas import schema
from prep.validation_sft import check_sft_file, find_sft_trees, is_sft_tree, sft_files
from tests.clips import make_clip
from tests.sft_trees import (
    FRAMES,
    bridge_tree,
    build,
    check,
    codes,
    lines,
    real_source,
    record,
    source,
    write_lines,
)

LINES = "train/video_dataset_file.jsonl"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare tree without a fault: three clips of two sources, two of them to train on."""
    return bridge_tree(tmp_path_factory.mktemp("whole") / "tree")


@pytest.fixture
def tree(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to break."""
    shutil.copytree(whole, tmp_path / "tree")
    return tmp_path / "tree"


def change(tree: Path, edit: Callable[[dict[str, Any]], object], line: int = 0) -> None:
    """Edit one record of the training JSONL in place."""
    records = lines(tree / LINES)
    edit(records[line])
    write_lines(tree / LINES, records)


def places(report: Report, code: str) -> list[str]:
    """Where a code was found."""
    return [
        finding.at() for group in report.groups.values() if group.code == code for finding in group.findings
    ]


def messages(report: Report, code: str) -> list[str]:
    return [
        finding.message
        for group in report.groups.values()
        if group.code == code
        for finding in group.findings
    ]


def test_a_whole_tree_is_clean_at_every_level(whole: Path) -> None:
    for level in ("quick", "standard", "deep"):
        report = check(whole, level)
        assert codes(report) == {}, level
        assert report.checked["records"] == 3
        assert report.checked["windows that training keeps"] == 3


def test_real_clips_with_their_real_captions(real_data: Path, tmp_path: Path) -> None:
    result = build(tmp_path / "data", **real_source(tmp_path, real_data))
    report = check(result.root, "deep")
    # The real captions speak of other clips: their sizes, lengths and rates are not these.
    found = codes(report)
    assert found.pop("SFT006") == 14
    # A Matroska clip that the loader never reads, and an AVI whose header counts a frame too many.
    assert found == {"SFT015": 1, "VID003": 1, "VID004": 1}
    assert places(report, "SFT015") == [f"{LINES}:line 2"]


def test_the_bridge_line_is_sound_but_for_what_its_excerpt_left_out(real_data: Path, tmp_path: Path) -> None:
    videos = tmp_path / "train/videos"
    videos.mkdir(parents=True)
    make_clip(videos / "episode_000015_clip000.mp4", frames=87, width=256, height=256, rate=5)
    shutil.copy(real_data / "cosmos_captions/bridge_doc_example.jsonl", tmp_path / LINES)
    report = check(tmp_path, "standard")
    assert codes(report) == {"SFT006": 1}
    assert places(report, "SFT006") == [f"{LINES}:line 1 /t2w_windows/0/caption_json/temporal_caption"]
    make_clip(videos / "episode_000015_clip000.mp4", frames=86, width=128, height=256, rate=5)
    assert codes(check(tmp_path, "standard")) == {"SFT002": 1, "SFT004": 1, "SFT006": 1}


def _window(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda record: record["t2w_windows"][0].update(changes)


def _caption(**changes: Any) -> Callable[[dict[str, Any]], object]:
    sound = {"resolution": {"W": 64, "H": 48}, "aspect_ratio": "4,3", "duration": "8s", "fps": 8}
    return _window(caption_json={"subjects": [], **sound, **changes})


def _without(*keys: str) -> Callable[[dict[str, Any]], object]:
    def edit(record: dict[str, Any]) -> None:
        for key in keys:
            record.pop(key)

    return edit


def _at(path: str) -> Callable[[dict[str, Any]], object]:
    return lambda record: record.update(vision_path=path)


def _renamed(record: dict[str, Any]) -> None:
    window = record["t2w_windows"][0]
    window["captoin"] = window.pop("caption")


def _only_temporal(record: dict[str, Any]) -> None:
    window = record["t2w_windows"][0]
    window["qwen3_32b_temporal"] = window.pop("caption")


def _two_windows(record: dict[str, Any]) -> None:
    first = record["t2w_windows"][0]
    record["t2w_windows"] = [{**first, "end_frame": 61}, {**first, "start_frame": 1}]


RECORDS: list[tuple[str, Callable[[dict[str, Any]], object], dict[str, int]]] = [
    ("end before start", _window(start_frame=5, end_frame=4), {"SFT001": 1}),
    ("negative frame", _window(start_frame=-1), {"SFT001": 1}),
    ("interval 0", _window(temporal_interval=0), {"SFT001": 1}),
    ("past the file", _window(end_frame=500), {"SFT002": 1}),
    ("overlap", _two_windows, {"SFT003": 1}),
    ("width", lambda item: item.update(width=128), {"SFT004": 1}),
    ("duration", lambda item: item.update(duration=9.0), {"SFT005": 1}),
    ("rate", lambda item: item.update(framerate=10.0), {"SFT005": 1}),
    ("frame count", lambda item: item.update(nb_frames=FRAMES + 1), {"SFT005": 1}),
    ("true figures", lambda item: item.update(nb_frames=FRAMES, framerate=8.0), {}),
    ("caption's size", _caption(resolution={"W": 48, "H": 64}), {"SFT006": 1}),
    ("caption's ratio", _caption(aspect_ratio="16,9"), {"SFT006": 1}),
    ("caption's length", _caption(duration="9s"), {"SFT006": 1}),
    ("caption's rate", _caption(fps=24), {"SFT006": 1}),
    ("caption's text", _caption(temporal_caption="Another."), {"SFT006": 1}),
    ("true caption", _caption(temporal_caption="Take ep1_clip000."), {}),
    ("too long", lambda item: item.update(duration=61.5), {"SFT005": 1, "SFT007": 1}),
    ("too few frames", _window(end_frame=59), {"SFT008": 1}),
    ("no caption key", _renamed, {"SFT009": 1, "TXT007": 1}),
    ("no windows", _without("t2w_windows"), {"SFT011": 1}),
    ("caption null", _window(caption=None), {"SFT012": 1}),
    ("caption empty", _window(caption=" . "), {"SFT012": 1}),
    ("caption a number", _window(caption=5), {"SFT012": 1}),
    ("caption_json null", _window(caption_json=None), {"SFT012": 1}),
    ("only temporal", _only_temporal, {"SFT012": 1}),
    ("no uuid", _without("uuid"), {"TXT005": 1}),
    ("no duration", _without("duration"), {"TXT005": 1}),
    ("no width", _without("width"), {"TXT005": 1}),
    ("duration a text", lambda item: item.update(duration="8"), {"TXT005": 1}),
    ("window without end", lambda item: item["t2w_windows"][0].pop("end_frame"), {"TXT005": 1}),
    ("unknown key", lambda item: item.update(lenght=8), {"TXT007": 1}),
    ("absolute path", _at("/nowhere/x.mp4"), {"FIL005": 1, "FIL006": 1, "FIL012": 1}),
    ("leaves the tree", lambda item: item.update(vision_path="../../x.mp4"), {"FIL006": 1, "FIL011": 1}),
    ("no such file", lambda item: item.update(vision_path="videos/x.mp4"), {"FIL005": 1, "FIL006": 1}),
    ("a URI", lambda item: item.update(vision_path="s3://bucket/x.mp4"), {"FIL006": 1}),
    ("same uuid", lambda item: item.update(uuid="ep1_clip001"), {"REC001": 1}),
    ("same clip", lambda item: item.update(vision_path="videos/ep1_clip001.mp4"), {"FIL006": 1, "FIL017": 1}),
    ("source of val", lambda item: item.update(uuid="ep2_clip007"), {"SFT017": 1}),
    ("id of val", lambda item: item.update(uuid="ep2_clip000"), {"SFT017": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "expected"), [item[1:] for item in RECORDS], ids=[item[0] for item in RECORDS]
)
def test_a_planted_fault_in_a_record_gives_its_code(
    edit: Callable[[dict[str, Any]], object], expected: dict[str, int], tree: Path
) -> None:
    change(tree, edit)
    assert codes(check(tree, "standard")) == expected


def _blank(path: Path) -> None:
    first, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(first + b"\n\n" + rest)


def _replaced(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new))


def _array(path: Path) -> None:
    path.write_text(json.dumps(lines(path)))


FILES: list[tuple[str, Callable[[Path], object], dict[str, int]]] = [
    ("byte order mark", lambda path: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes()), {"TXT002": 1}),
    ("blank line", _blank, {"TXT003": 1}),
    ("last line without its newline", lambda path: path.write_bytes(path.read_bytes().rstrip(b"\n")), {}),
    ("CRLF", _replaced(b"\n", b"\r\n"), {}),
    ("cut line", lambda path: path.write_bytes(path.read_bytes()[:-20]), {"TXT003": 1}),
    ("not UTF-8", _replaced(b"Take ep1_clip000", b"Take \xff"), {"TXT001": 1}),
    ("NaN", _replaced(b'"duration": 8.0,', b'"duration": NaN,'), {"TXT005": 1}),
    ("JSON array", _array, {"TXT004": 1}),
    ("gzip bytes", lambda path: path.write_bytes(gzip.compress(path.read_bytes())), {"FIL018": 1}),
    ("empty", lambda path: path.write_bytes(b""), {"FIL002": 1}),
    ("LFS pointer", lambda path: path.write_bytes(POINTER), {"FIL001": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), [item[1:] for item in FILES], ids=[item[0] for item in FILES])
def test_a_planted_fault_in_the_file_gives_its_code(
    edit: Callable[[Path], object], expected: dict[str, int], tree: Path
) -> None:
    edit(tree / LINES)
    found = codes(check(tree))
    # A clip of a line that cannot be read is then a file that no record names.
    found.pop("FIL006", None)
    assert found == expected


def test_the_place_of_a_broken_line_is_its_own(tree: Path) -> None:
    path = tree / LINES
    path.write_bytes(path.read_bytes().replace(b'"uuid": "ep1_clip001"', b'"uuid" "ep1_clip001"'))
    (place,) = places(check(tree), "TXT003")
    assert place.startswith(f"{LINES}:line 2, column ")


MEDIA: list[tuple[str, Callable[[Path], object], str, dict[str, int]]] = [
    ("empty", lambda path: path.write_bytes(b""), "quick", {"FIL002": 1}),
    ("page", lambda path: path.write_bytes(b"<html>" + b" " * 2000), "standard", {"FIL013": 1}),
    ("cut", lambda path: path.write_bytes(path.read_bytes()[:1500]), "standard", {"FIL016": 1}),
    ("gone", lambda path: path.unlink(), "quick", {"FIL005": 1}),
    ("dangling link", lambda path: (path.unlink(), path.symlink_to("nowhere.mp4")), "quick", {"FIL010": 1}),
    ("stray", lambda path: shutil.copy(path, path.with_name("other.mp4")), "quick", {"FIL006": 1}),
    ("leftover", lambda path: path.with_name("x.mp4.part").write_bytes(b"x"), "quick", {"FIL007": 1}),
    ("pointer", lambda path: path.write_bytes(POINTER), "quick", {"FIL001": 1}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "level", "expected"), [item[1:] for item in MEDIA], ids=[item[0] for item in MEDIA]
)
def test_a_planted_fault_in_a_clip_gives_its_code(
    edit: Callable[[Path], object], level: str, expected: dict[str, int], tree: Path
) -> None:
    edit(tree / "train/videos/ep1_clip000.mp4")
    assert codes(check(tree, level)) == expected


def test_the_same_bytes_on_both_sides_and_twice_on_one(tree: Path) -> None:
    videos = tree / "train/videos"
    shutil.copy(videos / "ep1_clip000.mp4", videos / "ep1_clip001.mp4")
    shutil.copy(videos / "ep1_clip000.mp4", tree / "val/videos/ep2_clip000.mp4")
    found = codes(check(tree, "deep"))
    assert (found["FIL009"], found["FIL008"]) == (1, 1)


def test_one_caption_on_many_records(tree: Path) -> None:
    records = [record(f"r{number}", vision_path="videos/ep1_clip000.mp4") for number in range(30)]
    for item in records[:10]:
        item["t2w_windows"][0]["caption"] = "A robot moves."
    write_lines(tree / LINES, records)
    report = check(tree)
    assert codes(report)["REC010"] == 1
    assert "10 of 30 records" in messages(report, "REC010")[0]


def test_nothing_kept_is_an_error_that_counts_the_reasons(tree: Path) -> None:
    change(tree, lambda item: item.update(duration=70.0), 0)
    change(tree, lambda item: item["t2w_windows"][0].update(end_frame=30), 1)
    report = check(tree)
    assert codes(report) == {"SFT007": 1, "SFT008": 1, "SFT014": 1}
    assert "0 of 2 records kept" in messages(report, "SFT014")[0]
    assert "duration_too_long 1" in messages(report, "SFT014")[0]


def test_a_tree_without_training_records_is_an_error(tree: Path) -> None:
    shutil.rmtree(tree / "train")
    assert places(check(tree), "FIL005") == ["train/video_dataset_file.jsonl"]


def test_a_prepared_dataset_against_its_manifest(tmp_path: Path) -> None:
    made = build(tmp_path / "data", **source(tmp_path / "src", ["a", "b"]))
    assert codes(check(made.root, "deep")) == {}
    (made.root / "train/videos/a.mp4").write_bytes(b"x" * 5000)
    (made.root / "train/videos/b.mp4").unlink()
    assert codes(check(made.root)) == {"FIL003": 1, "FIL005": 1}
    write_lines(made.root / LINES, lines(made.root / LINES)[:1])
    found = codes(check(made.root))
    assert found["MAN003"] == 1


def test_the_recipes_short_edge_and_frames_are_those_of_the_run(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "tree")
    made = build(tmp_path / "data", source=str(tree), min_short_edge=50)
    assert made.consumption["samples"] == 0
    assert codes(check(made.root)) == {"SFT010": 3, "SFT014": 2}
    more = build(tmp_path / "more", source=str(tree), num_video_frames=65)
    assert codes(check(more.root)) == {"SFT008": 3, "SFT014": 2}


def test_captions_over_the_limit_are_told_from_the_manifest(tmp_path: Path) -> None:
    made = build(tmp_path / "data", **source(tmp_path / "src", ["a", "b"]))
    manifest = Manifest.load(made.root)
    assert manifest is not None
    manifest.document["consumption"]["splits"]["train"] |= {"captions_over_limit": 3, "max_caption_tokens": 9}
    (made.root / "manifest.json").write_text(json.dumps(manifest.document))
    report = check(made.root)
    assert codes(report) == {"SFT013": 1}
    assert not any("token" in entry["what"] for entry in report.not_checked)


def test_a_sample_is_the_same_by_its_seed_and_says_what_it_left(tree: Path) -> None:
    for path in (tree / "train/videos").iterdir():
        path.write_bytes(path.read_bytes()[:1500])
    report = check(tree, "standard", sample=1, seed=3)
    assert report.checked["videos"] == 1
    assert codes(check(tree, "standard", sample=1, seed=3)) == codes(report)
    assert "2 of 3 clips" in [entry["what"] for entry in report.not_checked]


def test_jobs_change_nothing(tree: Path) -> None:
    (tree / "train/videos/ep1_clip001.mp4").write_bytes(b"x" * 3000)
    change(tree, lambda item: item.update(width=128), 0)
    assert check(tree, "deep").as_dict()["groups"] == check(tree, "deep").as_dict()["groups"]


def test_which_directories_are_of_this_kind(whole: Path, tmp_path: Path) -> None:
    assert sft_files(whole) == [LINES, "val/video_dataset_file.jsonl"]
    assert find_sft_trees(whole) == [""]
    assert find_sft_trees(whole.parent) == ["tree"]
    assert is_sft_tree(whole / "train")
    assert not is_sft_tree(whole / "train/videos")
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    assert not is_sft_tree(tmp_path)


def test_one_file_is_checked_with_the_clips_beside_it(tree: Path) -> None:
    (tree / "train/videos/ep1_clip001.mp4").unlink()
    report = Report(subject="one", level="quick")
    assert check_sft_file(tree / LINES, report) == 2
    assert codes(report) == {"FIL005": 1}
    assert places(report, "FIL005") == ["videos/ep1_clip001.mp4"]


def test_a_gzipped_jsonl_is_read_too(tree: Path) -> None:
    path = tree / LINES
    (tree / f"{LINES}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    report = check(tree)
    assert codes(report) == {}
    assert report.checked["records"] == 3
    (tree / f"{LINES}.gz").write_bytes((tree / f"{LINES}.gz").read_bytes()[:-30])
    assert codes(check(tree))["FIL014"] == 1


def test_the_schema_names_what_upstreams_parser_stops_at() -> None:
    assert schema("sft-record")["required"] == ["uuid", "duration", "width", "height", "vision_path"]
