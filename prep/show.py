"""One sample as a person wants to see it: its text, its fields, and a contact sheet of its frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prep.errors import PrepError, UsageError
from prep.files import disk_errors
from prep.progress import counted
from prep.readers import Reader
from prep.readers import open as open_reader

__all__ = ["contact_sheet", "sample_text", "show"]

_COLUMNS = 8
_WIDTH = 160  # pixels of one frame on the sheet
_MOST_FRAMES = 32  # that a reasoner is shown of a video, by upstream's default
_A_SECOND = 2.0  # as many of them are taken
_LONGEST = 2000  # characters of one field
_MOST_NUMBERS = 16  # of a list on one line


def show(directory: str | Path, index: int, *, png: Path | None = None) -> str:
    """The sample at `index` of a prepared dataset as text; `png` gets its frames as one picture.

    Raises UsageError for a directory without a dataset, an index outside it, a `png` that is no PNG,
    and a dataset without pictures to put there.
    """
    reader = open_reader(directory)
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


def sample_text(reader: Reader, index: int) -> str:
    """The sample's id, fields, media and turns, as text."""
    sample = reader[index]
    lines = [f"sample {index} of 0 to {len(reader) - 1}: {sample.get('id', index)}"]
    # Media that stand in a table have no path of their own.
    where = f", {sample['path']}" if "path" in sample else ""
    lines.extend(
        f"{key}: {counted(len(data), 'byte')}{where}" for key, data in sample.get("media", {}).items()
    )
    for key, value in sample.items():
        if key in ("texts", "messages"):
            for turn in value:
                lines.extend(f"{turn['role']}: {_block_text(block)}" for block in _blocks(turn["content"]))
        elif key not in ("id", "media") and not (key == "path" and "media" in sample):
            lines.append(f"{key}: {_field_text(value)}")
    return "\n".join(lines)


def _field_text(value: Any) -> str:
    """A field on one line: arrays and pictures by their shape."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    if hasattr(value, "mode") and hasattr(value, "size"):
        return f"{value.mode} picture, {value.size[0]} x {value.size[1]} pixels"
    if isinstance(value, list) and len(value) > _MOST_NUMBERS and all(type(each) is int for each in value):
        return f"{', '.join(map(str, value[:3]))}, … {value[-1]} ({len(value)} in all)"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


def _blocks(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"type": "text", "text": str(content)}]


def _block_text(block: dict[str, Any]) -> str:
    kind = str(block["type"])
    return str(block["text"]).strip() if kind == "text" else f"<{kind} {block[kind]}>"


def contact_sheet(reader: Any, index: int, path: Path) -> int:
    """Write the frames that training takes, row by row, as one picture; returns how many there are.

    A sample with an image has that one, at its own size. Raises UsageError for a sample without pictures,
    PrepError for a video that cannot be read.
    """
    from PIL import Image

    frames = _frames(reader, index)
    if len(frames) == 1 and "image" in reader[index]:
        _save(Image.fromarray(frames[0]), path)
        return 1
    height = max(1, round(_WIDTH * frames[0].shape[0] / frames[0].shape[1]))
    rows = math.ceil(len(frames) / _COLUMNS)
    sheet = Image.new("RGB", (min(len(frames), _COLUMNS) * _WIDTH, rows * height))
    for place, frame in enumerate(frames):
        picture = Image.fromarray(frame).resize((_WIDTH, height))
        sheet.paste(picture, (place % _COLUMNS * _WIDTH, place // _COLUMNS * height))
    _save(sheet, path)
    return len(frames)


def _save(picture: Any, path: Path) -> None:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)


def _frames(reader: Any, index: int) -> Sequence[Any]:
    """The pictures of a sample, each uint8 [H, W, 3] RGB."""
    if hasattr(reader, "frames"):
        frames: Sequence[Any] = reader.frames(index)[0]
        return frames
    sample = reader[index]
    if "image" in sample:
        return [sample["image"]]
    if "video" in sample:  # a robot's window, uint8 [3, T, H, W]
        return list(sample["video"].transpose(1, 2, 3, 0))
    videos = [block["video"] for block in _all_blocks(sample) if block["type"] == "video"]
    if not videos:
        raise UsageError(f"Sample {index} names no video and has no image.", remedy="Leave out --png.")
    return _of_file(Path(videos[0]))


def _all_blocks(sample: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [block for turn in sample.get("messages", ()) for block in _blocks(turn["content"])]


def _of_file(path: Path) -> list[Any]:
    import numpy as np

    from prep.clip_frames import sampled_frames

    try:
        data = path.read_bytes()
    except OSError as error:
        why = error.strerror or error
        raise PrepError(
            f"{path}: cannot be read: {why}.", remedy="`prep validate` says what is wrong."
        ) from error
    clip = sampled_frames(data, max_frames=_MOST_FRAMES, fps=_A_SECOND, name=str(path))
    return [np.asarray(frame) for frame in clip.frames]
