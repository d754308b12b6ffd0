"""Checks of the videos of a root: each camera's files against the declared features and the episode table.

A file holds several episodes, each with its window in seconds; other cameras may pack them otherwise.
At level "standard" a file is opened and one frame decoded. At "deep" every frame is decoded; a thinned
picture of each (some thousand samples) tells changes of scene at the borders and cameras that stand still.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from prep.findings import Finding, found
from prep.layouts.lerobot_facts import THRESHOLDS, Facts, Needed
from prep.rules import applied

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prep.media import VideoFacts

__all__ = ["Video", "check_alike", "check_file"]

_SAMPLES: Final = 64
"""Samples a side of the thinned picture."""
_CODECS: Final[Mapping[str, str]] = {
    "libsvtav1": "av1",
    "libaom-av1": "av1",
    "libdav1d": "av1",
    "libx264": "h264",
    "avc1": "h264",
    "h265": "hevc",
    "libx265": "hevc",
}


@dataclass(frozen=True, slots=True)
class Video:
    """One file of a camera: what it is, whose episodes it holds, and the steps between its frames.

    `steps` [frames]: mean difference in grey levels of each frame to the one before, 0 for the
    first; None unless every frame was decoded.
    """

    facts: Facts
    item: Needed
    probe: VideoFacts
    steps: NDArray[np.float64] | None = None

    @property
    def feature(self) -> Mapping[str, Any]:
        """What the dataset declares of the camera."""
        return self.facts.root.features[self.item.camera]

    def declared(self, key: str) -> Any:
        """A statement in the feature's `info`, such as `video.codec`."""
        info = self.feature.get("info") or self.feature.get("video_info")
        return info.get(key) if isinstance(info, dict) else None

    @property
    def frames_promised(self) -> int | None:
        """The frames of all its episodes."""
        lengths = self.facts.lengths
        return None if lengths is None else int(lengths[self.item.episodes].sum())

    def borders(self) -> list[Border]:
        """The windows in the order of time, without those beside the place that the lengths give.

        What those are is told by LER059 and LER060 already.
        """
        windows, lengths, fps = self.facts.windows(self.item.camera), self.facts.lengths, self.facts.fps
        if lengths is None or fps is None:
            return []
        order = self.item.episodes
        if windows is not None:
            order = order[np.argsort(windows[0][order], kind="stable")]
        starts = np.cumsum(lengths[order]) - lengths[order]
        placed = starts if windows is None else windows[0][order] * fps
        return [
            Border(self.facts.episode(position), start, frames)
            for position, start, frames, place in zip(
                order.tolist(), starts.tolist(), lengths[order].tolist(), placed.tolist(), strict=True
            )
            if abs(place - start) <= THRESHOLDS["window_tolerance_frames"]
        ]


class Border(NamedTuple):
    """An episode's place in its file: its name, first frame and number of frames."""

    name: str
    frame: int
    frames: int


def check_file(
    facts: Facts, item: Needed, level: Literal["standard", "deep"]
) -> tuple[VideoFacts | None, list[Finding]]:
    """What one video file is, and its findings; those of the file itself have the codes of `prep.media`."""
    from prep.media import check_video

    probe, findings = check_video(facts.root.path / item.path, level=level)
    own = [replace(finding, path=item.path) for finding in findings]
    if probe is None or any(finding.code in ("VID009", "VID011") for finding in own):
        return None, own
    steps = _steps(facts.root.path / item.path) if level == "deep" else None
    rules = RULES if steps is None else (*RULES, *DEEP_RULES)
    return probe, own + applied(rules, Video(facts, item, probe, steps), item.path)


def check_alike(facts: Facts, item: Needed, probe: VideoFacts, first: VideoFacts) -> Iterator[Finding]:
    """LER057 and LER058: a camera's files among themselves, where the dataset declares nothing."""
    video = Video(facts, item, probe)
    if probe.codec != first.codec and video.declared("video.codec") is None:
        message = f"{probe.codec}; the first file of {item.camera} is {first.codec}"
        yield found("LER058", item.path, message, place=item.camera)
    sizes = (probe.width, probe.height), (first.width, first.height)
    if sizes[0] != sizes[1] and not isinstance(video.feature.get("shape"), list):
        message = "{}x{} pixels; the first file of {} has {}x{}".format(*sizes[0], item.camera, *sizes[1])
        yield found("LER057", item.path, message, place=item.camera)


def _steps(path: Path) -> NDArray[np.float64]:
    """The mean difference of each frame of a video to the one before, in grey levels."""
    import av

    steps: list[float] = []
    before: NDArray[np.int16] | None = None
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            picture = _thinned(frame)
            steps.append(0.0 if before is None else float(np.abs(picture - before).mean()))
            before = picture
    return np.array(steps)


def _thinned(frame: Any) -> NDArray[np.int16]:
    plane = frame.planes[0] if frame.format.is_planar else frame.reformat(format="gray").planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: frame.height, : frame.width]
    return rows[:: max(1, frame.height // _SAMPLES), :: max(1, frame.width // _SAMPLES)].astype(np.int16)


# --- the file against what is declared ---------------------------------------------------


def check_rate(video: Video) -> Iterator[Finding]:
    """LER056: the container's frame rate is the dataset's."""
    fps, rate = video.facts.fps, video.probe.average_rate
    if fps is None or not rate:
        return
    if not math.isclose(float(rate), fps, rel_tol=5e-3):
        message = f"{float(rate):.3f} frames a second; the dataset states {fps:g}"
        yield found("LER056", video.item.path, message, place=video.item.camera)


def check_size(video: Video) -> Iterator[Finding]:
    """LER057: the picture's size is the declared one."""
    shape = video.feature.get("shape")
    if not isinstance(shape, list) or len(shape) != 3:
        return  # LER005, LER006
    width, height = video.probe.width, video.probe.height
    # The shape may be height, width, channels or channels, height, width.
    if shape[:2] != [height, width] and shape[1:] != [height, width]:
        message = f"{width}x{height} pixels; the declared shape is {shape}"
        yield found("LER057", video.item.path, message, place=video.item.camera)


def check_codec(video: Video) -> Iterator[Finding]:
    """LER058: codec and pixel format are the declared ones."""
    for key, actual in (("video.codec", video.probe.codec), ("video.pix_fmt", video.probe.pixel_format)):
        stated = video.declared(key)
        if not isinstance(stated, str) or not actual:
            continue
        if _CODECS.get(actual, actual) != _CODECS.get(stated.lower(), stated.lower()):
            message = f"{key} is {stated} as declared and {actual} in the file"
            yield found("LER058", video.item.path, message, place=video.item.camera)


def check_frames(video: Video) -> Iterator[Finding]:
    """LER061 and LER062: the file has the frames of its episodes, and no window goes past its end."""
    promised, stated = video.frames_promised, video.probe.frames
    held = len(video.steps) if video.steps is not None else stated
    if promised is not None and held is not None and promised != held:
        message = f"{held} frames; its {len(video.item.episodes)} episodes have {promised}"
        yield found("LER062", video.item.path, message, place=video.item.camera)
        return
    duration, fps = video.probe.duration, video.facts.fps
    # At another rate the file is of another length, which LER056 says.
    if duration is None or fps is None or list(check_rate(video)):
        return
    for border in video.borders()[-1:]:
        last = border.frame + border.frames
        if last > (duration + video.probe.start) * fps + THRESHOLDS["window_tolerance_frames"]:
            message = (
                f"the window of {border.name} ends at {last / fps:.4f} s; the file is {duration:.4f} s long"
            )
            yield found("LER061", video.item.path, message, place=border.name)


# --- pictures ----------------------------------------------------------------------------


def check_borders(video: Video) -> Iterator[Finding]:
    """LER063: the scene changes where one window ends and the next begins, not some frames beside it."""
    if video.steps is None or len(video.steps) != video.frames_promised:
        return  # LER062: where a frame is lost, all borders behind it are beside their places
    for border in video.borders():
        beside = _change_beside(video.steps, border.frame)
        if beside:
            count, side = abs(beside), "early" if beside > 0 else "late"
            message = (
                f"the window of {border.name} begins at frame {border.frame}, and the scene changes at frame"
            )
            message += f" {border.frame + beside}: {count} frame{'s' if count > 1 else ''} too {side}"
            yield found("LER063", video.item.path, message, place=border.name)


def _change_beside(steps: NDArray[np.float64], border: int) -> int:
    """How many frames behind the border the one sharp change of scene near it is; 0 for at it, or none."""
    reach = int(THRESHOLDS["border_frames"])
    first, end = max(border - reach, 1), min(border + reach + 1, len(steps))
    if border < 1 or end - first < reach + 1 or border >= end:
        return 0
    near = steps[first:end]
    at = int(np.argmax(near))
    others = np.concatenate([steps[max(first - reach, 1) : first + at], steps[first + at + 1 : end + reach]])
    sharp = near[at] >= THRESHOLDS["cut_grey_levels"] and near[at] >= THRESHOLDS["cut_ratio"] * others.max(
        initial=0.0
    )
    return first + at - border if sharp else 0


def check_frozen(video: Video) -> Iterator[Finding]:
    """LER064: one picture for a large part of an episode."""
    fps = video.facts.fps
    if video.steps is None or fps is None:
        return
    for border in video.borders():
        steps = video.steps[border.frame + 1 : border.frame + border.frames]
        frames = _longest_run(steps <= THRESHOLDS["still_grey_levels"]) + 1
        if (
            frames >= THRESHOLDS["frozen_seconds"] * fps
            and frames >= THRESHOLDS["frozen_share"] * border.frames
        ):
            message = f"one picture for {frames} of the {border.frames} frames of {border.name}"
            yield found("LER064", video.item.path, message, place=f"{border.name}, {video.item.camera}")


def _longest_run(flags: NDArray[np.bool_]) -> int:
    if not flags.any():
        return 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max())


Rule = Callable[[Video], Iterator[Finding]]
RULES: Final[Sequence[Rule]] = (check_rate, check_size, check_codec, check_frames)
DEEP_RULES: Final[Sequence[Rule]] = (check_borders, check_frozen)
