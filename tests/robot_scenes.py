"""Small robot datasets with videos that are the same bytes on every run, prepared by the real stage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prep.robots import RobotOptions, prepare_robots
from tests.robots import DROID, LIBERO, edit_table, make_root

__all__ = ["DROID_LENGTHS", "LIBERO_LENGTHS", "droid_scenes", "libero_scenes"]

DROID_LENGTHS = (46, 40, 30, 52, 38)
LIBERO_LENGTHS = (22, 30, 19, 26)
_PREFIX = "gs://xembodiment_data/r2d2/r2d2-data-full"

# mpeg4 gives the same bytes in every process; x264 does not.
_DROID = replace(
    DROID,
    lengths=DROID_LENGTHS,
    packing=((2, 3), (1, 4), (3, 2)),
    data_files=(3, 2),
    meta_files=(3, 2),
    tasks=("open it | open the drawer | pull", " |  | ", "close it"),
    size=(128, 96),
    codec="mpeg4",
    row_group=17,
)
_LIBERO = replace(
    LIBERO,
    lengths=LIBERO_LENGTHS,
    packing=((2, 2), (4,)),
    data_files=(1, 2, 1),
    meta_files=(4,),
    tasks=("put it | put the bowl on the plate", " |  | ", " lift "),
    size=(256, 256),
    codec="mpeg4",
    row_group=11,
)
_NUMBERS = (
    "action.joint_position",
    "action.gripper_position",
    "action",
    "observation.state.cartesian_position",
    "observation.state.joint_positions",
    "observation.state.gripper_position",
)


def droid_scenes(folder: Path, size: tuple[int, int] = (128, 96)) -> Path:
    """A dataset of success and failure with indices of both recipes, filtered and not; its directory.

    Each camera has its own offsets, one kept range of an episode follows another, tasks are several
    instructions or blank, and the robot stands still at times.
    """
    ranges = {}
    for kind, lengths in (("success", DROID_LENGTHS), ("failure", DROID_LENGTHS[::-1])):
        root = make_root(folder / "tree" / kind, replace(_DROID, lengths=lengths, size=size))
        names = [f"LAB/{kind}/2023-01-{1 + at:02d}/run_{at}" for at in range(len(lengths))]
        for path in (root / "meta/episodes").rglob("*.parquet"):
            edit_table(path, lambda table, names=names: _named(table, names))
        _slow_down(root)
        for at, (name, length) in enumerate(zip(names, lengths, strict=True)):
            key = f"{_PREFIX}/{name}/recordings/MP4--{_PREFIX}/{name}/trajectory.h5"
            ranges[key] = (
                [[-2, length // 2 + 10], [length // 2 + 11, length + 5]] if at % 2 else [[1, length]]
            )
    keep = folder / "keep.json"
    keep.write_text(json.dumps(ranges))
    for recipe, filters in (
        ("droid_policy", (None, str(keep))),
        ("droid_forward_dynamics", (None, str(keep))),
    ):
        for given in filters:
            options = RobotOptions(root=folder / "tree", keep_ranges=given)
            (result,) = prepare_robots(recipe, folder / "out", options=options)
            assert result.exit_status == 0, result.report
    (place,) = (folder / "out").iterdir()
    return place


def libero_scenes(folder: Path, size: int = 256) -> Path:
    """A LIBERO suite with its indices; its directory."""
    root = make_root(folder / "tree", replace(_LIBERO, size=(size, size)))
    _slow_down(root)
    (result,) = prepare_robots("libero_10", folder / "out", options=RobotOptions(root=root))
    assert result.exit_status == 0, result.report
    return folder / "out/LIBERO_LeRobot_v3/libero_10"


def _named(table: pa.Table, names: Sequence[str]) -> pa.Table:
    ids = pa.array([names[at] for at in table["episode_index"].to_pylist()])
    return table.set_column(table.column_names.index("episode_id"), "episode_id", ids)


def _slow_down(root: Path) -> None:
    """Let the robot stand nearly still for a while, and keep grippers between 0 and 1."""
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        frames = np.array(table["frame_index"].to_pylist())
        still = (frames % 24 >= 8) & (frames % 24 < 16)
        for name in (name for name in _NUMBERS if name in table.column_names):
            values = np.array(table[name].to_pylist(), np.float32)
            if name == "action":
                values[still, :6] *= np.float32(1e-4)
                values[:, 6] = np.round(np.abs(np.sin(frames // 12)))
            else:
                for row in np.flatnonzero(still):
                    values[row] = values[row - 1]
            if "gripper" in name:
                values = np.clip(np.abs(values), 0, 1)
            column = _column(values, table.schema.field(name).type)
            table = table.set_column(table.column_names.index(name), name, column)
        groups = pq.ParquetFile(path).metadata.row_group(0).num_rows
        pq.write_table(table, path, row_group_size=groups)


def _column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.array(values.tolist()).cast(kind)
