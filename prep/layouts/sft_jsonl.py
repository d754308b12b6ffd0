"""The SFT JSONL layout: where files stand, and how the lines of a JSONL are written and read."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

__all__ = [
    "DAMAGED_GZIP",
    "EXTRA_FOLDERS",
    "LINES",
    "SPLITS",
    "SUMMARY",
    "VIDEO_ENDINGS",
    "Line",
    "find_lines",
    "is_media",
    "line_at",
    "parsed",
    "read_lines",
    "record_line",
    "resolved",
]

LINES: Final = "video_dataset_file.jsonl"
SUMMARY: Final = f"{LINES}.summary.json"
SPLITS: Final = ("train", "val")
VIDEO_ENDINGS: Final = (".mp4", ".mov", ".avi", ".mkv", ".webm")
"""In the order in which a clip's video is looked for."""
EXTRA_FOLDERS: Final = ("captions", "images", "videos_5frames")
"""What may stand beside a split's JSONL; folders of prompts begin with `inference_prompt`."""
_PICTURES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `number` from 1, `offset` of its first byte in the unpacked text, `data` without its end."""

    number: int
    offset: int
    data: bytes


def find_lines(folder: Path) -> dict[str, Path]:
    """The JSONL of each split in a dataset's directory, packed or not; empty where there is none."""
    found = {}
    for split in SPLITS:
        for name in (LINES, f"{LINES}.gz"):
            if (folder / split / name).is_file():
                found[split] = folder / split / name
                break
    return found


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a JSONL, a gzipped one too, in bounded memory.

    A line ends at LF alone, as upstream reads it. Raises OSError; a damaged gzip file raises
    gzip.BadGzipFile, EOFError or zlib.error.
    """
    number = offset = 0
    with _opened(path) as file:
        for data in file:
            number += 1
            yield Line(number, offset, data.rstrip(b"\n"))
            offset += len(data)


def line_at(file: BinaryIO, offset: int) -> bytes:
    """The line that begins at `offset` of an opened JSONL."""
    file.seek(offset)
    return file.readline()


def _opened(path: Path) -> BinaryIO:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb", buffering=_BLOCK)


DAMAGED_GZIP: Final = (gzip.BadGzipFile, EOFError, zlib.error)


def record_line(record: Mapping[str, Any]) -> bytes:
    """A record as a line, with its newline: letters as they are, a space after each comma and colon."""
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def parsed(data: bytes) -> Any:
    """A line's record, fast where orjson reads it; raises ValueError as Python's parser does."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8"))


def resolved(split: str, vision_path: str) -> str | None:
    """A record's media as a path below the dataset's directory, not normal; None for a URI or absolute."""
    return None if "://" in vision_path or vision_path.startswith("/") else f"{split}/{vision_path}"


def is_media(relative: str) -> bool:
    """Whether a path of a dataset is that of a video or an image."""
    return relative.lower().endswith((*VIDEO_ENDINGS, *_PICTURES))
