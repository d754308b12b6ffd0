"""A LIBERO window as a sample: two cameras, motion from frame to frame (contracts, section 5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from prep.errors import PrepError, UsageError
from prep.readers.robot_actions import POSES, idle_frames, need_scipy, with_rot6d
from prep.readers.robot_pictures import joined
from prep.readers.robot_resize import scale_planes
from prep.readers.robot_words import View, candidates, view_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]
    Floats = NDArray[np.float32]

__all__ = ["Libero", "Quantiles"]

_SIZE: Final = 256
_IMAGE: Final = "observation.images.image"
_WRIST: Final = "observation.images.wrist_image"
_CAMERAS: Final = {"concat_view": (_IMAGE, _WRIST), "wrist_view": (_WRIST,), "third_person_view": (_IMAGE,)}
_SOURCE: Final = "cosmos_framework/data/generator/action/datasets/libero_lerobot_dataset.py"
_CONCAT: Final = (
    "On the left is the view of a camera that looks at the robot and the scene, on the right that of the "
    "camera on the wrist."
)
_LEAST: Final = np.float32(1e-8)


@dataclass(frozen=True)
class Quantiles:
    """The 1 % and 99 % quantiles of each dimension of an action, float32 [10]."""

    low: Floats
    high: Floats

    @classmethod
    def load(cls, path: Path, block: str) -> Quantiles:
        """Read a block of a statistics file; raises UsageError if it has none of ten dimensions."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))[block]
            low, high = (np.array(values[name], np.float32) for name in ("q01", "q99"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _no_statistics(path, block, str(error)) from error
        if low.shape != (10,) or high.shape != (10,):
            raise _no_statistics(path, block, f"its quantiles have the shape {low.shape}")
        return cls(low, high)

    def scaled(self, action: Floats) -> Floats:
        """Both quantiles at -1 and 1; what lies beyond is not cut."""
        span = np.maximum(self.high - self.low, _LEAST)
        scaled: Floats = np.float32(2) * (action - self.low) / span - np.float32(1)
        return scaled


def _no_statistics(path: Path, block: str, why: str) -> UsageError:
    return UsageError(
        f"{path}: no statistics of LIBERO's actions in the block {block}: {why}.",
        remedy="Give upstream's libero_native_frame_wise_relative_rot6d.json.",
    )


@dataclass(frozen=True)
class Libero:
    """How a window of LIBERO becomes a sample.

    `view` is `concat_view` (third person left, wrist right), `wrist_view` or `third_person_view`.
    Actions are raw without `quantiles`.
    """

    view: str
    fps: float
    quantiles: Quantiles | None = None

    tolerance: ClassVar[float] = 1e-4
    domain_id: ClassVar[int] = 5
    sorted_rows: ClassVar[bool] = True
    tasks_by_number: ClassVar[bool] = True
    state: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.view not in _CAMERAS:
            raise UsageError(f"LIBERO has no view {self.view!r}.", remedy=f"Give {', '.join(_CAMERAS)}.")
        need_scipy("LIBERO's actions")

    @property
    def cameras(self) -> tuple[str, ...]:
        """The videos that the view needs, in the order that `picture` takes them."""
        return _CAMERAS[self.view]

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a sample needs."""
        return {"action": "action"}

    @cached_property
    def view_text(self) -> View | None:
        """What a sample says of its view; None where it says nothing."""
        return view_text(_SOURCE, _CONCAT) if self.view == "concat_view" else None

    def seconds(self, timestamps: NDArray[Any]) -> list[float]:
        """The times of rows, as exact as the column is."""
        times: list[float] = timestamps.astype(np.float64).tolist()
        return times

    def instructions(self, task: str) -> list[str]:
        """What a task offers: no blank part, unless all are."""
        return candidates(task, blank=False)

    def picture(self, views: Sequence[Picture]) -> Picture:
        """Frames uint8 [H, W, 3] of the cameras as one picture [3, 256, 256 or 512]."""
        return joined(self, views)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The picture's height and width, whatever the first camera's are."""
        del height, width
        return _SIZE, _SIZE * len(self.cameras)

    def draw(self, camera: int, planes: Sequence[Picture], picture: Picture) -> None:
        """Put a camera's frame, planes uint8 [H, W], at its place in a picture [3, 256, 256 or 512]."""
        scale_planes(planes, picture[:, :, camera * _SIZE : (camera + 1) * _SIZE])

    def action(self, rows: dict[str, NDArray[Any]]) -> tuple[Floats, dict[str, Floats]]:
        """The raw action of rows [C + 1], float32 [C, 10], and further keys of the sample: none."""
        action = rows["action"].astype(np.float32)
        if action.ndim != 2 or action.shape[1] != 7:
            raise PrepError(f"LIBERO's actions have 7 dimensions, these the shape {action.shape[1:]}.")
        return with_rot6d(action[:-1]), {}

    def idle_frames(self, action: Floats) -> int:
        """Steps of the raw action that stand still."""
        return idle_frames(action, POSES, self.fps, wide_angle=True)

    def scaled(self, action: Floats) -> Floats:
        """Normalised, where quantiles are given."""
        return action if self.quantiles is None else self.quantiles.scaled(action)
