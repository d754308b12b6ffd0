"""One sample as a person wants to see it: its text, its fields, and a contact sheet of its frames."""

from __future__ import annotations

import math
from pathlib import Path

from prep.readers.conversations import ConversationsReader

__all__ = ["contact_sheet", "sample_text"]

_COLUMNS = 8
_WIDTH = 160  # pixels of one frame on the sheet


def sample_text(reader: ConversationsReader, index: int) -> str:
    """The sample's id, media and turns, as text."""
    sample = reader[index]
    lines = [f"sample {index} of {len(reader)}: {sample['id']}"]
    lines.extend(f"{key}: {len(data)} bytes, {sample['path']}" for key, data in sample["media"].items())
    for turn in sample["texts"]:
        blocks = (
            turn["content"]
            if isinstance(turn["content"], list)
            else [{"type": "text", "text": turn["content"]}]
        )
        for block in blocks:
            shown = block["text"] if block["type"] == "text" else f"<{block['type']} {block[block['type']]}>"
            lines.append(f"{turn['role']}: {shown.strip()}")
    return "\n".join(lines)


def contact_sheet(reader: ConversationsReader, index: int, path: Path) -> int:
    """Write the frames that training takes, row by row, as one picture; returns how many there are."""
    from PIL import Image

    frames, _, _ = reader.frames(index)
    height = round(_WIDTH * frames.shape[1] / frames.shape[2])
    rows = math.ceil(len(frames) / _COLUMNS)
    sheet = Image.new("RGB", (min(len(frames), _COLUMNS) * _WIDTH, rows * height))
    for place, frame in enumerate(frames):
        picture = Image.fromarray(frame).resize((_WIDTH, height))
        sheet.paste(picture, (place % _COLUMNS * _WIDTH, place // _COLUMNS * height))
    sheet.save(path)
    return len(frames)
