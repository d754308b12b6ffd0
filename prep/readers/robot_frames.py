"""Frames of robot videos at given times: few open files a process, each frame decoded once in a row.

A video holds several episodes; a frame is asked for by its time in the file. Its number is the time
multiplied by the stream's average rate, rounded, and its own time must lie within a tolerance
(contracts, section 4). PyAV decodes; torchcodec on request.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np

from prep.errors import EnvironmentLacksError, PrepError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from av import VideoFrame
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]

__all__ = ["OPEN_FILES", "Decoder", "FrameCache", "decoder_name"]

Decoder = Literal["pyav", "torchcodec"]

OPEN_FILES: Final = 12
"""Videos that a process keeps open: four episodes of three cameras."""
_READ_ON: Final = 24
"""Frames by which a wanted one may lie ahead and still be reached by decoding on."""
_EDGE: Final = 1e-6
_INSTALL: Final = "pip install 'cosmos-prep[torch]'"


class _Video(Protocol):
    """An open video: its average rate in frames a second, and frames by number with their seconds."""

    rate: float

    def take(self, numbers: Sequence[int]) -> Iterator[tuple[Picture, float]]: ...

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
    module = _torchcodec()
    return f"torchcodec {module.__version__}"


def _torchcodec() -> Any:
    try:
        import torchcodec
        import torchcodec.decoders
    except (ImportError, RuntimeError, OSError) as error:  # its libraries fail in each of these ways
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise EnvironmentLacksError(
            f"torchcodec cannot be loaded: {why}.",
            remedy=f"{_INSTALL}, and FFmpeg's shared libraries; or take the decoder pyav.",
        ) from error
    return torchcodec


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
        numbers = [round(second * video.rate) for second in seconds]
        pictures = []
        for second, (picture, shown) in zip(seconds, self._read(path, video, numbers), strict=True):
            if not abs(np.float32(second) - np.float32(shown)) < np.float32(tolerance):
                raise PrepError(
                    f"{path}: the frame nearest to {second:.6f} s is shown at {shown:.6f} s, "
                    f"{abs(second - shown):.6f} s away; {tolerance:g} s are allowed.",
                    remedy="`prep validate` says which timestamps are wrong.",
                )
            pictures.append(picture)
        return pictures

    def close(self) -> None:
        """Close all files."""
        for video in self._videos.values():
            video.close()
        self._videos.clear()

    def _read(self, path: Path, video: _Video, numbers: Sequence[int]) -> list[tuple[Picture, float]]:
        import av

        before = getattr(video, "decoded", 0)
        try:
            return list(video.take(numbers))
        except (OSError, av.FFmpegError, RuntimeError, IndexError, _NoFrameError) as error:
            # Where a decoder stopped is not known: the next reading begins with a fresh one.
            self._videos.pop(path).close()
            raise _unreadable(path, error) from error
        finally:
            self.decoded += getattr(video, "decoded", 0) - before

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

    codec = _torchcodec() if decoder == "torchcodec" else None
    try:
        return _PyavVideo(path) if codec is None else _TorchcodecVideo(path, codec)
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
        self._frames: Iterator[VideoFrame] = self._container.decode(self._stream)
        self._current: VideoFrame | None = None

    def take(self, numbers: Sequence[int]) -> Iterator[tuple[Picture, float]]:
        """The frames shown at number / rate seconds, and when each began."""
        for number in numbers:
            frame = self._reach(round(number / self.rate / self._base))
            picture: Any = self._reformatter.reformat(frame, format="rgb24").to_ndarray()
            yield picture, float(frame.pts or 0) * self._base

    def close(self) -> None:
        self._current = None
        self._container.close()

    def _reach(self, ticks: int) -> VideoFrame:
        """The frame that is shown at `ticks` of the stream's time base."""
        frame = self._current
        if frame is None or not 0 <= self._lead(frame, ticks) <= _READ_ON:
            frame = self._seek(ticks)
        while not self._shows(frame, ticks):
            frame = self._next()
        return frame

    def _lead(self, frame: VideoFrame, ticks: int) -> float:
        """Frames from `frame` to the wanted one; negative if it lies behind."""
        return (ticks - (frame.pts or 0)) * self._base * self.rate

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
            self._frames = self._container.decode(self._stream)
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


class _TorchcodecVideo:
    """A video that torchcodec decodes, opened as the reference opens it."""

    def __init__(self, path: Path, torchcodec: Any) -> None:
        self._decoder = torchcodec.decoders.VideoDecoder(
            str(path), seek_mode="approximate", dimension_order="NHWC", num_ffmpeg_threads=1
        )
        self.rate = float(self._decoder.metadata.average_fps)

    def take(self, numbers: Sequence[int]) -> Iterator[tuple[Picture, float]]:
        """The frames by number, and when each is shown."""
        batch = self._decoder.get_frames_at(indices=list(numbers))
        yield from zip(batch.data.numpy(), batch.pts_seconds.tolist(), strict=True)

    def close(self) -> None:
        self._decoder = None
