"""SFT records from folders of captions and videos, and from a curator's clip lists."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prep.clip_header import ClipHeader, read_header
from prep.container import check_structure
from prep.errors import FetchError, PrepError, UsageError
from prep.files import sha256_of
from prep.findings import Finding, found
from prep.layouts.sft_jsonl import VIDEO_ENDINGS
from prep.layouts.sft_windows import CAPTION_JSON, Loader
from prep.pool import map_threads
from prep.stages.sft_plan import Clip, Locate, Plan

__all__ = ["captions_plan", "local_facts", "located_in", "probed", "shards"]

_TEXT: Final = "caption.txt"
_OBJECT: Final = "caption.json"


def captions_plan(
    captions: Path,
    videos: Path,
    loader: Loader,
    *,
    limit: int | None,
    jobs: int,
    cancel: threading.Event | None = None,
    facts_only: bool = False,
) -> Plan:
    """The clips of `captions/<clip>/caption.{json,txt}` with `videos/<clip>.<ending>`, by name.

    A folder of a video's name without a caption is one of them, to be counted as dropped. Where no
    folder has a caption, `captions/<clip>.{json,txt}` are taken, if their video is there.

    Each becomes one record of one window over the whole clip, with both forms of its caption. With
    `facts_only` no video is opened, and only the source's facts are of use.
    Raises UsageError where there is no caption at all.
    """
    captioned = _captioned(captions, videos)[:limit]
    findings: list[Finding] = []
    clips = [_clip(row, texts, videos, findings) for row, texts in enumerate(captioned, 1)]
    by_row = {clip.row: clip for clip in clips}
    wanted = [clip.row for clip in clips if not (clip.reason or facts_only)]
    for row, header in map_threads(
        lambda row: probed(videos / by_row[row].source), wanted, jobs=jobs, cancel=cancel
    ):
        _finish(by_row[row], header, loader)
    files = [path for texts in captioned for path in (texts.structured, texts.dense) if path.is_file()]
    used = [videos / clip.source for clip in clips if clip.source]
    facts = local_facts("captions", captions, files, [(path.name, path.stat().st_size) for path in used])
    return Plan("captions", clips, [facts], located_in(videos), findings=findings, summary={})


@dataclass(frozen=True, slots=True)
class _Texts:
    """A clip's name, and where its captions stand if it has them; `told` is what messages call them."""

    name: str
    dense: Path
    structured: Path
    told: str


def _captioned(captions: Path, videos: Path) -> list[_Texts]:
    for folder, what in ((captions, "captions"), (videos, "videos")):
        if not folder.is_dir():
            raise UsageError(
                f"{folder} is not a directory.", remedy=f"Give the folder of {what} to --{_OPTION[what]}."
            )
    folders = sorted(path for path in captions.iterdir() if path.is_dir())
    told = {path.name for path in folders if (path / _TEXT).exists() or (path / _OBJECT).exists()}
    found = [path for path in folders if path.name in told or _video(videos, path.name)] if told else []
    texts = [_Texts(path.name, path / _TEXT, path / _OBJECT, f"{path.name}/{_OBJECT}") for path in found]
    texts = texts or [
        _Texts(name, captions / f"{name}.txt", captions / f"{name}.json", f"{name}.json")
        for name in sorted({path.stem for path in captions.iterdir() if path.suffix in (".txt", ".json")})
        if _video(videos, name)
    ]
    if not texts:
        raise UsageError(
            f"{captions} holds no <clip>/{_TEXT} and no <clip>/{_OBJECT}, and no <clip>.txt of a video.",
            remedy="Give the folder that holds one folder, or one text, a clip.",
        )
    return texts


def _video(videos: Path, name: str) -> str:
    """The file name of a clip's video, by upstream's order of endings; empty where there is none."""
    return next((f"{name}{ending}" for ending in VIDEO_ENDINGS if (videos / f"{name}{ending}").exists()), "")


_OPTION: Final = {"captions": "from-captions", "videos": "videos"}


def _clip(row: int, texts: _Texts, videos: Path, findings: list[Finding]) -> Clip:
    """The clip with its captions and its video; upstream's order of reasons."""
    name = texts.name
    clip = Clip(row, name, "train")
    try:
        dense = _text(texts.dense)
        structured, fault = _object(texts.structured)
    except UnicodeDecodeError as error:
        return clip.drop("bad_bytes", f"{name}: a caption is not UTF-8 at byte {error.start}")
    if fault:
        findings.append(found("SFT016", f"captions/{texts.told}", fault))
    if not dense and structured is not None:
        spoken = structured.get("temporal_caption", "")
        dense = "" if spoken is None else str(spoken).strip()
    if not dense and structured is None:
        return clip.drop("empty_caption", f"{name}: neither {_TEXT} nor {_OBJECT} holds a caption")
    video = _video(videos, name)
    if not video:
        return clip.drop("missing_video", f"{name}: no {name}{{{','.join(VIDEO_ENDINGS)}}} among the videos")
    clip.source, clip.media = video, f"videos/{video}"
    window: dict[str, Any] = {"start_frame": 0, "end_frame": 0, "temporal_interval": 1}
    if structured is not None:
        window[CAPTION_JSON] = structured
    if dense:
        window["caption"] = dense
    clip.record = {"t2w_windows": [window]}
    return clip


def _text(path: Path) -> str:
    # A byte order mark is borne in sources.
    return path.read_bytes().decode("utf-8-sig").strip() if path.is_file() else ""


def _object(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The structured caption, or why there is none to be used."""
    if not path.is_file():
        return None, ""
    try:
        value = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (json.JSONDecodeError, RecursionError) as error:
        return None, f"not valid JSON ({error}); the dense text is used"
    if not isinstance(value, dict) or not value:
        return None, "no JSON object with content; the dense text is used"
    return value, ""


def probed(path: Path) -> ClipHeader | str:
    """The header of a video, or in words why there is none; its structure is looked at first."""
    for finding in check_structure(path):
        if finding.severity == "error":
            return f"{finding.code}: {finding.message}"
    try:
        return read_header(path)
    except PrepError as error:
        return error.message


def _finish(clip: Clip, header: ClipHeader | str, loader: Loader) -> None:
    """Complete the record with what the video states, or drop it by upstream's rules."""
    if isinstance(header, str):
        clip.drop("ffprobe_error", header)
        return
    clip.header = header
    frames, edge = header.builder_frames, min(header.width, header.height)
    fewest = max(loader.min_window_frames, loader.num_video_frames)
    if header.duration > loader.max_duration:
        clip.drop("duration_too_long", f"{header.duration:.1f} s > {loader.max_duration:g} s")
    elif frames < fewest:
        clip.drop("too_few_frames", f"{frames} frames < {fewest}")
    elif edge < loader.min_short_edge:
        clip.drop("short_edge_too_small", f"{edge} pixels < {loader.min_short_edge}")
    window = clip.record["t2w_windows"][0]
    window["end_frame"] = frames - 1
    clip.record = {
        "uuid": clip.uuid,
        "duration": header.duration,
        "width": header.width,
        "height": header.height,
        "vision_path": clip.media,
        "t2w_windows": [window],
    }


def local_facts(name: str, base: Path, files: list[Path], media: list[tuple[str, int]]) -> dict[str, Any]:
    """The fact of a source that is many files: one digest over their names and bytes, media by size."""
    digest, size = hashlib.sha256(), 0
    for path in files:
        size += path.stat().st_size
        digest.update(
            f"{path.relative_to(base).as_posix()}\0{sha256_of(path)}\n".encode("utf-8", "surrogateescape")
        )
    for relative, length in media:
        digest.update(f"{relative}\0{length}\n".encode("utf-8", "surrogateescape"))
    return {"kind": "local", "file": name, "size": size, "sha256": digest.hexdigest()}


def located_in(folder: Path) -> Locate:
    """Finds the file of a name in a folder, or of an absolute path."""

    def locate(name: str) -> Path:
        path = folder / name
        if not path.is_file():
            raise FetchError("missing_video", f"{name} is not there.", transient=False)
        return path

    return locate


def shards(folder: Path) -> Iterator[Path]:
    """The clip lists of a curator's output: below `metas_jsonl/v0`, or in the folder itself."""
    nested = folder / "metas_jsonl" / "v0"
    base = nested if nested.is_dir() else folder
    if base.is_dir():
        yield from sorted(path for path in base.iterdir() if path.name.endswith(".jsonl"))
