"""Progress for people, on stderr: a bar on a terminal, else one plain line every 30 seconds."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

__all__ = ["PLAIN_SECONDS", "Progress", "bytes_text", "counted", "plain_line", "progress", "seconds_text"]

PLAIN_SECONDS = 30.0
_BAR = 20  # characters; with the rest of the line it fits 80 columns
_UNITS = ("B", "kB", "MB", "GB", "TB")


def counted(number: int, noun: str) -> str:
    """A number with its noun, of which the singular is given: `1 clip`, `2 clips`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


class _Counting(_Silent):
    """Counts the bytes, which come from any thread."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.size = label, total, 0
        self._lock = threading.Lock()

    def received(self, size: int) -> None:
        with self._lock:
            self.size += size


class _Plain(_Counting):
    def __init__(self, label: str, total: int) -> None:
        super().__init__(label, total)
        self.done = 0
        self.began = self.said = time.monotonic()

    def advance(self, items: int = 1) -> None:
        self.done += items
        now = time.monotonic()
        if now - self.said >= PLAIN_SECONDS:
            self.said = now
            line = plain_line(self.label, self.done, self.total, self.size, now - self.began)
            sys.stderr.write(f"{line}\n")


def plain_line(label: str, done: int, total: int, size: int, seconds: float) -> str:
    """The line after so many seconds: done of the total, bytes, rate and the time still to go."""
    rate = done / seconds if seconds else 0.0
    left = seconds_text((total - done) / rate) if rate else "unknown time"
    share = f"{done / total:.0%}" if total else "100%"
    return f"{label}: {done}/{total} ({share}), {bytes_text(size)}, {rate:.1f}/s, {left} to go"


class _Terminal(_Counting):
    """A bar that a clock redraws, so that the bytes of a large file are seen while it comes."""

    def __enter__(self) -> _Terminal:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column
        from rich.text import Text

        counting = self

        class Traffic(ProgressColumn):
            """Bytes so far, and items a second."""

            def render(self, task: Task) -> Text:
                rate = f"  {task.speed:.1f}/s" if task.speed else ""
                return Text(bytes_text(counting.size) + rate)

        self.bar: Bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=_BAR),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            Traffic(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
        )
        self.bar.start()
        self.task = self.bar.add_task(self.label, total=self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def advance(self, items: int = 1) -> None:
        self.bar.advance(self.task, items)


def bytes_text(size: float) -> str:
    """A size for people, in decimal units."""
    for unit in _UNITS:
        if round(size, 1) < 1000 or unit == _UNITS[-1]:
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
