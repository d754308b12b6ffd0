"""The ledger, the lock, and the folder of a run's notes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import prep.lock
from prep.errors import HeldError, IncompleteError
from prep.lock import STALE_SECONDS, Lock
from prep.workspace import Content, Ledger, Workspace, attempt_path, held_by, is_unfinished, ledger_path
from tests.runs import lock_text

SHA256 = "ab" * 32

in_one_folder = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def note(ledger: Ledger, folder: Path, source: str, data: bytes = b"content") -> Path:
    path = folder / f"file-{len(source)}-{hash(source)}"
    path.write_bytes(data)
    ledger.fetched(source, Content(SHA256, len(data)), path)
    return path


def reopened(path: Path) -> Ledger:
    ledger = Ledger(path)
    ledger.close()
    return ledger


def test_the_ledger_is_read_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    path = note(ledger, tmp_path, "http://host/ä b")
    ledger.pin("owner/name", {"commit": "c" * 40})
    ledger.start("other", '"etag"')
    ledger.close()
    again = reopened(tmp_path / "ledger")
    assert again.sources == {"http://host/ä b": Content(SHA256, 7)}
    assert again.pins == {"owner/name": {"commit": "c" * 40}}
    assert again.started == {"other": '"etag"'}
    assert again.content_of(path) == SHA256


def test_a_moved_file_is_known_and_a_changed_one_is_not(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    path = note(ledger, tmp_path, "a")
    moved = path.rename(tmp_path / "elsewhere")
    assert ledger.content_of(moved) == SHA256
    moved.write_bytes(b"CONTENT")
    os.utime(moved, (0, 0))
    assert ledger.content_of(moved) != SHA256
    ledger.close()


@in_one_folder
@given(count=st.integers(1, 5), data=st.data())
def test_a_ledger_cut_anywhere(tmp_path: Path, count: int, data: st.DataObject) -> None:
    """Whole lines count, the cut one does not, and what is added after it is read by the next run."""
    path = tmp_path / "ledger"
    path.unlink(missing_ok=True)
    ledger = Ledger(path)
    for number in range(count):
        note(ledger, tmp_path, f"source {number}")
    ledger.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    ledger = Ledger(path)
    lines = whole[:cut].count(b"\n")
    assert set(ledger.sources) == {f"source {number}" for number in range(lines)}
    note(ledger, tmp_path, "later")
    ledger.close()
    known = set(reopened(path).sources)
    assert {f"source {number}" for number in range(lines)} | {"later"} <= known
    assert known <= {f"source {number}" for number in range(count)} | {"later"}


@in_one_folder
@given(
    garbage=st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [b"\0" * 64, b"\xff\xfe\0\0", b"{}", b"[]", b'"started"', b"7", b'{"started": "x"}', b"{" * 9]
        ),
    )
)
def test_garbage_in_a_ledger_is_passed_over(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "ledger"
    path.unlink(missing_ok=True)
    for source in ("before", "after"):
        ledger = Ledger(path)
        note(ledger, tmp_path, source)
        ledger.close()
        with path.open("ab") as file:
            file.write(garbage + b"\n")
    assert {"before", "after"} == set(reopened(path).sources)


def test_a_ledger_takes_notes_from_many_threads(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    threads = [
        threading.Thread(
            target=lambda number=number: [note(ledger, tmp_path, f"{number} {n}") for n in range(40)]
        )
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()
    assert set(reopened(tmp_path / "ledger").sources) == {f"{a} {b}" for a in range(8) for b in range(40)}


def test_only_one_of_many_gets_the_lock(tmp_path: Path) -> None:
    """All judge the same dead lock at once."""
    path = tmp_path / ".prep" / "lock"
    path.parent.mkdir()
    path.write_text(lock_text(host="elsewhere"))
    os.utime(path, (0, 0))
    locks = [Lock(path) for _ in range(16)]
    start = threading.Barrier(len(locks))
    held: list[Lock] = []

    def acquire(lock: Lock) -> None:
        start.wait()
        try:
            lock.acquire(wait=False)
        except HeldError:
            return
        held.append(lock)

    threads = [threading.Thread(target=acquire, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owners = [lock for lock in held if lock.is_ours()]
    assert len(owners) == 1
    for lock in held:
        if lock not in owners:  # one that was renamed away for an instant knows that it has lost
            with pytest.raises(IncompleteError):
                lock.check()
    for lock in held:
        lock.release()
    assert list(path.parent.iterdir()) == []


def test_locks_in_turn_never_overlap(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        lock = Lock(path)
        lock.acquire(wait=True)
        inside.append(number)
        most.append(len(inside))
        time.sleep(0.005)
        inside.remove(number)
        lock.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8
    assert list(tmp_path.iterdir()) == []


def test_one_that_waits_outlives_the_folder_of_a_run_that_was_refused(tmp_path: Path) -> None:
    """Such a run takes its folder away when it ends."""
    root = tmp_path / "dataset"
    got: list[bool] = []

    def wait() -> None:
        with Workspace(root, wait=True, cancel=cancel) as workspace:
            got.append(workspace.lock.is_ours())

    cancel = threading.Event()
    waiting = threading.Thread(target=wait)
    with Workspace(root) as refused:
        waiting.start()
        refused.clear()
    for folder in (root / ".prep", root):
        folder.rmdir()
    waiting.join(20)
    cancel.set()
    waiting.join()
    assert got == [True]


def test_the_heart_beats_and_stops_for_another_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prep.lock, "HEARTBEAT_SECONDS", 0.02)
    lock = Lock(tmp_path / "lock")
    lock.acquire(wait=False)
    os.utime(lock.path, (1, 1))
    until(lambda: lock.path.stat().st_mtime > 1)
    lock.check()
    lock.path.write_text(lock_text(host="elsewhere"))
    until(lock.lost.is_set)
    with pytest.raises(IncompleteError):
        lock.check()
    lock.release()
    assert lock.path.exists()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    first.acquire(wait=False)
    with pytest.raises(HeldError):
        second.acquire(wait=False)
    first.release()
    second.acquire(wait=False)
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_who_holds_is_told_without_writing(tmp_path: Path) -> None:
    assert held_by(tmp_path) is None
    assert not is_unfinished(tmp_path)
    with Workspace(tmp_path):
        assert held_by(tmp_path) == f"process {os.getpid()} on {os.uname().nodename}"
        assert is_unfinished(tmp_path)
    assert held_by(tmp_path) is None
    lock = tmp_path / ".prep" / "lock"
    lock.write_text(lock_text(host="elsewhere", process=9))
    assert held_by(tmp_path) == "process 9 on elsewhere"
    assert not is_unfinished(tmp_path)  # its own business, as long as it lives
    old = time.time() - STALE_SECONDS - 1
    os.utime(lock, (old, old))
    assert held_by(tmp_path) is None
    assert is_unfinished(tmp_path)


def test_a_run_with_nothing_to_go_on_from_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with Workspace(tmp_path) as workspace:
            assert workspace.incoming.is_dir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / ".prep").iterdir()) == []


def test_a_held_dataset_is_not_touched(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        workspace.clear()
        before = sorted(path.name for path in workspace.state.iterdir())
        with pytest.raises(HeldError), Workspace(tmp_path):
            pass
        assert sorted(path.name for path in workspace.state.iterdir()) == before == ["lock"]


def test_clearing_leaves_no_trace_of_killed_runs(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        for name in (
            "lock.0123",
            ".attempt.parquet.partial",
            "files.parquet",
            "incoming/a.part",
            "incoming/x",
        ):
            (workspace.state / name).write_bytes(b"")
        attempt_path(tmp_path).write_bytes(b"")
        workspace.unused.mkdir()
        workspace.clear()
    assert [path.name for path in (tmp_path / ".prep").iterdir()] == ["files.parquet"]


def test_clearing_keeps_unused_payload(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        workspace.unused.mkdir()
        (workspace.unused / SHA256).write_bytes(b"costly")
        workspace.clear()
    assert (tmp_path / ".prep" / "unused" / SHA256).read_bytes() == b"costly"


def test_a_run_without_its_lock_clears_nothing(tmp_path: Path) -> None:
    def clear() -> None:
        with Workspace(tmp_path) as workspace:
            workspace.lock.path.write_text(lock_text(host="elsewhere"))
            workspace.clear()

    with pytest.raises(IncompleteError):
        clear()
    assert ledger_path(tmp_path).exists()
    assert (tmp_path / ".prep" / "incoming").is_dir()


@pytest.mark.parametrize(("age", "kept"), [(None, True), (STALE_SECONDS + 5, False)])
def test_a_cut_body_is_inherited_from_a_run_that_is_surely_dead(
    tmp_path: Path, age: float | None, kept: bool
) -> None:
    """A run elsewhere that is only silent may still write into its own."""
    with Workspace(tmp_path) as workspace:
        workspace.part("http://host/clip").write_bytes(b"first half")
        workspace.ledger.start("http://host/clip", '"etag"')
    if age is not None:
        workspace.lock.path.write_text(lock_text(host="elsewhere"))
        beat = time.time() - age
        os.utime(workspace.lock.path, (beat, beat))
    with Workspace(tmp_path) as again:
        assert again.part("http://host/clip") != workspace.part("http://host/clip")
        assert again.part("http://host/clip").exists() is kept
        assert len(list(again.incoming.iterdir())) == kept


def test_the_lock_says_who_and_where(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    lock.acquire(wait=False)
    said = json.loads(lock.path.read_text())
    lock.release()
    assert said["process"] == os.getpid()
    assert said["host"] == os.uname().nodename
