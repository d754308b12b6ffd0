"""The lock of a dataset: a file that says who writes, and a heartbeat (its mtime) that says it still does.

No `flock`: cluster file systems do not keep it. A holder on this machine is dead when its process
is; one elsewhere (another host, another container, before a restart) when its heart has not beaten
for `STALE_SECONDS`.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prep.errors import HeldError, IncompleteError

__all__ = ["HEARTBEAT_SECONDS", "STALE_SECONDS", "Lock", "live_holder"]

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
"""A lock from elsewhere whose heartbeat is older than this is taken over."""

_WAIT_SECONDS = 0.2
_NO_HARD_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))


class Lock:
    """The exclusive right to write a dataset, as a file that any file system understands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = uuid.uuid4().hex
        self.lost = threading.Event()
        self.holder_may_live = False
        """Whether the lock was taken from a run that only its silence declared dead."""
        self._beside = path.with_name(f"lock.{self.token}")
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    def acquire(self, *, wait: bool, cancel: threading.Event | None = None) -> None:
        """Take the lock; raises HeldError if another run has it and `wait` is false.

        Raises IncompleteError if `cancel` is set while it waits.
        """
        stopped = cancel or threading.Event()
        while not self._try_once():
            holder = _holder(self.path)
            if not wait and holder is not None:
                raise HeldError(
                    f"{self.path.parent.parent}: held by {_named(holder)}.",
                    remedy="Wait for it with `--wait`, or run again when it has ended.",
                )
            if stopped.wait(_WAIT_SECONDS):
                raise IncompleteError(
                    f"{self.path.parent.parent}: stopped while it waited for another run.",
                    remedy="Run the same command again.",
                )
        self._heart = threading.Thread(target=self._beat, name="prep-heartbeat", daemon=True)
        self._heart.start()

    def check(self) -> None:
        """Raise IncompleteError if the lock is no longer ours."""
        if self.lost.is_set() or not self.is_ours():
            raise IncompleteError(
                f"{self.path}: the lock of this run is gone or was taken over.",
                remedy="Nothing is lost: run the same command again when no other run writes here.",
            )

    def is_ours(self) -> bool:
        """Whether the lock file is the one that this run made."""
        holder = _holder(self.path)
        return holder is not None and holder.get("token") == self.token

    def release(self) -> None:
        """Stop the heartbeat and remove the lock if it is still ours."""
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
        if self.is_ours():
            self.path.unlink(missing_ok=True)

    def _try_once(self) -> bool:
        holder = _holder(self.path)
        if holder is not None:
            if _is_alive(holder, self.path, self._now):
                return False
            self._remove_stale(holder)
            self.holder_may_live = not _is_here(holder)
        return self._create(json.dumps({"token": self.token, **_this_process()}))

    def _now(self) -> float:
        """The file system's own time in seconds, since clocks of hosts differ."""
        try:
            self._beside.write_bytes(b"")
            return self._beside.stat().st_mtime
        except FileNotFoundError:
            return time.time()  # removed by a holder that clears up after itself
        finally:
            self._beside.unlink(missing_ok=True)

    def _create(self, text: str) -> bool:
        # Linked into place with its content, so that no other run ever reads an empty lock.
        try:
            self._beside.write_text(text, encoding="utf-8")
            self.path.hardlink_to(self._beside)
        except FileExistsError:
            return self.is_ours()  # a network file system may report its own success so
        except FileNotFoundError:
            # A holder that clears up removed what we prepared, and maybe the folder around it.
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return False
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            return self._create_exclusively(text)
        finally:
            self._beside.unlink(missing_ok=True)
        return True

    def _create_exclusively(self, text: str) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return True

    def _remove_stale(self, judged: dict[str, Any]) -> None:
        # Two waiting runs may both judge the lock dead. The rename lets one of them have it; what was
        # renamed is looked at again, and put back if it was a newer one.
        try:
            self.path.rename(self._beside)
        except FileNotFoundError:
            return
        taken = _holder(self._beside)
        self._beside.unlink(missing_ok=True)
        if taken is not None and taken.get("token") != judged.get("token"):
            self._create(json.dumps(taken))

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a missed beat is mended by the next; a lost lock is seen here
                if not self.is_ours():
                    self.lost.set()
                    return
                os.utime(self.path)


def _this_process() -> dict[str, Any]:
    process = os.getpid()
    _, started = _state_and_start(process)
    return {"host": socket.gethostname(), "system": _system(), "process": process, "started": started}


def _system() -> str:
    """Where process numbers mean the same: this boot and this namespace; "" if the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _state_and_start(process: int) -> tuple[str, str]:
    """A process's state letter, and its start in clock ticks since boot, by which a reused number is told."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]


def _holder(path: Path) -> dict[str, Any] | None:
    """What the lock file says; an empty dictionary while its writer has not yet filled it."""
    try:
        holder = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_here(holder: Mapping[str, Any]) -> bool:
    """Whether the holder's process number can be looked up on this machine."""
    process = holder.get("process")
    here = holder.get("host") == socket.gethostname() and holder.get("system") == _system()
    return here and isinstance(process, int) and process > 0


def _is_alive(holder: Mapping[str, Any], path: Path, now: Callable[[], float]) -> bool:
    if _is_here(holder):
        return _runs(holder["process"], str(holder.get("started", "")))
    try:
        return now() - path.stat().st_mtime < STALE_SECONDS
    except FileNotFoundError:
        return False


def _runs(process: int, started: str) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # there, and another user's
    state, start = _state_and_start(process)
    # A killed process that nobody has waited for still has its number; "" is a system that does not tell.
    return state not in ("Z", "X") and start in ("", started)


def _named(holder: Mapping[str, Any]) -> str:
    return f"process {holder.get('process', '?')} on {holder.get('host', 'an unknown host')}"


def live_holder(path: Path) -> str | None:
    """Who holds the lock at `path`, in words; None if nobody that is alive does."""
    holder = _holder(path)
    return _named(holder) if holder is not None and _is_alive(holder, path, time.time) else None
