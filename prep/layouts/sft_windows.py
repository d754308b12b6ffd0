"""What upstream's SFT loader does with a record: which windows it keeps, which text and frames it takes.

Source: contracts, section 1 (upstream's `sft_dataset.py` at the locked commit). Nothing here opens a file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

__all__ = [
    "CAPTION_JSON",
    "CAPTION_KEYS",
    "DRAWN",
    "Frames",
    "Loader",
    "Scaling",
    "UnusableCaptionError",
    "aspect_bucket",
    "caption_fault",
    "caption_key",
    "caption_text",
    "choose_frames",
    "kept_windows",
    "record_drop",
    "scaling",
]

CAPTION_JSON: Final = "caption_json"
_FIRST: Final = (CAPTION_JSON, "qwen3_32b_rewrite-dense", "caption")
_STYLES: Final = {"short": 0.1, "descriptive": 0.2, "dense": 0.7, "temporal": 0.0}
DRAWN: Final[Mapping[str, float]] = {
    f"{model}_{style}": weight
    for style, weight in _STYLES.items()
    for model in ("qwen3_235b", "qwen3_32b", "qwen3p5_397b")
}
"""Captions of which one is drawn by weight, in the order in which upstream draws."""
CAPTION_KEYS: Final = (*_FIRST, *DRAWN)

_BUCKETS: Final = ("1,1", "4,3", "3,4", "16,9", "9,16")
_SIZES: Final = {
    "256": ((256, 256), (320, 256), (256, 320), (320, 192), (192, 320)),
    "480": ((640, 640), (736, 544), (544, 736), (832, 480), (480, 832)),
    "704": ((960, 960), (1088, 832), (832, 1088), (1280, 704), (704, 1280)),
    "720": ((960, 960), (1104, 832), (832, 1104), (1280, 720), (720, 1280)),
}
TIERS: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    tier: dict(zip(_BUCKETS, sizes, strict=True)) for tier, sizes in _SIZES.items()
}
"""Target width and height in pixels by tier and aspect bucket."""

IntervalMode = Literal["force_one", "max_30fps", "entire_chunk"]
Selection = Literal["center", "first", "random"]


@dataclass(frozen=True, slots=True)
class Loader:
    """The loader's settings, as a recipe states them under `[loader]`.

    `num_video_frames` -1 takes a window's own start, end and interval. `max_duration` is in
    seconds, `min_short_edge` in pixels. A cut clip has a multiple of `temporal_compression` frames
    and one.
    """

    num_video_frames: int = -1
    temporal_interval_mode: IntervalMode = "entire_chunk"
    frame_selection_mode: Selection = "center"
    min_short_edge: int = 0
    max_duration: float = 61.0
    min_window_frames: int = 61
    resolution: str = "256"
    max_caption_tokens: int = 1024
    temporal_compression: int = 4

    @classmethod
    def of(cls, document: Mapping[str, Any], request: Mapping[str, Any] | None = None) -> Loader:
        """The settings of a recipe, with what a run asked for in place of them."""
        known = {item.name for item in fields(cls)}
        asked = {
            name: value for name, value in (request or {}).items() if name in known and value is not None
        }
        return cls(**{**document.get("loader", {}), **asked})


def record_drop(record: Mapping[str, Any], loader: Loader) -> str:
    """Why the loader drops a whole record, as a stable reason; empty if it does not."""
    if record["duration"] > loader.max_duration:
        return "duration_too_long"
    if loader.min_short_edge > 0 and min(record["width"], record["height"]) < loader.min_short_edge:
        return "short_edge_too_small"
    return "" if record.get("t2w_windows") else "no_windows"


def kept_windows(record: Mapping[str, Any], loader: Loader) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The windows that pass the length filter, each with its position in the record."""
    for place, window in enumerate(record["t2w_windows"]):
        if window["end_frame"] - window["start_frame"] + 1 >= loader.min_window_frames:
            yield place, window


# --- captions ----------------------------------------------------------------------------


class UnusableCaptionError(ValueError):
    """A caption with which the loader stops, or trains on a text that nobody meant."""


def caption_key(window: Mapping[str, Any], draw: random.Random | None = None) -> str | None:
    """The key whose text is trained on: by presence, then drawn; None where the window has none.

    Without `draw` the heaviest of several drawn keys stands for them. Raises UnusableCaptionError
    where only keys of weight 0 are there, at which upstream's draw fails.
    """
    for key in _FIRST:
        if key in window:
            return key
    there = [key for key in DRAWN if key in window]
    if not there:
        return None
    if not any(DRAWN[key] for key in there):
        raise UnusableCaptionError(f"only {', '.join(there)}, which are never drawn")
    if draw is None:
        return max(there, key=DRAWN.__getitem__)
    # Upstream's order of keys: by style, then model. The draw itself depends on its random state.
    return draw.choices(there, weights=[DRAWN[key] for key in there], k=1)[0]


def caption_text(key: str, value: Any) -> str:
    """The text that is trained on, before the sentences on duration and resolution.

    An object becomes JSON with letters as they are; prose ends in exactly one dot. Raises
    UnusableCaptionError for another type under a prose key.
    """
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if key == CAPTION_JSON:
        return str(value).strip()
    if not isinstance(value, str):
        raise UnusableCaptionError(f"{key} is {_shown(value)}, no text")
    return value.strip().rstrip(".") + "."


def caption_fault(key: str, value: Any) -> str:
    """What is wrong with a caption, in words; empty for one that can be trained on."""
    if value is None:
        ends = "the text 'None' is trained on" if key == CAPTION_JSON else "the loader stops"
        return f"{key} is null: {ends}"
    if isinstance(value, dict):
        return "" if value else f"{key} is an empty object"
    if not isinstance(value, str):
        ends = "its Python form is trained on" if key == CAPTION_JSON else "the loader stops"
        return f"{key} is {_shown(value)}, neither a text nor an object: {ends}"
    if not value.strip().rstrip("."):
        return f"{key} is empty" + ("" if key == CAPTION_JSON else ": the text '.' is trained on")
    return ""


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


# --- frames ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of a window, 0-based: every `interval`-th from `start` to `end`, cut to `count`."""

    start: int
    end: int
    interval: int
    count: int

    @property
    def indices(self) -> list[int]:
        """The indices themselves."""
        return [self.start + place * self.interval for place in range(self.count)]


def choose_frames(
    window: Mapping[str, Any],
    total: int,
    loader: Loader,
    rate: float,
    draw: random.Random | None = None,
) -> Frames | None:
    """Which frames the loader takes of a window in a file of `total` frames at `rate` a second.

    None where it skips the sample: no frame is left, or fewer than `num_video_frames`.
    """
    start, end = window["start_frame"], min(window["end_frame"], total - 1)
    interval, there = window.get("temporal_interval", 1), end - start + 1
    wanted = loader.num_video_frames
    if wanted > 0:
        if there < wanted:
            return None
        interval = _interval(loader.temporal_interval_mode, there, wanted, rate)
        span = (wanted - 1) * interval + 1
        start += _offset(loader.frame_selection_mode, there - span, draw)
        end = start + span - 1
    first, last = max(start, 0), min(end, total - 1)
    # Before the file's first frame upstream finds nothing, and goes on with the rest of the pattern.
    first += (start - first) % interval if interval > 0 else 0
    if interval < 1 or last < first:
        return None
    count = (last - first) // interval + 1
    step = loader.temporal_compression
    return Frames(first, last, interval, (count - 1) // step * step + 1)


def _interval(mode: IntervalMode, there: int, wanted: int, rate: float) -> int:
    if mode == "force_one":
        return 1
    return max(1, int(rate / 30.0) if mode == "max_30fps" else there // wanted)


def _offset(mode: Selection, spare: int, draw: random.Random | None) -> int:
    if mode == "first":
        return 0
    if mode == "center" or draw is None:
        return spare // 2
    return draw.randint(0, max(0, spare))


@dataclass(frozen=True, slots=True)
class Scaling:
    """Sizes in pixels: the picture is scaled to `width` x `height`, and a part of it is cut out."""

    width: int
    height: int
    left: int
    top: int
    target_width: int
    target_height: int


def aspect_bucket(width: int, height: int) -> str:
    """The bucket of an aspect ratio, as "W,H"."""
    ratio = width / height
    limits = ((0.65, "9,16"), (0.88, "3,4"), (1.16, "1,1"), (1.55, "4,3"))
    return next((name for limit, name in limits if ratio < limit), "16,9")


def scaling(width: int, height: int, resolution: str) -> Scaling:
    """How a picture of `width` x `height` pixels becomes one of the tier's sizes."""
    target_width, target_height = TIERS[resolution][aspect_bucket(width, height)]
    ratio = max(target_width / width, target_height / height)
    scaled_width, scaled_height = round(width * ratio), round(height * ratio)
    return Scaling(
        scaled_width,
        scaled_height,
        round((scaled_width - target_width) / 2),
        round((scaled_height - target_height) / 2),
        target_width,
        target_height,
    )
