"""How much of a JSONL training will keep: records, windows, captions, frames, hours; drops by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prep.clip_header import ClipHeader
from prep.layouts.sft_windows import (
    Loader,
    UnusableCaptionError,
    caption_key,
    caption_text,
    choose_frames,
    kept_windows,
    record_drop,
)

__all__ = ["Consumption", "TokenCount"]

TokenCount = Callable[[str], int]


@dataclass(slots=True)
class Consumption:
    """Counts over the records of one split; memory does not grow with them.

    A record is one sample a pass. `frames` are those that a pass over every kept window decodes,
    `seconds` the time that those windows cover.
    """

    loader: Loader
    tokens: TokenCount | None = None
    records: int = 0
    windows: int = 0
    kept: int = 0
    kept_windows: int = 0
    frames: int = 0
    seconds: float = 0.0
    over_limit: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_windows: Counter[str] = field(default_factory=Counter)
    captions: Counter[str] = field(default_factory=Counter)

    def take(self, record: Mapping[str, Any], header: ClipHeader | None = None) -> None:
        """Count a record that obeys its schema; `header` tells what its file really holds."""
        windows = record.get("t2w_windows") or []
        self.records += 1
        self.windows += len(windows)
        reason = record_drop(record, self.loader)
        if reason:
            self.dropped[reason] += 1
            self.dropped_windows[reason] += len(windows)
            return
        long_enough = [window for _, window in kept_windows(record, self.loader)]
        self.dropped_windows["window_too_short"] += len(windows) - len(long_enough)
        total, rate = _media(record, header, long_enough)
        kept = [self._window(window, total, rate) for window in long_enough]
        if any(kept):
            self.kept += 1
        else:
            self.dropped["no_valid_window"] += 1

    def take_usual(self, record: Mapping[str, Any], key: str) -> None:
        """Count a record of one window, in which nothing is to be dropped; `key` is its caption's."""
        window, loader = record["t2w_windows"][0], self.loader
        start, end, interval = window["start_frame"], window["end_frame"], window["temporal_interval"]
        total = record.get("nb_frames") or end + 1
        if loader.num_video_frames > 0 or self.tokens is not None or total <= end:
            self.take(record)
            return
        self.records += 1
        self.windows += 1
        self.kept += 1
        self.kept_windows += 1
        self.captions[key] += 1
        step = loader.temporal_compression
        self.frames += (end - start) // interval // step * step + 1
        rate = record.get("framerate") or total / record["duration"]
        self.seconds += (end - start + 1) / rate

    def _window(self, window: Mapping[str, Any], total: int, rate: float) -> bool:
        try:
            key = caption_key(window)
            text = "" if key is None else caption_text(key, window[key])
        except UnusableCaptionError:
            self.dropped_windows["unusable_caption"] += 1
            return False
        if key is None:
            self.dropped_windows["no_caption"] += 1
            return False
        frames = choose_frames(window, total, self.loader, rate)
        if frames is None:
            self.dropped_windows["no_frame_count" if total == 0 else "too_few_frames"] += 1
            return False
        self.kept_windows += 1
        self.captions[key] += 1
        self.frames += frames.count
        self.seconds += (frames.end - frames.start + 1) / rate if rate else 0.0
        if self.tokens is not None and self.tokens(text) > self.loader.max_caption_tokens:
            self.over_limit += 1
        return True

    def as_dict(self) -> dict[str, Any]:
        """The counts, as a manifest keeps them; hours to a thousandth."""
        document: dict[str, Any] = {
            "records": self.records,
            "records_kept": self.kept,
            "records_dropped": _positive(self.dropped),
            "windows": self.windows,
            "windows_kept": self.kept_windows,
            "windows_dropped": _positive(self.dropped_windows),
            "captions": _positive(self.captions),
            "frames": self.frames,
            "hours": round(self.seconds / 3600, 3),
        }
        if self.tokens is not None:
            document["captions_over_limit"] = self.over_limit
            document["max_caption_tokens"] = self.loader.max_caption_tokens
        return document


def _positive(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}


def _media(
    record: Mapping[str, Any], header: ClipHeader | None, windows: list[Mapping[str, Any]]
) -> tuple[int, float]:
    """Frames and rate: the file's, else what the record states or its windows reach to."""
    if header is not None:
        return header.loader_frames, header.rate
    longest = max((window["end_frame"] + 1 for window in windows), default=0)
    total = record.get("nb_frames") or longest
    rate = record.get("framerate") or (total / record["duration"] if record["duration"] else 0.0)
    return total, float(rate)
