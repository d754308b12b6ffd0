"""Each stage that makes files: killed, stopped, held by another run, with any jobs, without a network.

VideoPhy-2 has test_crash.py and test_concurrency.py, snapshots also test_snapshot_crash.py.
`PREP_THOROUGH=1` kills before every single change of the disk; by default a seeded sample is taken.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prep.loopback import LoopbackHub
from prep.manifest import Manifest
from prep.workspace import Workspace
from tests import llava, reasoning, sft_trees
from tests.runs import PROJECT, THOROUGH, assert_one_failure, digests, ended

SEED = 20240609
BRIDGE = "nvidia/BridgeData2-Subset-Synthetic-Captions"


@dataclass(slots=True)
class Stage:
    """A command without its --out-root, the directory that it makes, and where it works meanwhile.

    `change` gives the source other content; `environment` leads to a Hub, if there is one.
    """

    arguments: list[str]
    below: str
    change: Callable[[], object]
    works_in: str = ""
    hub: LoopbackHub | None = None
    environment: dict[str, str] = field(default_factory=dict)


def sft(folder: Path, hub: LoopbackHub) -> Stage:
    given = sft_trees.source(folder, ["a", "b", "c", "d"])

    def change() -> None:
        sft_trees.source(folder / "more", ["e", "f"], frames=80)
        for name in ("captions", "videos"):
            shutil.copytree(folder / "more" / name, given[name], dirs_exist_ok=True)
        (given["videos"] / "a.mp4").unlink()
        shutil.rmtree(given["captions"] / "a")

    words = ["--from-captions", str(given["captions"]), "--videos", str(given["videos"])]
    return Stage(["sft", *words, "--name", "mine", "--val-fraction", "0.4"], "mine", change)


def bridge(folder: Path, hub: LoopbackHub) -> Stage:
    def publish(name: str, *train: str) -> None:
        tree = sft_trees.bridge_tree(folder / name, train=train)
        files = {
            f"sft_dataset_bridge/{path.relative_to(tree)}": path for path in tree.rglob("*") if path.is_file()
        }
        hub.add_repo(BRIDGE, files, lfs=("*.mp4", "*.png"))

    publish("tree", "ep1_clip000", "ep1_clip001", "ep3_clip000")
    below = "BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge"
    return Stage(
        ["bridge", "--source", BRIDGE],
        below,
        lambda: publish("newer", "ep1_clip001", "ep4_clip000"),
        hub=hub,
    )


def snapshot(folder: Path, hub: LoopbackHub) -> Stage:
    llava.publish(hub, {"mine": [[llava.row(n) for n in range(20)], [llava.row(n) for n in range(20, 30)]]})
    return Stage(
        ["llava-ov", "--subset", "mine", "--shard-size", "2000"],
        "llava_ov/mine/train",
        lambda: llava.publish(hub, {"mine": [[llava.row(n) for n in range(5, 40)]]}),
        works_in="llava_ov/mine/.train.building",
        hub=hub,
    )


def questions(way: str) -> Callable[[Path, LoopbackHub], Stage]:
    def stage(folder: Path, hub: LoopbackHub) -> Stage:
        source = reasoning.clips(folder, "x/a.mp4", "x/b.mp4", "y/a.mp4", "y/c.mp4", "c.mp4")
        one, two = source / "x/questions.json", source / "y/questions.json"
        reasoning.annotation(one, [reasoning.item(f"{name}.mp4") for name in "ab"])
        reasoning.annotation(two, [reasoning.item("a.mp4")])
        val = reasoning.annotation(source / "val.json", [reasoning.item("c.mp4")])
        words = [
            "video-reasoning",
            "--train",
            str(one),
            "--train",
            str(two),
            "--val",
            str(val),
            "--media",
            way,
        ]

        def change() -> None:
            """Other items, and a file of another name, so that both files' names in the dataset change."""
            reasoning.annotation(one, [reasoning.item("b.mp4", "Which?")])
            words[words.index(str(two))] = str(source / "y/more.json")
            reasoning.annotation(source / "y/more.json", [reasoning.item("c.mp4")])

        return Stage(words, "video_reasoning/train", change)

    return stage


STAGES: dict[str, Callable[[Path, LoopbackHub], Stage]] = {
    "sft": sft,
    "bridge": bridge,
    "snapshot": snapshot,
    "questions, copied": questions("copy"),
    "questions, linked": questions("link"),
}
OWN_TESTS = ("snapshot",)
"""What has a file of its own for kills."""


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with LoopbackHub() as hub:
        made = STAGES[request.param](tmp_path / "source", hub)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        cache = str(tmp_path / "cache")
        # A stage that has no Hub gets an address where nobody answers.
        endpoint = hub.endpoint if made.hub else "http://127.0.0.1:9"
        made.environment = {
            **kept,
            "PYTHONPATH": str(PROJECT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_ENDPOINT": endpoint,
            "HF_HOME": cache,
            "HOME": cache,
        }
        yield made


every = pytest.mark.parametrize("stage", STAGES, indirect=True)
those_without = pytest.mark.parametrize(
    "stage", [name for name in STAGES if name not in OWN_TESTS], indirect=True
)


class Killing:
    """Runs in forked children of one process, some ended before their Nth change of the disk."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("killed_run.py"))],
            env=stage.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, at: int, out: Path, *options: str, by: int = signal.SIGKILL) -> tuple[int, int, str]:
        """The status of a run that gets a signal before change number `at`, its changes, and what it said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        arguments = [*self.stage.arguments, "--out-root", str(out), "-q", *options]
        self.process.stdin.write(json.dumps({"at": at, "arguments": arguments, "signal": by}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["status"], answer["changes"], answer["said"]

    def complete(self, out: Path, *options: str) -> int:
        """A run to the end, which must be a good one; how many changes it made."""
        status, changes, said = self.run(0, out, *options)
        assert status == 0, said
        return changes


@pytest.fixture
def killing(stage: Stage) -> Iterator[Killing]:
    made = Killing(stage)
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    assert made.process.wait(30) == 0


def points(changes: int, sample: int) -> list[int]:
    """Numbers of changes to be met: all, or a seeded sample that holds the last ones."""
    if THOROUGH or changes <= sample + 4:
        return list(range(1, changes + 1))
    some = random.Random(SEED).sample(range(1, changes - 3), sample)
    return sorted(some) + list(range(changes - 3, changes + 1))


def assert_true(root: Path) -> None:
    """A manifest that is there tells the truth."""
    manifest = Manifest.load(root)
    if manifest is not None:
        assert manifest.damaged_files(manifest.files()) == []


def start(
    stage: Stage, out: Path, *options: str, python: tuple[str, ...] = ("-m", "prep")
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *python, *stage.arguments, "--out-root", str(out), "-q", *options],
        env=stage.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


@those_without
@pytest.mark.slow
def test_killed_before_any_change(stage: Stage, killing: Killing, tmp_path: Path) -> None:
    changes = killing.complete(tmp_path / "whole")
    expected = digests(tmp_path / "whole")
    dice = random.Random(SEED)
    for point in points(changes, 5):
        out = tmp_path / "out"
        again = [dice.randrange(1, changes)] if dice.random() < 0.4 else []
        for at in (point, *again):
            assert killing.run(at, out)[0] in (0, -9)
            assert_true(out / stage.below)
        killing.complete(out)
        assert digests(out) == expected, point
        shutil.rmtree(out)


@those_without
def test_what_a_run_leaves_that_is_killed_as_it_takes_the_lock(
    stage: Stage, killing: Killing, tmp_path: Path
) -> None:
    """The file that becomes the lock, written by a second run that met a finished dataset."""
    out = tmp_path / "out"
    killing.complete(out)
    expected = digests(out)
    (out / stage.below / ".prep" / f"lock.{'0' * 32}").write_text("{}")
    killing.complete(out)
    assert digests(out) == expected


@those_without
@pytest.mark.slow
def test_an_update_killed_before_any_change(stage: Stage, killing: Killing, tmp_path: Path) -> None:
    killing.complete(tmp_path / "old")
    stage.change()
    options = ("--update", "--refresh") if stage.hub else ("--update",)
    shutil.copytree(tmp_path / "old", tmp_path / "new", symlinks=True)
    changes = killing.complete(tmp_path / "new", *options)
    expected = digests(tmp_path / "new")
    assert expected != digests(tmp_path / "old")
    for point in points(changes, 4):
        out = tmp_path / "out"
        shutil.copytree(tmp_path / "old", out, symlinks=True)
        assert killing.run(point, out, *options)[0] in (0, -9)
        assert_true(out / stage.below)
        killing.complete(out, *options)
        assert digests(out) == expected, point
        shutil.rmtree(out)


@every
@pytest.mark.slow
def test_a_signal_ends_with_status_3_and_the_next_run_goes_on(
    stage: Stage, killing: Killing, tmp_path: Path
) -> None:
    changes = killing.complete(tmp_path / "whole")
    expected, stopped = digests(tmp_path / "whole"), 0
    for number, point in ((signal.SIGTERM, changes // 4), (signal.SIGINT, changes // 2)):
        out = tmp_path / number.name
        status, _, said = killing.run(point, out, by=number)
        assert status in (0, 3), said
        if status:
            stopped += 1
            assert_one_failure(status, said)
        assert_true(out / stage.below)
        assert not list(out.rglob("lock"))
        killing.complete(out)
        assert digests(out) == expected, point
    assert stopped or "link" in stage.arguments  # links are made before it is asked


@every
def test_a_second_run_names_the_holder_or_waits(stage: Stage, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Workspace(out / (stage.works_in or stage.below)):
        said = assert_one_failure(*ended(start(stage, out)))
        assert f"held by process {os.getpid()} on {socket.gethostname()}" in said
        waiting = start(stage, out, "--wait")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.0)
        assert Manifest.load(out / stage.below) is None
    status, said = ended(waiting)
    assert status == 0, said
    assert Manifest.load(out / stage.below) is not None


@every
def test_runs_that_begin_together(stage: Stage, tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = [ended(process) for process in [start(stage, out, "--wait") for _ in range(3)]]
    assert [status for status, _ in results] == [0, 0, 0], results
    both = [start(stage, tmp_path / "both") for _ in range(2)]
    statuses = sorted(ended(process)[0] for process in both)
    assert statuses in ([0, 0], [0, 3])
    assert digests(tmp_path / "both") == digests(out)


@every
def test_jobs_change_no_byte(stage: Stage, killing: Killing, tmp_path: Path) -> None:
    for jobs in ("1", "9"):
        killing.complete(tmp_path / jobs, "--jobs", jobs)
    assert digests(tmp_path / "1") == digests(tmp_path / "9")


NO_SOCKETS = """
import sys

def refuse(event, values):
    if event in ("socket.__new__", "socket.connect", "socket.getaddrinfo"):
        raise AssertionError(f"a socket was used: {event} {values}")

sys.addaudithook(refuse)
from prep.cli import main
main()
"""


@every
def test_a_finished_dataset_opens_no_socket(stage: Stage, tmp_path: Path) -> None:
    """And where all comes from this machine, the first run opens none either."""
    out = tmp_path / "out"
    first, said = ended(start(stage, out, python=("-c", NO_SOCKETS)))
    assert (first == 0) is (stage.hub is None), said
    status, said = ended(start(stage, out))
    assert status == 0, said
    before = digests(out)
    status, said = ended(start(stage, out, python=("-c", NO_SOCKETS)))
    assert status == 0, said
    assert "nothing to do" in said
    assert digests(out) == before


@pytest.mark.parametrize("stage", ["bridge", "snapshot"], indirect=True)
def test_fetched_on_a_login_node_and_finished_without_a_socket(stage: Stage, tmp_path: Path) -> None:
    status, said = ended(start(stage, tmp_path / "out", "--download-only"))
    assert status == 0, said
    assert "--offline" in said
    assert Manifest.load(tmp_path / "out" / stage.below) is None
    status, said = ended(start(stage, tmp_path / "out", "--offline", python=("-c", NO_SOCKETS)))
    assert status == 0, said
    stage.environment["HF_HOME"] = str(tmp_path / "another")
    status, said = ended(start(stage, tmp_path / "online"))
    assert status == 0, said
    assert digests(tmp_path / "out") == digests(tmp_path / "online")
    status, said = ended(start(stage, tmp_path / "never", "--offline", "--source", "nobody/nothing"))
    assert status == 4, said
    assert "--download-only" in said
