"""One writer a dataset: the lock, the ledger of finished work, and the run's own folder.

While a run lasts, `.prep/` in the dataset's directory holds

    lock        who writes here: host, process, a token, and a heartbeat (the file's mtime)
    ledger      one JSON line for each finished piece of work; a cut last line is ignored
    incoming/   fetched content, named by its sha256, and partial downloads
    unused/     payload that the dataset no longer names; stays until `--prune`
    attempt.parquet   the records as an unfinished run left them, with their failures

All but `unused/` is gone when the run has published. The ledger knows a file's content by
(inode, mtime, size), which a rename keeps, so a run that was killed while files were being
moved finds each of them again without trusting any name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from prep.errors import HeldError, IncompleteError
from prep.files import disk_errors, sha256_of
from prep.manifest import STATE

__all__ = [
    "HEARTBEAT_SECONDS",
    "STALE_SECONDS",
    "Content",
    "Ledger",
    "Lock",
    "Workspace",
    "attempt_path",
    "held_by",
    "ledger_path",
]

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""A lock from another host whose heartbeat is older than this is taken over."""

_WAIT_SECONDS = 0.2
_SYNC_EVERY = 64


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
        self._unsynced = 0
        self._read()
        self._file = path.open("ab")
        self._end_cut_line()

    def fetched(self, source: str, content: Content, path: Path) -> None:
        """Note that `source` gave `content`, which stands at `path`, durable."""
        self._append({"source": source, "sha256": content.sha256, **_identity(path)})

    def known(self, path: Path, sha256: str) -> None:
        """Note the content of a file that was there before."""
        self._append({"sha256": sha256, **_identity(path)})

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
        with self._guard:
            self._sync()

    def close(self) -> None:
        """Sync and close."""
        with self._guard:
            if not self._file.closed:
                self._sync()
                self._file.close()

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry).encode() + b"\n"
        with self._guard, disk_errors(self.path):
            self._file.write(line)
            self._file.flush()
            self._take(entry)
            self._unsynced += 1
            if self._unsynced >= _SYNC_EVERY:
                self._sync()

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._unsynced = 0

    def _read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                # A line without its newline was cut by a kill: that piece of work is done again.
                if line.endswith(b"\n"):
                    with suppress(json.JSONDecodeError):
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


class Lock:
    """The exclusive right to write a dataset, as a file that any file system understands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = threading.Event()
        self._token = uuid.uuid4().hex
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    def acquire(self, *, wait: bool) -> None:
        """Take the lock; raises HeldError if another run has it and `wait` is false."""
        while not self._try_once():
            holder = _holder(self.path)
            if not wait and holder is not None:
                raise HeldError(
                    f"{self.path.parent.parent}: held by {_named(holder)}.",
                    remedy="Wait for it with `--wait`, or run again when it has ended.",
                )
            time.sleep(_WAIT_SECONDS)
        self._heart = threading.Thread(target=self._beat, name="prep-heartbeat", daemon=True)
        self._heart.start()

    def check(self) -> None:
        """Raise IncompleteError if the lock is no longer ours."""
        if self.lost.is_set() or not self._is_ours():
            raise IncompleteError(
                f"{self.path}: the lock of this run is gone or was taken over.",
                remedy="Nothing is lost: run the same command again when no other run writes here.",
            )

    def release(self) -> None:
        """Stop the heartbeat and remove the lock if it is still ours."""
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
        if self._is_ours():
            self.path.unlink(missing_ok=True)

    def _try_once(self) -> bool:
        holder = _holder(self.path)
        if holder is not None:
            if _is_alive(holder, self.path):
                return False
            self._remove_stale(holder)
        return self._create()

    def _create(self) -> bool:
        # Linked into place with its content, so that no other run ever reads an empty lock.
        prepared = self.path.with_name(f"lock.{self._token}")
        prepared.write_text(json.dumps({"token": self._token, **_this_process()}), encoding="utf-8")
        try:
            self.path.hardlink_to(prepared)
        except FileExistsError:
            return False
        except OSError:
            # A file system without hard links: creating exclusively is the next best.
            try:
                descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                return False
            with os.fdopen(descriptor, "wb") as file:
                file.write(prepared.read_bytes())
        finally:
            prepared.unlink()
        return True

    def _remove_stale(self, judged: dict[str, Any]) -> None:
        # Two waiting runs may both judge the lock dead. The rename lets one of them have it; what was
        # renamed is looked at again, and put back if it was a newer one.
        aside = self.path.with_name(f"lock.{self._token}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return
        taken = _holder(aside)
        if taken is not None and taken.get("token") != judged.get("token"):
            with suppress(FileExistsError):
                self.path.hardlink_to(aside)
        aside.unlink()

    def _is_ours(self) -> bool:
        holder = _holder(self.path)
        return holder is not None and holder.get("token") == self._token

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            if not self._is_ours():
                self.lost.set()
                return
            with suppress(OSError):  # a missed beat is mended by the next; a lost lock is seen above
                os.utime(self.path)


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "process": os.getpid(), "started": _process_start(os.getpid())}


def _process_start(process: int) -> str:
    """The process's start in clock ticks since boot, so that a reused number is told apart."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _holder(path: Path) -> dict[str, Any] | None:
    """What the lock file says; an empty dictionary while its writer has not yet filled it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        holder = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_alive(holder: dict[str, Any], path: Path) -> bool:
    if holder.get("host") == socket.gethostname():
        process = int(holder.get("process", 0))
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return str(holder.get("started", "")) == _process_start(process)
    try:
        return time.time() - path.stat().st_mtime < STALE_SECONDS
    except FileNotFoundError:
        return False


def _named(holder: dict[str, Any]) -> str:
    return f"process {holder.get('process', '?')} on {holder.get('host', 'an unknown host')}"


def held_by(root: Path) -> str | None:
    """Who is writing the dataset at `root`, in words; None if nobody is."""
    path = root / STATE / "lock"
    holder = _holder(path)
    return _named(holder) if holder is not None and _is_alive(holder, path) else None


class Workspace:
    """The right to write the dataset at `root`, and its notes, for as long as the block lasts."""

    def __init__(self, root: Path, *, wait: bool = False) -> None:
        self.root = root
        self.state = root / STATE
        self.incoming = self.state / "incoming"
        self.unused = self.state / "unused"
        self.lock = Lock(self.state / "lock")
        self.ledger: Ledger
        self._wait = wait

    def __enter__(self) -> Workspace:
        with disk_errors(self.state):
            self.incoming.mkdir(parents=True, exist_ok=True)
            self.lock.acquire(wait=self._wait)
            # The holder that we waited for may have removed the folder when it published.
            self.incoming.mkdir(parents=True, exist_ok=True)
            try:
                self.ledger = Ledger(ledger_path(self.root))
            except OSError:
                self.lock.release()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ledger.close()
        self.lock.release()

    def stored(self, sha256: str) -> Path:
        """Where fetched content stands until it is placed."""
        return self.incoming / sha256

    def part(self, source: str) -> Path:
        """Where the body of `source` is written while it arrives."""
        return self.incoming / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.part"

    def clear(self) -> None:
        """Remove the run's notes: the dataset is published."""
        self.ledger.close()
        shutil.rmtree(self.incoming)
        for aside in self.state.glob("lock.*"):  # of runs killed while taking the lock
            aside.unlink(missing_ok=True)
        attempt_path(self.root).unlink(missing_ok=True)
        self.ledger.path.unlink(missing_ok=True)
        with suppress(OSError):
            self.unused.rmdir()  # only if it is empty

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do a step that must not be done without the lock."""
        self.lock.check()
        with disk_errors(self.root):
            yield


def attempt_path(root: Path) -> Path:
    """Where an unfinished run leaves its records and their failures."""
    return root / STATE / "attempt.parquet"


def ledger_path(root: Path) -> Path:
    """Where the ledger of an unfinished run stands; it exists as long as the run is unfinished."""
    return root / STATE / "ledger"
