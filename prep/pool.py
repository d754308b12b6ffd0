"""Map a function over many items, many at a time; stop cleanly when told to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from prep.errors import IncompleteError

__all__ = ["interruptible", "map_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 4  # items waiting for each thread, so that a million of them are never queued at once


def map_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    jobs: int,
    cancel: threading.Event | None = None,
) -> Iterator[tuple[Item, Result]]:
    """Yield `(item, function(item))` as they end, with at most `jobs` running.

    When `cancel` is set no further item is begun, those in hand are waited for and
    yielded, and IncompleteError is raised. An exception of `function` ends it likewise.
    """
    source = iter(items)
    running: dict[Future[Result], Item] = {}
    with ThreadPoolExecutor(jobs, thread_name_prefix="prep") as threads:
        try:
            while True:
                stopped = cancel is not None and cancel.is_set()
                if not stopped:
                    _fill(threads, function, source, running, jobs * _AHEAD)
                if not running:
                    break
                done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
                if stopped:
                    _drop_waiting(running)
        except BaseException:
            if cancel is not None:
                cancel.set()
            _drop_waiting(running)
            raise
    if cancel is not None and cancel.is_set():
        raise IncompleteError("Stopped as asked.", remedy="Run the same command again to go on.")


def _fill(
    threads: ThreadPoolExecutor,
    function: Callable[[Item], Result],
    source: Iterator[Item],
    running: dict[Future[Result], Item],
    most: int,
) -> None:
    while len(running) < most:
        try:
            item = next(source)
        except StopIteration:
            return
        running[threads.submit(function, item)] = item


def _drop_waiting(running: dict[Future[Result], Item]) -> None:
    for future in list(running):
        if future.cancel():
            del running[future]


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second signal stops at once.

    Outside the main thread, where Python lets nobody handle signals, nothing sets it.
    """
    cancel = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancel
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
