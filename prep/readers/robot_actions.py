"""Actions of robot windows, in float32 and in the reference's order of operations (contracts, 4 and 5)."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from prep.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

__all__ = [
    "JOINTS",
    "POSES",
    "Groups",
    "ee_poses",
    "idle_frames",
    "joint_positions",
    "need_scipy",
    "with_rot6d",
]

_TO_CAMERA: Final = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], np.float32)
"""Turns DROID's hand into the cameras' convention: 90 degrees about its own z axis."""
_SHORTEST_IDLE: Final = 3


class Groups(NamedTuple):
    """Which dimensions of an action are translation, rotation (six), gripper and joints."""

    translation: slice | None = None
    rotation: slice | None = None
    joints: slice | None = None
    gripper: slice = slice(-1, None)


JOINTS: Final = Groups(joints=slice(0, 7))
"""Seven joints, gripper."""
POSES: Final = Groups(translation=slice(0, 3), rotation=slice(3, 9))
"""Translation, rot6d, gripper."""


def need_scipy(what: str) -> None:
    """Raise EnvironmentLacksError if SciPy, of which the rotations are, is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise EnvironmentLacksError(
            f"{what} need SciPy's rotations, and SciPy is not installed.",
            remedy="pip install 'cosmos-prep[robot]'",
        )


def joint_positions(rows: dict[str, NDArray[Any]], *, state: bool) -> Floats:
    """Commanded joints and gripper, [C, 8] of rows [C + 1]; with `state` measured ones in a row before.

    `rows` has `joints` [C + 1, 7], `gripper` [C + 1], and with `state` also `joint_state`, `gripper_state`.
    """
    action = np.concatenate([rows["joints"][:-1], _flipped(rows["gripper"][:-1])], axis=1)
    if state:
        first = np.concatenate([rows["joint_state"][:1], _flipped(rows["gripper_state"][:1])], axis=1)
        action = np.concatenate([first, action])
    return action


def ee_poses(rows: dict[str, NDArray[Any]], *, state: bool) -> tuple[Floats, Floats]:
    """Hand motion from frame to frame, [C, 10], and the first pose [4, 4]; of rows [C + 1].

    `rows` has `pose` [C + 1, 6] (xyz, Euler xyz in radians), `gripper`, and with `state` also
    `gripper_state`: then the first pose stands in a row before.
    """
    from scipy.spatial.transform import Rotation

    pose = rows["pose"]
    absolute: Floats = np.eye(4, dtype=np.float32)[None].repeat(len(pose), axis=0)
    absolute[:, :3, :3] = Rotation.from_euler("xyz", pose[:, 3:6]).as_matrix().astype(np.float32)
    absolute[:, :3, 3] = pose[:, :3]
    absolute[:, :3, :3] = absolute[:, :3, :3] @ _TO_CAMERA
    motion = np.linalg.inv(absolute).astype(np.float32)[:-1] @ absolute[1:]
    action = np.concatenate([_vectors(motion), _flipped(rows["gripper"][:-1])], axis=1)
    if state:
        first = np.concatenate([_vectors(absolute[:1]), _flipped(rows["gripper_state"][:1])], axis=1)
        action = np.concatenate([first, action])
    return action, absolute[0].copy()


def with_rot6d(action: Floats) -> Floats:
    """Actions [C, 7] (translation, axis and angle, gripper) with the rotation as rot6d, [C, 10]."""
    from scipy.spatial.transform import Rotation

    turns = Rotation.from_rotvec(action[:, 3:6]).as_matrix().astype(np.float32)
    return np.concatenate([action[:, :3], _rot6d(turns), action[:, 6:7]], axis=1)


def _vectors(poses: Floats) -> Floats:
    """Poses [N, 4, 4] as [N, 9]: translation, rot6d."""
    return np.concatenate([poses[:, :3, 3], _rot6d(poses[:, :3, :3])], axis=1)


def _rot6d(matrices: Floats) -> Floats:
    """The first two columns of rotation matrices [N, 3, 3], one after the other, [N, 6]."""
    return matrices[:, :, :2].transpose(0, 2, 1).reshape(-1, 6)


def _flipped(gripper: Floats) -> Floats:
    """Open is 0 in the data and 1 in the action, [N, 1]."""
    return (np.float32(1) - gripper)[:, None]


def idle_frames(action: Floats, groups: Groups, fps: float, *, wide_angle: bool = False) -> int:
    """How many steps stand still, in runs of three or more; of the action before normalising.

    Still is: less than 5 mm/s, 1.5 degrees/s and 0.005 rad/s a joint, and a gripper's change under 0.01.
    Thresholds are float32, as the reference compares them; `wide_angle` for the one that it has as
    float64 in LIBERO.
    """
    still = _largest_change(action[:, groups.gripper]) < np.float32(1e-2)
    if groups.joints is not None:
        still &= _largest_change(action[:, groups.joints]) < np.float32(5e-3 / fps)
    if groups.translation is not None:
        still &= np.linalg.norm(action[:, groups.translation], axis=1) < np.float32(5e-3 / fps)
    if groups.rotation is not None:
        angle, limit = _angles(action[:, groups.rotation]), math.radians(1.5) / fps
        still &= angle.astype(np.float64) < limit if wide_angle else angle < np.float32(limit)
    return _in_runs(still)


def _largest_change(values: Floats) -> Floats:
    """The largest change of a dimension from the step before; none at the first."""
    largest: Floats = np.abs(np.diff(values, axis=0, prepend=values[:1])).max(axis=1)
    return largest


def _angles(rot6d: Floats) -> Floats:
    """The angle of each rotation, in radians, from its trace."""
    first, second = rot6d[:, :3], rot6d[:, 3:]
    trace = first[:, 0] + second[:, 1] + first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    angle: Floats = np.arccos(np.clip((trace - np.float32(1)) / np.float32(2), -1, 1))
    return angle


def _in_runs(still: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], still, [False]])))
    lengths = edges[1::2] - edges[::2]
    return int(lengths[lengths >= _SHORTEST_IDLE].sum())
