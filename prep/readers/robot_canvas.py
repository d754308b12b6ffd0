"""The canvas of the model: pictures of any size on one of few, never enlarged (contracts, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from prep.errors import UsageError
from prep.readers.robot_resize import bicubic

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TIERS", "Canvas", "check_tier", "closest", "fill_canvas", "normalised", "on_canvas"]

TIERS: Final[dict[str, dict[str, tuple[int, int]]]] = {
    "256": {
        "1,1": (256, 256),
        "4,3": (320, 256),
        "3,4": (256, 320),
        "16,9": (320, 192),
        "9,16": (192, 320),
    },
    "480": {
        "1,1": (640, 640),
        "4,3": (736, 544),
        "3,4": (544, 736),
        "16,9": (832, 480),
        "9,16": (480, 832),
        "2,3": (512, 768),
    },
}
"""Tier → ratio (width, height) → the canvas's width and height in pixels."""
_SHORT_SIDES: Final = {"256": 256, "480": 640}
_HALF_RANGE: Final = np.float32(127.5)


class Canvas(NamedTuple):
    """A canvas and the part of it that the picture fills from the upper left; pixels, height first."""

    canvas_hw: tuple[int, int]
    content_hw: tuple[int, int]
    aspect_key: str


def check_tier(tier: str | int | None) -> str | None:
    """A tier's name, or None for the one that a picture's size gives; raises UsageError for another."""
    if tier is None or str(tier) in TIERS:
        return None if tier is None else str(tier)
    raise UsageError(f"There is no tier {tier!r}.", remedy=f"Give {' or '.join(TIERS)}.")


def closest(height: int, width: int, tier: str | None = None) -> Canvas:
    """The canvas of a tier whose height by width is nearest to the picture's; the first of equals.

    Without a tier it is told by the picture's short side. Raises UsageError for a picture beyond them.
    """
    if tier is None:
        short = min(height, width)
        tier = next((name for name, most in _SHORT_SIDES.items() if short <= most), None)
        if tier is None:
            raise UsageError(f"No tier fits a picture of {width}x{height}.", remedy="Name one: 256 or 480.")
    sizes = TIERS[tier]
    key = min(sizes, key=lambda name: abs(height / width - sizes[name][1] / sizes[name][0]))
    wide, high = sizes[key]
    scale = min(wide / width, high / height, 1.0)
    return Canvas((high, wide), (int(scale * height + 0.5), int(scale * width + 0.5)), key)


def on_canvas(video: NDArray[np.uint8], canvas: Canvas) -> NDArray[np.uint8]:
    """A video uint8 [3, T, H, W] on its canvas: made smaller if need be, then mirrored right and below.

    Where more is missing than there is, the edge is repeated.
    """
    (high, wide), (height, width) = canvas.canvas_hw, canvas.content_hw
    if video.shape[-2:] != (height, width):
        video = bicubic(video, height, width)
    below, right = high - height, wide - width
    if not below and not right:
        return video
    mode: Literal["edge", "reflect"] = "edge" if right >= width or below >= height else "reflect"
    padding = ((0, 0), (0, 0), (0, below), (0, right))
    padded: NDArray[np.uint8] = np.pad(video, padding, mode=mode)
    return padded


def fill_canvas(video: NDArray[np.uint8], canvas: Canvas, out: NDArray[np.float32]) -> None:
    """Put `normalised(on_canvas(video, canvas))` into `out`, float32 [3, T, high, wide]."""
    for frame in range(video.shape[1]):
        for picture, target in zip(_fitting(video[:, frame], canvas), out[:, frame], strict=True):
            _spread(picture, target)


def _fitting(pictures: NDArray[np.uint8], canvas: Canvas) -> NDArray[np.uint8]:
    fits = pictures.shape[-2:] == canvas.content_hw
    return pictures if fits else bicubic(pictures, *canvas.content_hw)


def _spread(picture: NDArray[np.uint8], target: NDArray[np.float32]) -> None:
    """A picture [H, W] in the upper left of `target`, and what its edges give right and below of it."""
    height, width = picture.shape
    below, right = target.shape[0] - height, target.shape[1] - width
    inside = target[:height, :width]
    inside[...] = picture
    inside /= _HALF_RANGE
    inside -= np.float32(1)
    if right >= width or below >= height:
        target[:height, width:] = inside[:, -1:]
        target[height:] = target[height - 1]
    else:
        target[:height, width:] = inside[:, width - 1 - right : width - 1][:, ::-1]
        target[height:] = target[height - 1 - below : height - 1][::-1]


def normalised(video: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bytes as float32 from -1 to 1."""
    values = video.astype(np.float32)
    values /= _HALF_RANGE
    values -= np.float32(1)
    return values
