"""The committed robot trees of `tests/fixtures/robot_windows`, prepared by the real stage, and their facts.

`tests/robot_fixture_make.py` wrote the trees and, with upstream, `facts.json` beside them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np

from prep.resources import data_folder
from prep.robots import RobotOptions, prepare_robots

__all__ = [
    "CASES",
    "FACTS",
    "FIXTURE",
    "Case",
    "conversion",
    "digest",
    "file_digests",
    "floats",
    "packed",
    "prepare_fixture",
    "with_split",
]

FIXTURE = Path(__file__).parent / "fixtures" / "robot_windows"
FACTS = FIXTURE / "facts.json"


@dataclass(frozen=True)
class Case:
    """Windows that are compared: `places` of an index, read with `options`.

    Of the places in `models` the model's input is compared as well.
    """

    dataset: str
    index: str
    places: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[int, ...] = ()

    @property
    def needs_scipy(self) -> bool:
        """Whether its actions are made of rotations."""
        return not self.index.startswith("droid_policy")


CASES: Mapping[str, Case] = {
    "joint_pos": Case("droid", "droid_policy-train-c32", (0, 1, 9, 17, 24, 40, 63), models=(9,)),
    "joint_pos filtered": Case("droid", "droid_policy-train-c32-filtered", (0, 3, 9, 17, 20, 23, 24)),
    "joint_pos val": Case("droid", "droid_policy-val-c32", (0, 4, 7)),
    "joint_pos full": Case("droid", "droid_policy_full-full-c32", (0, 8, 31)),
    "joint_pos wrist, no state": Case(
        "droid", "droid_policy-train-c32", (2, 20), {"view": "wrist_view", "state": False}
    ),
    "ee_pose": Case(
        "droid", "droid_forward_dynamics-train-c16", (0, 30, 60, 99, 130, 154, 170, 187), models=(170,)
    ),
    "ee_pose filtered": Case(
        "droid", "droid_forward_dynamics-train-c16-filtered", (0, 25, 50, 83, 90, 110, 126, 134)
    ),
    "ee_pose val": Case("droid", "droid_forward_dynamics-val-c16", (0, 12, 23)),
    "ee_pose, state": Case("droid", "droid_forward_dynamics-train-c16", (5, 100), {"state": True}),
    "libero": Case("libero", "libero_10-train-c16", (0, 3, 6, 11, 15, 22), models=(0, 11, 22)),
    "libero val": Case("libero", "libero_10-val-c16", (0, 5, 9), models=(5,)),
    "libero wrist": Case("libero", "libero_10-train-c16", (8,), {"view": "wrist_view"}),
    "libero third person": Case("libero", "libero_10-train-c16", (8,), {"view": "third_person_view"}),
    "libero enlarged": Case("libero_128", "libero_10-train-c16", (0, 1), models=(1,)),
}


def prepare_fixture(
    out: Path, datasets: tuple[str, ...] = ("droid", "libero", "libero_128")
) -> dict[str, Path]:
    """The directory of each prepared dataset; the trees are linked, not copied."""
    places = {}
    if "droid" in datasets:
        policy_full = with_split("droid_policy", "full", out / "droid_policy_full.toml")
        keep = str(FIXTURE / "keep_ranges.json")
        for recipe, ranges in (
            ("droid_policy", None),
            ("droid_policy", keep),
            (policy_full, None),
            ("droid_forward_dynamics", None),
            ("droid_forward_dynamics", keep),
        ):
            places["droid"] = _prepared(recipe, out / "droid", "droid", keep_ranges=ranges)
    for name in ("libero", "libero_128"):
        if name in datasets:
            places[name] = _prepared("libero_10", out / name, name)
    return places


def with_split(recipe: str, split: str, path: Path) -> Path:
    """One of the project's recipes with another split alone, named RECIPE_SPLIT."""
    text = (data_folder("recipes") / f"{recipe}.toml").read_text(encoding="utf-8")
    changed = text.replace(f'name = "{recipe}"', f'name = "{recipe}_{split}"')
    changed = changed.replace('splits = ["train", "val"]', f'splits = ["{split}"]')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(changed, encoding="utf-8")
    return path


def _prepared(recipe: str | Path, out: Path, tree: str, **options: Any) -> Path:
    (result,) = prepare_robots(recipe, out, options=RobotOptions(root=FIXTURE / tree, **options))
    assert result.exit_status == 0, result.report
    return result.root


def conversion() -> dict[str, Any]:
    """What turns a file's bytes into pixels on this machine: PyAV's FFmpeg, and the processor's kind."""
    versions = {name: list(av.library_versions[name]) for name in ("libavcodec", "libswscale")}
    return {**versions, "machine": platform.machine()}


def file_digests() -> dict[str, str]:
    """sha256 of every file of the trees, by path."""
    return {
        path.relative_to(FIXTURE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(FIXTURE.rglob("*"))
        if path.is_file() and path.suffix in (".mp4", ".parquet", ".json") and path != FACTS
    }


def digest(value: Any) -> str:
    """sha256 of an array's type, shape and bytes, of anything else as JSON."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        head = f"{array.dtype.str}{array.shape}".encode()
        return hashlib.sha256(head + memoryview(array).cast("B")).hexdigest() if array.size else head.decode()
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def packed(value: Any) -> dict[str, Any]:
    """A small float32 array as JSON, so that it can be compared within a tolerance."""
    array = np.ascontiguousarray(value)
    assert array.dtype == np.float32
    return {"shape": list(array.shape), "float32": base64.b64encode(array.astype("<f4").tobytes()).decode()}


def floats(value: Mapping[str, Any]) -> Any:
    """The array of `packed`."""
    return np.frombuffer(base64.b64decode(value["float32"]), "<f4").reshape(value["shape"])
