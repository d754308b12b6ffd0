"""Five thousand robot windows in a process of its own: memory stays flat, and few files are open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prep.readers.robot_frames import OPEN_FILES
from tests.commands import PROJECT
from tests.robot_trees import run
from tests.robots import DROID, make_root

EPISODES = 40
SPARE = 12
"""Open files beside the decoders': frame tables being read, and what the libraries keep."""

PROGRAM = """
import json, random, sys
from pathlib import Path
import prep

reader = prep.open(sys.argv[1], index=sys.argv[2])
blocks = list(reader.blocks())
draw = random.Random(3)

def places():
    while True:
        draw.shuffle(blocks)
        for first, length in blocks:
            yield from range(first, first + length)

def resident():
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])

def held():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())

before, most, memory = held(), 0, {}
for count, place in zip(range(1, 5001), places()):
    sample = reader[place]
    if count % 20 == 0:
        most = max(most, held())
    if count % 1000 == 0:
        memory[count] = resident()
print(json.dumps({"windows": len(reader), "before": before, "most": most, "memory": memory}))
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Blocks in a drawn order, again and again; each episode has files of its own: 40 tables, 120 videos."""
    folder = tmp_path_factory.mktemp("memory")
    shape = replace(
        DROID,
        lengths=(24,) * EPISODES,
        packing=((1,) * EPISODES,) * 3,
        data_files=(1,) * EPISODES,
        meta_files=(EPISODES,),
        size=(32, 24),
        codec="mpeg4",
    )
    make_root(folder / "tree", shape)
    made = run(folder / "out", "droid_policy", root=folder / "tree", chunk_length=4).root
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(made), "droid_policy-train-c4"],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory and files are read from /proc")
def test_memory_is_flat_from_the_first_thousand_windows_to_the_fifth(measured: dict[str, object]) -> None:
    memory = measured["memory"]
    assert isinstance(memory, dict)
    assert memory["5000"] < 1.05 * memory["1000"], memory


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="memory and files are read from /proc")
def test_few_files_are_open_however_many_there_are(measured: dict[str, object]) -> None:
    before, most = measured["before"], measured["most"]
    assert isinstance(before, int)
    assert isinstance(most, int)
    assert OPEN_FILES <= most - before <= OPEN_FILES + SPARE, measured
