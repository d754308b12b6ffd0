"""Frames as upstream's SFT loader makes them: decoded, turned, scaled to RGB and cut out.

The loader pipes FFmpeg's `scale` filter with bicubic sampling and accurate rounding. The same filter
runs here in this process, through PyAV: on every file compared its bytes are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prep.errors import PrepError
from prep.layouts.sft_windows import Frames, Scaling

if TYPE_CHECKING:
    import numpy as np
    from av import VideoFrame
    from av.filter import Graph
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

__all__ = ["scaled_frames"]

_FLAGS: Final = "bicubic+accurate_rnd"
# By degrees counterclockwise, as PyAV states a rotation: what FFmpeg's command puts before the scaling.
_TURNS: Final = {
    90: (("transpose", "cclock"),),
    270: (("transpose", "clock"),),
    180: (("hflip", None), ("vflip", None)),
}


def scaled_frames(path: Path, wanted: Frames, sizes: Scaling, compression: int) -> NDArray[np.uint8]:
    """The frames `wanted` of a file as uint8 [T, H, W, 3] RGB, scaled and cut out by `sizes`.

    T is cut to a multiple of `compression` and one, after what the file really yields. Raises
    PrepError for a file that cannot be opened, or yields none of these frames.
    """
    import av
    import numpy as np

    top, left = sizes.top, sizes.left
    bottom, right = top + sizes.target_height, left + sizes.target_width
    try:
        with av.open(str(path)) as container:
            chosen = _chosen(container, container.streams.video[0], wanted, sizes)
            # Copies, since a cut-out would hold on to the whole picture.
            pictures = [frame.to_ndarray(format="rgb24")[top:bottom, left:right].copy() for frame in chosen]
    except (OSError, IndexError, av.FFmpegError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PrepError(
            f"{path}: cannot be decoded: {reason}.", remedy="`prep validate` says why."
        ) from error
    if not pictures:
        raise PrepError(
            f"{path}: none of the frames {wanted.start} to {wanted.end} can be decoded.",
            remedy="`prep validate --level deep` counts the file's frames.",
        )
    return np.stack(pictures[: (len(pictures) - 1) // compression * compression + 1])


def _chosen(container: Any, stream: VideoStream, wanted: Frames, sizes: Scaling) -> Iterator[VideoFrame]:
    """Each wanted frame, scaled; decoding ends behind the last one."""
    graph = None
    for index, frame in enumerate(container.decode(stream)):
        if index > wanted.end:
            return
        if index < wanted.start or (index - wanted.start) % wanted.interval:
            continue
        if graph is None:
            graph = _graph(stream, frame, sizes)
        graph.push(frame)
        yield graph.pull()  # type: ignore[misc]


def _graph(stream: VideoStream, frame: VideoFrame, sizes: Scaling) -> Graph:
    from av.filter import Graph

    graph = Graph()
    first = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=stream.time_base
    )
    turn = _TURNS.get(round(frame.rotation) % 360, ())
    chain = (
        *turn,
        ("scale", f"{sizes.width}:{sizes.height}:flags={_FLAGS}"),
        ("format", "rgb24"),
        ("buffersink", None),
    )
    last = first
    for name, arguments in chain:
        following = graph.add(name, arguments)
        last.link_to(following)
        last = following
    graph.configure()
    return graph
