"""Map a function over many items, many at a time; stop cleanly when told to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TypeVar

from prep.errors import IncompleteError

__all__ = ["interruptible", "map_threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar may have hidden it
_STOPPED_AT_ONCE = b"prep: Stopped at once.\n      Run the same command again to go on.\n"
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
    # Done futures come by a queue: waiting on all that run costs each time as many locks.
    done: SimpleQueue[Future[Result]] = SimpleQueue()
    with ThreadPoolExecutor(jobs, thread_name_prefix="prep") as threads:
        try:
            while True:
                if cancel is not None and cancel.is_set():
                    _drop_waiting(running)
                else:
                    for item in islice(source, jobs * _AHEAD - len(running)):
                        future = threads.submit(function, item)
                        running[future] = item
                        future.add_done_callback(done.put)
                if not running:
                    break
                future = _next(done)
                if future in running:  # not one that was dropped
                    yield running.pop(future), future.result()
        finally:
            _drop_waiting(running)
    if cancel is not None and cancel.is_set():
        raise IncompleteError("Stopped as asked.", remedy="Run the same command again to go on.")


def _next(done: SimpleQueue[Future[Result]]) -> Future[Result]:
    while True:
        # The time limit lets the main thread look up for a signal.
        with suppress(Empty):
            return done.get(timeout=0.5)


def _drop_waiting(running: dict[Future[Result], Item]) -> None:
    for future in list(running):
        if future.cancel():
            del running[future]


@contextmanager
def interruptible(*, ends: bool = True) -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; a second signal ends the process at once, with status 3.

    `ends`: the process is over after a signal. A library call, after which its caller may go on,
    says False. Outside the main thread, where Python lets nobody handle signals, nothing sets it.
    """
    cancel = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if cancel.is_set():
            # Threads may wait on a silent server for as long as its time limit, and Python would
            # wait for them. What is on the disk is safe against a kill at any moment.
            os.write(2, _SHOW_CURSOR * os.isatty(2) + _STOPPED_AT_ONCE)
            os._exit(3)
        cancel.set()

    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield cancel
    finally:
        # In a process that is about to end a second signal must not find Python's own handlers.
        if not (ends and cancel.is_set()):
            for number, handler in before.items():
                signal.signal(number, handler)
