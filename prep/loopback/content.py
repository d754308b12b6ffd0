"""The bytes of one served file, in memory or on disk, and their digests."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

__all__ = ["Content", "git_blob_oid"]

_BLOCK = 1 << 20


def git_blob_oid(data: bytes) -> str:
    """The SHA-1 (40 hex) by which git names a blob with these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Content:
    """Bytes, or a file that must not change while it is served."""

    def __init__(self, source: bytes | Path) -> None:
        self.source = source
        self.size = len(source) if isinstance(source, bytes) else source.stat().st_size

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes from `start` up to but not including `stop` (None: the end)."""
        if isinstance(self.source, bytes):
            return self.source[start:stop]
        with self.source.open("rb") as file:
            file.seek(start)
            return file.read() if stop is None else file.read(stop - start)

    def open(self) -> BinaryIO | None:
        """An open file for content on disk, None for content in memory."""
        return None if isinstance(self.source, bytes) else self.source.open("rb")

    @cached_property
    def md5(self) -> str:
        """MD5 as 32 hex digits."""
        return self._digest(hashlib.md5(usedforsecurity=False))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 as 64 hex digits, the name of an LFS object."""
        return self._digest(hashlib.sha256())

    @cached_property
    def git_oid(self) -> str:
        """SHA-1 of the git blob, 40 hex digits."""
        return self._digest(hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False))

    @property
    def lfs_pointer(self) -> bytes:
        """The text that git stores in place of an LFS file (git-lfs specification v1)."""
        version = "https://git-lfs.github.com/spec/v1"
        return f"version {version}\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    def _digest(self, digest: hashlib._Hash) -> str:
        if isinstance(self.source, bytes):
            digest.update(self.source)
            return digest.hexdigest()
        with self.source.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest()
