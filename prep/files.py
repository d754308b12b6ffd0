"""Files on disk: written whole or not at all, hashed, linked, and kept below their root.

New files get the umask's mode and new folders keep setgid, as `open` and `mkdir` give
them; nothing here goes through `tempfile`, whose files only their owner can read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from prep.errors import IncompleteError, PrepError

__all__ = [
    "FreeSpace",
    "disk_errors",
    "free_space",
    "is_partial",
    "link_or_copy",
    "move",
    "resolve_below",
    "sha256_of",
    "size_of",
    "sync_folder",
    "write_whole",
]

_PARTIAL = ".partial"
_FICLONE = 0x40049409  # the Linux ioctl that makes two files share their blocks

_DISK_ADVICE = {
    errno.ENOSPC: "The disk is full: free some space and run the same command again.",
    errno.EDQUOT: "The disk quota is used up: free some space and run the same command again.",
    errno.EFBIG: "The file-size limit is too low: raise it and run the same command again.",
    errno.EROFS: "The file system is read-only: write elsewhere.",
    errno.EACCES: "Permission is denied: give the user write permission and run the same command again.",
    errno.EPERM: "The operation is not permitted: check owner and mount, and run the same command again.",
}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` while writing at `path` into an `IncompleteError` of one sentence."""
    try:
        yield
    except OSError as error:
        where = _without_partial(error.filename or path)
        advice = _DISK_ADVICE.get(error.errno or 0, "Run the same command again when it is mended.")
        raise IncompleteError(f"{where}: {error.strerror or error}.", remedy=advice) from error


def _without_partial(path: str | Path) -> Path:
    """The file that a partial one beside it was going to be; any other path as it is."""
    whole = Path(os.fsdecode(path))
    return whole.with_name(whole.name[1 : -len(_PARTIAL)]) if is_partial(whole.name) else whole


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(path: Path) -> int | None:
    """A file's size in bytes; None where it is not to be had."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems refuse to sync a folder; the rename is then all there is.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write `data` beside `path`, sync it, and rename it into place.

    A reader sees the old file or the new one, never a part. One writer a path is
    assumed: the partial file has a fixed name, so that a killed run leaves no more than one.
    """
    partial = _partial(path)
    pieces = (data,) if isinstance(data, bytes) else data
    try:
        with partial.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}{_PARTIAL}")


def is_partial(name: str) -> bool:
    """Whether a file of this name is one that was being written beside its place."""
    return name.startswith(".") and name.endswith(_PARTIAL) and len(name) > len(_PARTIAL) + 1


def move(source: Path, target: Path) -> None:
    """Rename within one file system, making the target's folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _rename(source, target)


def _rename(source: Path, target: Path) -> None:
    # Between two hard links of one file rename(2) does nothing at all, and says that it went well.
    one_file = target.exists() and source.samefile(target) and source != target
    source.replace(target)
    if one_file:
        source.unlink()


def link_or_copy(source: Path, target: Path) -> str:
    """Give `target` the content of `source` at the least cost; says which way it went.

    Shared blocks ("reflink") if the file system can, else a hard link, else a copy.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    partial.unlink(missing_ok=True)
    try:
        way = _clone(source.resolve(), partial)
        _rename(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return way


def _clone(source: Path, partial: Path) -> str:
    if _reflink(source, partial):
        return "reflink"
    try:
        partial.hardlink_to(source)
    except OSError:
        # Another file system, or one without hard links: only a copy is left.
        partial.unlink(missing_ok=True)
        shutil.copyfile(source, partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        return "copy"
    return "hard link"


def _reflink(source: Path, partial: Path) -> bool:
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return False
    with source.open("rb") as old, partial.open("wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            pass
        else:
            os.fsync(new.fileno())
            return True
    partial.unlink()
    return False


def resolve_below(root: Path, relative: str) -> Path:
    """The path of `relative` below `root`; raises PrepError if it leaves the root.

    Judged on the text alone, so that a path from data is refused before anything is opened.
    """
    pure = PurePosixPath(relative)
    if not relative or pure.is_absolute() or ".." in pure.parts or "\0" in relative:
        raise PrepError(
            f"The path {relative!r} leaves its directory.",
            remedy="Name the file by a path below the directory, without `..`.",
        )
    return root / pure


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What a file system still takes: bytes, and files (None where it states no number)."""

    bytes: int
    files: int | None


def free_space(folder: Path) -> FreeSpace:
    """Free bytes and inodes for this user where `folder` is, or will be, made."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    state = os.statvfs(existing)
    return FreeSpace(bytes=state.f_bavail * state.f_frsize, files=state.f_favail if state.f_files else None)
