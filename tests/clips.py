"""Small encoded clips for tests: shapes that move, encoded on one thread so that bytes repeat."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

__all__ = ["add_tone", "make_clip", "make_sound", "picture"]

SOUND_RATE = 16000


def picture(index: int, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Frame `index` as uint8 [height, width, 3]: a square that moves over a gradient."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = np.linspace(0, 200, width, dtype=np.uint8)
    image[..., 1] = np.linspace(0, 200, height, dtype=np.uint8)[:, None]
    side = max(2, min(width, height) // 4)
    left, top = (3 * index) % (width - side), (2 * index) % (height - side)
    image[top : top + side, left : left + side] = (255, 64, (16 * index) % 256)
    return image


def make_clip(
    path: Path,
    *,
    frames: int = 20,
    width: int = 64,
    height: int = 48,
    rate: int | Fraction = 8,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    audio: bool = False,
    times: Sequence[int] | None = None,
    container: str | None = None,
    options: dict[str, str] | None = None,
    title: str = "",
) -> Path:
    """Write a clip to `path` and return it.

    `times`: presentation times in units of 1/1000 s, one a frame, where the rate must vary or
    the start be late. `options` go to the muxer (`{"movflags": "faststart"}`); `container` names
    the format where the path's ending does not.
    """
    with av.open(str(path), "w", format=container, options=options or {}) as output:
        output.metadata.update({"title": title} if title else {})
        stream = output.add_stream(codec, rate=rate)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.thread_count = 1
        if codec == "libx264":
            # Its macroblock tree makes the bytes differ from one process to the next.
            stream.options = {"x264-params": "mbtree=0"}
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        sound = output.add_stream("aac", rate=SOUND_RATE, layout="mono") if audio else None
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(index, width, height)).reformat(format=pixel_format)
            frame.time_base = Fraction(1, 1000) if times is not None else 1 / Fraction(rate)
            frame.pts = times[index] if times is not None else index
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if sound is not None:
            add_tone(output, sound, seconds=float(frames / Fraction(rate)))
    return path


def make_sound(path: Path, *, seconds: float = 1.0, title: str = "") -> Path:
    """Write a container that holds sound only, and return its path."""
    with av.open(str(path), "w") as output:
        output.metadata.update({"title": title} if title else {})
        add_tone(output, output.add_stream("aac", rate=SOUND_RATE, layout="mono"), seconds=seconds)
    return path


def add_tone(output: Any, stream: Any, *, seconds: float) -> None:
    """Encode a plain tone into `stream`, an AAC stream of `SOUND_RATE` in mono."""
    for start in range(0, int(seconds * SOUND_RATE), 1024):
        wave = np.sin(np.arange(start, start + 1024, dtype=np.float32) * 0.17)
        frame = av.AudioFrame.from_ndarray(wave[None, :].astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = SOUND_RATE, start, Fraction(1, SOUND_RATE)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))
