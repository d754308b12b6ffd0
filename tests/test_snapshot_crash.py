"""A snapshot run that is killed at any moment: whole or absent, and the next run ends as if nothing had been.

`PREP_THOROUGH=1` kills before every single change of the disk; by default a seeded sample is taken.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import pytest

from prep.layouts.arrow_snapshot import safe_name
from prep.loopback import Fault, FaultKind, LoopbackHub
from tests.llava import REPO, Rows, publish, row
from tests.runs import PROJECT, THOROUGH, digests, ended

SEED = 20240608
SUBSET = "ai2d(gpt4v)"
BELOW = {"arrow": f"llava_ov/{safe_name(SUBSET)}/train", "hub": f"{REPO}/{safe_name(SUBSET)}/train"}
OPTIONS = ("--subset", SUBSET, "--shard-size", "2000", "--jobs", "2", "-q")
PARTS: list[Rows] = [[row(n) for n in range(25)], [row(n) for n in range(25, 45)], [row(45, image=None)]]


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as made:
        publish(made, {SUBSET: PARTS}, group=6)
        yield made


class Runs:
    """Runs of `prep llava-ov` in processes of their own, some killed before their Nth change of the disk."""

    def __init__(self, hub: LoopbackHub, folder: Path) -> None:
        cache = str(folder / "hub")
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.environment = {
            **kept,
            "PYTHONPATH": str(PROJECT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": cache,
            "HOME": cache,
        }
        script = str(Path(__file__).with_name("killed_run.py"))
        self.process = subprocess.Popen(
            [sys.executable, script],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def killed(self, at: int, out: Path, *options: str) -> tuple[int, int]:
        """The status of a run that is killed before change number `at`, and how many changes it made."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"at": at, "arguments": ["llava-ov", "--out-root", str(out), *OPTIONS, *options]}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer["status"] in (0, -9), answer["said"]
        return answer["status"], answer["changes"]

    def start(self, out: Path, *options: str) -> subprocess.Popen[str]:
        """A run that may be signalled."""
        return subprocess.Popen(
            [sys.executable, "-m", "prep", "llava-ov", "--out-root", str(out), *OPTIONS, *options],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )


@pytest.fixture
def runs(hub: LoopbackHub, tmp_path: Path) -> Iterator[Runs]:
    made = Runs(hub, tmp_path)
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    assert made.process.wait(30) == 0


def points(changes: int, sample: int) -> list[int]:
    """Numbers of changes to be killed before: all, or a seeded sample that holds the last ones."""
    if THOROUGH:
        return list(range(1, changes + 1))
    some = random.Random(SEED).sample(range(1, changes - 8), sample)
    return sorted(some) + list(range(changes - 8, changes + 1))


def assert_whole_or_absent(root: Path, wholes: Sequence[dict[str, str]]) -> None:
    """No directory of the dataset, or one of the whole ones; notes of the run apart."""
    if root.exists():
        assert without_unused(digests(root)) in wholes


def without_unused(tree: dict[str, str]) -> dict[str, str]:
    """A tree without the shards of the snapshot that was there before."""
    return {name: digest for name, digest in tree.items() if not name.startswith(".prep/unused")}


@pytest.mark.parametrize("form", ["arrow", "hub"])
def test_killed_before_any_change(runs: Runs, tmp_path: Path, form: str) -> None:
    options = ("--hub-layout",) if form == "hub" else ()
    status, changes = runs.killed(0, tmp_path / "whole", *options)
    assert status == 0
    expected, whole = digests(tmp_path / "whole"), digests(tmp_path / "whole" / BELOW[form])
    dice = random.Random(SEED)
    for point in points(changes, 8):
        out = tmp_path / "out"
        again = [dice.randrange(1, changes)] if dice.random() < 0.4 else []
        for at in (point, *again):
            runs.killed(at, out, *options)
            assert_whole_or_absent(out / BELOW[form], [whole])
        assert runs.killed(0, out, *options)[0] == 0
        assert digests(out) == expected, point
        shutil.rmtree(out)


def test_an_update_killed_before_any_change(runs: Runs, tmp_path: Path) -> None:
    assert runs.killed(0, tmp_path / "old")[0] == 0
    options = ("--max-samples", "30", "--update")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    status, changes = runs.killed(0, tmp_path / "new", *options)
    assert status == 0
    root = Path(BELOW["arrow"])
    old, expected = digests(tmp_path / "old" / root), digests(tmp_path / "new")
    new = without_unused(digests(tmp_path / "new" / root))
    for point in points(changes, 8):
        out = tmp_path / "out"
        shutil.copytree(tmp_path / "old", out)
        runs.killed(point, out, *options)
        assert_whole_or_absent(out / root, [old, new])
        assert runs.killed(0, out, *options)[0] == 0
        assert digests(out) == expected, point
        shutil.rmtree(out)


def test_a_mending_run_killed_before_any_change(runs: Runs, tmp_path: Path) -> None:
    assert runs.killed(0, tmp_path / "old")[0] == 0
    expected = digests(tmp_path / "old")
    victim = sorted((tmp_path / "old" / BELOW["arrow"]).glob("*.arrow"))[2]
    victim.write_bytes(b"")
    shutil.copytree(tmp_path / "old", tmp_path / "count")
    _, changes = runs.killed(0, tmp_path / "count")
    for point in points(changes, 6):
        out = tmp_path / "out"
        shutil.copytree(tmp_path / "old", out)
        runs.killed(point, out)
        assert runs.killed(0, out)[0] == 0
        assert digests(out) == expected, point
        shutil.rmtree(out)


def test_a_run_that_reuses_killed_before_any_change(runs: Runs, tmp_path: Path) -> None:
    assert runs.killed(0, tmp_path / "old", "--max-samples", "30")[0] == 0
    assert runs.killed(0, tmp_path / "whole")[0] == 0
    expected = digests(tmp_path / "whole")
    options = ("--reuse", str(tmp_path / "old"))
    _, changes = runs.killed(0, tmp_path / "count", *options)
    for point in points(changes, 6):
        out = tmp_path / "out"
        runs.killed(point, out, *options)
        assert runs.killed(0, out, *options)[0] == 0
        assert digests(out) == expected, point
        shutil.rmtree(out)


def test_sealed_shards_are_not_made_again(hub: LoopbackHub, runs: Runs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, changes = runs.killed(0, tmp_path / "whole")
    runs.killed(changes * 3 // 4, out)
    built = out / Path(BELOW["arrow"]).parent / ".train.building/whole"
    before = {path.name: path.stat().st_ino for path in built.glob("*.arrow")}
    assert before
    hub.clear_requests()
    assert runs.killed(0, out)[0] == 0
    root = out / BELOW["arrow"]
    assert set(before.values()) <= {path.stat().st_ino for path in root.glob("*.arrow")}
    asked = [record.path for record in hub.requests if "train-00000" in record.path]
    assert asked == []


def test_sigterm_ends_with_status_3_and_the_next_run_goes_on(
    hub: LoopbackHub, runs: Runs, tmp_path: Path
) -> None:
    assert runs.killed(0, tmp_path / "whole")[0] == 0
    hub.faults.set("train-00001-of-00003.parquet", Fault(FaultKind.SLOW, seconds=2.0), times=1)
    out = tmp_path / "out"
    process = runs.start(out)
    shard = out / Path(BELOW["arrow"]).parent / ".train.building/whole/shard-00000.arrow"
    until = time.monotonic() + 60
    while not shard.exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    status, said = ended(process)
    assert (status, len(said.splitlines())) == (3, 2), said
    assert not (out / BELOW["arrow"]).exists()
    assert runs.killed(0, out)[0] == 0
    assert digests(out) == digests(tmp_path / "whole")


def test_a_second_run_is_refused_while_one_works(hub: LoopbackHub, runs: Runs, tmp_path: Path) -> None:
    hub.faults.set("train-00000-of-00003.parquet", Fault(FaultKind.SLOW, seconds=3.0), times=1)
    out = tmp_path / "out"
    first = runs.start(out)
    whole = out / Path(BELOW["arrow"]).parent / ".train.building/whole"
    while not whole.exists():  # empty as yet: the refused run must leave it
        time.sleep(0.01)
    status, said = ended(runs.start(out))
    assert status == 3
    assert "held by" in said
    waiting = runs.start(out, "--wait")
    assert ended(first)[0] == 0
    assert ended(waiting)[0] == 0
    made = datasets.load_from_disk(str(out / BELOW["arrow"]))
    assert made["id"] == [f"row {n}" for n in range(45)]
