"""A run that is killed or stopped at any moment, and run again, ends as if nothing had happened.

`PREP_THOROUGH=1` kills before every single change of the disk; by default a seeded sample is taken.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from prep.loopback import Fault, FaultKind, LoopbackHub
from tests.runs import (
    NAME,
    THOROUGH,
    Clip,
    World,
    assert_clean,
    assert_one_failure,
    assert_true,
    digests,
    ended,
    finished_sources,
    wait_for,
)

SEED = 20240607
CONTENTS = range(40)
# Row 8 has the clip of row 4 under another name, row 11 that of row 2 under the same.
BEFORE = [Clip(f"clip {n}.mp4", n) for n in range(12)]
BEFORE[7], BEFORE[10] = Clip("twin.mp4", 3), BEFORE[1]
AFTER = [BEFORE[0], Clip("new.mp4", 30), *BEFORE[1:]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LoopbackHub() as hub:
        made = World(hub, tmp_path)
        made.publish(BEFORE)
        yield made


class Killing:
    """The process that kills runs just before their Nth change of the disk."""

    def __init__(self, world: World) -> None:
        self.world = world
        script = str(Path(__file__).with_name("killed_run.py"))
        self.process = subprocess.Popen(
            [sys.executable, script],
            env=world.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, at: int, out: Path, *options: str) -> tuple[int, int]:
        """The status of a run that is killed before change number `at`, and how many changes it made."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"at": at, "arguments": self.world.arguments(out, *options)}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["status"] in (0, 1, -9), answer["said"]
        return answer["status"], answer["changes"]


@pytest.fixture
def killing(world: World) -> Iterator[Killing]:
    made = Killing(world)
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    assert made.process.wait(30) == 0


def points(changes: int, sample: int) -> list[int]:
    """Numbers of changes to be killed before: all, or a seeded sample that holds the last ones."""
    if THOROUGH:
        return list(range(1, changes + 1))
    some = random.Random(SEED).sample(range(1, changes - 5), sample)
    return sorted(some) + list(range(changes - 5, changes + 1))


def check_kills(
    killing: Killing, out: Path, expected: dict[str, str], at: Sequence[int], *options: str
) -> None:
    """Kill a run at each of the points, one after the other, then let one end."""
    world, root = killing.world, out / NAME
    for point in at:
        finished = finished_sources(root)
        world.hub.clear_requests()
        status, _ = killing.run(point, out, *options)
        assert status in (0, -9)  # a rerun has less to change than the point says
        assert finished.isdisjoint(world.fetched())
        assert_true(root, CONTENTS)
    finished = finished_sources(root)
    world.hub.clear_requests()
    assert killing.run(0, out, *options)[0] == 0
    assert finished.isdisjoint(world.fetched())
    assert digests(root) == expected
    assert_clean(root)


def test_a_first_run_killed_before_any_change(world: World, killing: Killing, tmp_path: Path) -> None:
    status, changes = killing.run(0, tmp_path / "whole", "--jobs", "4")
    assert status == 0
    expected = digests(tmp_path / "whole" / NAME)
    dice = random.Random(SEED)
    for point in points(changes, 8):
        again = [dice.randrange(1, changes)] if dice.random() < 0.4 else []
        check_kills(killing, tmp_path / str(point), expected, [point, *again], "--jobs", "4")


def test_an_update_killed_before_any_change(world: World, killing: Killing, tmp_path: Path) -> None:
    old = world.complete(tmp_path / "old")
    before = digests(old)
    world.publish(AFTER)
    expected = digests(world.complete(tmp_path / "whole"))
    options = ("--update", "--refresh", "--jobs", "4")
    shutil.copytree(tmp_path / "old", tmp_path / "count")
    status, changes = killing.run(0, tmp_path / "count", *options)
    assert status == 0
    for point in points(changes, 6):
        out = tmp_path / str(point)
        shutil.copytree(tmp_path / "old", out)
        assert killing.run(point, out, *options)[0] == -9
        if assert_true(out / NAME, CONTENTS) and not (out / NAME / "media" / "video_0013.mp4").exists():
            assert before.items() <= digests(out / NAME).items()  # not begun: the old dataset, and notes
        check_kills(killing, out, expected, [point // 2], *options)


def test_a_smaller_table_killed_before_any_change(world: World, killing: Killing, tmp_path: Path) -> None:
    """Names are freed, and of two equal clips one is left."""
    world.publish(AFTER)
    world.complete(tmp_path / "old")
    world.publish([AFTER[4], *AFTER[1:4], *AFTER[9:]])
    options = ("--update", "--refresh", "--prune", "--jobs", "4")
    expected = digests(world.complete(tmp_path / "whole"))
    shutil.copytree(tmp_path / "old", tmp_path / "count")
    status, changes = killing.run(0, tmp_path / "count", *options)
    assert status == 0
    for point in points(changes, 3):
        out = tmp_path / str(point)
        shutil.copytree(tmp_path / "old", out)
        check_kills(killing, out, expected, [point], *options)


def test_a_failing_run_killed_before_any_change(world: World, killing: Killing, tmp_path: Path) -> None:
    """The attempt's records, too, are gone in the end."""
    expected = digests(world.complete(tmp_path / "whole"))
    broken = Fault(FaultKind.NOT_FOUND)
    world.hub.faults.set("clip 6.mp4", broken)
    status, changes = killing.run(0, tmp_path / "count")
    assert status == 1
    for point in points(changes, 2)[-5:]:
        out = tmp_path / str(point)
        world.hub.faults.set("clip 6.mp4", broken)
        assert killing.run(point, out)[0] == -9
        world.hub.faults.clear()
        check_kills(killing, out, expected, [5])


def kill_after(seconds: float) -> Callable[[subprocess.Popen[str], Path], None]:
    def wait(process: subprocess.Popen[str], root: Path) -> None:
        time.sleep(seconds)

    return wait


def kill_upon(pattern: str, count: int) -> Callable[[subprocess.Popen[str], Path], None]:
    def wait(process: subprocess.Popen[str], root: Path) -> None:
        wait_for(lambda: len(list(root.glob(pattern))) >= count, process)

    return wait


def instants(seconds: float, chains: int) -> list[list[Callable[[subprocess.Popen[str], Path], None]]]:
    """Chains of moments to kill at: three by the clock, two by what has appeared on the disk."""
    dice = random.Random(SEED)
    upon = [
        *(("media/*.mp4", dice.randrange(1, 12)) for _ in range(chains)),
        *(("text/*.json", dice.randrange(1, 12)) for _ in range(chains - 3)),
        ("meta.json", 1),
        (".prep/records.parquet", 1),
        ("manifest.json", 1),
    ]
    dice.shuffle(upon)
    return [
        [
            *(kill_after(dice.uniform(0.1, 1.1) * seconds) for _ in range(3)),
            *(kill_upon(*upon.pop()) for _ in range(2)),
        ]
        for _ in range(chains)
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("chain", range(20 if THOROUGH else 5))
def test_a_signal_at_any_instant(world: World, tmp_path: Path, chain: int, number: int) -> None:
    """Five signals to the command itself, the reruns included, then a run to the end."""
    # By SIGTERM itself a run ends only while Python is starting.
    statuses = {signal.SIGKILL: (0, -9), signal.SIGTERM: (0, 3, -15)}
    world.hub.faults.set(".mp4", Fault(FaultKind.SLOW, seconds=0.05))
    began = time.monotonic()
    expected = digests(world.complete(tmp_path / "whole", "--jobs", "2"))
    moments = instants(time.monotonic() - began, 20 if THOROUGH else 5)[chain]
    out = tmp_path / "killed"
    for moment in moments:
        finished = finished_sources(out / NAME)
        world.hub.clear_requests()
        process = world.start(out, "--jobs", "2")
        moment(process, out / NAME)
        process.send_signal(number)
        status, said = ended(process)
        assert status in statuses[signal.Signals(number)], said
        assert "Traceback" not in said
        assert_true(out / NAME, CONTENTS)
        assert finished.isdisjoint(world.fetched())
    finished = finished_sources(out / NAME)
    world.hub.clear_requests()
    root = world.complete(out, "--jobs", "2")
    assert finished.isdisjoint(world.fetched())
    assert digests(root) == expected
    assert_clean(root)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("fetched", [1, 5])
def test_a_signal_stops_and_a_rerun_goes_on(world: World, tmp_path: Path, number: int, fetched: int) -> None:
    expected = digests(world.complete(tmp_path / "whole"))
    world.hub.clear_requests()
    world.hub.faults.set(".mp4", Fault(FaultKind.SLOW, seconds=0.05))
    process = world.start(tmp_path / "stopped", "--jobs", "2")
    wait_for(lambda: len(world.fetched()) >= fetched, process)
    process.send_signal(number)
    assert_one_failure(*ended(process))
    root = tmp_path / "stopped" / NAME
    assert not (root / ".prep" / "lock").exists()
    finished = finished_sources(root)
    assert len(finished) >= fetched - 1
    world.hub.clear_requests()
    assert digests(world.complete(tmp_path / "stopped")) == expected
    assert finished.isdisjoint(world.fetched())
    assert_clean(root)


def test_a_signal_while_it_publishes(world: World, tmp_path: Path) -> None:
    expected = digests(world.complete(tmp_path / "whole"))
    out = tmp_path / "stopped"
    world.complete(out, "--download-only")
    process = world.start(out)
    wait_for((out / NAME / "media").exists, process)
    process.terminate()
    status, said = ended(process)
    if status != 0:  # it may be done before the signal comes
        assert_one_failure(status, said)
        assert not (out / NAME / "manifest.json").exists()
    assert digests(world.complete(out)) == expected


def test_a_second_signal_ends_a_run_that_waits_for_a_silent_server(world: World, tmp_path: Path) -> None:
    world.hub.faults.set(".mp4", Fault(FaultKind.STALL, after_bytes=0, seconds=300))
    process = world.start(tmp_path / "stopped", "--timeout", "300")
    wait_for(lambda: len(world.fetched()) > 5, process)
    process.terminate()
    time.sleep(0.2)
    process.terminate()
    assert_one_failure(*ended(process))
    world.hub.faults.clear()
    assert_clean(world.complete(tmp_path / "stopped"))


def sizes(incoming: Path) -> list[int]:
    return [path.stat().st_size for path in incoming.glob("*.part")]


def test_a_cut_body_is_continued(world: World, tmp_path: Path) -> None:
    """A rerun asks for the rest of a long clip only."""
    world.publish(BEFORE[:2], pad=3 << 20)
    expected = digests(world.complete(tmp_path / "whole"))
    world.hub.faults.set("clip 1.mp4", Fault(FaultKind.STALL, after_bytes=2 << 20, seconds=60))
    process = world.start(tmp_path / "killed", "--jobs", "1")
    incoming = tmp_path / "killed" / NAME / ".prep" / "incoming"
    wait_for(lambda: len(world.fetched()) == 4, process)  # so that the only part is that of clip 1
    almost = (2 << 20) - (64 << 10)  # the last bytes may not have left the process
    wait_for(lambda: sizes(incoming) > [almost], process)
    process.kill()
    ended(process)
    (size,) = sizes(incoming)
    world.hub.faults.clear()
    world.hub.clear_requests()
    root = world.complete(tmp_path / "killed")
    asked = [record.range for record in world.hub.requests if record.path.startswith("/files/")]
    assert asked == [f"bytes={size}-"]
    assert digests(root) == expected
    assert_clean(root)
