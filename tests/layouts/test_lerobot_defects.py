"""Recall and false alarms of the checks on planted faults, and silence on clean trees of several shapes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from prep.layouts.lerobot_checks import check_root
from tests.layouts.lerobot_defects import DEFECTS, Defect
from tests.robots import DROID, LIBERO, PLAIN, Shape, make_root

LEAST = 40


@pytest.fixture(scope="session")
def clean_trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("clean")
    return {name: make_root(base / name, shape) for name, shape in (("plain", PLAIN), ("droid", DROID))}


def codes(root: Path) -> set[str]:
    return {finding.code for finding in check_root(root, level="deep")}


def damaged(defect: Defect, clean_trees: dict[str, Path], into: Path) -> Path:
    root = into / defect.name
    shutil.copytree(clean_trees["plain" if defect.shape is PLAIN else "droid"], root)
    defect.damage(root)
    return root


def test_there_are_as_many_faults_as_promised() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= LEAST


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_fault_is_found_and_nothing_else(
    defect: Defect, clean_trees: dict[str, Path], tmp_path: Path
) -> None:
    assert codes(damaged(defect, clean_trees, tmp_path)) == defect.codes


SHAPES = {
    "plain": PLAIN,
    "droid": DROID,
    "libero": LIBERO,
    "no video": replace(PLAIN, cameras=(), packing=()),
    "one episode of one frame": replace(
        PLAIN, lengths=(1,), data_files=(1,), meta_files=(1,), packing=((1,),) * 3
    ),
    "an episode a file": replace(
        PLAIN, data_files=(1,) * 6, meta_files=(1,) * 6, packing=((1,) * 6, (6,), (3, 1, 2)), fps=30
    ),
    "a single value": replace(PLAIN, vectors={"action": 0, "observation.state": 14}, fixed_lists=True),
    "mpeg4": replace(PLAIN, codec="mpeg4"),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("level", ["quick", "standard", "deep"])
def test_clean_trees_give_nothing(shape: Shape, level: str, tmp_path: Path) -> None:
    root = make_root(tmp_path / "tree", shape)
    assert list(check_root(root, level=level)) == []  # type: ignore[arg-type]
    assert list(check_root(root, level=level, reader="upstream")) == []  # type: ignore[arg-type]
