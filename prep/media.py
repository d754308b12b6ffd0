"""Probe and decode video files with PyAV, the decoder that the training loaders use.

`check_video` opens a file once. At level "standard" it decodes one frame; at "deep" every
frame, each dropped at once, so memory does not grow with the clip beyond eight bytes a frame.
Nothing here keeps state: any number of threads may call it.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from prep.container import check_structure, unreadable
from prep.findings import Finding, found

if TYPE_CHECKING:
    from av import Packet, VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

__all__ = ["VideoFacts", "check_video", "decode_all", "decoder_name", "probe"]

Level = Literal["standard", "deep"]

_EIGHT_BIT_420: Final = frozenset(("yuv420p", "yuvj420p", "nv12", "nv21", "gray"))
_FIRST_FRAME_TRIES: Final = 100
"""Damaged packets passed over in search of a first frame at level "standard"."""
_STEP_TOLERANCE: Final = Fraction(3, 2000)
"""Seconds by which steps between frames may differ: a clip that once had timestamps in whole
milliseconds has steps of 33 and 34 ms at a constant 30 frames a second."""
_TICK_TOLERANCE: Final = Fraction(3, 2)
"""The same in ticks of the stream's own time base, which may be coarser (GIF: 10 ms); never more
than half a step, for AVI counts in whole frames."""
_RATE_TOLERANCE: Final = 0.01
"""Share by which the header's average and base rates may differ before packets are looked at."""


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """What a file's first video stream is, attached pictures not counted.

    width, height: coded pixels, before any rotation. frames: as the container states, None
    where it states none; packets that an edit list hides are counted in it. average_rate,
    base_rate: frames a second. duration: seconds. start: seconds, the presentation time of
    the first frame shown. rotation: degrees counterclockwise, from -180 to 180.
    """

    width: int
    height: int
    codec: str
    pixel_format: str
    frames: int | None
    average_rate: Fraction | None
    base_rate: Fraction | None
    duration: float | None
    start: float
    rotation: int
    has_audio: bool
    decoder: str


@dataclass(slots=True)
class _Reading:
    """What demuxing and decoding saw; times are in ticks of the stream's time base."""

    frames: int = 0
    hidden: int = 0
    all_packets: bool = False
    first_time: int | None = None
    rotation: int = 0
    pixel_format: str = ""
    frame_times: array[int] = field(default_factory=lambda: array("q"))
    packet_times: array[int] = field(default_factory=lambda: array("q"))
    corrupt: list[int] = field(default_factory=list)
    errors: int = 0
    error: str = ""
    error_at: int = 0

    def take_packet(self, packet: Packet[VideoStream]) -> None:
        """Note a packet's time, or that an edit list hides it."""
        self.hidden += packet.is_discard
        if self.all_packets and packet.pts is not None and not packet.is_discard:
            self.packet_times.append(packet.pts)

    def take_frame(self, frame: VideoFrame) -> None:
        """Note what is asked of a frame; the frame itself is not kept."""
        if self.frames == 0:
            self.first_time, self.rotation = frame.pts, frame.rotation
            self.pixel_format = frame.format.name
        # A frame shown before its predecessor: the demuxer lost its place in damaged data.
        backwards = bool(self.frame_times) and frame.pts is not None and frame.pts < self.frame_times[-1]
        if frame.is_corrupt or backwards:
            self.corrupt.append(self.frames)
        if frame.pts is not None:
            self.frame_times.append(frame.pts)
        self.frames += 1

    def fail(self, error: Exception) -> None:
        """Note an error; the first one is told."""
        if not self.errors:
            self.error, self.error_at = _reason(error), self.frames
        self.errors += 1

    def enough(self, level: Level) -> bool:
        """Whether nothing more can be learnt by decoding."""
        if level == "standard":
            return self.frames > 0 or self.errors > _FIRST_FRAME_TRIES
        return self.errors > 0 and self.frames > 0


def decoder_name() -> str:
    """The decoder and its versions, as findings and manifests name it."""
    import av

    version = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return f"PyAV {av.__version__} / libavcodec {version}"


def check_video(path: Path, *, level: Level) -> tuple[VideoFacts | None, list[Finding]]:
    """Check one video file; the findings' path is the file's name.

    "standard": structure, header and one decoded frame. "deep": every frame, and with that
    VID003 and errors midway. Where the structure has an error the file is not opened, so that
    one fault gives one finding; the facts are then None.
    """
    findings = check_structure(path)
    if any(finding.severity == "error" for finding in findings):
        return None, findings
    facts, more = _examine(path, level)
    return facts, findings + more


def probe(path: Path) -> tuple[VideoFacts | None, list[Finding]]:
    """The facts of a file without the check of its structure.

    One frame is decoded: PyAV tells the rotation and the true start only with a frame.
    """
    return _examine(path, "standard")


def decode_all(path: Path) -> tuple[int, list[Finding]]:
    """How many frames the file really yields, with the findings of level "deep"."""
    frames, _, findings = _open_and_read(path, "deep")
    return frames, findings


def _examine(path: Path, level: Level) -> tuple[VideoFacts | None, list[Finding]]:
    _, facts, findings = _open_and_read(path, level)
    return facts, findings


def _open_and_read(path: Path, level: Level) -> tuple[int, VideoFacts | None, list[Finding]]:
    """Frames decoded, facts, findings; everything that PyAV raises becomes a finding."""
    import av

    try:
        with _opened(path) as container:
            stream = _video_stream(container)
            if stream is None or stream.codec_context is None:
                return 0, None, [_no_stream(path.name, container, stream)]
            reading = _read(container, stream, level)
            facts = _facts(container, stream, reading)
            return reading.frames, facts, list(_judge(path.name, facts, stream, reading, level))
    except (av.error.FFmpegError, OSError) as error:
        return 0, None, [_not_opened(path, error)]


def _opened(path: Path) -> InputContainer:
    import av

    # A title in another encoding than UTF-8 is no fault of the pictures. PyAV 19 bears it unasked.
    lenient = hasattr(av.container.InputContainer, "metadata_errors")
    options: dict[str, Any] = {"metadata_errors": "replace"} if lenient else {}
    container: InputContainer = av.open(path.absolute(), **options)
    return container


def _not_opened(path: Path, error: Exception) -> Finding:
    # PyAV's own PermissionError and the like derive from both families.
    if isinstance(error, OSError):
        return unreadable(path, error)
    return found("VID010", path.name, f"cannot be opened by {decoder_name()}: {_reason(error)}")


def _no_stream(name: str, container: InputContainer, stream: VideoStream | None) -> Finding:
    if stream is not None:
        message = f"the container names a codec that {decoder_name()} does not know"
        return found("VID009", name, message)
    kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
    return found("VID001", name, f"holds {kinds}, no video stream")


def _video_stream(container: InputContainer) -> VideoStream | None:
    """The first video stream that is no cover picture."""
    from av.stream import Disposition

    streams = (
        stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic
    )
    return next(streams, None)


# --- reading -----------------------------------------------------------------------------


def _read(container: InputContainer, stream: VideoStream, level: Level) -> _Reading:
    """Demux, and decode until `level` is served; go on without decoding where the rate is in doubt."""
    import av

    # One thread: frames come in the same order and number everywhere, and callers have pools.
    stream.codec_context.thread_count = 1
    reading = _Reading()
    reading.all_packets = level == "standard" and _rate_in_doubt(stream)
    try:
        for packet in container.demux(stream):
            reading.take_packet(packet)
            if not reading.enough(level):
                _decode(packet, reading)
            elif not reading.all_packets:
                break
    except av.error.FFmpegError as error:
        reading.fail(error)
    return reading


def _decode(packet: Packet[VideoStream], reading: _Reading) -> None:
    import av

    try:
        for frame in packet.decode():
            reading.take_frame(frame)
    except av.error.FFmpegError as error:
        reading.fail(error)


def _rate_in_doubt(stream: VideoStream) -> bool:
    """Whether the header leaves it open if the rate is constant; no packet is read.

    MP4 and AVI index every frame, and the index has the times; PyAV shows it from 17 on, and
    before that such a file's packets must be read. Matroska indexes key frames only: there the
    average rate is held against the base rate.
    """
    index = getattr(stream, "index_entries", None)
    if index is None and stream.frames > 0:
        return True
    if index is not None and 2 * len(index) > stream.frames > 0:
        times = array("q", (entry.timestamp for entry in index if not entry.is_discard))
        return _uneven(times, stream.time_base) is not None
    average, base = stream.average_rate, stream.base_rate
    return bool(average and base and abs(average / base - 1) > _RATE_TOLERANCE)


def _uneven(times: array[int], time_base: Fraction | None) -> tuple[float, float] | None:
    """The shortest and longest step in seconds between `times` (ascending), if they differ."""
    if len(times) < 3 or time_base is None:
        return None
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    shortest, longest = min(steps) * time_base, max(steps) * time_base
    tolerance = max(_STEP_TOLERANCE, min(_TICK_TOLERANCE * time_base, shortest / 2))
    if longest - shortest <= tolerance:
        return None
    return float(shortest), float(longest)


def _facts(container: InputContainer, stream: VideoStream, reading: _Reading) -> VideoFacts:
    context, time_base = stream.codec_context, stream.time_base or Fraction(1)
    first = reading.first_time if reading.first_time is not None else stream.start_time
    return VideoFacts(
        width=context.width,
        height=context.height,
        codec=context.codec.canonical_name,
        pixel_format=reading.pixel_format or context.pix_fmt or "",
        frames=stream.frames or None,
        average_rate=_fraction(stream.average_rate),
        base_rate=_fraction(stream.base_rate),
        duration=_duration(container, stream),
        start=float((first or 0) * time_base),
        rotation=reading.rotation,
        has_audio=bool(container.streams.audio),
        decoder=decoder_name(),
    )


def _fraction(rate: Fraction | None) -> Fraction | None:
    """PyAV 19 has a rational type of its own, which is compared but not formatted as a Fraction is."""
    return Fraction(rate) if rate else None


def _duration(container: InputContainer, stream: VideoStream) -> float | None:
    """Seconds: the stream's own statement, else the container's (Matroska has only that)."""
    import av

    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration is not None else None


# --- findings ----------------------------------------------------------------------------


def _judge(
    name: str, facts: VideoFacts, stream: VideoStream, reading: _Reading, level: Level
) -> Iterator[Finding]:
    if reading.frames == 0:
        yield _undecodable(name, facts, reading)
        return
    if reading.errors or reading.corrupt:
        yield _damaged(name, facts, reading)
    if level == "deep" and not reading.errors:
        yield from _judge_count(name, facts, reading)
    yield from _judge_start(name, facts)
    # Lost frames leave gaps that say nothing about the rate.
    if not reading.errors and not reading.corrupt:
        yield from _judge_rate(name, facts, stream, reading, level)
    yield from _judge_picture(name, facts)


def _undecodable(name: str, facts: VideoFacts, reading: _Reading) -> Finding:
    why = reading.error or "it yields no frame"
    return found("VID009", name, f"{facts.codec} cannot be decoded by {facts.decoder}: {why}")


def _damaged(name: str, facts: VideoFacts, reading: _Reading) -> Finding:
    """An error that stopped decoding, or frames that the decoder patched up and marked."""
    stated = f" of {facts.frames}" if facts.frames else ""
    if reading.errors:
        message = f"decoding stops at frame {reading.error_at}{stated}: {reading.error}"
        return found("VID011", name, message, place=f"frame {reading.error_at}")
    first, count = reading.corrupt[0], len(reading.corrupt)
    message = f"{count} of {reading.frames} decoded frames are damaged, the first is frame {first}"
    return found("VID011", name, message, place=f"frame {first}")


def _judge_count(name: str, facts: VideoFacts, reading: _Reading) -> Iterator[Finding]:
    stated, decoded = facts.frames, reading.frames
    if stated is None or stated == decoded:
        return
    message = f"the container states {stated} frames and {decoded} decode"
    if stated - reading.hidden == decoded:
        # The file is sound; only readers that go by the container's count are misled.
        message += f"; its edit list hides {reading.hidden}"
        yield found("VID003", name, message, severity="warning")
    else:
        yield found("VID003", name, message)


def _judge_rate(
    name: str, facts: VideoFacts, stream: VideoStream, reading: _Reading, level: Level
) -> Iterator[Finding]:
    # Packets come in decoding order. Without `all_packets` only the first ones were seen.
    packet_times = array("q", sorted(reading.packet_times)) if reading.all_packets else array("q")
    steps = _uneven(reading.frame_times if level == "deep" else packet_times, stream.time_base)
    if steps is not None:
        rates = f"average {_rate(facts.average_rate)}, base {_rate(facts.base_rate)}"
        message = f"frames follow each other after {steps[0]:.4f} to {steps[1]:.4f} s ({rates})"
        yield found("VID004", name, message)


def _judge_start(name: str, facts: VideoFacts) -> Iterator[Finding]:
    half_a_frame = 0.5 / float(facts.average_rate) if facts.average_rate else 0.02
    if abs(facts.start) > half_a_frame:
        yield found("VID005", name, f"the first frame is shown at {facts.start:.4f} s, not at 0")


def _judge_picture(name: str, facts: VideoFacts) -> Iterator[Finding]:
    size = f"{facts.width}x{facts.height}"
    if facts.rotation % 360:
        message = f"{size} coded, to be shown turned by {facts.rotation} degrees counterclockwise"
        yield found("VID006", name, message)
    if facts.width % 2 or facts.height % 2:
        yield found("VID007", name, f"{size}; expected even sizes")
    if facts.pixel_format and facts.pixel_format not in _EIGHT_BIT_420:
        yield found("VID008", name, f"{facts.codec} in {facts.pixel_format}, not yuv420p")


def _rate(rate: Fraction | None) -> str:
    return f"{float(rate):.3f}/s" if rate else "unknown"


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
