"""Frames by time: every codec and key frame spacing, files that end or lie, few open files."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.readers.robot_frames import FrameCache, decoder_name
from prep.readers.robot_torchcodec import load_torchcodec
from tests.clips import make_clip, picture

RATE, FRAMES, TOLERANCE = 10, 60, 2e-4


def clip(path: Path, codec: str, key_frames: int) -> Path:
    """Sixty frames; with x264's own settings they refer to later ones too."""
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream(codec, rate=Fraction(RATE))
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = key_frames
        for index in range(FRAMES):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture(index, 64, 48), format="rgb24")))
        output.mux(stream.encode(None))
    return path


def decoded(path: Path) -> list[Any]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def at(places: Sequence[int]) -> list[float]:
    return [place / RATE for place in places]


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "libsvtav1"])
@pytest.mark.parametrize("key_frames", [1, 2, 12, 250])
def test_any_frame_is_that_of_reading_in_order(tmp_path: Path, codec: str, key_frames: int) -> None:
    path = clip(tmp_path / "clip.mp4", codec, key_frames)
    frames = decoded(path)
    assert len(frames) == FRAMES
    cache = FrameCache()
    order = np.random.RandomState(0).permutation(FRAMES - 3).tolist()
    for first in order:
        taken = cache.take(path, at(range(first, first + 4)), TOLERANCE)
        assert all((taken[k] == frames[first + k]).all() for k in range(4)), first


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "libsvtav1"])
def test_planes_are_the_channels_of_the_pictures(tmp_path: Path, codec: str) -> None:
    path = clip(tmp_path / "clip.mp4", codec, 12)
    pictures = FrameCache().take(path, at(range(7, 19)), TOLERANCE)
    planes = FrameCache().planes(path, at(range(7, 19)), TOLERANCE)
    for shown, three in zip(pictures, planes, strict=True):
        assert (np.stack(three, axis=2) == shown).all()


@pytest.mark.parametrize("size", [(64, 48), (66, 50), (98, 34), (63, 47)])
def test_planes_of_any_size_and_colour_are_the_channels(tmp_path: Path, size: tuple[int, int]) -> None:
    width, height = size
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream("ffv1", rate=Fraction(RATE))
        form = "yuv444p" if width % 2 else "yuv420p"
        stream.width, stream.height, stream.pix_fmt = width, height, form
        noise = np.random.RandomState(0).randint(0, 256, (4, height, width, 3)).astype(np.uint8)
        for each in noise:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(each, format="rgb24").reformat(format=form)))
        output.mux(stream.encode(None))
    pictures = FrameCache().take(path, at(range(4)), 0.01)
    planes = FrameCache().planes(path, at(range(4)), 0.01)
    for shown, three in zip(pictures, planes, strict=True):
        assert (np.stack(three, axis=2) == shown).all()


def test_the_shortest_way_to_a_frame_is_taken(tmp_path: Path) -> None:
    """Decoding on where no key frame lies between, else from the last key frame before it."""
    sparse, dense = clip(tmp_path / "sparse.mp4", "mpeg4", 250), clip(tmp_path / "dense.mp4", "mpeg4", 2)
    for path, most in ((sparse, 41), (dense, 4)):
        cache = FrameCache()
        cache.take(path, at([3]), TOLERANCE)
        before = cache.decoded
        cache.take(path, at([44]), TOLERANCE)
        assert 1 <= cache.decoded - before <= most


def test_frames_that_no_other_needs_are_passed_over(tmp_path: Path) -> None:
    path = clip(tmp_path / "clip.mp4", "libx264", 250)
    frames = decoded(path)
    cache = FrameCache()
    (shown,) = cache.take(path, at([50]), TOLERANCE)
    assert (shown == frames[50]).all()
    assert cache.decoded < 45
    (shown,) = cache.take(path, at([51]), TOLERANCE)
    assert (shown == frames[51]).all()


def test_reading_in_order_decodes_each_frame_once(tmp_path: Path) -> None:
    path = clip(tmp_path / "clip.mp4", "libx264", 2)
    cache = FrameCache()
    for first in range(0, FRAMES, 5):
        cache.take(path, at(range(first, first + 5)), TOLERANCE)
    assert cache.decoded == FRAMES


def test_a_frame_shown_elsewhere_is_refused_with_both_times(tmp_path: Path) -> None:
    path = clip(tmp_path / "clip.mp4", "mpeg4", 2)
    cache = FrameCache()
    assert len(cache.take(path, [0.7 + TOLERANCE / 2], TOLERANCE)) == 1
    with pytest.raises(PrepError, match=r"clip.mp4: the frame nearest to 0.703000 s is shown at 0.700000 s"):
        cache.take(path, [0.703], TOLERANCE)
    with pytest.raises(PrepError, match="the file ends before the frame"):
        cache.take(path, [FRAMES / RATE + 1], TOLERANCE)
    assert (cache.take(path, [0.3], TOLERANCE)[0] == decoded(path)[3]).all()


def test_files_that_are_no_videos_are_named(tmp_path: Path) -> None:
    cache = FrameCache()
    with pytest.raises(PrepError, match=r"absent.mp4: cannot be decoded: No such file"):
        cache.take(tmp_path / "absent.mp4", [0.0], TOLERANCE)
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"x" * 1000)
    with pytest.raises(PrepError, match=r"broken.mp4: cannot be decoded"):
        cache.take(broken, [0.0], TOLERANCE)
    assert len(cache) == 0


def test_few_files_are_open(tmp_path: Path) -> None:
    paths = [make_clip(tmp_path / f"{place}.mp4", frames=4) for place in range(6)]
    cache = FrameCache(files=2)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in paths * 2:
        assert (cache.take(path, [0.125], TOLERANCE)[0] == decoded(path)[1]).all()
        assert len(cache) <= 2
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    cache.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_cache_pickles_without_its_files(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "clip.mp4", frames=4)
    cache = FrameCache(files=3)
    cache.take(path, [0.0], TOLERANCE)
    assert len(pickle.dumps(cache)) < 200
    copy = pickle.loads(pickle.dumps(cache))
    assert (copy.decoder, copy.files, len(copy)) == ("pyav", 3, 0)


def test_the_decoder_is_named() -> None:
    assert decoder_name("pyav").startswith("PyAV ")
    with pytest.raises(UsageError, match="no decoder 'opencv'"):
        decoder_name("opencv")  # type: ignore[arg-type]


def test_torchcodec_gives_the_same_frames(tmp_path: Path) -> None:
    try:
        load_torchcodec()
    except EnvironmentLacksError as error:
        pytest.skip(error.message)
    path = clip(tmp_path / "clip.mp4", "libx264", 12)
    ours = FrameCache().take(path, at(range(20, 30)), TOLERANCE)
    theirs = FrameCache("torchcodec").take(path, at(range(20, 30)), TOLERANCE)
    assert all((one == other).all() for one, other in zip(ours, theirs, strict=True))
