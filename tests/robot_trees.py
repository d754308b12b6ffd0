"""Robot trees for runs of the stage: true metadata, and stand-ins for frame tables and videos."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prep.layouts.lerobot import Root
from prep.robots import RobotOptions, prepare_robots
from prep.stages.options import Result
from prep.windows import Identity, WindowIndex
from tests.robots import edit_json
from tests.window_trees import CAMERAS, DrawnRoot, write_root

__all__ = [
    "LENGTHS",
    "NAME",
    "SMALL",
    "droid_root",
    "droid_tree",
    "episode_id",
    "fill",
    "identities",
    "index",
    "keep",
    "listing",
    "literal_windows",
    "run",
]

NAME = "droid_plus_lerobot_640x360_20260412"
SMALL = "droid_plus_lerobot_320x180_20260406"

LENGTHS = tuple(40 + 7 * at % 61 for at in range(40))


def episode_id(number: int, kind: str = "success", lab: str = "LAB") -> str:
    """The name that a filter knows an episode by."""
    return f"{lab}/{kind}/2023-07-{number % 28 + 1:02d}/Fri_{number:06d}"


def droid_root(
    path: Path,
    lengths: Sequence[int] = LENGTHS,
    *,
    kind: str = "success",
    lab: str = "LAB",
    size: tuple[int, int] = (640, 360),
    fps: int = 15,
    files: bool = True,
) -> Path:
    """A root whose metadata is true; `size` is width, height in pixels."""
    ids = [episode_id(number, kind, lab) for number in range(len(lengths))]
    write_root(path, DrawnRoot(np.array(lengths, np.int64), ids), fps=fps)
    width, height = size
    for camera in CAMERAS:
        edit_json(
            path / "meta/info.json",
            lambda info, camera=camera: info["features"][camera].update(shape=[height, width, 3]),
        )
    if files:
        fill(path)
    return path


def fill(root: Path) -> None:
    """Put a stand-in where each data and video file is needed; they differ in size."""
    for number, (_, relative, _) in enumerate(Root.open(root).needed_files()):
        (root / relative).parent.mkdir(parents=True, exist_ok=True)
        (root / relative).write_bytes(f"{root.parent.name}/{root.name}/{relative}".encode() * (number + 1))


def droid_tree(folder: Path, form: str = "groups", **options: object) -> Path:
    """A tree of success and failure: `flat`, `groups`, or `sharded` into two institutions each."""
    if form == "flat":
        return droid_root(folder, **options)  # type: ignore[arg-type]
    for kind in ("failure", "success"):
        for lab in ("RAIL", "IRIS") if form == "sharded" else ("",):
            path = folder / kind / lab if lab else folder / kind
            droid_root(path, kind=kind, lab=lab or "LAB", **options)  # type: ignore[arg-type]
    return folder


def listing(folder: Path) -> list[tuple[str, int, int]]:
    """Every path below a folder with its size and time of change, and the folder's own."""
    paths = [folder, *folder.rglob("*")]
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)


def literal_windows(
    lengths: Sequence[int],
    order: Sequence[int],
    chunk: int,
    ranges: Mapping[int, Sequence[Sequence[int]]] | None = None,
    dataset_index: int = 0,
) -> list[Identity]:
    """Every window of these episodes, one at a time, as the contract is read."""
    found = []
    for episode in order:
        length = lengths[episode]
        spans = [[0, length]] if ranges is None else ranges.get(episode, [])
        for start, end in spans:
            for frame in range(length):
                if frame >= start and frame + chunk < min(end, length):
                    found.append(Identity(dataset_index, episode, frame))
    return found


def run(out: Path, recipe: str = "droid_policy", *, datasets: str = "all", **options: Any) -> Result:
    (result,) = prepare_robots(recipe, out, datasets=datasets, options=RobotOptions(**options))
    return result


def index(directory: Path, name: str) -> WindowIndex:
    return WindowIndex.open(directory / "windows" / f"{name}.arrow", inputs_below=directory)


def identities(windows: WindowIndex) -> list[Identity]:
    return [windows.resolve(place).identity for place in range(len(windows))]


def keep(path: Path, ranges: dict[str, list[list[int]]], prefix: str | None = "gs://elsewhere/r2d2") -> Path:
    """A filter under another prefix than upstream's, or under bare ids."""

    def key(name: str) -> str:
        head = f"{prefix}/{name}"
        return name if prefix is None else f"{head}/recordings/MP4--{head}/trajectory.h5"

    path.write_text(json.dumps({key(name): pairs for name, pairs in ranges.items()}))
    return path
