"""The lock of upstream's files, and where a file of it can be had (contracts, section 8).

A file is looked for in `vendor/cosmos_framework/` of a checkout of this project, then in
the user's cache, and is else fetched once from the lock's address. Whatever its way, its
size and sha256 must be the lock's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prep.errors import EnvironmentLacksError, IncompleteError, PrepError, UsageError
from prep.files import disk_errors, write_whole
from prep.resources import data_folder, user_cache

__all__ = [
    "Lock",
    "LockedFile",
    "complete_root",
    "git",
    "installed_root",
    "load_lock",
    "local_copy",
    "locked_bytes",
    "sync",
    "vendor_folder",
    "verify",
]

_PACKAGE = "cosmos_framework"
_SECONDS = 30.0

_UNREACHABLE = ("Could not resolve host", "Failed to connect", "Connection refused", "timed out")
"""What git says of a server that it cannot reach."""


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file of the lock: its path in the repository, size in bytes, sha256."""

    path: str
    size: int
    sha256: str

    def check(self, data: bytes, origin: str, *, remedy: str) -> bytes:
        """The bytes, if they are the locked ones; raises PrepError that names both sizes or hashes."""
        if len(data) != self.size:
            difference = f"has {len(data)} bytes, the lock says {self.size}"
        else:
            digest = hashlib.sha256(data).hexdigest()
            if digest == self.sha256:
                return data
            difference = f"has sha256 {digest}, the lock says {self.sha256}"
        raise PrepError(f"{origin}: {self.path} {difference}.", remedy=remedy)


@dataclass(frozen=True, slots=True)
class Lock:
    """The repository, commit and licence that the files belong to."""

    repository: str
    commit: str
    license: str
    raw_url: str
    files: tuple[LockedFile, ...]

    def file(self, path: str) -> LockedFile:
        """The entry of a path; raises UsageError if the lock has none."""
        for entry in self.files:
            if entry.path == path:
                return entry
        raise UsageError(f"The lock of upstream's files has no {path}.", remedy="Correct the recipe.")


def load_lock() -> Lock:
    """The lock that comes with the project."""
    document = json.loads((data_folder("vendor") / "upstream.lock.json").read_text(encoding="utf-8"))
    files = tuple(LockedFile(**entry) for entry in document.pop("files"))
    return Lock(files=files, **document)


def vendor_folder() -> Path:
    """Where `prep vendor sync` puts the files: beside the lock in a checkout, else the user's cache."""
    beside = data_folder("vendor")
    is_checkout = (beside.parent / "pyproject.toml").is_file()
    return beside if is_checkout and os.access(beside, os.W_OK) else _cache_folder(load_lock())


def installed_root() -> Path | None:
    """The folder that holds an installed `cosmos_framework`, found without importing it.

    The vendored copy, once it has been appended to `sys.path`, is none.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    root = Path(places[0]).parent if places else None
    own = [folder.resolve() for folder in _folders(load_lock())]
    return None if root is None or root.resolve() in own else root


def _folders(lock: Lock) -> tuple[Path, Path]:
    """Where copies of the locked files lie: beside the lock, and in the user's cache."""
    return data_folder("vendor"), _cache_folder(lock)


def complete_root(lock: Lock) -> Path | None:
    """The folder that holds every locked file, unchecked; None if there is none."""
    folders = _folders(lock)
    return next((each for each in folders if all((each / at.path).is_file() for at in lock.files)), None)


def locked_bytes(path: str, *, offline: bool = False) -> tuple[bytes, str]:
    """The bytes of a locked file and where they came from, in words.

    Raises EnvironmentLacksError if they cannot be had, PrepError if a copy differs.
    """
    lock = load_lock()
    entry = lock.file(path)
    copy = local_copy(lock, path)
    if copy is not None:
        return _checked_copy(entry, copy), str(copy)
    if offline:
        raise EnvironmentLacksError(f"{path} of upstream is not on this machine, and the run is offline.")
    data = entry.check(_fetch(lock, path), lock.repository, remedy="Run the same command again.")
    target = _cache_folder(lock) / path
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, data)
    return data, f"{lock.repository} at {lock.commit[:12]}"


def local_copy(lock: Lock, path: str) -> Path | None:
    """Where a locked file lies on this machine, unchecked; None if it does not."""
    for folder in _folders(lock):
        if (folder / path).is_file():
            return folder / path
    return None


def _checked_copy(entry: LockedFile, copy: Path) -> bytes:
    remedy = f"Delete {copy} and run the same command again."
    return entry.check(copy.read_bytes(), "the copy on this machine", remedy=remedy)


def verify() -> int:
    """Hash every copy on this machine; returns how many files the lock has.

    Raises PrepError for one that differs, EnvironmentLacksError if one is not here.
    """
    lock = load_lock()
    copies = {entry: local_copy(lock, entry.path) for entry in lock.files}
    absent = [entry.path for entry, copy in copies.items() if copy is None]
    for entry, copy in copies.items():
        if copy is not None:
            _checked_copy(entry, copy)
    if absent:
        raise EnvironmentLacksError(
            f"{len(absent)} of {len(copies)} files of upstream are not here, such as {absent[0]}.",
            remedy=f"Run `prep vendor sync --from {lock.repository}`.",
        )
    return len(copies)


def _fetch(lock: Lock, path: str) -> bytes:
    import httpx

    url = lock.raw_url.format(commit=lock.commit, path=path)
    try:
        answer = httpx.get(url, timeout=_SECONDS, follow_redirects=True).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        raise EnvironmentLacksError(
            f"Upstream's {path} could not be had from {url}: {said}.",
            remedy="Run the same command again on a connected machine.",
        ) from error
    return answer.content


def sync(source: str) -> tuple[Path, int]:
    """Fill the vendor folder from a git URL, a checkout or a bare repository.

    All files are checked before the first is written. Returns the folder and the number of files.
    Raises PrepError for a differing byte, UsageError if the source has no such files.
    """
    lock = load_lock()
    with _reader(source, lock) as read:
        remedy = f"Give a checkout of commit {lock.commit}."
        contents = {entry.path: entry.check(read(entry.path), source, remedy=remedy) for entry in lock.files}
    folder = vendor_folder()
    for path, data in contents.items():
        target = folder / path
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, data)
    return folder, len(contents)


@contextmanager
def _reader(source: str, lock: Lock) -> Iterator[_Read]:
    folder = Path(source)
    if not folder.exists():
        with tempfile.TemporaryDirectory() as temporary:
            git(temporary, "init", "--quiet", "--bare")
            git(temporary, "fetch", "--quiet", "--depth", "1", "--", source, lock.commit)
            yield _FromGit(temporary, lock.commit)
    elif (folder / _PACKAGE).is_dir():
        yield _FromFolder(folder)
    else:
        yield _FromGit(source, lock.commit)


@dataclass(frozen=True, slots=True)
class _FromFolder:
    folder: Path

    def __call__(self, path: str) -> bytes:
        try:
            return (self.folder / path).read_bytes()
        except OSError as error:
            raise UsageError(
                f"{self.folder / path}: {error.strerror}.", remedy="Give a checkout of upstream."
            ) from error


@dataclass(frozen=True, slots=True)
class _FromGit:
    repository: str
    commit: str

    def __call__(self, path: str) -> bytes:
        return git(self.repository, "show", f"{self.commit}:{path}")


_Read = _FromFolder | _FromGit


def git(folder: str, *arguments: str) -> bytes:
    """What git prints of a command run in a folder.

    Raises UsageError with git's own verdict, IncompleteError where a server could not be reached,
    EnvironmentLacksError if git is not installed.
    """
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=True)
    except FileNotFoundError as error:
        raise EnvironmentLacksError(
            "git is not installed.", remedy="Install git, or give a checkout."
        ) from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        # Advice follows git's own verdict.
        verdict = next(
            (line for line in said if line.startswith("fatal: ")), said[-1] if said else "no message"
        )
        verdict = verdict.removeprefix("fatal: ").rstrip(".")
        if arguments[0] == "fetch" and any(sign in verdict for sign in _UNREACHABLE):
            raise IncompleteError(
                f"Upstream's repository could not be reached: {verdict}.",
                remedy="Run the same command again with a connection, or give a checkout.",
            ) from error
        raise UsageError(
            f"git {arguments[0]} failed in {folder}: {verdict}.",
            remedy="Give a git URL, a checkout or a bare repository of upstream that has the locked commit.",
        ) from error
    return done.stdout


def _cache_folder(lock: Lock) -> Path:
    return user_cache() / "upstream" / lock.commit
