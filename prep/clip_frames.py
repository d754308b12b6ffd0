"""Which frames of a clip a reasoner is shown, and the frames themselves, as upstream's decoder gives them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from prep.errors import PrepError

if TYPE_CHECKING:
    import numpy as np
    from av import VideoFrame
    from av.filter import Graph
    from av.video.stream import VideoStream
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = ["Sampled", "chosen_frames", "sampled_frames"]

_UNKNOWN_RATE: Final = 30.0


class Sampled(NamedTuple):
    """Frames of a clip as PIL images in RGB, upright, their 0-based `indices`, and two rates a second.

    `fps` is what upstream reports at the locked commit: the clip's rate over the step, as if no frame had
    been thinned out. `true_fps` is the rate of the frames that are here.
    """

    frames: list[Image]
    indices: list[int]
    fps: float
    true_fps: float


def chosen_frames(total: int, rate: float, max_frames: int, fps: float) -> tuple[list[int], int]:
    """The 0-based indices that are taken of `total` frames at `rate` a second, and the step between them.

    The step is the rate over `fps`, rounded half to even, at least 1. More than `max_frames` are thinned
    out to as many, evenly from the first (contracts, section 2).
    """
    step = max(1, round(rate / fps))
    indices = list(range(0, total, step))
    if len(indices) > max_frames:
        share = len(indices) / max_frames
        indices = [indices[int(place * share)] for place in range(max_frames)]
    return indices, step


def sampled_frames(data: bytes, *, max_frames: int, fps: float, name: str) -> Sampled:
    """The frames taken of an encoded clip; raises PrepError, which says `name`, if one cannot be had.

    Frames are counted, and their rate is told, by the packets, as torchcodec does: a header may be wrong.
    """
    import av
    from PIL import Image

    try:
        total, rate = _census(data)
        indices, step = chosen_frames(total, rate, max_frames, fps)
        images = [Image.fromarray(picture) for picture in _pictures(data, indices)]
    except (OSError, IndexError, av.FFmpegError) as error:
        raise _undecodable(name, f"cannot be decoded: {getattr(error, 'strerror', None) or error}") from error
    if not images:
        raise _undecodable(name, "no frame can be decoded")
    if len(images) < len(indices):
        raise _undecodable(name, f"frame {indices[len(images)]} of {total} cannot be decoded")
    return Sampled(images, indices, rate / step, len(images) / total * rate)


def _census(data: bytes) -> tuple[int, float]:
    """How many frames are shown, and how many a second; nothing is decoded."""
    import av

    starts, ends = [], []
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        base, stated = stream.time_base, stream.average_rate
        for packet in container.demux(stream):
            time = packet.dts if packet.pts is None else packet.pts
            if time is not None and not packet.is_discard:
                starts.append(time)
                ends.append(time + (packet.duration or 0))
    seconds = 0.0
    if starts and base is not None:
        # In floats, each time by itself: these are the bits that torchcodec reports.
        last, first = (each * base.numerator / base.denominator for each in (max(ends), min(starts)))
        seconds = last - first
    return len(starts), len(starts) / seconds if seconds > 0 else float(stated or _UNKNOWN_RATE)


def _pictures(data: bytes, indices: list[int]) -> Iterator[NDArray[np.uint8]]:
    """The frames at ascending indices, uint8 [H, W, 3]; decoding ends behind the last."""
    import av
    import numpy as np

    wanted = iter(indices)
    following = next(wanted, None)
    graph, form = None, None
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        for index, frame in enumerate(container.decode(stream)):
            if following is None:
                return
            if index != following:
                continue
            if graph is None or form != (frame.width, frame.height, frame.format.name):
                graph, form = _graph(stream, frame), (frame.width, frame.height, frame.format.name)
            graph.push(frame)
            picture: Any = graph.pull()
            yield np.rot90(picture.to_ndarray(format="rgb24"), round(frame.rotation / 90) % 4)
            following = next(wanted, None)


def _graph(stream: VideoStream, frame: VideoFrame) -> Graph:
    """Makes RGB. Bicubic sampling, since PyAV's own differs from torchcodec's beyond even, 8-bit 4:2:0."""
    from av.filter import Graph

    graph = Graph()
    last = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=stream.time_base
    )
    steps = (
        ("scale", f"{frame.width}:{frame.height}:flags=bicubic"),
        ("format", "rgb24"),
        ("buffersink", None),
    )
    for name, arguments in steps:
        following = graph.add(name, arguments)
        last.link_to(following)
        last = following
    graph.configure()
    return graph


def _undecodable(name: str, why: str) -> PrepError:
    return PrepError(f"{name}: {why}.", remedy="`prep validate` says what is wrong.")
