"""Mapping over threads: every item once, few at a time, and an orderly end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.errors import IncompleteError
from prep.pool import interruptible, map_threads


@settings(max_examples=40, deadline=None)
@given(items=st.lists(st.integers(), max_size=60), jobs=st.integers(1, 9))
def test_every_item_comes_once_with_its_own_result(items: list[int], jobs: int) -> None:
    results = list(map_threads(lambda item: item * 3, items, jobs=jobs))
    assert sorted(results) == sorted((item, item * 3) for item in items)


def test_one_job_keeps_the_order() -> None:
    assert [item for item, _ in map_threads(str, range(50), jobs=1)] == list(range(50))


def test_results_come_as_they_end() -> None:
    """A slow first item holds up nobody."""
    gate = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert gate.wait(20)
        return item

    order = []
    for item, _ in map_threads(work, range(8), jobs=2):
        order.append(item)
        if len(order) == 7:
            gate.set()
    assert order[-1] == 0


def test_at_most_so_many_run_and_few_wait() -> None:
    guard = threading.Lock()
    running = most = taken = done = 0
    ahead = []

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(300):
            taken += 1
            yield number

    def work(item: int) -> None:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.0005)
        with guard:
            running -= 1

    for _ in map_threads(work, items(), jobs=4):
        done += 1
        ahead.append(taken - done)
    assert (taken, done) == (300, 300)
    assert most <= 4
    assert max(ahead) <= 16  # four for each thread


def test_cancel_finishes_what_is_in_hand() -> None:
    cancel = threading.Event()
    begun: list[int] = []
    ended: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        time.sleep(0.001)
        ended.append(item)
        return item

    results: list[int] = []

    def read() -> None:
        for item, _ in map_threads(work, range(1000), jobs=3, cancel=cancel):
            results.append(item)
            if len(results) == 5:
                cancel.set()

    with pytest.raises(IncompleteError, match="Stopped"):
        read()
    assert sorted(begun) == sorted(ended) == sorted(results)
    assert 5 <= len(begun) < 60


def test_a_cancelled_pool_begins_nothing() -> None:
    cancel = threading.Event()
    cancel.set()
    begun: list[int] = []
    with pytest.raises(IncompleteError):
        list(map_threads(begun.append, range(10), jobs=2, cancel=cancel))
    assert begun == []


@pytest.mark.parametrize("where", ["the function", "the items", "the reader"])
def test_an_error_ends_it_and_nothing_goes_on(where: str) -> None:
    ended: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            if where == "the items" and number == 30:
                raise ZeroDivisionError
            yield number

    def work(item: int) -> None:
        if where == "the function" and item == 30:
            raise ZeroDivisionError
        time.sleep(0.0005)
        ended.append(item)

    def read() -> None:
        results = map_threads(work, items(), jobs=3)
        for item, _ in results:
            if where == "the reader" and item == 30:
                results.close()
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    count = len(ended)
    time.sleep(0.02)
    assert len(ended) == count < 200


def test_a_reader_that_has_enough_does_not_cancel_the_run() -> None:
    cancel = threading.Event()
    results = map_threads(str, range(100), jobs=2, cancel=cancel)
    next(results)
    results.close()
    assert not cancel.is_set()


@pytest.mark.parametrize(("ends", "kept"), [(True, False), (False, True)])
def test_a_caller_that_goes_on_gets_its_handlers_back(ends: bool, kept: bool) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with interruptible(ends=ends) as cancel:
            signal.raise_signal(signal.SIGTERM)
        assert cancel.is_set()
        assert all((signal.getsignal(number) == handler) is kept for number, handler in before.items())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_outside_the_main_thread_nothing_is_caught() -> None:
    events: list[threading.Event] = []

    def run() -> None:
        with interruptible() as cancel:
            events.append(cancel)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not events[0].is_set()
