"""One writer a dataset: the lock, the ledger of finished work, and the run's own folder.

While a run lasts, `.prep/` in the dataset's directory holds

    lock        who writes here: host, process, a token, and a heartbeat (the file's mtime)
    ledger      one JSON line for each finished piece of work; a cut last line is ignored
    incoming/   fetched content, named by its sha256, and partial downloads
    unused/     payload that the dataset no longer names; stays until `--prune`
    attempt.parquet   the records as an unfinished run left them, with their failures

All but `unused/` is gone when the run has published; a run that ends with nothing to go on from
leaves none of it either. The ledger knows a file's content by (inode, mtime, size), which a
rename keeps, so a run that was killed while files were being moved finds each of them again
without trusting any name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from prep.errors import IncompleteError
from prep.files import disk_errors, sha256_of
from prep.lock import Lock, live_holder
from prep.manifest import STATE

__all__ = [
    "Content",
    "Ledger",
    "Workspace",
    "attempt_path",
    "held_by",
    "is_unfinished",
    "ledger_path",
]


@dataclass(frozen=True, slots=True)
class Content:
    """What a source gave: sha256 and size in bytes."""

    sha256: str
    size: int


class Ledger:
    """An append-only file of JSON lines; safe for threads, and after a kill at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sources: dict[str, Content] = {}
        self.pins: dict[str, dict[str, Any]] = {}
        self.started: dict[str, str] = {}
        self._identities: dict[tuple[int, int, int], str] = {}
        self._guard = threading.Lock()
        self._read()
        self._file = path.open("ab")
        self._end_cut_line()

    def fetched(self, source: str, content: Content, path: Path) -> None:
        """Note that `source` gave `content`, which stands at `path`, durable."""
        self._append({"source": source, "sha256": content.sha256, **_identity(path)})

    def pin(self, source: str, facts: dict[str, Any]) -> None:
        """Note what a table's source was resolved to, so that a rerun goes on with the same commit."""
        self._append({"pin": source, "facts": facts})

    def start(self, source: str, etag: str) -> None:
        """Note the version of a body of which a part is being written."""
        self._append({"started": source, "etag": etag})

    def content_of(self, path: Path) -> str:
        """The sha256 of a file: from the ledger if the file is the one noted, else computed."""
        state = path.stat()
        known = self._identities.get((state.st_ino, state.st_mtime_ns, state.st_size))
        return known or sha256_of(path)

    def sync(self) -> None:
        """Make all lines so far durable."""
        # Outside the guard: threads go on appending while the disk works.
        with disk_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Sync and close."""
        with self._guard, disk_errors(self.path):
            if not self._file.closed:
                try:
                    self._file.flush()
                    os.fsync(self._file.fileno())
                finally:
                    self._file.close()

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        with self._guard, disk_errors(self.path):
            self._file.write(line)
            self._file.flush()
            self._take(entry)

    def _read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                # A line without its newline was cut by a kill: that piece of work is done again.
                # After a power cut a line may be anything; what it does not say plainly is done again too.
                if line.endswith(b"\n"):
                    with suppress(ValueError, KeyError, TypeError):
                        self._take(json.loads(line))

    def _end_cut_line(self) -> None:
        if self._file.tell() and not self._ends_with_newline():
            self._file.write(b"\n")

    def _ends_with_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    def _take(self, entry: dict[str, Any]) -> None:
        if "started" in entry:
            self.started[entry["started"]] = entry["etag"]
        elif "pin" in entry:
            self.pins[entry["pin"]] = entry["facts"]
        else:
            self._identities[entry["inode"], entry["mtime_ns"], entry["size"]] = entry["sha256"]
            if "source" in entry:
                self.sources[entry["source"]] = Content(entry["sha256"], entry["size"])


def _identity(path: Path) -> dict[str, int]:
    state = path.stat()
    return {"inode": state.st_ino, "mtime_ns": state.st_mtime_ns, "size": state.st_size}


def held_by(root: Path) -> str | None:
    """Who is writing the dataset at `root`, in words; None if nobody is."""
    return live_holder(root / STATE / "lock")


def is_unfinished(root: Path) -> bool:
    """Whether a run at `root` has yet to end, or was killed before it had put its notes away."""
    if ledger_path(root).exists():
        return True
    # A run that is killed as it takes the lock leaves the file that it was about to link.
    return any((root / STATE).glob("lock*")) and held_by(root) is None


class Workspace:
    """The right to write the dataset at `root`, and its notes, for as long as the block lasts."""

    def __init__(self, root: Path, *, wait: bool = False, cancel: threading.Event | None = None) -> None:
        self.root = root
        self.state = root / STATE
        self.incoming = self.state / "incoming"
        self.unused = self.state / "unused"
        self.lock = Lock(self.state / "lock")
        self.ledger: Ledger
        self._wait = wait
        self._cancel = cancel

    def __enter__(self) -> Workspace:
        with disk_errors(self.state):
            self.state.mkdir(parents=True, exist_ok=True)
            self.lock.acquire(wait=self._wait, cancel=self._cancel)
            try:
                self.ledger = Ledger(ledger_path(self.root))
                # Only now, since the holder that we waited for may have removed the folder.
                self.incoming.mkdir(exist_ok=True)
                self._inherit_parts()
            except BaseException:
                self.lock.release()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with disk_errors(self.state):
                self._leave()
        except IncompleteError:
            if error is None:  # else the first failure says more
                raise

    def _leave(self) -> None:
        try:
            self.ledger.close()
            if self.lock.is_ours():
                self._drop_empty_notes()
        finally:
            self.lock.release()

    def _drop_empty_notes(self) -> None:
        """Leave no notes when there is nothing to go on from: the run was refused, or could not begin."""
        if self.ledger.path.exists() and not self.ledger.path.stat().st_size:
            with suppress(OSError):  # not empty: cut bodies stay for the next run
                self.incoming.rmdir()
                self.ledger.path.unlink()

    def _inherit_parts(self) -> None:
        """Take over cut bodies, or drop them if a run that is not surely dead may still write them."""
        for path in self.incoming.glob("*.part"):
            if self.lock.holder_may_live:
                path.unlink()
            else:
                path.rename(path.with_name(f"{path.name.partition('.')[0]}.{self.lock.token}.part"))

    def stored(self, sha256: str) -> Path:
        """Where fetched content stands until it is placed."""
        return self.incoming / sha256

    def part(self, source: str) -> Path:
        """Where this run, and no other, writes the body of `source` while it arrives."""
        return self.incoming / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.{self.lock.token}.part"

    def clear(self) -> None:
        """Remove the run's notes: the dataset is published. Raises IncompleteError without the lock."""
        self.ledger.close()
        with self.held():
            shutil.rmtree(self.incoming)
            for leftover in (*self.state.glob("lock.*"), *self.state.glob(".*.partial")):  # of killed runs
                leftover.unlink(missing_ok=True)
            attempt_path(self.root).unlink(missing_ok=True)
            with suppress(OSError):
                self.unused.rmdir()  # only if it is empty
            self.ledger.path.unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do a step that must not be done without the lock."""
        with disk_errors(self.root):
            self.lock.check()
            yield


def attempt_path(root: Path) -> Path:
    """Where an unfinished run leaves its records and their failures."""
    return root / STATE / "attempt.parquet"


def ledger_path(root: Path) -> Path:
    """Where the ledger of an unfinished run stands; it exists as long as the run is unfinished."""
    return root / STATE / "ledger"
