"""Runs beside one another: one writes, the others wait or name it; the number of jobs changes no byte."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from prep.lock import STALE_SECONDS, Lock
from prep.loopback import Fault, FaultKind, LoopbackHub
from tests.runs import (
    NAME,
    Clip,
    World,
    assert_clean,
    assert_one_failure,
    digests,
    ended,
    lock_text,
    wait_for,
    whole_tree,
)

CLIPS = [*(Clip(f"clip {n}.mp4", n) for n in range(10)), Clip("twin.mp4", 3), Clip("clip 5.mp4", 5)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LoopbackHub() as hub:
        made = World(hub, tmp_path)
        made.publish(CLIPS)
        yield made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tree that a run with nobody beside it makes of CLIPS."""
    return whole_tree(CLIPS, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def lock_of(out: Path) -> Path:
    return out / NAME / ".prep" / "lock"


def slow(world: World, seconds: float = 0.1) -> None:
    world.hub.faults.set(".mp4", Fault(FaultKind.SLOW, seconds=seconds))


def begun(world: World, out: Path, *options: str) -> subprocess.Popen[str]:
    """A run that holds its dataset and has begun to fetch."""
    process = world.start(out, "--jobs", "1", *options)
    assert wait_for(lambda: bool(world.fetched()), process)
    return process


def leave_lock(out: Path, text: str, age: float = 0.0) -> None:
    """A lock whose heart beat `age` seconds ago."""
    lock_of(out).parent.mkdir(parents=True)
    lock_of(out).write_text(text)
    beat = time.time() - age
    os.utime(lock_of(out), (beat, beat))


def a_dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_second_run_names_the_holder(world: World, out: Path) -> None:
    slow(world)
    world.hub.clear_requests()
    first = begun(world, out)
    sentence = assert_one_failure(*world.run(out))
    assert f"process {first.pid} on {socket.gethostname()}" in sentence
    status, said = ended(first)
    assert status == 0, said
    assert_clean(out / NAME)
    assert set(Counter(world.fetched()).values()) == {1}


def test_two_runs_that_begin_together(world: World, out: Path) -> None:
    # So slow that the second has begun, on however busy a machine, before the first can end.
    slow(world, 2.0)
    world.hub.clear_requests()
    runs = [world.start(out), world.start(out)]
    results = sorted((ended(process) for process in runs), key=lambda result: result[0])
    assert results[0][0] == 0, results
    assert "held by process" in assert_one_failure(*results[1])
    assert_clean(out / NAME)
    assert set(Counter(world.fetched()).values()) == {1}


def test_eight_runs_that_wait(world: World, out: Path, alone: dict[str, str]) -> None:
    runs = [world.start(out, "--wait") for _ in range(8)]
    results = [ended(process) for process in runs]
    assert [status for status, _ in results] == [0] * 8, results
    assert not any("Traceback" in said or "Exception" in said for _, said in results)
    assert digests(out / NAME) == alone
    assert_clean(out / NAME)
    assert Counter(world.fetched()) == Counter({clip.name for clip in CLIPS})


def test_both_splits_do_not_wait_for_each_other(world: World, out: Path) -> None:
    """A held split does not keep the other from being done."""
    leave_lock(out, lock_text(host="elsewhere"))
    world.hub.add_repo("videophysics/videophy2_train", {"videophy2_training.csv": world.table})
    status, said = world.run(out, "--split", "both")
    assert status == 3
    assert "elsewhere" in said
    assert "Traceback" not in said
    assert (out / "videophy2_train" / "manifest.json").exists()


def test_waiting_ends_upon_a_signal(world: World, out: Path) -> None:
    leave_lock(out, lock_text(host="elsewhere"))
    looked = lock_of(out).parent.stat().st_mtime_ns
    process = world.start(out, "--wait")
    # It makes a file to learn the file system's time whenever it looks at a lock from elsewhere.
    wait_for(lambda: lock_of(out).parent.stat().st_mtime_ns > looked, process)
    process.send_signal(signal.SIGINT)
    assert_one_failure(*ended(process))
    assert lock_of(out).exists()


@pytest.mark.parametrize("killed", ["waited for", "zombie"])
def test_the_lock_of_a_killed_run_is_taken_over(world: World, out: Path, killed: str) -> None:
    slow(world)
    world.hub.clear_requests()
    process = begun(world, out)
    process.kill()
    if killed == "waited for":
        process.wait()
    else:
        # Nobody has taken its status: the number still exists, as in a container without an init.
        wait_for(lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text())
    world.hub.faults.clear()
    assert lock_of(out).exists()
    assert_clean(world.complete(out))
    ended(process)


def test_the_lock_of_a_process_that_is_gone(world: World, out: Path) -> None:
    leave_lock(out, own_lock(process=a_dead_process(), started="1"))
    assert_clean(world.complete(out))


def test_the_lock_of_a_process_whose_number_was_reused(world: World, out: Path) -> None:
    leave_lock(out, own_lock(process=os.getpid(), started="1"))
    assert_clean(world.complete(out))


def test_the_lock_of_a_process_that_lives(world: World, out: Path) -> None:
    leave_lock(out, own_lock(process=os.getpid()), age=10 * STALE_SECONDS)
    assert f"process {os.getpid()} " in assert_one_failure(*world.run(out))


@pytest.mark.parametrize(
    "text", [lock_text(host="elsewhere", process=1), "", "\0" * 64, "\x80[]", '{"process": -1}']
)
def test_a_lock_that_only_its_heartbeat_tells_of(world: World, out: Path, text: str) -> None:
    leave_lock(out, text, age=STALE_SECONDS - 20)
    assert_one_failure(*world.run(out))
    assert lock_of(out).read_text() == text
    beat = time.time() - STALE_SECONDS - 20
    os.utime(lock_of(out), (beat, beat))
    assert_clean(world.complete(out))


def test_another_container_of_this_host(world: World, out: Path) -> None:
    """Where process numbers mean something else, only the heartbeat counts."""
    leave_lock(out, own_lock(process=a_dead_process(), started="1", system="another"))
    assert_one_failure(*world.run(out))


def own_lock(**changes: object) -> str:
    """The lock that a run in this process would write, with some facts changed."""
    with tempfile.TemporaryDirectory() as folder:
        lock = Lock(Path(folder) / "lock")
        lock.acquire(wait=False)
        try:
            return lock_text(**{**json.loads(lock.path.read_text()), **changes})
        finally:
            lock.release()


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_run_that_loses_its_lock(world: World, out: Path, alone: dict[str, str], change: str) -> None:
    slow(world, 0.05)
    world.hub.clear_requests()
    process = begun(world, out)
    lock_of(out).unlink()
    other = lock_text(host="elsewhere", process=1)
    if change == "replaced":
        lock_of(out).write_text(other)
    assert "lock" in assert_one_failure(*ended(process))
    assert not (out / NAME / "manifest.json").exists()
    if change == "replaced":
        assert lock_of(out).read_text() == other  # not ours to remove
        lock_of(out).unlink()
    world.hub.clear_requests()
    assert digests(world.complete(out)) == alone
    assert world.fetched() == []


@pytest.mark.parametrize("jobs", ["1", "16"])
def test_jobs_change_no_byte(world: World, out: Path, alone: dict[str, str], jobs: str) -> None:
    assert digests(world.complete(out, "--jobs", jobs)) == alone


NO_SOCKETS = """
import sys

def refuse(event, values):
    if event.startswith("socket."):
        raise AssertionError(f"a socket was used: {event} {values}")

sys.addaudithook(refuse)
from prep.cli import main
main()
"""


def test_a_finished_dataset_is_confirmed_without_a_socket(world: World, out: Path) -> None:
    refused, said = ended(world.start(out, python=("-c", NO_SOCKETS)))
    assert refused != 0, "the hook must see what a first run does"
    root = world.complete(out)
    before = digests(root)
    status, said = ended(world.start(out, python=("-c", NO_SOCKETS)))
    assert status == 0, said
    assert "nothing to do" in said
    assert digests(root) == before
