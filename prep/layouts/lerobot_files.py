"""Checks of the files of a root: those that episodes need, those that none names, and empty ones.

The folders were listed once; no file that is not there is looked for by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prep.findings import Finding, found
from prep.layouts.disk import is_leftover
from prep.layouts.lerobot_episodes import joined
from prep.layouts.lerobot_facts import Facts, Needed
from prep.signatures import lfs_oid

__all__ = ["FILE_RULES", "check_same_bytes"]

_POINTER_SIZE: Final = 512
_PIECE: Final = 1 << 20


def check_needed(facts: Facts) -> Iterator[Finding]:
    """LER041 and LER042: each frame table and video that an episode needs is there."""
    for camera in ("", *facts.root.cameras):
        for item in facts.needed(camera) or () if facts.count else ():
            if not _is_there(facts, item):
                yield _missing(facts, item)


def _is_there(facts: Facts, item: Needed) -> bool:
    if item.path in facts.files:
        return True
    if item.path.startswith(("data/", "videos/")):
        return False
    # A template of another folder than those that were listed.
    path = facts.root.path / item.path
    if path.is_file():
        facts.files[item.path] = path.stat().st_size
    return path.is_file()


def _missing(facts: Facts, item: Needed) -> Finding:
    names = [facts.episode(int(at)) for at in item.episodes[:6]]
    count = len(item.episodes)
    who = f"{names[0]} needs it" if count == 1 else f"{count} episodes need it, from {names[0]} on"
    if item.camera:
        return found("LER042", item.path, f"there is no such file; {who}", place=item.camera)
    return found("LER041", item.path, f"there is no such file; {who}")


def check_content(facts: Facts) -> Iterator[Finding]:
    """FIL001, FIL002, FIL007 and FIL010: files that hold no data; they are not opened later."""
    for path, size in facts.files.items():
        if is_leftover(path.rpartition("/")[2]):
            facts.broken.add(path)
            yield found("FIL007", path, "its name is that of a partial file or a progress note")
        elif size is None:
            facts.broken.add(path)
            yield found("FIL010", path, "the link's target does not exist")
        elif size == 0:
            facts.broken.add(path)
            yield found("FIL002", path, "0 bytes")
        elif size <= _POINTER_SIZE and (oid := _pointer(facts.root.path / path)):
            facts.broken.add(path)
            yield found("FIL001", path, f"a Git-LFS pointer to {oid}")


def _pointer(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return lfs_oid(file.read(_POINTER_SIZE))
    except OSError:
        return None  # who opens it for its content says so


def check_orphans(facts: Facts) -> Iterator[Finding]:
    """LER043: files below data/ and videos/ that no episode names.

    Readers take the rows of every frame table that lies in a chunk, named or not.
    """
    if not facts.count:
        return
    named: set[str] = set()
    unknown = []
    for camera in ("", *facts.root.cameras):
        needed = facts.needed(camera)
        if needed is None:
            unknown.append(f"videos/{camera}/" if camera else "data/")
        named.update(item.path for item in needed or ())
    for path in facts.files:
        if path in named or path in facts.broken or path.startswith(tuple(unknown)):
            continue
        is_table = path.startswith("data/") and path.count("/") == 2 and path.endswith(".parquet")
        if is_table:
            message = "no episode names it, and readers take the rows of every table below data/"
            yield found("LER043", path, message, severity="error")
        else:
            yield found("LER043", path, _why_not_named(facts, path))


def _why_not_named(facts: Facts, path: str) -> str:
    folder = path.split("/")[1]
    if path.startswith("videos/") and folder not in facts.root.cameras:
        return f"{folder} is no video feature; those are {joined(facts.root.cameras) or 'none'}"
    return f"none of {facts.count} episodes names it"


def check_same_bytes(facts: Facts) -> Iterator[Finding]:
    """FIL008: two videos of the same bytes, such as one camera under two names; equal sizes are hashed."""
    by_size: dict[int, list[str]] = {}
    for camera in facts.root.cameras:
        for item in facts.readable(camera):
            by_size.setdefault(facts.files[item.path] or 0, []).append(item.path)
    for paths in by_size.values():
        seen: dict[bytes, str] = {}
        for path in paths if len(paths) > 1 else ():
            other = seen.setdefault(_digest(facts.root.path / path), path)
            if other != path:
                yield found("FIL008", path, f"the same {facts.files[path]} bytes as {other}")


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.digest()


Rule = Callable[[Facts], Iterator[Finding]]
FILE_RULES: Final[Sequence[Rule]] = (check_content, check_needed, check_orphans)
