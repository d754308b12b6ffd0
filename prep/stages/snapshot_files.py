"""The parquet files of a source on this machine while they are read: fetched one ahead, removed when done."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prep.files import disk_errors
from prep.stages.snapshot_source import Source
from prep.workspace import Workspace

__all__ = ["SourceFiles"]


class SourceFiles:
    """The files `names` of a source; a context manager.

    A file is fetched into the run's own folder, not into the Hub's cache, and removed once every row of
    it is in a sealed shard: beside the snapshot there are never more than a few of them. With
    `look_ahead` the next file comes while one is read.
    """

    def __init__(
        self, source: Source, names: Sequence[str], workspace: Workspace, *, look_ahead: bool
    ) -> None:
        self.source, self.names, self.workspace = source, list(names), workspace
        # The Hub's client answers with whole paths, by which a fetched file is known.
        self._folder = (workspace.incoming / "source").resolve()
        self._look_ahead = look_ahead
        self._coming: dict[int, Future[Path]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prep-fetch")
        self.fetched: set[int] = set()

    def __len__(self) -> int:
        return len(self.names)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def open(self, number: int) -> Path:
        """The file; raises as the source does."""
        path = self._ask(number).result()
        if self._look_ahead and number + 1 < len(self):
            self._ask(number + 1)
        return path

    def release(self, *, before: int) -> None:
        """Remove the files before number `before` that were fetched; those of a cache or folder stay."""
        for number in [number for number in self._coming if number < before]:
            path = self._coming.pop(number).result()
            if path.resolve().is_relative_to(self._folder):
                with disk_errors(path):
                    path.unlink(missing_ok=True)

    def facts(self, number: int) -> dict[str, Any]:
        """The file's facts for the manifest; it was opened by this run or by the one before it."""
        return self.workspace.ledger.pins[f"source {number}"]

    def _ask(self, number: int) -> Future[Path]:
        if number not in self._coming:
            self._coming[number] = self._thread.submit(self._bring, number)
        return self._coming[number]

    def _bring(self, number: int) -> Path:
        name = self.names[number]
        path = self.source.open(name, self._folder)
        if self.source.listing is not None and path.is_relative_to(self._folder):
            self.fetched.add(number)
        facts = {"file": name, "size": path.stat().st_size, "sha256": self.source.sha256(name, path)}
        if f"source {number}" not in self.workspace.ledger.pins:
            self.workspace.ledger.pin(f"source {number}", facts)
        return path
