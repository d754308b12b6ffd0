"""Folders of a kind, looked for at a path and a little below it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["DEEPEST", "folders_below"]

DEEPEST = 2
"""How far below a path is looked: institutions stand two folders below a robot dataset."""


def folders_below(path: Path, is_wanted: Callable[[Path], bool], *, deepest: int = DEEPEST) -> list[str]:
    """The folders for which `is_wanted` is true, at `path` and up to `deepest` below, relative and sorted.

    A folder that is wanted is not looked into; hidden ones, and those that may not be read, are
    passed over. Links are followed.
    """
    return sorted(_below(path, "", deepest, is_wanted))


def _below(path: Path, below: str, levels: int, is_wanted: Callable[[Path], bool]) -> Iterator[str]:
    folder = path / below
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        return
    if is_wanted(folder):
        yield below
    elif levels:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if _is_folder(entry) and entry.name[0] != ".")
        for name in names:
            yield from _below(path, f"{below}/{name}".lstrip("/"), levels - 1, is_wanted)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads in a circle
