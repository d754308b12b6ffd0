"""SFT records from the clip lists of a Cosmos-Curator run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from prep.errors import FetchError, UsageError
from prep.layouts.sft_windows import Loader
from prep.stages.sft_captions import local_facts, shards
from prep.stages.sft_plan import Clip, Locate, Plan

__all__ = ["curator_plan", "window_caption"]

_CAPTION: Final = "_caption"
_ENHANCED: Final = "_enhanced_caption"
_SAFE: Final = re.compile(r"[^/\0]{1,200}")


def curator_plan(
    folder: Path, loader: Loader, *, caption_model: str | None, enhanced_model: str | None, limit: int | None
) -> Plan:
    """The clips of `metas_jsonl/v0/*.jsonl`, in order; raises UsageError where there are none."""
    files = list(shards(folder))
    if not files:
        raise UsageError(
            f"{folder} holds no metas_jsonl/v0/*.jsonl.",
            remedy="Run the curator's splitting with --upload-clip-info-in-chunks; give its output folder.",
        )
    clips: list[Clip] = []
    seen: set[str] = set()
    for path in files:
        for number, line in enumerate(
            path.read_bytes().decode("utf-8-sig", "surrogateescape").split("\n"), 1
        ):
            if not line.strip() or (limit is not None and len(clips) >= limit):
                continue
            clip = _clip(
                len(clips) + 1, line, f"{path.name} line {number}", loader, (caption_model, enhanced_model)
            )
            if not clip.reason and clip.uuid in seen:
                clip.drop("duplicate_uuid", f"{path.name} line {number}: {clip.uuid} is there already")
            seen.add(clip.uuid)
            clips.append(clip)
    base = files[0].parent
    facts = local_facts("metas_jsonl", base, files, [])
    summary = {
        "shards_read": len(files),
        "records_seen": len(clips),
        "caption_model": caption_model,
        "enhanced_caption_model": enhanced_model,
        "temporal_interval": 1,
    }
    return Plan("curator", clips, [facts], _located(folder), summary=summary)


def _clip(row: int, line: str, place: str, loader: Loader, models: tuple[str | None, str | None]) -> Clip:
    """One row as a clip, dropped for upstream's reasons in upstream's order."""
    try:
        record = json.loads(line)
        line.encode("utf-8")
    except (ValueError, RecursionError) as error:
        return Clip(row, "", "train").drop("malformed_json", f"{place}: {error}")
    if not isinstance(record, dict):
        return Clip(row, "", "train").drop("malformed_json", f"{place}: no JSON object")
    clip = Clip(row, str(record.get("span_uuid") or ""), "train")
    source = record.get("source_video")
    clip.group = str(source) if source else ""
    location = record.get("clip_location")
    if not clip.uuid or not location or not _SAFE.fullmatch(clip.uuid):
        return clip.drop("missing_identity", f"{place}: span_uuid or clip_location is missing or no name")
    duration = _duration(record)
    facts: list[Any] = [record.get(key) for key in ("width", "height", "num_frames", "framerate")]
    if duration is None or not all(_is_number(value) for value in facts):
        return clip.drop(
            "missing_clip_metadata", f"{place}: width, height, num_frames, framerate or duration is null"
        )
    width, height, frames, rate = facts
    if duration > loader.max_duration:
        return clip.drop("duration_too_long", f"{duration:.1f} s > {loader.max_duration:g} s")
    edge = min(int(width), int(height))
    if edge < loader.min_short_edge:
        return clip.drop("short_edge_too_small", f"{edge} pixels < {loader.min_short_edge}")
    windows = _windows(record.get("windows"), loader, models)
    if not windows:
        return clip.drop("no_valid_window", f"{place}: no window of enough frames has a caption")
    clip.source = str(location)
    if "://" not in clip.source:
        clip.media = f"videos/{clip.uuid}{os.path.splitext(clip.source)[1] or '.mp4'}"  # noqa: PTH122
    clip.record = {
        "uuid": clip.uuid,
        "duration": duration,
        "width": int(width),
        "height": int(height),
        "nb_frames": int(frames),
        "framerate": float(rate),
        "vision_path": clip.media or clip.source,
        "t2w_windows": windows,
    }
    return clip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _duration(record: Mapping[str, Any]) -> float | None:
    """Seconds: frames over rate, else the length of the span in its source."""
    frames, rate = record.get("num_frames"), record.get("framerate")
    if isinstance(frames, int) and isinstance(rate, int | float) and rate > 0:
        return float(frames) / float(rate)
    span = record.get("duration_span")
    if isinstance(span, list) and len(span) == 2 and all(map(_is_number, span)):
        return float(span[1]) - float(span[0])
    return None


def _windows(given: Any, loader: Loader, models: tuple[str | None, str | None]) -> list[dict[str, Any]]:
    kept = []
    for window in given if isinstance(given, list) else ():
        if not isinstance(window, dict):
            continue
        start, end = window.get("start_frame"), window.get("end_frame")
        if not isinstance(start, int) or not isinstance(end, int):
            continue
        caption = window_caption(window, *models)
        if end - start + 1 >= loader.min_window_frames and caption is not None:
            kept.append({"start_frame": start, "end_frame": end, "temporal_interval": 1, "caption": caption})
    return kept


def window_caption(
    window: Mapping[str, Any], caption_model: str | None = None, enhanced_model: str | None = None
) -> str | None:
    """The caption of a window: of the named enhanced model, of the named model, else the first there is.

    "First" is by key; enhanced captions come before others. None where all are empty.
    """
    named = [f"{enhanced_model}{_ENHANCED}"] * bool(enhanced_model) + [f"{caption_model}{_CAPTION}"] * bool(
        caption_model
    )
    enhanced = sorted(key for key in window if key.endswith(_ENHANCED))
    plain = sorted(key for key in window if key.endswith(_CAPTION) and not key.endswith(_ENHANCED))
    texts = (window.get(key) for key in (*named, *enhanced, *plain))
    return next((text.strip() for text in texts if isinstance(text, str) and text.strip()), None)


def _located(folder: Path) -> Locate:
    """Finds a clip where the curator put it, or below its output folder after that was moved."""

    def locate(name: str) -> Path:
        path = Path(name)
        tried = [
            path if path.is_absolute() else folder / path,
            folder / path.name,
            folder / "clips" / path.name,
        ]
        found = next((each for each in tried if each.is_file()), None)
        if found is None:
            raise FetchError("missing_video", f"{name} is not there.", transient=False)
        return found

    return locate
