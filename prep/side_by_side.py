"""One picture of both sides of a difference: ours, the reference, and how far apart they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prep.files import disk_errors

__all__ = ["pictures_of", "write_picture"]

_GAP = 8  # pixels between the pictures


def pictures_of(value: object) -> NDArray[np.uint8] | None:
    """The value as uint8 [T, H, W, 3] if it is RGB pictures, channels first or last; else None.

    Pictures are bytes, or float32 [3, T, H, W] from -1 to 1, as a model is given them.
    """
    array = np.asarray(value) if hasattr(value, "__array__") else None
    if array is not None and array.dtype == np.float32:
        array = _bytes(array)
    if array is None or array.dtype != np.uint8 or array.ndim not in (3, 4):
        return None
    if array.ndim == 4 and array.shape[0] == 3:
        return np.transpose(array, (1, 2, 3, 0))
    if array.ndim == 3 and array.shape[0] == 3:
        return np.transpose(array, (1, 2, 0))[None]
    if array.shape[-1] == 3:
        return array if array.ndim == 4 else array[None]
    return None


def _bytes(array: NDArray[np.float32]) -> NDArray[np.uint8] | None:
    """The bytes that were scaled to -1 … 1; None for other numbers."""
    is_video = array.ndim == 4 and array.shape[0] == 3 and array.size
    if not is_video or not (array.min() >= -1 and array.max() <= 1):
        return None
    return np.asarray(np.rint((array + np.float32(1)) * np.float32(127.5)).astype(np.uint8))


def write_picture(ours: object, reference: object, path: Path) -> bool:
    """Write the frame that differs most, of both sides, and its difference stretched to full range.

    Returns whether there was something to draw: False for values that are no pictures of one size.
    """
    first, second = pictures_of(ours), pictures_of(reference)
    if first is None or second is None or first.shape[1:] != second.shape[1:]:
        return False
    frames = min(len(first), len(second))
    if not frames:
        return False
    sums = [int(_difference(first[at], second[at]).sum(dtype=np.int64)) for at in range(frames)]
    worst = int(np.argmax(sums))
    _save([first[worst], second[worst], _stretched(first[worst], second[worst])], path)
    return True


def _difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.int16]:
    return np.abs(one.astype(np.int16) - other.astype(np.int16))


def _stretched(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.uint8]:
    apart = _difference(one, other)
    return (apart.astype(np.int32) * 255 // max(1, int(apart.max()))).astype(np.uint8)


def _save(pictures: list[Any], path: Path) -> None:
    from PIL import Image

    height, width = pictures[0].shape[:2]
    sheet = Image.new("RGB", (len(pictures) * (width + _GAP) - _GAP, height), "white")
    for place, picture in enumerate(pictures):
        sheet.paste(Image.fromarray(np.ascontiguousarray(picture)), (place * (width + _GAP), 0))
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(path)
