"""One sample as a person wants to see it: its text, its fields, and a contact sheet of its frames."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from prep.errors import UsageError
from prep.files import disk_errors
from prep.readers import open as open_reader
from prep.readers.conversations import ConversationsReader

__all__ = ["contact_sheet", "sample_text", "show"]

_COLUMNS = 8
_WIDTH = 160  # pixels of one frame on the sheet


def show(directory: str | Path, index: int, *, png: Path | None = None) -> str:
    """The sample at `index` of a prepared dataset as text; `png` gets its frames as one picture.

    Raises UsageError for a directory without a dataset, an index outside it, and a `png` that is no PNG.
    """
    reader = open_reader(directory)
    if not isinstance(reader, ConversationsReader):
        raise UsageError(f"{directory}: datasets of this kind cannot be shown yet.")
    if index >= len(reader):
        last = f"The last index is {len(reader) - 1}." if len(reader) else "It has no samples."
        raise UsageError(f"{directory} has no sample {index}.", remedy=last)
    text = sample_text(reader, index)
    if png is None:
        return text
    if png.suffix.lower() != ".png":
        raise UsageError(f"{png} is no name of a PNG file.", remedy="Let the name end with .png.")
    count = contact_sheet(reader, index, png)
    return f"{text}\nframes that training takes: {count}, in {png}"


def sample_text(reader: ConversationsReader, index: int) -> str:
    """The sample's id, media and turns, as text."""
    sample = reader[index]
    lines = [f"sample {index} of 0 to {len(reader) - 1}: {sample['id']}"]
    lines.extend(f"{key}: {len(data)} bytes, {sample['path']}" for key, data in sample["media"].items())
    for turn in sample["texts"]:
        lines.extend(f"{turn['role']}: {_block_text(block)}" for block in _blocks(turn["content"]))
    return "\n".join(lines)


def _blocks(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": str(content)}]


def _block_text(block: dict[str, Any]) -> str:
    kind = str(block["type"])
    return str(block["text"]).strip() if kind == "text" else f"<{kind} {block[kind]}>"


def contact_sheet(reader: ConversationsReader, index: int, path: Path) -> int:
    """Write the frames that training takes, row by row, as one picture; returns how many there are."""
    from PIL import Image

    frames, _, _ = reader.frames(index)
    height = max(1, round(_WIDTH * frames.shape[1] / frames.shape[2]))
    rows = math.ceil(len(frames) / _COLUMNS)
    sheet = Image.new("RGB", (min(len(frames), _COLUMNS) * _WIDTH, rows * height))
    for place, frame in enumerate(frames):
        picture = Image.fromarray(frame).resize((_WIDTH, height))
        sheet.paste(picture, (place % _COLUMNS * _WIDTH, place // _COLUMNS * height))
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(path)
    return len(frames)
