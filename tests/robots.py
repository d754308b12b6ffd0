"""Small LeRobot v3.0 trees with real videos: several episodes a file, cameras that pack them differently."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "DROID",
    "LIBERO",
    "PLAIN",
    "Shape",
    "edit_json",
    "edit_table",
    "encode",
    "make_root",
    "scene",
    "video_path",
]


@dataclass(frozen=True)
class Shape:
    """What a tree is like. `vectors` are the features with their widths; a width of 0 is a single value.
    Row groups are small, so that a reader must join them.

    `data_files` and each entry of `packing` (one a camera) give how many episodes each file holds.
    """

    cameras: Sequence[str] = ("observation.images.top", "observation.images.side", "observation.images.wrist")
    packing: Sequence[Sequence[int]] = ((3, 3), (2, 4), (2, 4))
    data_files: Sequence[int] = (2, 2, 2)
    meta_files: Sequence[int] = (6,)
    lengths: Sequence[int] = (24, 18, 30, 21, 27, 16)
    vectors: Mapping[str, int] = field(default_factory=lambda: {"observation.state": 7, "action": 7})
    tasks: Sequence[str] = ("pick up the cup", "open the drawer", "press the button")
    fps: int = 10
    size: tuple[int, int] = (64, 48)
    codec: str = "libx264"
    index_name: str | None = None
    ids: bool = False
    fixed_lists: bool = False
    row_group: int = 25

    @property
    def starts(self) -> list[int]:
        """The first row of each episode, and the number of all rows."""
        return [0, *np.cumsum(self.lengths).tolist()]


PLAIN = Shape()
DROID = Shape(
    cameras=(
        "observation.image.wrist_image_left",
        "observation.image.exterior_image_1_left",
        "observation.image.exterior_image_2_left",
    ),
    vectors={
        "observation.state.cartesian_position": 6,
        "observation.state.joint_positions": 7,
        "observation.state.gripper_position": 0,
        "action.joint_position": 7,
        "action.gripper_position": 0,
    },
    tasks=("open it | open the drawer", "close it"),
    fps=15,
    index_name="task",
    ids=True,
    meta_files=(4, 2),
    fixed_lists=True,
)
LIBERO = Shape(
    cameras=("observation.images.image", "observation.images.wrist_image"),
    packing=((6,), (6,)),
    data_files=(1, 1, 1, 1, 1, 1),
    vectors={"observation.state": 8, "action": 7},
    fps=20,
    size=(64, 64),
    index_name="task",
)


def make_root(path: Path, shape: Shape = PLAIN) -> Path:
    """Write a clean tree that lerobot 0.4.4 opens, and return its path."""
    (path / "meta").mkdir(parents=True)
    frames = _write_frames(path, shape)
    _write_episodes(path, shape)
    for camera, packing in zip(shape.cameras, shape.packing, strict=False):
        for file, episodes in enumerate(_groups(packing)):
            pictures = [
                scene(episode, frame, shape, camera)
                for episode in episodes
                for frame in range(shape.lengths[episode])
            ]
            encode(video_path(path, camera, file), pictures, rate=shape.fps, codec=shape.codec)
    tasks = pd.DataFrame(
        {"task_index": range(len(shape.tasks))}, index=pd.Index(list(shape.tasks), name=shape.index_name)
    )
    tasks.to_parquet(path / "meta/tasks.parquet")
    _write_info(path, shape)
    _write_statistics(path, shape, frames)
    return path


def scene(episode: int, frame: int, shape: Shape, camera: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A picture as uint8 [height, width, 3]: each episode is lit otherwise, and a square moves in it."""
    width, height = shape.size
    place = shape.cameras.index(camera)
    image = np.full((height, width, 3), 40 + 45 * (episode % 4) + 5 * place, np.uint8)
    image[..., 1] += np.linspace(0, 20, width, dtype=np.uint8)
    left, top = (3 * frame) % (width - 8), (2 * frame + 7 * place) % (height - 8)
    image[top : top + 8, left : left + 8] = (255, 240, 220)
    return image


def encode(path: Path, pictures: Sequence[Any], *, rate: float, codec: str = "libx264") -> None:
    """Write pictures as a video whose key frames stand as close as lerobot sets them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=Fraction(rate).limit_denominator(1000))
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = 2
        for picture in pictures:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))


def video_path(root: Path, camera: str, file: int = 0) -> Path:
    """Where a camera's video stands."""
    return root / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON object in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def edit_table(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a parquet table by a changed one."""
    table = pq.read_table(path)
    pq.write_table(change(table), path)


def _groups(sizes: Sequence[int]) -> list[range]:
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _write_frames(path: Path, shape: Shape) -> dict[str, Any]:
    lengths, starts = np.array(shape.lengths), np.array(shape.starts)
    rows = int(lengths.sum())
    rng = np.random.default_rng(7)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.arange(rows) - starts[episode]
    columns: dict[str, Any] = {}
    for name, width in shape.vectors.items():
        drift = np.cumsum(rng.normal(0, 0.02, (rows, max(width, 1))), axis=0).astype(np.float32)
        columns[name] = drift if width else drift[:, 0]
    columns |= {
        "timestamp": (frame / shape.fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(rows),
        "task_index": episode % len(shape.tasks),
    }
    table = pa.table({name: _column(values, shape.fixed_lists) for name, values in columns.items()})
    for file, episodes in enumerate(_groups(shape.data_files)):
        target = path / f"data/chunk-000/file-{file:03d}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        first, end = starts[episodes[0]], starts[episodes[-1] + 1]
        pq.write_table(table.slice(first, end - first), target, row_group_size=shape.row_group)
    return columns


def _column(values: Any, fixed: bool) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    if fixed:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32) * values.shape[1])
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel()))


def _write_episodes(path: Path, shape: Shape) -> None:
    count, starts = len(shape.lengths), shape.starts
    columns: dict[str, Any] = {
        "episode_index": list(range(count)),
        "tasks": [[shape.tasks[episode % len(shape.tasks)]] for episode in range(count)],
        "length": list(shape.lengths),
        "dataset_from_index": starts[:-1],
        "dataset_to_index": starts[1:],
        "data/chunk_index": [0] * count,
        "data/file_index": [file for file, group in enumerate(_groups(shape.data_files)) for _ in group],
        "meta/episodes/chunk_index": [0] * count,
        "meta/episodes/file_index": [
            file for file, group in enumerate(_groups(shape.meta_files)) for _ in group
        ],
    }
    if shape.ids:
        columns["episode_id"] = [
            f"LAB/success/2023-01-{1 + episode:02d}/run_{episode}" for episode in range(count)
        ]
    for camera, packing in zip(shape.cameras, shape.packing, strict=False):
        groups = _groups(packing)
        first = [(starts[at] - starts[group[0]]) / shape.fps for group in groups for at in group]
        columns |= {
            f"videos/{camera}/chunk_index": [0] * count,
            f"videos/{camera}/file_index": [file for file, group in enumerate(groups) for _ in group],
            f"videos/{camera}/from_timestamp": first,
            f"videos/{camera}/to_timestamp": [
                begin + length / shape.fps for begin, length in zip(first, shape.lengths, strict=True)
            ],
        }
    table = pa.table(columns)
    for file, group in enumerate(_groups(shape.meta_files)):
        target = path / f"meta/episodes/chunk-000/file-{file:03d}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(group[0], len(group)), target)


def _write_info(path: Path, shape: Shape) -> None:
    width, height = shape.size
    features: dict[str, Any] = {}
    for name, size in shape.vectors.items():
        features[name] = {
            "dtype": "float32",
            "shape": [size or 1],
            "names": [f"joint_{at}" for at in range(size or 1)],
        }
    for camera in shape.cameras:
        features[camera] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.fps": shape.fps,
                "video.codec": {"libx264": "h264"}.get(shape.codec, shape.codec),
                "video.pix_fmt": "yuv420p",
                "has_audio": False,
            },
        }
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "total_episodes": len(shape.lengths),
        "total_frames": sum(shape.lengths),
        "total_tasks": len(shape.tasks),
        "chunks_size": 1000,
        "fps": shape.fps,
        "splits": {"train": f"0:{len(shape.lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if shape.cameras
        else None,
        "features": features,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
    }
    (path / "meta/info.json").write_text(json.dumps(info, indent=1))


def _write_statistics(path: Path, shape: Shape, frames: Mapping[str, Any]) -> None:
    statistics: dict[str, Any] = {}
    for name, values in frames.items():
        table = values.reshape(len(values), -1).astype(np.float64)
        measures = {"min": table.min(0), "max": table.max(0), "mean": table.mean(0), "std": table.std(0)}
        statistics[name] = {key: value.tolist() for key, value in measures.items()} | {"count": [len(values)]}
    for camera in shape.cameras:
        statistics[camera] = {
            key: [[[value]]] * 3 for key, value in {"min": 0.0, "max": 1.0, "mean": 0.5, "std": 0.2}.items()
        } | {"count": [100]}
    (path / "meta/stats.json").write_text(json.dumps(statistics))
