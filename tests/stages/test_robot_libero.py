"""LIBERO's suites and trees of any robot: their order, their held-out episodes, their rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prep.errors import PrepError, UsageError
from prep.permutation import sampled_fraction
from prep.robots import RobotOptions, prepare_robots
from tests.robot_trees import (
    droid_tree,
    episode_id,
    identities,
    index,
    keep,
    listing,
    literal_windows,
    run,
)
from tests.robots import LIBERO, edit_json, make_root
from tests.runs import digests
from tests.window_trees import draw_libero, write_frames, write_root


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine names a tree."""
    for name in ("DROID_ROOT", "DATASET_PATH", "LIBERO_ROOT", "DROID_FILTER_SOURCE_PREFIX"):
        monkeypatch.delenv(name, raising=False)


def libero_root(path: Path, *, fps: int = 20, seed: int = 1) -> list[tuple[int, int]]:
    """A suite whose rows stand in several files in no order; its (episode, length) pairs."""
    root, numbers = draw_libero(seed, 30)
    write_root(path, root, fps=fps)
    write_frames(path, root, numbers, files=3)
    for camera in ("observation.image.wrist_image_left",):
        assert camera in json.loads((path / "meta/info.json").read_text())["features"]
    edit_json(path / "meta/info.json", lambda info: info["features"].clear())
    return list(zip(numbers, root.lengths.tolist(), strict=True))


def test_a_suite_is_indexed_in_ascending_order_with_one_episode_in_a_hundred_held_out(
    tmp_path: Path,
) -> None:
    episodes = libero_root(tmp_path / "all" / "libero_10")
    result = run(tmp_path / "data", "libero_10", root=tmp_path / "all")
    assert result.root == tmp_path / "data/LIBERO_LeRobot_v3/libero_10"
    assert sorted(path.name for path in result.root.iterdir() if path.is_symlink()) == ["data", "meta"]
    lengths = dict(episodes)
    held_out = sampled_fraction(sorted(lengths), 0.01, 0)
    assert len(held_out) == 1
    train = [number for number in sorted(lengths) if number not in held_out]
    numbers = range(max(lengths) + 1)
    every = [lengths.get(number, 0) for number in numbers]
    assert identities(index(result.root, "libero_10-train-c16")) == literal_windows(every, train, 16)
    assert identities(index(result.root, "libero_10-val-c16")) == literal_windows(every, sorted(held_out), 16)


def test_rows_of_an_orphan_file_are_trained_on_and_a_change_of_rows_is_noticed(tmp_path: Path) -> None:
    libero_root(tmp_path / "libero_10")
    before = run(tmp_path / "before", "libero_10", root=tmp_path / "libero_10").consumption
    table = pq.read_table(tmp_path / "libero_10/data/chunk-000/file-000.parquet").slice(0, 40)
    rows = pa.array(range(10**6, 10**6 + 40))
    table = table.set_column(table.schema.get_field_index("index"), "index", rows)
    table = table.set_column(
        table.schema.get_field_index("episode_index"), "episode_index", pa.array([999] * 40)
    )
    orphan = tmp_path / "libero_10/data/chunk-007/file-000.parquet"
    orphan.parent.mkdir()
    pq.write_table(table, orphan)
    result = run(tmp_path / "after", "libero_10", root=tmp_path / "libero_10")
    total = sum(facts["windows"] for facts in result.consumption.values())
    assert total == sum(facts["windows"] for facts in before.values()) + 40 - 16
    pq.write_table(table.slice(0, 20), orphan)
    with pytest.raises(PrepError, match="chunk-007"):
        index(result.root, "libero_10-train-c16")


def test_a_suite_of_metadata_alone_is_completed_by_its_rows(tmp_path: Path) -> None:
    libero_root(tmp_path / "libero_10")
    (tmp_path / "libero_10/data").rename(tmp_path / "rows")
    first = run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10")
    assert any("indexed from the metadata alone" in note for note in first.notes)
    (tmp_path / "rows").rename(tmp_path / "libero_10/data")
    second = run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10")
    assert second.outcome == "complete"
    whole = run(tmp_path / "whole", "libero_10", root=tmp_path / "libero_10")
    assert digests(whole.root) == digests(second.root)


def test_a_suite_at_another_rate_is_an_error(tmp_path: Path) -> None:
    libero_root(tmp_path / "libero_10", fps=10)
    result = run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10")
    assert (result.exit_status, [item.code for item in result.findings]) == (1, ["ROB001"])
    assert "10 frames a second; the recipe expects 20" in result.message
    assert not (tmp_path / "data").exists()


def test_a_chunk_that_upstream_does_not_take_is_refused(tmp_path: Path) -> None:
    libero_root(tmp_path / "libero_10")
    with pytest.raises(UsageError, match="not a multiple of 4") as error:
        run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10", chunk_length=18)
    assert "16" in error.value.remedy


def test_all_suites_are_datasets_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suites = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
    for seed, suite in enumerate(suites):
        libero_root(tmp_path / "all" / suite, seed=seed)
    options = RobotOptions(root=tmp_path / "all")
    results = prepare_robots("libero_all", tmp_path / "data", options=options)
    assert [result.root.relative_to(tmp_path / "data") for result in results] == [
        Path("LIBERO_LeRobot_v3", suite) for suite in suites
    ]
    assert len({result.dataset_id for result in results}) == 4
    monkeypatch.setenv("LIBERO_ROOT", str(tmp_path / "all"))
    by_variable = prepare_robots("libero_all", tmp_path / "other")
    assert [result.dataset_id for result in by_variable] == [result.dataset_id for result in results]
    monkeypatch.setenv("LIBERO_ROOT", str(tmp_path / "all/libero_goal"))
    assert run(tmp_path / "one", "libero_all", datasets="libero_goal").root.name == "libero_goal"
    with pytest.raises(UsageError, match="is libero_goal, not libero_10"):
        run(tmp_path / "one", "libero_10")


def test_a_blank_part_beside_an_instruction_is_none_for_liberos_reader(tmp_path: Path) -> None:
    from dataclasses import replace

    make_root(tmp_path / "libero_10", replace(LIBERO, tasks=("open it | ", "close it", " | ")))
    result = run(tmp_path / "data", "libero_10", root=tmp_path / "libero_10")
    assert [item.message for item in result.findings] == ["1 task text has a blank instruction"]


# --- any tree ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["g1_lerobot_v30_converted", "rebot_lerobot_v30_novideo"])
def test_a_real_tree_is_indexed(name: str, tmp_path: Path, real_data: Path) -> None:
    root = real_data / name
    before = listing(root)
    result = run(tmp_path / "data", "lerobot", root=root)
    assert result.outcome == "complete"
    lengths = []
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        lengths += pq.read_table(path, columns=["length"])["length"].to_pylist()
    assert result.consumption["full"]["windows"] == sum(max(length - 16, 0) for length in lengths)
    assert listing(root) == before


def test_a_tree_without_ids_takes_no_filter(tmp_path: Path, real_data: Path) -> None:
    path = keep(tmp_path / "keep.json", {episode_id(1): [[0, 90]]})
    with pytest.raises(PrepError, match="no column episode_id"):
        run(tmp_path / "data", root=real_data / "g1_lerobot_v30_converted", keep_ranges=str(path))
    with pytest.raises(UsageError, match="takes no filter"):
        run(tmp_path / "data", "lerobot", root=real_data / "g1_lerobot_v30_converted", keep_ranges=str(path))


def test_the_same_tree_gives_the_same_bytes_at_any_place(tmp_path: Path) -> None:
    made = []
    for place in ("here", "there"):
        tree = droid_tree(tmp_path / place / "tree")
        result = run(tmp_path / place / "data", root=tree)
        (result.root / ".prep/location.json").unlink()
        made.append(digests(result.root))
    assert made[0] == made[1]
