"""The clips of the embedded first run: shapes that move, encoded on the spot."""

from __future__ import annotations

from pathlib import Path

__all__ = ["draw_clip"]

_SIZE = (160, 96)  # width, height in pixels
_RATE = 8


def draw_clip(path: Path, *, seed: int, frames: int) -> None:
    """Encode a clip of a shape that moves over a gradient, unless it is there; whole or not at all."""
    import av
    import numpy as np

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    width, height = _SIZE
    ground = np.linspace(40, 120, width, dtype=np.uint8)[None, :, None].repeat(height, 0).repeat(3, 2)
    with av.open(str(partial), "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=_RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        # The same clip has the same bytes in every run: x264's macroblock tree, seen here, and its
        # threads make them depend on the process.
        stream.options = {"x264-params": "mbtree=0"}
        stream.codec_context.thread_count = 1
        for index in range(frames):
            image = ground.copy()
            side = 12 + seed % 9
            left = (seed * 5 + index * 3) % (width - side)
            top = abs((seed * 7 + index * 4) % (2 * (height - side)) - (height - side))
            image[top : top + side, left : left + side, seed % 3] = 255
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode())
    partial.replace(path)
