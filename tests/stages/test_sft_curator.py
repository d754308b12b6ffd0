"""Clip lists of a curator: upstream's choice of windows and captions, and its reasons."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prep.stages.sft_curator import window_caption
from tests.clips import make_clip
from tests.sft_trees import FRAMES, build, lines

LINES = "train/video_dataset_file.jsonl"


def row(uuid: str, **changes: Any) -> dict[str, Any]:
    window = {"start_frame": 0, "end_frame": 63, "qwen_caption": " plain ", "lm_enhanced_caption": "enhanced"}
    plain = {
        "span_uuid": uuid,
        "clip_location": f"/nowhere/clips/{uuid}.mp4",
        "source_video": f"s/{uuid[:1]}.mp4",
        "width": 64,
        "height": 48,
        "num_frames": FRAMES,
        "framerate": 8.0,
        "duration_span": [0, 8.0],
        "windows": [window],
    }
    return plain | changes


ROWS = [
    row("a1"),
    row(
        "a2",
        windows=[
            {"start_frame": 0, "end_frame": 61, "b_caption": "b", "a_caption": ""},
            {"start_frame": 0, "end_frame": 20, "b_caption": "b"},
            {
                "start_frame": 2,
                "end_frame": 63,
                "z_enhanced_caption": "z",
                "a_caption": "a",
                "qwen_caption": "q",
            },
        ],
    ),
    row(""),
    row("b1", clip_location=None),
    row("b2", width=None),
    row("b3", num_frames=None),
    row("b4", num_frames=800),
    row("b5", width=20),
    row("b6", windows=[{"start_frame": 0, "end_frame": 63}]),
    row("b7", windows=None),
]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A curator's output folder: two lists, a blank line and a broken one, and the clips."""
    folder = tmp_path / "curated"
    lists = folder / "metas_jsonl/v0"
    lists.mkdir(parents=True)
    texts = [json.dumps(item) for item in ROWS]
    (lists / "0.jsonl").write_text("\n".join(texts[:5]) + "\n\n{broken\n")
    (lists / "1.jsonl").write_text("\n".join(texts[5:]) + "\n")
    (folder / "clips").mkdir()
    for number, name in enumerate(("a1", "a2", "b5")):
        make_clip(folder / f"clips/{name}.mp4", frames=FRAMES + number)
    return folder


def test_rows_become_upstreams_records_with_its_reasons(output: Path, tmp_path: Path) -> None:
    result = build(tmp_path / "data", curator=output, min_coverage=0)
    # As upstream's `curator_to_sft_jsonl` at the locked commit counts the same lists.
    assert result.failed == {
        "duration_too_long": 1,
        "malformed_json": 1,
        "missing_clip_metadata": 2,
        "missing_identity": 2,
        "no_valid_window": 2,
    }
    plain = {"duration": 8.0, "width": 64, "height": 48, "nb_frames": 64, "framerate": 8.0}
    first = {"start_frame": 0, "end_frame": 63, "temporal_interval": 1, "caption": "enhanced"}
    second = [
        {"start_frame": 0, "end_frame": 61, "temporal_interval": 1, "caption": "b"},
        {"start_frame": 2, "end_frame": 63, "temporal_interval": 1, "caption": "z"},
    ]
    assert lines(result.root / LINES) == [
        {"uuid": "a1", **plain, "vision_path": "videos/a1.mp4", "t2w_windows": [first]},
        {"uuid": "a2", **plain, "vision_path": "videos/a2.mp4", "t2w_windows": second},
        {"uuid": "b5", **plain, "width": 20, "vision_path": "videos/b5.mp4", "t2w_windows": [first]},
    ]
    told = json.loads((result.root / f"{LINES}.summary.json").read_text())
    assert (told["shards_read"], told["records_seen"], told["records_dropped"]) == (2, 11, 8)
    assert list(json.loads((result.root / LINES).read_text().splitlines()[0])) == [
        "uuid", "duration", "width", "height", "nb_frames", "framerate", "vision_path", "t2w_windows",
    ]  # fmt: skip


def test_named_models_come_first(output: Path, tmp_path: Path) -> None:
    result = build(
        tmp_path / "data", curator=output, caption_model="qwen", enhanced_caption_model="lm", min_coverage=0
    )
    captions = [[window["caption"] for window in item["t2w_windows"]] for item in lines(result.root / LINES)]
    assert captions == [["enhanced"], ["b", "q"], ["enhanced"]]


def test_small_pictures_are_left_out(output: Path, tmp_path: Path) -> None:
    result = build(tmp_path / "data", curator=output, min_short_edge=50, min_coverage=0)
    assert (result.exit_status, result.failed["short_edge_too_small"]) == (1, 5)


def test_the_lists_folder_itself_and_moved_or_missing_clips(output: Path, tmp_path: Path) -> None:
    shutil.rmtree(output / "clips")
    result = build(tmp_path / "data", curator=output, min_coverage=0)
    assert result.failed["missing_video"] == 3
    for name in ("a1", "a2", "b5"):
        make_clip(output / "metas_jsonl/v0" / f"{name}.mp4", frames=FRAMES)
    result = build(tmp_path / "data", curator=output / "metas_jsonl/v0", min_coverage=0)
    assert result.kept == 3


def test_a_uri_passes_through_and_one_uuid_is_taken_once(output: Path, tmp_path: Path) -> None:
    rows = [row("a1"), row("a1", windows=ROWS[1]["windows"]), row("u1", clip_location="s3://bucket/u1.mp4")]
    path = output / "metas_jsonl/v0/0.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in rows))
    (output / "metas_jsonl/v0/1.jsonl").unlink()
    result = build(tmp_path / "data", curator=output, min_coverage=0.5)
    assert result.failed == {"duplicate_uuid": 1}
    assert [item["vision_path"] for item in lines(result.root / LINES)] == [
        "videos/a1.mp4",
        "s3://bucket/u1.mp4",
    ]


def test_what_is_held_out_goes_by_the_source_video(output: Path, tmp_path: Path) -> None:
    for seed in range(3):
        result = build(tmp_path / f"data{seed}", curator=output, val_fraction=0.4, seed=seed, min_coverage=0)
        held = {item["uuid"] for item in lines(result.root / "val/video_dataset_file.jsonl")}
        assert held in ({"a1", "a2"}, {"b5"})
    result = build(tmp_path / "group", curator=output, val_fraction=0.4, group=r"^(\w)", min_coverage=0)
    assert "--group is not used: the curator states each clip's source_video" in result.notes


@pytest.mark.parametrize(
    ("window", "caption"),
    [
        ({"b_caption": "b", "a_caption": "a"}, "a"),
        ({"b_caption": "b", "z_enhanced_caption": " z "}, "z"),
        ({"b_caption": " ", "a_caption": None, "c_caption": 5}, None),
        ({"caption": "not a model's"}, None),
    ],
)
def test_the_first_caption_by_key(window: dict[str, Any], caption: str | None) -> None:
    assert window_caption(window) == caption
