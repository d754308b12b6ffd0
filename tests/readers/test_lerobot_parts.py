"""Rows, actions and words of robot windows, each against its contract read literally."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.layouts.lerobot import Root
from prep.readers.robot_actions import (
    JOINTS,
    POSES,
    ee_poses,
    idle_frames,
    joint_positions,
    need_scipy,
    with_rot6d,
)
from prep.readers.robot_libero import Quantiles
from prep.readers.robot_rows import EpisodeRoutes, FrameRows
from prep.readers.robot_words import candidates, check_instruction, chosen
from prep.windows import Identity
from tests.robots import PLAIN, make_root

COLUMNS = ("index", "episode_index", "timestamp", "task_index", "action")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("plain") / "tree", PLAIN)


def rows_of(root: Path, *, sorted_rows: bool) -> FrameRows:
    opened = Root.open(root)
    return FrameRows(opened, EpisodeRoutes(opened, opened.cameras), COLUMNS, sorted_rows=sorted_rows)


@pytest.mark.parametrize("sorted_rows", [False, True])
def test_rows_are_those_of_the_whole_table(plain: Path, sorted_rows: bool) -> None:
    paths = sorted((plain / "data").rglob("*.parquet"))
    assert pq.ParquetFile(paths[0]).metadata.num_row_groups > 1
    whole = pa.concat_tables(pq.read_table(path) for path in paths)
    rows = rows_of(plain, sorted_rows=sorted_rows)
    for episode, (start, length) in enumerate(zip(PLAIN.starts, PLAIN.lengths, strict=False)):
        for first in range(start, start + length - 9, 3):
            part = rows.take(first, 9, episode)
            for name in COLUMNS:
                expected = np.array(whole[name].slice(first, 9).to_pylist(), part[name].dtype)
                assert (part[name] == expected).all()


def test_rows_of_an_orphan_file_count_where_all_are_sorted(tmp_path: Path) -> None:
    root = make_root(tmp_path / "tree", PLAIN)
    last = sorted((root / "data").rglob("*.parquet"))[-1]
    table = pq.read_table(last)
    moved = table.set_column(
        table.column_names.index("index"), "index", pa.array([at - 1000 for at in table["index"].to_pylist()])
    )
    pq.write_table(moved, last.with_name("file-009.parquet"), row_group_size=7)
    rows = rows_of(root, sorted_rows=True)
    count = table.num_rows
    assert rows.take(0, 5, 4)["index"].tolist() == moved["index"].to_pylist()[:5]
    assert rows.take(count, 5, 0)["index"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(PrepError, match="are wanted, there are"):
        rows.take(count + sum(PLAIN.lengths) - 3, 5, 5)


def test_rows_that_are_not_the_episodes_are_refused(plain: Path) -> None:
    rows = rows_of(plain, sorted_rows=False)
    with pytest.raises(PrepError, match="of episode 0 belong, index is 20 to 28 and the episode 0 to 1"):
        rows.take(20, 9, 0)
    with pytest.raises(PrepError, match="no episode 17"):
        rows.take(0, 9, 17)


def test_only_a_limited_part_of_the_tables_is_kept(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prep.readers.robot_rows.ROW_BYTES", 1)
    rows = rows_of(plain, sorted_rows=False)
    for episode, start in enumerate(PLAIN.starts[:-1]):
        assert rows.take(start, 16, episode)["index"].tolist() == list(range(start, start + 16))


@pytest.mark.parametrize("kept", [1, 600, 1 << 20])
def test_a_large_row_group_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr("prep.readers.robot_rows._ROWS_AT_ONCE", 8)
    monkeypatch.setattr("prep.readers.robot_rows.ROW_BYTES", kept)
    root = make_root(tmp_path / "tree", replace(PLAIN, row_group=1000))
    rows = rows_of(root, sorted_rows=False)
    order = np.random.RandomState(0).permutation(list(zip(PLAIN.starts, range(6), strict=False)) * 3)
    for start, episode in order.tolist():
        for first in (start + 5, start):
            assert rows.take(first, 11, episode)["index"].tolist() == list(range(first, first + 11))


def test_tables_of_many_small_row_groups_are_not_kept_open(tmp_path: Path) -> None:
    root = make_root(tmp_path / "tree", replace(PLAIN, row_group=2))
    rows = rows_of(root, sorted_rows=False)
    rows.take(0, 9, 0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for start, episode in zip(PLAIN.starts, range(6), strict=False):
        rows.take(start, 16, episode)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_table_that_cannot_be_read_on_says_the_same_again(plain: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(plain, tmp_path / "tree"))
    rows = rows_of(root, sorted_rows=False)
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        values = table["action"].to_pylist()
        values[3] = values[3][:-1]
        kind = pa.list_(pa.float32())
        place = table.column_names.index("action")
        pq.write_table(table.set_column(place, "action", pa.array(values, kind)), path)
    for _ in range(2):
        with pytest.raises(
            PrepError, match="The column action holds empty cells, or no numbers of one width"
        ):
            rows.take(0, 9, 0)


def test_joint_positions_are_rows_with_the_gripper_turned_round() -> None:
    rows: Any = {
        "joints": np.arange(21, dtype=np.float32).reshape(3, 7),
        "gripper": np.array([0, 0.25, 1], np.float32),
        "joint_state": np.full((3, 7), 5, np.float32),
        "gripper_state": np.array([0.75, 0, 0], np.float32),
    }
    action = joint_positions(rows, state=True)
    assert action.tolist() == [[5.0] * 7 + [0.25], [*range(7), 1.0], [*range(7, 14), 0.75]]
    assert (joint_positions(rows, state=False) == action[1:]).all()


def test_poses_are_relative_to_the_one_before() -> None:
    pytest.importorskip("scipy", reason="SciPy's rotations are the extra [robot]")
    from scipy.spatial.transform import Rotation

    rng = np.random.RandomState(2)
    pose = np.concatenate([rng.rand(6, 3), rng.uniform(-3, 3, (6, 3))], axis=1).astype(np.float32)
    rows: Any = {"pose": pose, "gripper": np.zeros(6, np.float32), "gripper_state": np.ones(6, np.float32)}
    action, first = ee_poses(rows, state=True)
    turns = Rotation.from_euler("xyz", pose[:, 3:]) * Rotation.from_matrix([[0, -1, 0], [1, 0, 0], [0, 0, 1]])
    for step in range(5):
        motion = turns[step].inv().apply(pose[step + 1, :3] - pose[step, :3])
        turn = (turns[step].inv() * turns[step + 1]).as_matrix()
        assert action[step + 1, :3] == pytest.approx(motion, abs=1e-5)
        assert action[step + 1, 3:9] == pytest.approx([*turn[:, 0], *turn[:, 1]], abs=1e-5)
    assert action[:, 9].tolist() == [0, 1, 1, 1, 1, 1]
    assert first[:3, 3] == pytest.approx(pose[0, :3])
    assert action[0, 3:6] == pytest.approx(turns[0].as_matrix()[:, 0], abs=1e-6)
    still = with_rot6d(np.array([[1, 2, 3, 0, 0, 0, -1]], np.float32))
    assert still.tolist() == [[1, 2, 3, 1, 0, 0, 0, 1, 0, -1]]


def test_what_needs_scipy_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(EnvironmentLacksError, match=r"LIBERO's actions need.*cosmos-prep\[robot\]") as raised:
        need_scipy("LIBERO's actions")
    assert raised.value.exit_status == 4


def literal_idle(still: list[bool]) -> int:
    count = 0
    for place in range(len(still)):
        first = place
        while first > 0 and still[first - 1]:
            first -= 1
        end = place
        while end < len(still) and still[end]:
            end += 1
        count += still[place] and end - first >= 3
    return count


@given(st.lists(st.booleans(), min_size=1, max_size=24))
def test_idle_frames_are_runs_of_three_or_more(still: list[bool]) -> None:
    action = np.tile(np.array([0, 0, 0, 1, 0, 0, 0, 1, 0, 0], np.float32), (len(still), 1))
    action[:, 0] = [0 if each else 1 for each in still]
    assert idle_frames(action, POSES, 15) == literal_idle(still)


@given(arrays(np.float32, (12, 8), elements=st.sampled_from([0, 2e-4, 4e-4, 0.009, 0.011])))
def test_joints_and_gripper_that_hardly_change_are_idle(action: Any) -> None:
    still = []
    for step in range(12):
        change = np.abs(action[step] - action[max(step - 1, 0)])
        still.append(bool(change[:7].max() < np.float32(5e-3 / 15) and change[7] < np.float32(1e-2)))
    assert idle_frames(action, JOINTS, 15) == literal_idle(still)


def test_what_a_task_offers() -> None:
    assert candidates("a | b", blank=True) == ["a", "b"]
    assert candidates(" |  | ", blank=True) == ["", "", ""]
    assert candidates("a | ", blank=False) == ["a"]
    assert candidates(" |  | ", blank=False) == [" |  | "]
    assert candidates("a|b", blank=True) == ["a|b"]


def test_the_draw_is_the_same_everywhere_and_even() -> None:
    parts = ["a", "b", "c"]
    draws = [chosen(parts, "drawn", 0, Identity(0, 3, frame)) for frame in range(3000)]
    assert draws[:12] == [1, 0, 0, 1, 1, 1, 2, 2, 2, 1, 2, 1]
    assert all(900 < draws.count(part) < 1100 for part in range(3))
    assert draws != [chosen(parts, "drawn", 0, Identity(1, 3, frame)) for frame in range(3000)]


@pytest.mark.parametrize(("given_", "expected"), [("first", "first"), ("drawn", "drawn"), ("3", 3), (1, 1)])
def test_the_choice_of_an_instruction(given_: Any, expected: Any) -> None:
    assert check_instruction(given_) == expected


@pytest.mark.parametrize("wrong", ["", "last", "0", "-1", 0, True, 1.5])
def test_other_choices_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="chooses no instruction"):
        check_instruction(wrong)


def test_quantiles_come_to_minus_one_and_one(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    path.write_text('{"global_raw": {"q01": [0,0,0,0,0,0,0,0,0,0], "q99": [2,2,2,2,2,2,2,2,2,0]}}')
    scaled = Quantiles.load(path, "global_raw").scaled(np.array([[0, 2, 1, 4, 0, 0, 0, 0, 0, 0]], np.float32))
    assert scaled.tolist() == [[-1, 1, 0, 3, -1, -1, -1, -1, -1, -1]]
    assert scaled.dtype == np.float32
    with pytest.raises(UsageError, match=r"statistics.json: no statistics .* in the block other"):
        Quantiles.load(path, "other")
