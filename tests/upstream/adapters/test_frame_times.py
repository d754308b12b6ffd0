"""The times at which frames are asked for: ours from the tables, the reference's as it asks the decoder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from prep.manifest import Manifest
from prep.readers.lerobot import LeRobotReader
from prep.upstream.adapters.frame_times import OurFrameTimes, UpstreamFrameTimes
from tests.robot_fixture import prepare_fixture


def decode_video_frames(path: Path, seconds: list[float], tolerance: float) -> int:
    return len(seconds)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of lerobot that has taken the decoder's name over, as `from … import` does."""
    found = ModuleType("lerobot.reading")
    found.decode_video_frames = decode_video_frames  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, found.__name__, found)
    return found


def test_what_the_decoder_is_asked_for_is_heard_and_passed_on(module: Any, tmp_path: Path) -> None:
    times = UpstreamFrameTimes(tmp_path)
    with times.heard():
        assert module.decode_video_frames(tmp_path / "b.mp4", [0.5, 1.0], 0.1) == 2
        assert module.decode_video_frames(str(tmp_path / "a.mp4"), [1.5, 2.0], tolerance=0.1) == 2
        module.decode_video_frames(tmp_path / "unseen.mp4", [0.5], 0.1)
    assert module.decode_video_frames is decode_video_frames
    assert times.last["frame_files"] == ["a.mp4", "b.mp4"]
    np.testing.assert_array_equal(times.last["frame_seconds"], [[1.5, 2.0], [0.5, 1.0]])
    with times.heard():
        pass
    assert times.last == {}


def test_the_decoder_is_given_back_when_reading_fails(module: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), UpstreamFrameTimes(tmp_path).heard():
        raise ValueError("broken")
    assert module.decode_video_frames is decode_video_frames


def test_ours_begin_where_the_episode_begins_in_its_file(tmp_path: Path) -> None:
    manifest = Manifest.load(prepare_fixture(tmp_path, ("droid",))["droid"])
    assert manifest is not None
    reader = LeRobotReader(manifest, index="droid_policy-train-c32-filtered")
    found = OurFrameTimes(reader).of(4)
    assert reader.identity(4) == (0, 7, 2)
    cameras = ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left")
    files = [1, 0, 1]
    assert found["frame_files"] == [
        f"success/videos/observation.image.{camera}/chunk-000/file-{file:03d}.mp4"
        for camera, file in zip(cameras, files, strict=True)
    ]
    # Of each camera episode 7 stands after others: those of its file that come before it.
    lengths = [int(number) for number in _lengths(reader)]
    begins = [sum(lengths[1:7]), sum(lengths[:7]), 0]
    expected = [[(begin + 2 + at) / 15 for at in range(33)] for begin in begins]
    np.testing.assert_allclose(found["frame_seconds"], expected, rtol=0, atol=1e-6)
    for place in (-1, len(reader)):
        with pytest.raises(IndexError):
            OurFrameTimes(reader).of(place)


def _lengths(reader: LeRobotReader) -> Any:
    from prep.layouts.lerobot import Root

    return Root.open(reader.root / "success").episodes().lengths
