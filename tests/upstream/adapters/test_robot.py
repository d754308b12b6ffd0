"""The adapters of robot readers, over stand-ins that keep their spans as upstream's classes do."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from prep.comparison import Side, compare
from prep.errors import PrepError
from prep.upstream.adapters.lerobot import picture_bytes
from prep.upstream.adapters.robot import CosmosWindows, spans_of
from prep.window_lists import open_index
from tests.robot_trees import NAME, droid_tree, episode_id, keep, run

MODULE = ModuleType("upstream")
exec("import random", MODULE.__dict__)


class Tensor:
    """What a tensor shows to an adapter."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array


class Droid:
    """A dataset in the manner of upstream's DROID class: (root, first row, windows, episode) a span."""

    def __init__(self, records: list[tuple[int, int, int, int]]) -> None:
        self._episode_records = records

    def __len__(self) -> int:
        return sum(record[2] for record in self._episode_records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            raise RuntimeError("no frame here\nand more")
        caption = MODULE.random.choice(["open it", "", "shut it"])
        return {"ai_caption": caption, "action": Tensor(np.arange(3) + index), "mode": "wam"}


class Libero:
    """A dataset in the manner of upstream's LIBERO class, which resamples what it cannot read."""

    _ep_vals = np.array([0, 2, 3])
    _ep_starts = np.array([0, 40, 70])
    _valid_cum = np.array([10, 10, 14])

    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            if index == 3:
                raise ValueError("undecodable")
        except ValueError:
            index = MODULE.random.randint(0, 13)
        return {"ai_caption": MODULE.random.choice(["a"]), "frame": index}


DROID_RECORDS = [(0, 100, 4, 7), (0, 120, 3, 7), (1, 0, 2, 7)]
FIRST_ROWS = [{7: 90}, {7: 0}]


def test_windows_are_named_by_the_span_that_upstream_reads() -> None:
    reader = CosmosWindows(Droid(DROID_RECORDS), MODULE, FIRST_ROWS)
    assert [reader.identity(at) for at in range(9)] == [
        *((0, 7, frame) for frame in (10, 11, 12, 13, 30, 31, 32)),
        *((1, 7, frame) for frame in (0, 1)),
    ]
    assert list(reader.spans()) == [(0, 7, 100, 4), (0, 7, 120, 3), (1, 7, 0, 2)]
    for place in (-1, 9):
        with pytest.raises(IndexError):
            reader[place]


def test_spans_of_libero_are_those_that_have_windows() -> None:
    reader = CosmosWindows(Libero(), MODULE, [{0: 0, 2: 40, 3: 70}])
    assert list(reader.spans()) == [(0, 0, 0, 10), (0, 3, 70, 4)]
    assert reader.identity(9) == (0, 0, 9)
    assert reader.identity(10) == (0, 3, 0)


def test_the_instruction_is_ours_and_upstreams_candidates_stand_beside_it() -> None:
    reader = CosmosWindows(Droid(DROID_RECORDS), MODULE, FIRST_ROWS)
    ours = {"ai_caption": "shut it", "instruction_candidates": ["open it", "shut it"]}
    sample = reader.beside(0, ours)
    assert sample["ai_caption"] == "shut it"
    assert sample["instruction_candidates"] == ["open it", "", "shut it"]
    np.testing.assert_array_equal(sample["action"], [0, 1, 2])
    assert reader.beside(0, {"ai_caption": "elsewhere"})["ai_caption"] == "open it"
    assert "instruction_candidates" not in reader[0]
    assert MODULE.random is random


def test_what_upstream_cannot_read_or_would_replace_is_refused() -> None:
    with pytest.raises(PrepError, match="read window 5: no frame here") as refused:
        CosmosWindows(Droid(DROID_RECORDS), MODULE, FIRST_ROWS)[5]
    assert "and more" not in refused.value.message
    reader = CosmosWindows(Libero(), MODULE, [{0: 0, 2: 40, 3: 70}])
    assert reader[2]["frame"] == 2
    with pytest.raises(PrepError, match="instead"):
        reader[3]


def test_spans_of_an_index_are_those_of_its_windows(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / NAME)
    ranges = {episode_id(number): [[0, 40], [41, 90]] for number in range(20)}
    run(tmp_path / "out", root=tree, keep_ranges=str(keep(tmp_path / "keep.json", ranges)))
    found = open_index(tmp_path / "out" / NAME, "droid_policy-train")
    spans = list(spans_of(found))
    windows = [found.index.resolve(at) for at in range(len(found.index))]
    assert [
        (dataset, episode, row + at) for dataset, episode, row, count in spans for at in range(count)
    ] == [(window.dataset_index, window.episode_index, window.row) for window in windows]
    rows = {window.episode_index: window.row - window.frame for window in windows}
    records = [(dataset, row, count, episode) for dataset, episode, row, count in spans]
    reference = CosmosWindows(Droid(records), MODULE, [rows])
    assert all(reference.identity(at) == windows[at].identity for at in range(len(windows)))
    sides = Side("ours", reference), Side("reference", CosmosWindows(Droid(records[1:]), MODULE, [rows]))
    other = compare(*sides, samples=1)
    assert other.order.spans is not None
    assert not other.order.spans["same"]


def test_a_frame_is_told_by_its_bytes_where_it_is_made_of_bytes() -> None:
    bytes_ = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    picture = bytes_.astype(np.float32) / np.float32(255)
    found = picture_bytes(picture)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, bytes_)
    odd = np.nextafter(picture, np.float32(2))
    assert picture_bytes(odd) is odd
