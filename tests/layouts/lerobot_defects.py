"""Faults planted in a clean LeRobot tree; each names the codes that must be found, and no other."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tests.robots import DROID, PLAIN, Shape, edit_json, edit_table, encode, scene, video_path

__all__ = ["DEFECTS", "Defect"]

EPISODES = "meta/episodes/chunk-000/file-000.parquet"
TOP, SIDE, WRIST = PLAIN.cameras


@dataclass(frozen=True)
class Defect:
    """One planted fault: what it does to a tree of `shape`, and the codes that tell it."""

    damage: Callable[[Path], object]
    codes: frozenset[str]
    shape: Shape

    @property
    def name(self) -> str:
        return self.damage.__name__


DEFECTS: list[Defect] = []


def planted(
    *codes: str, shape: Shape = PLAIN
) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    def take(damage: Callable[[Path], object]) -> Callable[[Path], object]:
        DEFECTS.append(Defect(damage, frozenset(codes), shape))
        return damage

    return take


def info(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_json(root / "meta/info.json", change)


def statistics(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit_json(root / "meta/stats.json", change)


def set_cells(
    path: Path, column: str, change: Callable[[list[Any]], Sequence[Any]], kind: Any = None
) -> None:
    """Replace a column of a table by what `change` makes of its cells."""

    def edit(table: pa.Table) -> pa.Table:
        at = table.column_names.index(column)
        cells = pa.array(change(table[column].to_pylist()), kind or table.schema.field(column).type)
        return table.set_column(at, column, cells)

    edit_table(path, edit)


def episodes(root: Path, column: str, change: Callable[[list[Any]], Sequence[Any]], kind: Any = None) -> None:
    set_cells(root / EPISODES, column, change, kind)


def rows(
    root: Path, file: int, column: str, change: Callable[[list[Any]], Sequence[Any]], kind: Any = None
) -> None:
    set_cells(root / f"data/chunk-000/file-{file:03d}.parquet", column, change, kind)


def put(at: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda cells: [*cells[:at], value, *cells[at + 1 :]]


def tasks(root: Path, texts: Sequence[str], numbers: Sequence[int] | None = None) -> None:
    frame = pd.DataFrame({"task_index": numbers or range(len(texts))}, index=pd.Index(list(texts)))
    frame.to_parquet(root / "meta/tasks.parquet")


def pictures(camera: str, wanted: Sequence[tuple[int, int]]) -> list[Any]:
    return [scene(episode, frame, PLAIN, camera) for episode, frame in wanted]


def frames_of(*numbers: int) -> list[tuple[int, int]]:
    return [(episode, frame) for episode in numbers for frame in range(PLAIN.lengths[episode])]


# --- structure ---------------------------------------------------------------------------


@planted("LER001")
def version_of_last_year(root: Path) -> None:
    info(root, lambda document: document.update(codebase_version="v2.1"))


@planted("LER002")
def tables_of_v2_beside(root: Path) -> None:
    (root / "meta/episodes.jsonl").write_text('{"episode_index": 0, "length": 24}\n')


@planted("LER003")
def info_without_a_key(root: Path) -> None:
    info(root, lambda document: document.pop("data_path"))


@planted("LER003")
def info_cut_short(root: Path) -> None:
    path = root / "meta/info.json"
    path.write_bytes(path.read_bytes()[:200])


@planted("LER004")
def template_of_other_names(root: Path) -> None:
    template = "videos/{video_key}/chunk-{episode_chunk:03d}/file-{episode_file:03d}.mp4"
    info(root, lambda document: document.update(video_path=template))


@planted("FIL011")
def template_that_leaves_the_tree(root: Path) -> None:
    template = "data/../../data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info(root, lambda document: document.update(data_path=template))


@planted("LER005")
def feature_without_shape(root: Path) -> None:
    info(root, lambda document: document["features"]["action"].pop("shape"))


@planted("LER006")
def feature_of_empty_shape(root: Path) -> None:
    info(root, lambda document: document["features"]["action"].update(shape=[], names=None))


@planted("LER007")
def names_for_six_of_seven_joints(root: Path) -> None:
    info(root, lambda document: document["features"]["action"]["names"].pop())


@planted("LER008")
def standard_feature_undeclared(root: Path) -> None:
    info(root, lambda document: document["features"].pop("task_index"))


@planted("LER009")
def column_undeclared(root: Path) -> None:
    for file in range(3):
        path = root / f"data/chunk-000/file-{file:03d}.parquet"
        edit_table(
            path, lambda table: table.append_column("reward", pa.array(np.arange(table.num_rows) * 1.0))
        )


@planted("LER009")
def declared_column_absent(root: Path) -> None:
    for file in range(3):
        edit_table(
            root / f"data/chunk-000/file-{file:03d}.parquet", lambda table: table.drop_columns(["action"])
        )


@planted("LER010")
def times_as_float64(root: Path) -> None:
    for file in range(3):
        rows(root, file, "timestamp", lambda cells: np.round(np.array(cells), 6).tolist(), pa.float64())


@planted("LER011")
def vector_stored_as_one_value(root: Path) -> None:
    for file in range(3):
        rows(root, file, "action", lambda cells: [cell[0] for cell in cells], pa.float32())


@planted("LER011")
def numbers_stored_as_text(root: Path) -> None:
    for file in range(3):
        rows(root, file, "action", lambda cells: [str(cell) for cell in cells], pa.string())


@planted("LER013")
def total_of_another_release(root: Path) -> None:
    info(root, lambda document: document.update(total_frames=1360))


@planted("LER014")
def split_beyond_the_episodes(root: Path) -> None:
    info(root, lambda document: document.update(splits={"train": "0:57639"}))


@planted("LER014")
def splits_that_overlap(root: Path) -> None:
    info(root, lambda document: document.update(splits={"train": "0:5", "val": "4:6"}))


# --- time --------------------------------------------------------------------------------


@planted("LER049")
def times_shifted_in_one_episode(root: Path) -> None:
    rows(
        root, 1, "timestamp", lambda cells: [cell + 0.1 if at < 30 else cell for at, cell in enumerate(cells)]
    )


@planted("LER049")
def times_in_milliseconds(root: Path) -> None:
    for file in range(3):
        rows(root, file, "timestamp", lambda cells: [cell * 1000 for cell in cells])


@planted("LER049")
def times_of_a_slow_clock(root: Path) -> None:
    for file in range(3):
        rows(root, file, "timestamp", lambda cells: [cell * 1.001 for cell in cells])


@planted("LER012", "LER049", "LER056", "LER060")
def rate_doubled_in_info(root: Path) -> None:
    info(root, lambda document: document.update(fps=20))


@planted("LER012")
def rate_of_nothing(root: Path) -> None:
    info(root, lambda document: document.update(fps=0))


@planted("LER048")
def frame_counted_twice(root: Path) -> None:
    rows(root, 0, "frame_index", put(5, 4))


@planted("LER059")
def window_late_by_a_frame(root: Path) -> None:
    for column in ("from_timestamp", "to_timestamp"):
        episodes(root, f"videos/{TOP}/{column}", lambda cells: put(1, cells[1] + 0.1)(cells))


@planted("LER059")
def windows_that_do_not_begin_at_zero(root: Path) -> None:
    for column in ("from_timestamp", "to_timestamp"):
        episodes(
            root, f"videos/{TOP}/{column}", lambda cells: [*cells[:3], *(cell + 0.1 for cell in cells[3:])]
        )


@planted("LER060")
def window_too_long_by_a_frame(root: Path) -> None:
    episodes(root, f"videos/{SIDE}/to_timestamp", lambda cells: put(5, cells[5] + 0.1)(cells))


# --- routing -----------------------------------------------------------------------------


@planted("LER023")
def file_number_empty(root: Path) -> None:
    episodes(root, "data/file_index", put(3, None))


@planted("LER022")
def camera_without_routing(root: Path) -> None:
    def drop(table: pa.Table) -> pa.Table:
        names = [
            name for name in table.column_names if name.startswith(f"videos/{TOP}/") and "file" not in name
        ]
        return table.drop_columns(names)

    edit_table(root / EPISODES, drop)


@planted("LER021")
def episode_table_without_lengths(root: Path) -> None:
    edit_table(root / EPISODES, lambda table: table.drop_columns(["length"]))


@planted("LER024")
def file_number_as_text(root: Path) -> None:
    episodes(root, f"videos/{TOP}/file_index", lambda cells: [f"{cell:03d}" for cell in cells], pa.string())


@planted("LER025")
def episodes_in_another_order(root: Path) -> None:
    edit_table(root / EPISODES, lambda table: table.take(pa.array([0, 2, 1, 3, 4, 5])))


@planted("LER026")
def length_off_by_one(root: Path) -> None:
    episodes(root, "length", lambda cells: put(2, cells[2] + 1)(cells))


@planted("LER027")
def rows_with_a_gap(root: Path) -> None:
    for column in ("dataset_from_index", "dataset_to_index"):
        episodes(root, column, lambda cells: put(3, cells[3] + 2)(cells))


@planted("LER030", shape=DROID)
def episode_name_given_twice(root: Path) -> None:
    episodes(root, "episode_id", lambda cells: put(1, cells[0])(cells))


@planted("LER029", shape=DROID)
def no_episode_names(root: Path) -> None:
    for file in range(2):
        path = root / f"meta/episodes/chunk-000/file-{file:03d}.parquet"
        edit_table(path, lambda table: table.drop_columns(["episode_id"]))


@planted("LER031", shape=DROID)
def metadata_of_another_file(root: Path) -> None:
    set_cells(
        root / "meta/episodes/chunk-000/file-001.parquet", "meta/episodes/file_index", lambda cells: [0] * 2
    )


@planted("LER045", "LER047")
def episode_in_another_frame_table(root: Path) -> None:
    episodes(root, "data/file_index", put(2, 0))


@planted("LER020")
def half_of_the_episode_table_cut(root: Path) -> None:
    path = root / EPISODES
    path.write_bytes(path.read_bytes()[:-100])


# --- files -------------------------------------------------------------------------------


@planted("LER041")
def frame_table_missing(root: Path) -> None:
    (root / "data/chunk-000/file-001.parquet").unlink()


@planted("LER044")
def frame_table_cut(root: Path) -> None:
    path = root / "data/chunk-000/file-001.parquet"
    path.write_bytes(path.read_bytes()[:-200])


@planted("LER043")
def frame_table_of_no_episode(root: Path) -> None:
    shutil.copy(root / "data/chunk-000/file-000.parquet", root / "data/chunk-000/file-003.parquet")


@planted("LER043")
def video_of_no_feature(root: Path) -> None:
    target = root / "videos/observation.images.depth/chunk-000/file-000.mp4"
    target.parent.mkdir(parents=True)
    shutil.copy(video_path(root, TOP), target)


@planted("LER042")
def video_missing(root: Path) -> None:
    video_path(root, SIDE, 1).unlink()


@planted("FIL002")
def video_of_no_bytes(root: Path) -> None:
    video_path(root, TOP, 1).write_bytes(b"")


@planted("FIL001")
def pointer_in_place_of_a_table(root: Path) -> None:
    oid = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 12345\n"
    (root / "data/chunk-000/file-002.parquet").write_text(text)


@planted("FIL007")
def leftover_of_a_download(root: Path) -> None:
    video_path(root, TOP).with_suffix(".mp4.incomplete").write_bytes(b"half")


@planted("FIL008")
def one_camera_under_two_names(root: Path) -> None:
    for file in range(2):
        shutil.copy(video_path(root, SIDE, file), video_path(root, WRIST, file))


# --- media -------------------------------------------------------------------------------


@planted("FIL016")
def video_cut_short(root: Path) -> None:
    path = video_path(root, TOP)
    path.write_bytes(path.read_bytes()[:2000])


@planted("LER062")
def frame_lost_in_the_video(root: Path) -> None:
    wanted = frames_of(0, 1, 2)
    encode(video_path(root, TOP), pictures(TOP, wanted[:30] + wanted[31:]), rate=10)


@planted("LER062")
def frames_behind_the_last_episode(root: Path) -> None:
    encode(video_path(root, TOP), pictures(TOP, [*frames_of(0, 1, 2), (2, 30), (2, 31)]), rate=10)


@planted("LER056")
def video_of_another_rate(root: Path) -> None:
    encode(video_path(root, SIDE), pictures(SIDE, frames_of(0, 1)), rate=20)


@planted("LER057")
def video_of_another_size(root: Path) -> None:
    small = [picture[:32, :48] for picture in pictures(SIDE, frames_of(0, 1))]
    encode(video_path(root, SIDE), small, rate=10)


@planted("LER058")
def video_of_another_codec(root: Path) -> None:
    encode(video_path(root, SIDE), pictures(SIDE, frames_of(0, 1)), rate=10, codec="mpeg4")


@planted("LER063")
def picture_late_by_a_frame(root: Path) -> None:
    wanted = frames_of(0, 1, 2)
    wanted[24:42] = [(0, 24), *wanted[24:41]]
    encode(video_path(root, TOP), pictures(TOP, wanted), rate=10)


@planted("LER063")
def picture_early_by_two_frames(root: Path) -> None:
    wanted = frames_of(0, 1, 2)
    wanted[22:24] = [(1, 0), (1, 0)]
    encode(video_path(root, TOP), pictures(TOP, wanted), rate=10)


@planted("LER064")
def camera_that_stopped(root: Path) -> None:
    wanted = [(episode, min(frame, 8) if episode == 2 else frame) for episode, frame in frames_of(0, 1, 2)]
    encode(video_path(root, TOP), pictures(TOP, wanted), rate=10)


# --- text --------------------------------------------------------------------------------


@planted("LER033")
def task_text_as_a_plain_column(root: Path) -> None:
    pq.write_table(
        pa.table({"task_index": [0, 1, 2], "task": list(PLAIN.tasks)}), root / "meta/tasks.parquet"
    )


@planted("LER034")
def task_numbers_reversed(root: Path) -> None:
    tasks(root, PLAIN.tasks, [2, 1, 0])


@planted("LER036")
def instruction_blank(root: Path) -> None:
    tasks(root, ["pick up the cup |  | ", *PLAIN.tasks[1:]])
    episodes(
        root,
        "tasks",
        lambda cells: [["pick up the cup |  | "] if at % 3 == 0 else cell for at, cell in enumerate(cells)],
    )


@planted("LER037", "LER013")
def one_task_in_two_rows(root: Path) -> None:
    tasks(root, [*PLAIN.tasks, PLAIN.tasks[1]])


@planted("LER038")
def task_text_unknown(root: Path) -> None:
    episodes(root, "tasks", put(4, ["fold the towel"]))


@planted("LER039")
def task_number_beyond_the_table(root: Path) -> None:
    rows(root, 2, "task_index", put(3, 7))


@planted("LER040")
def rows_of_another_task(root: Path) -> None:
    rows(root, 0, "task_index", lambda cells: [2] * 24 + cells[24:])


@planted("LER032")
def no_task_table(root: Path) -> None:
    (root / "meta/tasks.parquet").unlink()


# --- numbers -----------------------------------------------------------------------------


@planted("LER050")
def not_a_number(root: Path) -> None:
    rows(root, 1, "action", put(9, [float("nan")] * 7))


@planted("LER050")
def infinity(root: Path) -> None:
    rows(root, 2, "observation.state", lambda cells: put(9, [float("inf"), *cells[9][1:]])(cells))


@planted("LER051")
def cell_empty(root: Path) -> None:
    rows(root, 1, "action", put(30, None))


@planted("LER052")
def vector_of_another_length(root: Path) -> None:
    rows(root, 1, "action", lambda cells: put(30, cells[30][:6])(cells))


@planted("LER052")
def all_vectors_of_another_length(root: Path) -> None:
    for file in range(3):
        rows(root, file, "action", lambda cells: [cell[:6] for cell in cells])


@planted("LER053")
def sensor_not_connected(root: Path) -> None:
    cell = pq.read_table(root / "data/chunk-000/file-000.parquet")["action"][0].as_py()
    for file in range(3):
        rows(root, file, "action", lambda cells: [cell] * len(cells))


@planted("LER054")
def sensor_that_stopped(root: Path) -> None:
    rows(root, 1, "observation.state", lambda cells: [*cells[:5], *[cells[5]] * 23, *cells[28:]])


@planted("LER055")
def packet_broken(root: Path) -> None:
    rows(root, 0, "observation.state", lambda cells: put(11, [3.4e12, *cells[11][1:]])(cells))


@planted("LER018")
def degrees_with_statistics_in_radians(root: Path) -> None:
    for file in range(3):
        rows(root, file, "action", lambda cells: [[57.3 * value for value in cell] for cell in cells])


@planted("LER017")
def statistics_not_numbers(root: Path) -> None:
    statistics(root, lambda document: document["action"].update(mean=[float("nan")] * 7))


@planted("LER016")
def statistics_of_six_joints(root: Path) -> None:
    statistics(root, lambda document: document["action"]["std"].pop())


@planted("LER015")
def no_statistics(root: Path) -> None:
    (root / "meta/stats.json").unlink()


@planted("LER046")
def row_numbers_restart(root: Path) -> None:
    rows(root, 1, "index", lambda cells: [cell - cells[0] for cell in cells])


@planted("LER047")
def row_of_another_episode(root: Path) -> None:
    rows(root, 1, "episode_index", put(4, 5))
