"""Progress for people, on stderr: a bar on a terminal, else one plain line every 30 seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

__all__ = ["PLAIN_SECONDS", "Progress", "bytes_text", "progress", "seconds_text"]

PLAIN_SECONDS = 30.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Progress(Protocol):
    """Counts what is done; a context manager."""

    def advance(self, items: int = 1) -> None:
        """So many items more are done."""

    def received(self, size: int) -> None:
        """So many bytes more have come; safe to call from any thread."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def progress(label: str, total: int, *, quiet: bool = False) -> Progress:
    """The progress that fits: a bar, plain lines, or none when `quiet` or there is nothing to do."""
    if quiet or total == 0:
        return _Silent()
    return _Terminal(label, total) if sys.stderr.isatty() else _Plain(label, total)


class _Silent:
    def advance(self, items: int = 1) -> None:
        pass

    def received(self, size: int) -> None:
        pass

    def __enter__(self) -> _Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Plain(_Silent):
    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.done = self.size = 0
        self.began = self.said = time.monotonic()

    def advance(self, items: int = 1) -> None:
        self.done += items
        now = time.monotonic()
        if now - self.said >= PLAIN_SECONDS:
            self.said = now
            sys.stderr.write(self.line(now - self.began) + "\n")

    def received(self, size: int) -> None:
        self.size += size

    def line(self, seconds: float) -> str:
        """The line after so many seconds: done, total, rate and the time still to go."""
        rate = self.done / seconds if seconds else 0.0
        left = seconds_text((self.total - self.done) / rate) if rate else "unknown"
        return (
            f"{self.label}: {self.done}/{self.total} ({self.done / self.total:.0%}), "
            f"{bytes_text(self.size)}, {rate:.1f}/s, {left} to go"
        )


class _Terminal(_Silent):
    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.bar: Bar
        self.size = 0

    def __enter__(self) -> _Terminal:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[size]}  {task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.bar.start()
        self.task = self.bar.add_task(self.label, total=self.total, size="", rate="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def advance(self, items: int = 1) -> None:
        speed = self.bar.tasks[0].speed
        rate = f"{speed:.1f}/s" if speed else ""
        self.bar.update(self.task, advance=items, size=bytes_text(self.size), rate=rate)

    def received(self, size: int) -> None:
        self.size += size


def bytes_text(size: float) -> str:
    """A size for people, in decimal units."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable: the last unit takes any size")


def seconds_text(seconds: float) -> str:
    """A time for people."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s"
        if whole < 3600
        else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )
