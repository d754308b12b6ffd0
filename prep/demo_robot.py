"""The robot half of the embedded first run: a small DROID-like tree, indexed by the real stage.

Two roots whose episode numbers restart, three cameras with several episodes in one video file, and
a filter that splits episodes and names them under another prefix than upstream looks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prep.demo_steps import Steps
from prep.files import write_whole
from prep.window_lists import open_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["run"]

_CAMERAS = (
    "observation.image.wrist_image_left",
    "observation.image.exterior_image_1_left",
    "observation.image.exterior_image_2_left",
)
_VECTORS = {
    "observation.state.cartesian_position": 6,
    "observation.state.joint_positions": 7,
    "observation.state.gripper_position": 1,
    "action.joint_position": 7,
    "action.gripper_position": 1,
}
_NUMBERS = ("frame_index", "episode_index", "index", "task_index")
_TASKS = ("open the drawer | pull the drawer open", "close the drawer")
_SIZE = (320, 180)  # width, height in pixels: upstream tells its two releases apart by it
_RATE = 15
_EPISODES = {"success": 17, "failure": 4}
_A_FILE = 6  # episodes in one video; the last file holds the rest
_CHUNK = 8
_RESULT = "^  (status|episodes|dataset id|warning|note: (train|val|filter))"
_PREFIX = "gs://demo/droid"
_DIRECTORY = "droid_plus_lerobot_320x180_20260406"
_WINDOWS = 301  # of 363 that the filter leaves in train

_ON_PURPOSE = """\
On purpose: episode numbers restart in failure/, several episodes share a video file, every third
episode is kept in two parts, one episode is in no key, and the keys have a prefix of their own."""


def run(steps: Steps, folder: Path) -> None:
    """Make the tree in `folder`, prepare it into `folder/data`, and ask it."""
    tree, keep = folder / "raw" / "droid", folder / "raw" / "keep_ranges.json"
    steps.tell(f"A robot tree in {tree}", _ON_PURPOSE)
    _make(tree, keep)
    given = ("--root", tree, "--keep-ranges", keep, "--chunk-length", str(_CHUNK))
    steps.run("droid", *given, "--out-root", folder / "data", shown=_RESULT)
    directory = folder / "data" / _DIRECTORY
    name = f"droid_policy-train-c{_CHUNK}-filtered"
    windows = len(open_index(directory, name).index)
    steps.expect("windows of the filtered index", windows, _WINDOWS)
    steps.run("windows", directory, "--index", name, "--at", str(windows // 2))


def _make(tree: Path, keep: Path) -> None:
    ranges = {}
    for kind, count in _EPISODES.items():
        lengths = [20 + 7 * number % 23 for number in range(count)]
        if not (tree / kind / "meta/info.json").is_file():
            _write_root(tree / kind, kind, lengths)
        for number, length in enumerate(lengths[1:], 1):  # the first is in no key
            cut = [[0, length // 2], [length // 2, length]]
            head = f"{_PREFIX}/{_episode_id(kind, number)}"
            key = f"{head}/recordings/MP4--{head}/trajectory.h5"
            ranges[key] = cut if number % 3 == 0 else [[1, length]]
    keep.write_text(json.dumps(ranges, indent=1))


def _episode_id(kind: str, number: int) -> str:
    return f"DEMO/{kind}/2023-07-{number + 1:02d}/Fri_Jul__{number + 1}_12_00_00_2023"


def _write_root(root: Path, kind: str, lengths: Sequence[int]) -> None:
    """Write a LeRobot v3.0 root; `info.json`, by which a root is known, comes last."""
    import numpy as np

    starts = np.concatenate([[0], np.cumsum(lengths)])
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    frames = _frames(lengths, starts)
    _write_tables(root, kind, frames, lengths, starts)
    for place, camera in enumerate(_CAMERAS):
        for file in range(0, len(lengths), _A_FILE):
            episodes = range(file, min(file + _A_FILE, len(lengths)))
            target = root / f"videos/{camera}/chunk-000/file-{file // _A_FILE:03d}.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            _draw(target, [(number, frame) for number in episodes for frame in range(lengths[number])], place)
    (root / "meta/stats.json").write_text(json.dumps(_statistics(frames)))
    write_whole(root / "meta/info.json", json.dumps(_info(lengths), indent=1).encode())


def _frames(lengths: Sequence[int], starts: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The columns of the frame table: one row a frame, of slow random walks."""
    import numpy as np

    rows = int(starts[-1])
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.arange(rows) - starts[episode]
    random = np.random.RandomState(rows)
    columns = {
        name: (np.cumsum(random.standard_normal((rows, width)), axis=0) * 0.02).astype(np.float32)
        for name, width in _VECTORS.items()
    }
    return columns | {
        "timestamp": (frame / _RATE).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(rows),
        "task_index": episode % len(_TASKS),
    }


def _write_tables(
    root: Path, kind: str, frames: Mapping[str, Any], lengths: Sequence[int], starts: NDArray[Any]
) -> None:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        if values.ndim == 2 and values.shape[1] > 1
        else pa.array(values.ravel())
        for name, values in frames.items()
    }
    pq.write_table(pa.table(columns), root / "data/chunk-000/file-000.parquet")
    number = np.arange(len(lengths))
    zero = np.zeros_like(number)
    file = number // _A_FILE
    begin = (starts[number] - starts[file * _A_FILE]) / _RATE
    episodes: dict[str, Any] = {
        "episode_index": number,
        "episode_id": [_episode_id(kind, each) for each in number.tolist()],
        "tasks": [[_TASKS[each % len(_TASKS)]] for each in number.tolist()],
        "length": lengths,
        "dataset_from_index": starts[:-1],
        "dataset_to_index": starts[1:],
        **dict.fromkeys(("data/chunk_index", "data/file_index"), zero),
        **dict.fromkeys(("meta/episodes/chunk_index", "meta/episodes/file_index"), zero),
    }
    for camera in _CAMERAS:
        episodes |= {
            f"videos/{camera}/chunk_index": zero,
            f"videos/{camera}/file_index": file,
            f"videos/{camera}/from_timestamp": begin,
            f"videos/{camera}/to_timestamp": begin + np.array(lengths) / _RATE,
        }
    pq.write_table(pa.table(episodes), root / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pd.DataFrame({"task_index": range(len(_TASKS))}, index=pd.Index(_TASKS, name="task"))
    tasks.to_parquet(root / "meta/tasks.parquet")


def _draw(path: Path, pictures: Sequence[tuple[int, int]], place: int) -> None:
    """Encode pictures, each of (episode, frame): a square that moves, on a ground of the episode's own."""
    import av
    import numpy as np

    width, height = _SIZE
    ramp = np.linspace(0, 40, width, dtype=np.uint8)[None, :, None]
    with av.open(str(path), "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=_RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        # The same picture gives the same bytes in every run, and key frames stand as lerobot sets them.
        stream.options = {"preset": "ultrafast", "x264-params": "mbtree=0"}
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = 2
        for episode, frame in pictures:
            image = np.broadcast_to(ramp + np.uint8(30 + 40 * (episode % 4)), (height, width, 3)).copy()
            left, top = (20 * place + 5 * frame) % (width - 30), (13 * episode + 3 * frame) % (height - 30)
            image[top : top + 30, left : left + 30] = (255, 240, 220)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode(None))


def _info(lengths: Sequence[int]) -> dict[str, Any]:
    width, height = _SIZE
    video = {"video.fps": _RATE, "video.codec": "h264", "video.pix_fmt": "yuv420p", "has_audio": False}
    shown = {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"]}
    return {
        "codebase_version": "v3.0",
        "robot_type": "franka",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": len(_TASKS),
        "chunks_size": 1000,
        "fps": _RATE,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            **{camera: {**shown, "info": video} for camera in _CAMERAS},
            **{name: {"dtype": "float32", "shape": [size], "names": None} for name, size in _VECTORS.items()},
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
            **{name: {"dtype": "int64", "shape": [1], "names": None} for name in _NUMBERS},
        },
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 500,
    }


def _statistics(frames: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in frames.items():
        table = values.reshape(len(values), -1).astype(float)
        measures = {"min": table.min(0), "max": table.max(0), "mean": table.mean(0), "std": table.std(0)}
        found[name] = {key: value.tolist() for key, value in measures.items()} | {"count": [len(table)]}
    of_pixels = {"min": 0.0, "max": 1.0, "mean": 0.4, "std": 0.2}
    for camera in _CAMERAS:
        found[camera] = {key: [[[value]]] * 3 for key, value in of_pixels.items()} | {"count": [100]}
    return found
