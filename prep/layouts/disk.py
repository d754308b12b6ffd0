"""What stands in a dataset's directory beside what its records name: strays, leftovers, links, names.

The walk follows no link and goes folder by folder, so its memory is that of the largest folder.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prep.findings import Finding, found
from prep.manifest import MANIFEST, STATE

if TYPE_CHECKING:
    import numpy as np

__all__ = ["check_disk", "is_leftover"]

_LEFTOVER: Final = re.compile(
    r".*\.(?:part|partial|incomplete|tmp|temp|crdownload|download|aria2|ytdl)|\.build_progress\.json|\.nfs[0-9a-f]+"
)
_OURS: Final = frozenset((MANIFEST, "meta.json"))
_OWN_FOLDERS: Final = frozenset((STATE, ".git"))
# The Hub's client keeps its notes here in a folder that it filled; they are no fault, its partial files are.
_CLIENT_FOLDER: Final = ".cache"
_PAPERS: Final = re.compile(
    r"(?:README|LICENSE|LICENCE|NOTICE|CITATION)(?:\.[a-z]+)?|\.git(?:attributes|ignore)"
)

Emit = Callable[[Finding], None]


def is_leftover(name: str) -> bool:
    """Whether a file's name is one that a stopped download or build leaves."""
    return _LEFTOVER.fullmatch(name) is not None


def check_disk(
    root: Path,
    named: Iterable[array[int]],
    emit: Emit,
    *,
    external: Collection[str] = (),
    strays: bool = True,
) -> Iterator[str]:
    """Walk the tree; yields the path of each file that no record names, after reporting it.

    `named` are hashes of relative paths. `external` are links that the manifest says lead outside.
    `strays` false reports no strays, for a tree of which the records are not known.
    """
    import numpy as np

    parts = [np.zeros(1, np.int64), *(np.frombuffer(part, np.int64) for part in named if len(part))]
    known = np.sort(np.concatenate(parts))
    real_root = os.path.realpath(root)
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = _listed(root / below)
        except OSError as error:
            emit(found("FIL014", below, f"the folder cannot be listed: {error.strerror}"))
            continue
        _names_differ(below, [entry.name for entry in entries], emit)
        names, inner, links = _sorted_out(entries, f"{below}/" if below else "")
        for path, link in sorted(links):
            if path not in external:
                _check_link(link, path, real_root, emit)
        folders += [path for path in sorted(inner, reverse=True) if _is_walked(root, path)]
        yield from _strays(names, known, emit, strays=strays)


def _sorted_out(
    entries: list[os.DirEntry[str]], prefix: str
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """A folder's files (and links to files), its folders, and its links with their place on disk."""
    names: list[str] = []
    inner: list[str] = []
    links: list[tuple[str, str]] = []
    for entry in entries:
        path = prefix + entry.name
        if entry.is_symlink():
            links.append((path, entry.path))
            if not entry.is_dir():
                names.append(path)
        elif entry.is_dir(follow_symlinks=False):
            inner.append(path)
        else:
            names.append(path)
    return names, inner, links


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _is_walked(root: Path, path: str) -> bool:
    """Whether a folder is part of this dataset: not our notes, and no dataset of its own."""
    if path in _OWN_FOLDERS:
        return False
    return not any((root / path / name).exists() for name in _OURS)


def _strays(names: list[str], known: np.ndarray[Any, Any], emit: Emit, *, strays: bool) -> Iterator[str]:
    import numpy as np

    hashes = np.fromiter(map(hash, names), np.int64, len(names))
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    for path in sorted(names[at] for at in np.flatnonzero(known[places] != hashes).tolist()):
        name = path.rpartition("/")[2]
        if is_leftover(name):
            emit(found("FIL007", path, "its name is that of a partial file or a progress note"))
        elif strays and not path.startswith(f"{_CLIENT_FOLDER}/") and not _is_paper(path):
            emit(found("FIL006", path, "no record names it"))
            yield path


def _is_paper(path: str) -> bool:
    return path in _OURS or _PAPERS.fullmatch(path) is not None


def _check_link(link: str, path: str, real_root: str, emit: Emit) -> None:
    # `realpath` bears loops: what then does not exist is dangling.
    target = os.path.realpath(link)
    if not os.path.exists(target):  # noqa: PTH110 - a Path for each of a million links is dear
        emit(found("FIL010", path, f"its target {os.readlink(link)!r} does not exist"))  # noqa: PTH115
    elif target != real_root and not target.startswith(f"{real_root}/"):
        emit(found("FIL011", path, f"the link leads to {target!r}, outside the dataset's directory"))


def _names_differ(below: str, names: list[str], emit: Emit) -> None:
    if len(set(map(str.casefold, names))) == len(names):
        return
    folded: dict[str, str] = {}
    for name in sorted(names):
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            path = f"{below}/{name}" if below else name
            emit(found("FIL015", path, f"{name!r} and {other!r} stand in one folder"))
