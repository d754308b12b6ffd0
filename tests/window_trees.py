"""Robot trees of metadata alone, with filters; drawn by a generator that is the same on every machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from prep.keep_ranges import upstream_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

__all__ = [
    "DrawnRoot",
    "Ranges",
    "draw_droid",
    "draw_filter",
    "draw_libero",
    "draw_root",
    "write_filter",
    "write_frames",
    "write_root",
]

CAMERAS = (
    "observation.image.wrist_image_left",
    "observation.image.exterior_image_1_left",
    "observation.image.exterior_image_2_left",
)
Ranges = dict[str, list[list[int]]]


@dataclass(frozen=True)
class DrawnRoot:
    """Episodes of one root: lengths in frames int64 [count], and ids."""

    lengths: Numbers
    ids: Sequence[str]

    @property
    def ends(self) -> Numbers:
        return np.cumsum(self.lengths, dtype=np.int64)


def draw_root(random: np.random.RandomState, count: int, kind: str, longest: int) -> DrawnRoot:
    lengths = random.randint(1, longest + 1, size=count).astype(np.int64)
    labs = random.randint(0, 13, size=count).tolist()
    ids = [f"Lab{lab}/{kind}/2023-07-{at % 28 + 1:02d}/Fri_{at:06d}" for at, lab in enumerate(labs)]
    return DrawnRoot(lengths, ids)


def draw_filter(random: np.random.RandomState, root: DrawnRoot, *, overlap: bool = True) -> Ranges:
    """Ranges by episode id, of every shape that upstream bears; some episodes have none."""
    ranges: Ranges = {}
    for episode_id, length in zip(root.ids, root.lengths.tolist(), strict=True):
        shape, margin = random.randint(0, 100), int(random.randint(1, 40))
        cuts = sorted(random.randint(0, length + 1, size=2 * random.randint(1, 4)).tolist())
        pairs = [cuts[at : at + 2] for at in range(0, len(cuts), 2)]
        if shape < 8:
            continue
        if shape < 16:
            pairs = [[-margin, pairs[0][1]], *pairs[1:]]
        elif shape < 24:
            pairs = [*pairs[:-1], [pairs[-1][0], length + margin]]
        elif shape < 30:
            pairs = [[cuts[0], cuts[0]]]
        elif shape < 38:
            pairs = pairs[::-1]
        elif shape < 44 and overlap:
            pairs = [*pairs, [0, length]]
        elif shape < 46:
            pairs = []
        elif shape < 70:
            pairs = [[0, length]]
        ranges[episode_id] = pairs
    return ranges


def draw_droid(seed: int, successes: int, failures: int) -> tuple[dict[str, DrawnRoot], Ranges]:
    """The roots success and failure, and one filter for both, which also names an unknown episode."""
    random = np.random.RandomState(seed)
    roots = {
        kind: draw_root(random, count, kind, 400)
        for kind, count in (("success", successes), ("failure", failures))
    }
    ranges: Ranges = {"Lab99/success/2023-07-01/Sat_000000": [[0, 100]]}
    for root in roots.values():
        ranges |= draw_filter(random, root)
    return roots, ranges


def draw_libero(seed: int, count: int) -> tuple[DrawnRoot, list[int]]:
    """A root whose episodes' numbers have gaps, and those numbers."""
    random = np.random.RandomState(seed)
    root = draw_root(random, count, "suite", 120)
    return root, np.cumsum(random.randint(1, 3, size=count)).tolist()


def write_filter(path: Path, ranges: Mapping[str, list[list[int]]]) -> Path:
    """A filter in upstream's key form."""
    keyed = {upstream_key(name): pairs for name, pairs in ranges.items()}
    path.write_text(json.dumps(keyed), encoding="utf-8")
    return path


def write_root(path: Path, root: DrawnRoot, *, fps: int = 15) -> Path:
    """`meta/` of a LeRobot v3.0 root with three cameras."""
    count, ends = len(root.ids), root.ends
    zeros = np.zeros(count, np.int64)
    columns = {
        "episode_index": np.arange(count),
        "tasks": pa.array([["pick it up"]] * count),
        "length": root.lengths,
        "dataset_from_index": ends - root.lengths,
        "dataset_to_index": ends,
        "episode_id": pa.array(root.ids),
        "data/chunk_index": zeros,
        "data/file_index": zeros,
        "meta/episodes/chunk_index": zeros,
        "meta/episodes/file_index": zeros,
    }
    for camera in CAMERAS:
        columns |= {
            f"videos/{camera}/chunk_index": zeros,
            f"videos/{camera}/file_index": zeros,
            f"videos/{camera}/from_timestamp": (ends - root.lengths) / fps,
            f"videos/{camera}/to_timestamp": ends / fps,
        }
    folder = path / "meta/episodes/chunk-000"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "file-000.parquet")
    pd.DataFrame({"task_index": [0]}, index=["pick it up"]).to_parquet(path / "meta/tasks.parquet")
    (path / "meta/stats.json").write_text("{}", encoding="utf-8")
    (path / "meta/info.json").write_text(json.dumps(_info(count, int(ends[-1]), fps)), encoding="utf-8")
    return path


def _info(episodes: int, frames: int, fps: int) -> dict[str, object]:
    video = {"dtype": "video", "shape": [360, 640, 3], "names": ["height", "width", "channels"]}
    number = {"dtype": "int64", "shape": [1], "names": None}
    return {
        "codebase_version": "v3.0",
        "robot_type": "franka",
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": 1,
        "chunks_size": 1000,
        "fps": fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            **dict.fromkeys(CAMERAS, video),
            **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), number),
        },
    }


def write_frames(path: Path, root: DrawnRoot, numbers: Sequence[int], *, files: int) -> None:
    """The frame tables of a LIBERO-like root in several files; `numbers` are the episodes' own."""
    rows = int(root.ends[-1])
    episode = np.repeat(np.asarray(numbers, np.int64), root.lengths)
    frame = np.arange(rows) - np.repeat(root.ends - root.lengths, root.lengths)
    table = pa.table(
        {
            "index": np.arange(rows),
            "episode_index": episode,
            "frame_index": frame,
            "task_index": np.zeros(rows, np.int64),
            "timestamp": (frame / 20).astype(np.float32),
            "action": pa.FixedSizeListArray.from_arrays(np.zeros(rows * 7, np.float32), 7),
        }
    )
    folder = path / "data/chunk-000"
    folder.mkdir(parents=True)
    for place, part in enumerate(np.array_split(np.arange(rows), files)):
        # The rows come in another order than the files, as nothing promises theirs.
        pq.write_table(table.take(part), folder / f"file-{files - 1 - place:03d}.parquet")
