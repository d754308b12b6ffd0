"""A file that is arriving: its bytes, how many they are, and their hashes so far."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from prep.files import disk_errors
from prep.signatures import HEAD_BYTES

__all__ = ["Part"]

_CHUNK: Final = 1 << 20


class Part:
    """The file at `path`, opened on entry without losing what it holds; a context manager.

    `on_bytes` hears each change of `size`. Every failure to read or write it is an `IncompleteError`.
    """

    def __init__(self, path: Path, on_bytes: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.size = 0
        self.head = b""
        self._on_bytes = on_bytes
        self._sha256 = hashlib.sha256()
        self._file: io.BufferedRandom

    def __enter__(self) -> Self:
        with disk_errors(self.path):
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with disk_errors(self.path):
            self._file.close()

    def load(self) -> int:
        """Take in what the file already holds; its size in bytes."""
        with disk_errors(self.path):
            self._file.seek(0)
            while chunk := self._file.read(_CHUNK):
                self._take(chunk)
        return self.size

    def restart(self) -> None:
        """Forget every byte."""
        with disk_errors(self.path):
            # Bytes that were written may still wait in memory, where the file on the disk has none.
            if self.size or os.fstat(self._file.fileno()).st_size:
                self._file.seek(0)
                self._file.truncate()
        dropped, self.size, self.head = self.size, 0, b""
        self._sha256 = hashlib.sha256()
        if dropped and self._on_bytes:
            self._on_bytes(-dropped)

    def write(self, chunk: bytes) -> None:
        """Add bytes at the end."""
        with disk_errors(self.path):
            self._file.write(chunk)
        self._take(chunk)

    def sync(self) -> None:
        """Have the bytes on the disk."""
        with disk_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def remove(self) -> None:
        """Delete the file: its bytes are of no use to a later run."""
        with disk_errors(self.path):
            self.path.unlink(missing_ok=True)

    def digest(self, algorithm: str) -> str:
        """The hash of the bytes so far in hex; `algorithm` is "sha256" or "md5".

        Few hosts state an MD5, so it is read from the file when asked for.
        """
        if algorithm == "sha256":
            return self._sha256.hexdigest()
        with disk_errors(self.path):
            self._file.flush()
            self._file.seek(0)
            return hashlib.file_digest(self._file, algorithm).hexdigest()

    def _take(self, chunk: bytes) -> None:
        if len(self.head) < HEAD_BYTES:
            self.head += chunk[: HEAD_BYTES - len(self.head)]
        self._sha256.update(chunk)
        self.size += len(chunk)
        if self._on_bytes:
            self._on_bytes(len(chunk))
