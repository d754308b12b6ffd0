"""The rules on one record of an SFT JSONL: its windows, captions, and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import Any, Final

from prep.clip_header import ClipHeader
from prep.findings import Finding, found
from prep.layouts.sft_windows import (
    CAPTION_JSON,
    DRAWN,
    Loader,
    UnusableCaptionError,
    caption_fault,
    caption_key,
    record_drop,
)

__all__ = ["RULES", "THRESHOLDS", "Record", "against_file", "usual_caption"]

THRESHOLDS: Final[Mapping[str, float]] = {"duration_seconds": 0.2, "rate_share": 0.01, "caption_fps": 1.0}
"""SFT005: by how much a record's duration (or one and a half frames) and rate may differ from the
file's. SFT006: by how much a caption's whole-number fps may differ from the record's rate."""

_DROPS: Final = {
    "duration_too_long": "SFT007",
    "short_edge_too_small": "SFT010",
    "no_windows": "SFT011",
}


@dataclass(frozen=True, slots=True)
class Record:
    """A record that obeys its schema: `path` is that of its JSONL, `line` counts from 1."""

    data: Mapping[str, Any]
    path: str
    line: int
    loader: Loader

    @property
    def windows(self) -> Sequence[Mapping[str, Any]]:
        """Its windows; none where the key is absent."""
        return self.data.get("t2w_windows") or ()

    def place(self, window: int | None = None, key: str = "") -> str:
        """The place of a finding: the line, and the window and key in it."""
        pointer = f"/t2w_windows/{window}" if window is not None else ""
        return f"line {self.line} {pointer}{f'/{key}' if key else ''}".rstrip()

    def told(self, code: str, message: str, window: int | None = None, key: str = "") -> Finding:
        """A finding on this record."""
        return found(code, self.path, f"{self.data['uuid']}: {message}", place=self.place(window, key))


def dropped(record: Record) -> Iterator[Finding]:
    """SFT007, SFT010, SFT011: the loader leaves the whole record out."""
    reason = record_drop(record.data, record.loader)
    if not reason:
        return
    data, loader = record.data, record.loader
    messages = {
        "duration_too_long": f"{data['duration']:g} s; the loader takes up to {loader.max_duration:g} s",
        "short_edge_too_small": (
            f"short edge {min(data['width'], data['height'])}; the recipe takes {loader.min_short_edge}"
        ),
        "no_windows": "no t2w_windows",
    }
    yield record.told(_DROPS[reason], messages[reason])


def frames(record: Record) -> Iterator[Finding]:
    """SFT001, SFT008: frame numbers that cannot be, and windows that are too short."""
    loader = record.loader
    fewest = max(loader.min_window_frames, loader.num_video_frames)
    for place, window in enumerate(record.windows):
        start, end, interval = window["start_frame"], window["end_frame"], window["temporal_interval"]
        if start < 0 or end < start or interval < 1:
            message = (
                f"frames {start} to {end}, interval {interval}; expected 0 <= start <= end, interval >= 1"
            )
            yield record.told("SFT001", message, place)
        elif end - start + 1 < fewest:
            message = f"frames {start} to {end} are {end - start + 1}; the loader takes {fewest} or more"
            yield record.told("SFT008", message, place)


def overlaps(record: Record) -> Iterator[Finding]:
    """SFT003: two windows share frames."""
    if len(record.windows) < 2:
        return
    spans = sorted((item["start_frame"], item["end_frame"], at) for at, item in enumerate(record.windows))
    for (_, end, first), (start, _, second) in pairwise(spans):
        if start <= end:
            message = f"it begins at frame {start}, window {first} ends at frame {end}"
            yield record.told("SFT003", message, second)


def captions(record: Record) -> Iterator[Finding]:
    """SFT009, SFT012: the caption that training would take is none, or cannot be used."""
    for place, window in enumerate(record.windows):
        try:
            key = caption_key(window)
        except UnusableCaptionError as error:
            yield record.told("SFT012", str(error), place)
            continue
        if key is None:
            others = ", ".join(sorted(window.keys() - _FRAMES)) or "none"
            yield record.told("SFT009", f"no caption key that the loader knows; other keys: {others}", place)
            continue
        # Any key of the drawn ones may be taken; of the others only the first.
        for candidate in [name for name in DRAWN if name in window] if key in DRAWN else (key,):
            fault = caption_fault(candidate, window[candidate])
            if fault:
                yield record.told("SFT012", fault, place, candidate)


_FRAMES: Final = {"start_frame", "end_frame", "temporal_interval"}


def media_fields(record: Record) -> Iterator[Finding]:
    """SFT006: what the structured caption says of the clip, against the record."""
    for place, window in enumerate(record.windows):
        caption = window.get(CAPTION_JSON)
        if isinstance(caption, dict):
            for name, stated, expected in _media_differences(record.data, window, caption):
                message = f"{name} is {_shown(stated)}; the record gives {_shown(expected)}"
                yield record.told("SFT006", message, place, f"{CAPTION_JSON}/{name}")


def _media_differences(
    data: Mapping[str, Any], window: Mapping[str, Any], caption: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    width, height, duration = data["width"], data["height"], data["duration"]
    rate = _rate(data)
    divisor = gcd(width, height)
    resolution = {"H": height, "W": width}
    if "resolution" in caption and caption["resolution"] != resolution:
        yield "resolution", caption["resolution"], resolution
    ratio = f"{width // divisor},{height // divisor}"
    if "aspect_ratio" in caption and caption["aspect_ratio"] != ratio:
        yield "aspect_ratio", caption["aspect_ratio"], ratio
    seconds = [round(duration)]
    if rate:  # the caption of a part may state the part's own length
        seconds.append(round((window["end_frame"] - window["start_frame"] + 1) / rate))
    if "duration" in caption and caption["duration"] not in [f"{each}s" for each in seconds]:
        yield "duration", caption["duration"], f"{seconds[0]}s"
    fps = caption.get("fps")
    if fps is not None and rate and not _is_near(fps, rate, THRESHOLDS["caption_fps"]):
        yield "fps", fps, round(rate, 2)
    spoken, dense = caption.get("temporal_caption"), window.get("caption")
    if isinstance(spoken, str) and isinstance(dense, str) and spoken.strip() != dense.strip():
        yield "temporal_caption", spoken, dense


def _rate(data: Mapping[str, Any]) -> float | None:
    """Frames a second, as far as the record tells."""
    if data.get("framerate"):
        return float(data["framerate"])
    windows = data.get("t2w_windows") or ()
    whole = [item["end_frame"] + 1 for item in windows if item["start_frame"] == 0]
    frames = data.get("nb_frames") or (whole[0] if len(windows) == 1 and whole else None)
    return frames / data["duration"] if frames and data["duration"] else None


def _is_near(value: Any, expected: float, tolerance: float) -> bool:
    return isinstance(value, int | float) and abs(value - expected) <= tolerance


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:30]} … {text[-27:]}"


RULES: Final[tuple[Callable[[Record], Iterator[Finding]], ...]] = (
    dropped,
    frames,
    overlaps,
    captions,
    media_fields,
)


def usual_caption(data: Mapping[str, Any], loader: Loader) -> str | None:
    """The caption's key of a record on which no rule has a word; None where the rules must look.

    Most records are such: one window, sane figures, and a caption that agrees with them.
    """
    windows = data.get("t2w_windows")
    if windows is None or len(windows) != 1 or not 0 < data["duration"] <= loader.max_duration:
        return None
    window = windows[0]
    start, end = window["start_frame"], window["end_frame"]
    if start < 0 or end - start + 1 < max(loader.min_window_frames, loader.num_video_frames):
        return None
    if window["temporal_interval"] < 1 or min(data["width"], data["height"]) < loader.min_short_edge:
        return None
    if CAPTION_JSON in window:
        value = window[CAPTION_JSON]
        is_object = isinstance(value, dict) and bool(value)
        agrees = is_object and next(_media_differences(data, window, value), None) is None
        return CAPTION_JSON if agrees else None
    value = window.get("caption")
    is_text = isinstance(value, str) and bool(value.strip(" .\t\r\n"))
    return "caption" if is_text and "qwen3_32b_rewrite-dense" not in window else None


def against_file(record: Record, name: str, header: ClipHeader, rotation: int) -> Iterator[Finding]:
    """SFT002, SFT004, SFT005, SFT015, SFT018: the record against its file, whose path is `name`."""
    data = record.data
    stated, actual = (data["width"], data["height"]), (header.width, header.height)
    if stated != actual:
        message = f"{name} is {actual[0]}x{actual[1]}; the record says {stated[0]}x{stated[1]}"
        yield record.told("SFT004", message)
    if rotation % 360:
        message = f"{name} is to be turned by {rotation} degrees; the record says {stated[0]}x{stated[1]}"
        yield record.told("SFT018", message)
    yield from _figures(record, name, header)
    if not header.loader_frames:
        yield record.told("SFT015", f"{name} states neither a frame count nor a duration of its stream")
        return
    last = header.loader_frames - 1
    for place, window in enumerate(record.windows):
        if window["end_frame"] > last:
            message = f"it ends at frame {window['end_frame']}; the last of {name} is {last}"
            yield record.told("SFT002", message, place)


def _figures(record: Record, name: str, header: ClipHeader) -> Iterator[Finding]:
    data = record.data
    lengths = [header.duration, header.stream_duration or header.duration]
    lengths += [header.frames / header.average_rate] if header.frames else []
    allowed = max(THRESHOLDS["duration_seconds"], 1.5 / header.average_rate)
    if min(abs(data["duration"] - length) for length in lengths) > allowed:
        yield record.told("SFT005", f"duration {data['duration']:g} s; {name} lasts {header.duration:.3f} s")
    rate = data.get("framerate")
    rates = (header.average_rate, header.rate)
    if rate is not None and all(abs(rate - each) > THRESHOLDS["rate_share"] * each for each in rates):
        yield record.told("SFT005", f"framerate {rate:g}; {name} has {header.average_rate:.3f}")
    count = data.get("nb_frames")
    if count is not None and header.frames is not None and count != header.frames:
        yield record.told("SFT005", f"nb_frames {count}; {name} states {header.frames}")
