"""A DROID root of full size in its tables, with three small videos that every episode shares.

    python -m tests.benchmarks.full_droid FOLDER [ROWS [FILES]]

writes FOLDER/success and prints its rows. Its five state and action columns are lists of float32.
"""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.robots import DROID, edit_json, edit_table, video_path
from tests.window_trees import CAMERAS, DrawnRoot, draw_root, write_root

__all__ = ["ROWS", "write_full_droid"]

ROWS = 18_000_000
LONGEST = 630
FPS = 15


def write_full_droid(path: Path, rows: int = ROWS, files: int = 57) -> int:
    """Write a root of about `rows` rows in `files` tables, each one row group; the rows written."""
    drawn = draw_root(np.random.RandomState(0), 2 * rows // LONGEST, "success", LONGEST)
    write_root(path, drawn, fps=FPS)
    file_of = np.arange(len(drawn.ids)) * files // len(drawn.ids)
    for table in (path / "meta/episodes").rglob("*.parquet"):
        edit_table(table, lambda table: _placed(table, file_of))
    edit_json(path / "meta/info.json", lambda info: info["features"].update(_features()))
    _write_tables(path, drawn, file_of)
    for camera in CAMERAS:
        _write_video(video_path(path, camera))
    return int(drawn.ends[-1])


def _placed(table: pa.Table, file_of: Any) -> pa.Table:
    columns = {name: table[name] for name in table.column_names}
    columns["data/file_index"] = pa.array(file_of)
    for camera in CAMERAS:
        columns[f"videos/{camera}/from_timestamp"] = pa.array(np.zeros(len(table)))
        columns[f"videos/{camera}/to_timestamp"] = pa.array(table["length"].to_numpy() / FPS)
    return pa.table(columns)


def _features() -> dict[str, Any]:
    return {
        name: {"dtype": "float32", "shape": [width or 1], "names": None}
        for name, width in DROID.vectors.items()
    } | {"timestamp": {"dtype": "float32", "shape": [1], "names": None}}


def _write_tables(path: Path, drawn: DrawnRoot, file_of: Any) -> None:
    random = np.random.default_rng(0)
    starts = drawn.ends - drawn.lengths
    (path / "data/chunk-000").mkdir(parents=True)
    for file in np.unique(file_of).tolist():
        episodes = np.flatnonzero(file_of == file)
        lengths = drawn.lengths[episodes]
        first, count = int(starts[episodes[0]]), int(lengths.sum())
        index = np.arange(first, first + count)
        frame = index - np.repeat(starts[episodes], lengths)
        columns = {
            **{name: _lists(random, count, width or 1) for name, width in DROID.vectors.items()},
            "timestamp": (frame / FPS).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.repeat(episodes, lengths),
            "index": index,
            "task_index": np.zeros(count, np.int64),
        }
        target = path / f"data/chunk-000/file-{file:03d}.parquet"
        pq.write_table(pa.table(columns), target, row_group_size=1 << 20)


def _lists(random: np.random.Generator, count: int, width: int) -> pa.ListArray:
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, pa.array(random.random(count * width, np.float32)))


def _write_video(path: Path) -> None:
    """Frames enough for the longest episode, each of one colour."""
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as output:
        stream: Any = output.add_stream("libx264", rate=Fraction(FPS))
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        stream.codec_context.gop_size = 2
        for number in range(LONGEST):
            picture = np.full((360, 640, 3), number % 256, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))


def main() -> None:
    folder, *numbers = sys.argv[1:]
    print(write_full_droid(Path(folder) / "success", *map(int, numbers)))


if __name__ == "__main__":
    main()
