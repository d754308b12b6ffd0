"""A DROID window as a sample: three cameras, joints or hand poses (contracts, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from prep.errors import PrepError, UsageError
from prep.readers.robot_actions import JOINTS, POSES, ee_poses, idle_frames, joint_positions, need_scipy
from prep.readers.robot_pictures import joined, put
from prep.readers.robot_resize import scale_planes
from prep.readers.robot_words import View, candidates, view_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]
    Columns = dict[str, NDArray[Any]]

__all__ = ["Droid"]

_WRIST: Final = "observation.image.wrist_image_left"
_SIDES: Final = ("observation.image.exterior_image_1_left", "observation.image.exterior_image_2_left")
_CAMERAS: Final = {
    "concat_view": (_WRIST, *_SIDES),
    "wrist_view": (_WRIST,),
    "third_person_view": _SIDES,
}
_COLUMNS: Final = {
    "pose": "observation.state.cartesian_position",
    "joints": "action.joint_position",
    "gripper": "action.gripper_position",
    "joint_state": "observation.state.joint_positions",
    "gripper_state": "observation.state.gripper_position",
}
_SOURCE: Final = "cosmos_framework/data/generator/action/datasets/droid_lerobot_dataset.py"
_CONCAT: Final = (
    "Above is the view of the camera on the wrist; below, side by side, are those of two cameras that "
    "look at the robot and the scene from the left and from the right."
)
_THIRD_PERSON: Final = (
    "Side by side are the views of two cameras that look at the robot and the scene from the left and "
    "from the right."
)


@dataclass(frozen=True)
class Droid:
    """How a window of DROID becomes a sample.

    `view` is `concat_view` (wrist above, both sides below at half size), `wrist_view`, or
    `third_person_view` (both sides at full size, side by side): that one is ours alone.
    """

    action_space: str
    state: bool
    view: str
    fps: float

    tolerance: ClassVar[float] = 2e-4
    domain_id: ClassVar[int] = 8
    sorted_rows: ClassVar[bool] = False
    tasks_by_number: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.view not in _CAMERAS:
            raise UsageError(f"DROID has no view {self.view!r}.", remedy=f"Give {', '.join(_CAMERAS)}.")
        if self.action_space not in ("joint_pos", "ee_pose"):
            raise UsageError(
                f"DROID has no action space {self.action_space!r}.", remedy="Give joint_pos or ee_pose."
            )
        if self.action_space == "ee_pose":
            need_scipy("DROID's hand poses")

    @property
    def cameras(self) -> tuple[str, ...]:
        """The videos that the view needs, in the order that `picture` takes them."""
        return _CAMERAS[self.view]

    @cached_property
    def columns(self) -> dict[str, str]:
        """The columns that a sample needs, by the names that the actions know."""
        names = ["gripper", "joints" if self.action_space == "joint_pos" else "pose"]
        if self.state:
            names += ["gripper_state", *(["joint_state"] if self.action_space == "joint_pos" else [])]
        return {name: _COLUMNS[name] for name in names}

    @cached_property
    def view_text(self) -> View | None:
        """What a sample says of its view; None where it says nothing."""
        if self.view == "concat_view":
            return view_text(_SOURCE, _CONCAT)
        return View(_THIRD_PERSON, "prep") if self.view == "third_person_view" else None

    def seconds(self, timestamps: NDArray[Any]) -> list[float]:
        """The times of rows; float32 whatever the column is, as lerobot has them."""
        times: list[float] = timestamps.astype(np.float32).tolist()
        return times

    def instructions(self, task: str) -> list[str]:
        """What a task offers, blank parts included."""
        return candidates(task, blank=True)

    def picture(self, views: Sequence[Picture]) -> Picture:
        """Frames uint8 [H, W, 3] of the cameras as one picture [3, height, width]."""
        return joined(self, views)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The picture's size for that of the first camera's frames; raises PrepError for odd widths."""
        if self.view == "wrist_view":
            return height, width
        if self.view == "third_person_view":
            return height, 2 * width
        if width % 2:
            raise PrepError(f"The wrist's pictures are {width} pixels wide, which cannot be halved.")
        return height + height // 2, width

    def draw(self, camera: int, planes: Sequence[Picture], picture: Picture) -> None:
        """Put a camera's frame, planes uint8 [H, W], at its place in a picture [3, height, width].

        Raises PrepError if it does not fit.
        """
        _, height, width = picture.shape
        if self.view == "concat_view":
            wrist = height - height // 3  # of h and h // 2 the first
            if camera:
                columns = slice((camera - 1) * (width // 2), camera * (width // 2))
                scale_planes(planes, picture[:, wrist:, columns])
            else:
                put(planes, picture[:, :wrist])
        elif self.view == "third_person_view":
            put(planes, picture[:, :, camera * (width // 2) : (camera + 1) * (width // 2)])
        else:
            put(planes, picture)

    def action(self, rows: Columns) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """The action of rows [C + 1], float32, and further keys of the sample."""
        values = {name: rows[column].astype(np.float32) for name, column in self.columns.items()}
        for name in ("gripper", "gripper_state"):
            if name in values:
                values[name] = values[name].reshape(len(values[name]))
        if self.action_space == "joint_pos":
            return joint_positions(values, state=self.state), {}
        action, pose = ee_poses(values, state=self.state)
        return action, {"initial_pose": pose}

    def idle_frames(self, action: NDArray[np.float32]) -> int:
        """Steps of the action that stand still."""
        groups = JOINTS if self.action_space == "joint_pos" else POSES
        return idle_frames(action, groups, self.fps)

    def scaled(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """DROID's actions are not normalised."""
        return action
