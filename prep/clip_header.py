"""What a video file's header states, as the SFT loader and its builders read it; no frame is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prep.errors import PrepError

__all__ = ["ClipHeader", "read_header"]


@dataclass(frozen=True, slots=True)
class ClipHeader:
    """Facts of the first video stream.

    width, height: coded pixels. `frames`: as the container states, None where it states none.
    `rate`, `average_rate`: frames a second (ffprobe's r_frame_rate and avg_frame_rate).
    `duration`: seconds of the container; `stream_duration` of the stream, None where not stated.
    """

    width: int
    height: int
    frames: int | None
    rate: float
    average_rate: float
    duration: float
    stream_duration: float | None

    @property
    def loader_frames(self) -> int:
        """The frame count that upstream's loader goes by: 0 where neither count nor duration is stated."""
        if self.frames is not None:
            return self.frames
        return int((self.stream_duration or 0.0) * self.rate)

    @property
    def builder_frames(self) -> int:
        """The frame count that upstream's builder writes: where none is stated, from the duration."""
        return self.frames if self.frames is not None else round(self.duration * self.average_rate)


def read_header(path: Path) -> ClipHeader:
    """The header of a video file; raises PrepError for a file that has none."""
    import av

    try:
        with av.open(str(path)) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None or stream.codec_context is None:
                raise PrepError(f"{path.name} has no video stream.", remedy="Replace the file.")
            average = float(stream.average_rate or stream.base_rate or 30)
            base = stream.time_base
            seconds = float(stream.duration * base) if stream.duration is not None and base else None
            whole = container.duration / av.time_base if container.duration else seconds
            return ClipHeader(
                width=stream.codec_context.width,
                height=stream.codec_context.height,
                frames=stream.frames or None,
                rate=float(stream.base_rate or average),
                average_rate=average,
                duration=whole or 0.0,
                stream_duration=seconds,
            )
    except (av.error.FFmpegError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PrepError(f"{path.name} cannot be opened: {reason}.", remedy="Replace the file.") from error
