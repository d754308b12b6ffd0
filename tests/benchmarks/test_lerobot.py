"""Row checks beside a bare vectorised pass over the same columns, and the quick check of a full-size tree.

Run by `make bench`. Each group has its baseline in the same run: compare the rows. The bare pass does what
any such check must: read the columns, order, time grid, finiteness, extremes, frozen runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prep.layouts.lerobot import Root
from prep.layouts.lerobot_checks import check_root
from tests.robots import Shape, make_root

EPISODES, FRAMES, FILES = 1000, 300, 20
WIDTH = 14
SHAPE = Shape(
    cameras=(),
    packing=(),
    lengths=(FRAMES,) * EPISODES,
    data_files=(EPISODES // FILES,) * FILES,
    meta_files=(EPISODES,),
    vectors={"observation.state": WIDTH, "action": WIDTH},
    fps=30,
    row_group=1 << 20,
)
FULL_SIZE = os.environ.get("PREP_BENCH_DROID_META", "")
"""A root that the tool make_droid_meta.py has written: metadata of 57,000 episodes, no data."""


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_root(tmp_path_factory.mktemp("rows") / "vectors", SHAPE)


@pytest.fixture(scope="module")
def scalars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    columns = {f"{name}.{at}": 0 for name in ("observation.state", "action") for at in range(WIDTH)}
    shape = Shape(**{**SHAPE.__dict__, "vectors": columns})
    return make_root(tmp_path_factory.mktemp("rows") / "scalars", shape)


def bare_pass(root: Path) -> int:
    """Order, grid, finiteness, extremes and frozen runs, in plain array operations; the rows seen."""
    features = [name for name in Root.open(root).features if name.startswith(("observation.", "action"))]
    seen = 0
    for path in sorted((root / "data").glob("*/*.parquet")):
        table = pq.read_table(path)
        index, episode, frame, time = (
            table[name].to_numpy() for name in ("index", "episode_index", "frame_index", "timestamp")
        )
        assert (np.diff(index) == 1).all()
        inside = episode[1:] == episode[:-1]
        assert (np.diff(frame)[inside] == 1).all()
        assert np.abs(time - frame / SHAPE.fps).max() < 1e-3
        for name in features:
            column = table[name].combine_chunks()
            values = column.flatten().to_numpy() if pa.types.is_list(column.type) else column.to_numpy()
            values = values.reshape(len(table), -1)
            assert np.isfinite(values).all()
            assert values.min() < values.max()
            still = (values[1:] == values[:-1]).all(axis=1) & inside
            assert np.diff(np.flatnonzero(~still), prepend=-1).max(initial=0) < SHAPE.fps
        seen += len(table)
    return seen


def all_checks(root: Path) -> int:
    assert list(check_root(root)) == []
    return EPISODES * FRAMES


@pytest.mark.parametrize("kind", ["vectors", "scalars"])
@pytest.mark.parametrize("work", [bare_pass, all_checks], ids=["baseline_bare_pass", "check_root"])
def test_rows(benchmark: Any, work: Any, kind: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(kind)
    benchmark.group = f"LeRobot rows, {EPISODES * FRAMES:,} frames, {kind}"
    assert benchmark.pedantic(work, args=(root,), rounds=7, warmup_rounds=1) == EPISODES * FRAMES


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
def test_memory_of_the_row_checks(benchmark: Any, vectors: Path) -> None:
    """The peak of a process of its own, beside one that only imports; in MB, in the extra columns."""
    script = "from pathlib import Path\nfrom prep.layouts.lerobot_checks import check_root\n"
    run = f"assert not list(check_root(Path({str(vectors)!r})))\n"
    empty = peak_of(script)
    full = benchmark.pedantic(lambda: peak_of(script + run), rounds=1)
    benchmark.extra_info.update(peak_mb=full, imports_mb=empty)
    assert full < 300


def peak_of(script: str) -> int:
    """The peak resident memory in MB of a Python process that runs `script`."""
    # Not `ru_maxrss`: a child inherits its parent's, and pytest's is large.
    tell = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    done = subprocess.run([sys.executable, "-c", script + tell], capture_output=True, text=True, check=True)
    return int(done.stdout) // 1024


def bare_metadata(root: Path) -> int:
    table = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet")
    return len(table)


def quick_check(root: Path) -> int:
    findings = list(check_root(root, level="quick"))
    assert {finding.code for finding in findings} <= {"LER041", "LER042", "LER015"}
    return int(json.loads((root / "meta/info.json").read_text())["total_episodes"])


@pytest.mark.skipif(not FULL_SIZE, reason="PREP_BENCH_DROID_META names no tree")
@pytest.mark.parametrize(
    "work", [bare_metadata, quick_check], ids=["baseline_read_table", "check_root_quick"]
)
def test_quick_on_a_full_size_tree(benchmark: Any, work: Any) -> None:
    benchmark.group = "LeRobot quick, 57,000 episodes"
    assert benchmark.pedantic(work, args=(Path(FULL_SIZE),), rounds=5, warmup_rounds=1) > 0
