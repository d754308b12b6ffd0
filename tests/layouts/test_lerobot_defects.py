"""Recall and false alarms of the checks on planted faults, and silence on clean trees of several shapes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from prep.findings import catalogue
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


def test_recall_and_false_alarms(clean_trees: dict[str, Path], tmp_path: Path) -> None:
    """Every planted fault is found by the codes that tell it, and by no other: 0 missed, 0 false alarms."""
    seen = {defect.name: codes(damaged(defect, clean_trees, tmp_path)) for defect in DEFECTS}
    missed = {defect.name: defect.codes - seen[defect.name] for defect in DEFECTS}
    alarms = {defect.name: seen[defect.name] - defect.codes for defect in DEFECTS}
    assert len(seen) == len(DEFECTS) >= LEAST
    assert {name: some for name, some in missed.items() if some} == {}
    assert {name: some for name, some in alarms.items() if some} == {}


def test_every_code_of_the_layout_is_planted() -> None:
    planted = {code for defect in DEFECTS for code in defect.codes}
    known = {code for code in catalogue() if code.startswith("LER")}
    # The others have tests of their own in test_lerobot.py.
    assert known - planted == {"LER028", "LER035", "LER061"}


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
