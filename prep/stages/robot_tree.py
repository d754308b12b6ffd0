"""Robot trees: which LeRobot roots a folder holds, and which of their files are there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prep.errors import UsageError
from prep.layouts.lerobot import INFO, Root, version_of
from prep.recognise import other_layout

__all__ = ["Presence", "Tree", "find_tree", "presence", "root_names", "tree_of"]

Form = Literal["flat", "groups", "sharded"]

_GROUPS = ("success", "failure")


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder with one or more v3.0 roots.

    `flat`: the folder itself is a root. `groups`: `success/` and `failure/` are. `sharded`: each
    holds one root an institution. `roots` are (name, root) in upstream's order: success before
    failure, institutions sorted.
    """

    folder: Path
    form: Form
    roots: tuple[tuple[str, Root], ...]

    def chosen(self, groups: Sequence[str] | None) -> Tree:
        """The roots of some groups only; a flat tree is the group `success`."""
        if groups is None or self.form == "flat":
            return self
        kept = tuple((name, root) for name, root in self.roots if name.split("/")[0] in groups)
        return Tree(self.folder, self.form, kept)

    def size_name(self) -> str | None:
        """The videos' declared size as `WxH` pixels, by which upstream names its directories."""
        for _, root in self.roots:
            for camera in root.cameras:
                shape = root.features[camera].get("shape")
                if isinstance(shape, list) and len(shape) == 3:
                    return f"{shape[1]}x{shape[0]}"
        return None


def find_tree(folder: Path, names: Mapping[str, Any] | None = None, *, named: str = "") -> Tree:
    """The roots of a folder; one level down is looked at if it has a name that upstream knows.

    `named` is the variable that the folder came from. Raises UsageError if there is no root, PrepError
    for an older LeRobot format.
    """
    where = f"{named}: {folder}" if named else str(folder)
    if not folder.is_dir():
        raise UsageError(f"{where} is not a directory.", remedy="Give the folder of a LeRobot v3.0 tree.")
    found = root_names(folder)
    if found:
        return tree_of(folder, found)
    for name in (names or {}).values():
        for candidate in (folder / name, folder / f"{name}_sharded"):
            if candidate.is_dir():
                return find_tree(candidate, named=named)
    raise _no_tree(folder, where)


def root_names(folder: Path) -> list[str]:
    """Where in a folder LeRobot roots of any version stand: itself (""), its groups, or their folders."""
    if version_of(folder) is not None:
        return [""]
    groups = [name for name in _GROUPS if version_of(folder / name) is not None]
    return groups or [
        f"{group}/{path.name}"
        for group in _GROUPS
        if (folder / group).is_dir()
        for path in sorted((folder / group).iterdir())
        if version_of(path) is not None
    ]


def tree_of(folder: Path, names: Sequence[str]) -> Tree:
    """The tree of the roots at these places in a folder, in upstream's order; raises as `Root.open`."""
    if "" in names:
        return Tree(folder, "flat", (("success", Root.open(folder)),))
    ordered = sorted(names, key=lambda name: (_rank(name), name))
    form: Form = "sharded" if "/" in ordered[0] else "groups"
    return Tree(folder, form, tuple((name, Root.open(folder / name)) for name in ordered))


def _rank(name: str) -> int:
    group = name.split("/")[0]
    return _GROUPS.index(group) if group in _GROUPS else len(_GROUPS)


def _no_tree(folder: Path, where: str) -> UsageError:
    """What a folder without a root is instead, if that is known, and what to give."""
    below = [path for path in sorted(folder.iterdir()) if path.is_dir() and root_names(path)]
    if below:
        return UsageError(
            f"{where} is no LeRobot tree, but holds {', '.join(path.name for path in below[:5])}.",
            remedy=f"Give the tree itself, such as {below[0]}.",
        )
    other = other_layout(folder)
    if other.code == "LAY001":
        return UsageError(
            f"{where} holds no LeRobot tree; it holds {other.message}.",
            remedy="Give the folder of a LeRobot v3.0 tree.",
        )
    return UsageError(
        f"{where} holds no LeRobot tree: no {INFO} in it, in success/ or failure/, or in their folders.",
        remedy="Give the folder that holds meta/, data/ and videos/, or the one above success/.",
    )


@dataclass(frozen=True, slots=True)
class Presence:
    """Which of the files that an episode table needs are there.

    `by_camera` maps a camera (or "data") to (present, needed); `missing` are the first missing paths;
    `lost` are the positions, in the episode table, of episodes whose files are not all there.
    """

    by_camera: Mapping[str, tuple[int, int]]
    missing: tuple[str, ...]
    missing_count: int
    lost: Sequence[Any]
    bytes: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.missing_count == 0

    @property
    def is_metadata_only(self) -> bool:
        """Whether not one data or video file is there."""
        return all(present == 0 for present, _ in self.by_camera.values())


_SHOWN = 20


def presence(root: Root) -> Presence:
    """Look for each data and video file that the episode table of `root` names."""
    lost: list[Any] = []
    counts: dict[str, list[int]] = {}
    missing: list[str] = []
    missing_count = size = 0
    for camera, relative, positions in root.needed_files():
        entry = counts.setdefault(camera or "data", [0, 0])
        entry[1] += 1
        try:
            size += os.stat(root.path / relative).st_size  # noqa: PTH116 - thousands of files
            entry[0] += 1
        except OSError:
            missing_count += 1
            lost.append(positions)
            if len(missing) < _SHOWN:
                missing.append(relative)
    by_camera = {camera: (present, needed) for camera, (present, needed) in counts.items()}
    return Presence(by_camera, tuple(missing), missing_count, lost, size)
