"""Frames of robot videos at given times: few open files a process, each frame decoded once in a row.

A video holds several episodes; a frame is asked for by its time in the file. Its number is the time
multiplied by the stream's average rate, rounded, and its own time must lie within a tolerance
(contracts, section 4). PyAV decodes; torchcodec on request.
"""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import numpy as np

from prep.errors import PrepError, UsageError
from prep.readers.robot_torchcodec import TorchcodecVideo, load_torchcodec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]
    Planes = tuple[Picture, Picture, Picture]

__all__ = ["OPEN_FILES", "Decoder", "FrameCache", "decoder_name"]

Decoder = Literal["pyav", "torchcodec"]
_Frame = TypeVar("_Frame")

OPEN_FILES: Final = 12
"""Videos that a process keeps open: four episodes of three cameras."""
_NEAR: Final = 2
"""Frames by which a wanted one may lie ahead and be reached by decoding on in any case."""
_READ_ON: Final = 24
"""The same where it is not known which frames in between are key frames."""
_SURELY_BEFORE: Final = 2
"""Frames by which a frame must lie before the wanted one to be passed over undecoded if none refers to it."""
_PASS_OVER: Final = frozenset(("h264",))
"""Decoders that heed from packet to packet whether to pass over; dav1d only when it begins."""
_EDGE: Final = 1e-6


class _Video(Protocol):
    """An open video: its average rate in frames a second, and frames by number with their seconds.

    A frame is one array [H, W, 3], or its three planes [H, W].
    """

    rate: float
    decoded: int

    def take(self, numbers: Sequence[int]) -> Iterator[tuple[Picture, float]]: ...

    def planes(self, numbers: Sequence[int]) -> Iterator[tuple[Planes, float]]: ...

    def close(self) -> None: ...


def decoder_name(decoder: Decoder) -> str:
    """The decoder and its versions, as a report names it.

    Raises EnvironmentLacksError if it is not installed, UsageError for an unknown one.
    """
    if decoder == "pyav":
        from prep.media import decoder_name as pyav_name

        return pyav_name()
    if decoder != "torchcodec":
        raise UsageError(f"There is no decoder {decoder!r}.", remedy="Give pyav or torchcodec.")
    return f"torchcodec {load_torchcodec().__version__}"


class FrameCache:
    """Open videos of one process, the least lately used closed first.

    What a fork inherits is left alone and opened anew: a decoder's state is not to be shared.
    """

    def __init__(self, decoder: Decoder = "pyav", files: int = OPEN_FILES) -> None:
        self.decoder: Decoder = decoder
        self.files = files
        self.decoded = 0
        """Frames decoded in this process, those passed over on the way included; PyAV only."""
        self._videos: OrderedDict[Path, _Video] = OrderedDict()
        self._owner = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decoder, self.files)

    def __len__(self) -> int:
        return len(self._videos)

    def take(self, path: Path, seconds: Sequence[float], tolerance: float) -> list[Picture]:
        """The frames at these times, each uint8 [H, W, 3] RGB; `seconds` ascend.

        Raises PrepError if the file cannot be decoded, or a frame's own time is `tolerance` seconds or
        more away. Times are compared as float32, as the reference does.
        """
        video = self._opened(path)
        found = video.take([round(second * video.rate) for second in seconds])
        return list(self._checked(path, video, found, seconds, tolerance))

    def planes(self, path: Path, seconds: Sequence[float], tolerance: float) -> Iterator[Planes]:
        """The same frames one by one, each as its red, green and blue, uint8 [H, W]; raises as `take` does.

        Planes are to be copied before the next frame is asked for, and other frames of the file after
        the last.
        """
        video = self._opened(path)
        found = video.planes([round(second * video.rate) for second in seconds])
        return self._checked(path, video, found, seconds, tolerance)

    def close(self) -> None:
        """Close all files."""
        for video in self._videos.values():
            video.close()
        self._videos.clear()

    def _checked(
        self,
        path: Path,
        video: _Video,
        found: Iterator[tuple[_Frame, float]],
        seconds: Sequence[float],
        tolerance: float,
    ) -> Iterator[_Frame]:
        for second in seconds:
            frame, shown = self._next(path, video, found)
            if not abs(np.float32(second) - np.float32(shown)) < np.float32(tolerance):
                raise PrepError(
                    f"{path}: the frame nearest to {second:.6f} s is shown at {shown:.6f} s, "
                    f"{abs(second - shown):.6f} s away; {tolerance:g} s are allowed.",
                    remedy="`prep validate` says which timestamps are wrong.",
                )
            yield frame

    def _next(self, path: Path, video: _Video, found: Iterator[tuple[_Frame, float]]) -> tuple[_Frame, float]:
        import av

        before = video.decoded
        try:
            return next(found)
        except (OSError, av.FFmpegError, RuntimeError, IndexError, _NoFrameError) as error:
            # Where a decoder stopped is not known: the next reading begins with a fresh one.
            self._videos.pop(path, video).close()
            raise _unreadable(path, error) from error
        finally:
            self.decoded += video.decoded - before

    def _opened(self, path: Path) -> _Video:
        if self._owner != os.getpid():
            self._videos, self._owner, self.decoded = OrderedDict(), os.getpid(), 0
        if path in self._videos:
            self._videos.move_to_end(path)
            return self._videos[path]
        while len(self._videos) >= self.files:
            self._videos.popitem(last=False)[1].close()
        video = self._videos[path] = _open(path, self.decoder)
        return video


class _NoFrameError(Exception):
    """The file ends before the wanted frame."""


def _open(path: Path, decoder: Decoder) -> _Video:
    import av

    codec = load_torchcodec() if decoder == "torchcodec" else None
    try:
        return _PyavVideo(path) if codec is None else TorchcodecVideo(path, codec)
    except (OSError, av.FFmpegError, RuntimeError, ValueError, _NoFrameError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> PrepError:
    why = str(getattr(error, "strerror", None) or error).strip().partition("\n")[0].rstrip(".")
    return PrepError(f"{path}: cannot be decoded: {why}.", remedy="`prep validate` says what is wrong.")


class _PyavVideo:
    """A video that PyAV decodes, and the place where its decoder stands."""

    def __init__(self, path: Path) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self._container = av.open(str(path))
        if not self._container.streams.video or not self._container.streams.video[0].average_rate:
            self._container.close()
            raise _NoFrameError("it has no video stream with a rate")
        self._stream = self._container.streams.video[0]
        self._stream.codec_context.thread_count = 1  # one a worker; more cost memory and a lag in seeking
        self.rate = float(self._stream.average_rate or 0)
        self.decoded = 0
        self._base = float(self._stream.time_base or 0)
        self._reformatter = VideoReformatter()
        self._goal = _Goal()
        self._frames = _decoded(self._container, self._stream, self._goal)
        self._current: VideoFrame | None = None

    def take(self, numbers: Sequence[int]) -> Iterator[tuple[Picture, float]]:
        """The frames shown at number / rate seconds, and when each began."""
        for frame in self._each(numbers):
            yield self._converted(frame, "rgb24").to_ndarray(), self._began(frame)

    def _converted(self, frame: VideoFrame, form: str) -> Any:
        return self._reformatter.reformat(frame, format=form, **_one_thread())

    def planes(self, numbers: Sequence[int]) -> Iterator[tuple[Planes, float]]:
        """The same as planes: made as such where that gives the same bytes, which takes half the time."""
        for frame in self._each(numbers):
            form = frame.format.name, frame.width, frame.height, frame.colorspace, frame.color_range
            if _is_planar_exact(*form):
                yield _planes_of(self._converted(frame, "gbrp")), self._began(frame)
            else:
                picture = self._converted(frame, "rgb24").to_ndarray()
                yield (picture[..., 0], picture[..., 1], picture[..., 2]), self._began(frame)

    def close(self) -> None:
        self._current = None
        self._container.close()

    def _each(self, numbers: Sequence[int]) -> Iterator[VideoFrame]:
        for number in numbers:
            yield self._reach(round(number / self.rate / self._base))

    def _began(self, frame: VideoFrame) -> float:
        return float(frame.pts or 0) * self._base

    def _reach(self, ticks: int) -> VideoFrame:
        """The frame that is shown at `ticks` of the stream's time base."""
        self._goal.ticks = ticks
        frame = self._current
        if frame is None or not self._leads_to(frame, ticks):
            frame = self._seek(ticks)
        while not self._shows(frame, ticks):
            frame = self._next()
        return frame

    def _lead(self, frame: VideoFrame, ticks: int) -> float:
        """Frames from `frame` to the wanted one; negative if it lies behind."""
        return (ticks - (frame.pts or 0)) * self._base * self.rate

    def _leads_to(self, frame: VideoFrame, ticks: int) -> bool:
        """Whether decoding on from `frame` is the shortest way: no key frame lies between."""
        lead = self._lead(frame, ticks)
        if lead <= _NEAR:
            return lead >= 0
        key = self._key_before(ticks)
        return lead <= _READ_ON if key is None else key <= (frame.pts or 0)

    def _key_before(self, ticks: int) -> int | None:
        """When the key frame is decoded at which a search for `ticks` ends; None if the file does not say."""
        entries: Any = getattr(self._stream, "index_entries", None)  # PyAV 16 and later
        if "mp4" not in self._container.format.name or not entries:
            return None
        place = entries.search_timestamp(ticks)
        return int(entries[place].timestamp) if place >= 0 else None

    def _shows(self, frame: VideoFrame, ticks: int) -> bool:
        """Whether the frame is the wanted one, or the first after it."""
        length = frame.duration or 1 / self.rate / self._base
        return (frame.pts or 0) + length - ticks > _EDGE

    def _seek(self, ticks: int) -> VideoFrame:
        """A frame at or before the wanted one; the file's first if there is none."""
        back = 0
        while True:
            target = ticks - round(back / self.rate / self._base)
            self._container.seek(max(target, 0), stream=self._stream, backward=True)
            self._frames = _decoded(self._container, self._stream, self._goal)
            frame = self._next()
            # Key frames are found by the time of decoding, which may lie before that of showing.
            if (frame.pts or 0) <= ticks or target <= 0:
                return frame
            back = 2 * back + 4

    def _next(self) -> VideoFrame:
        frame = next(self._frames, None)
        if frame is None:
            self._current = None
            raise _NoFrameError("the file ends before the frame")
        self.decoded += 1
        self._current = frame
        return frame


@dataclass(slots=True)
class _Goal:
    """The frame that is wanted next, by the time at which it begins."""

    ticks: int = 0


def _decoded(container: InputContainer, stream: VideoStream, goal: _Goal) -> Iterator[VideoFrame]:
    """The frames from here on, without those far before the goal that no other refers to."""
    context = stream.codec_context
    margin = _SURELY_BEFORE / float(stream.average_rate or 1) / float(stream.time_base or 1)
    may_pass = context.name in _PASS_OVER
    for packet in container.demux(stream):
        is_passed = may_pass and packet.pts is not None and packet.pts + margin < goal.ticks
        context.skip_frame = "NONREF" if is_passed else "DEFAULT"
        yield from packet.decode()


def _planes_of(frame: VideoFrame) -> Planes:
    """The planes of a frame of the format gbrp, red first; they are the frame's own memory."""
    green, blue, red = (
        np.frombuffer(plane, np.uint8).reshape(frame.height, plane.line_size)[:, : frame.width]  # type: ignore[call-overload]
        for plane in frame.planes
    )
    return red, green, blue


@functools.lru_cache(maxsize=16)
def _is_planar_exact(name: str, width: int, height: int, colorspace: int, color_range: int) -> bool:
    """Whether frames of this form have the same bytes as planes and as pixels; tried on one of noise.

    swscale has a path of its own for each pair of formats, and not all of them round alike.
    """
    if name != "yuv420p":
        return False
    from av import VideoFrame
    from av.video.reformatter import VideoReformatter

    frame, noise = VideoFrame(width, height, name), np.random.default_rng(0)
    frame.colorspace, frame.color_range = colorspace, color_range
    for plane in frame.planes:
        plane.update(noise.bytes(plane.buffer_size))
    convert = VideoReformatter().reformat
    pixels: Any = convert(frame, format="rgb24", **_one_thread()).to_ndarray()
    planes = _planes_of(convert(frame, format="gbrp", **_one_thread()))
    return all(bool((pixels[..., at] == plane).all()) for at, plane in enumerate(planes))


@functools.cache
def _one_thread() -> dict[str, Any]:
    """What makes a scaler of this PyAV use no threads of its own.

    Threads do not come along in a fork: a process that inherits such a scaler waits for them for ever when
    it lets it go. Older versions have neither the option nor the threads.
    """
    from av import VideoFrame
    from av.video.reformatter import VideoReformatter

    try:
        VideoReformatter().reformat(VideoFrame(2, 2, "rgb24"), format="gbrp", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}
