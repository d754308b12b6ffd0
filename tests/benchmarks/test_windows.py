"""The window index of 57,000 episodes: build, open, resolve, each beside a straightforward loop.

Run by `make bench`; compare the rows of a group. Memory and first-run seconds of processes of their
own stand in each row's `extra_info` (`--benchmark-json`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prep.windows import WindowIndex
from tests.benchmarks.window_builds import BUILDS, bisected
from tests.window_trees import draw_droid, write_filter, write_root

EPISODES = 57_000
REPOSITORY = Path(__file__).resolve().parents[2]
# What a process holds after an index was opened and asked, in MB, over the same imports.
OPEN = """
import json, resource, sys, time
from pathlib import Path
import numpy, pyarrow
from prep.windows import WindowIndex

def held():
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

before, started = held(), time.perf_counter()
index = WindowIndex.open(sys.argv[1])
opened = time.perf_counter() - started
windows = [index.resolve(at) for at in range(0, len(index), 100)]
del windows
print(json.dumps({"milliseconds": opened * 1000, "grown_mb": held() - before, "windows": len(index)}))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `success/` of 57,000 episodes, a filter of their keys, and the saved index."""
    folder = tmp_path_factory.mktemp("droid")
    roots, ranges = draw_droid(0, EPISODES, 1)
    write_root(folder / "success", roots["success"])
    write_filter(folder / "keep.json", ranges)
    BUILDS["ours"](folder / "success", folder / "keep.json", folder / "index.arrow")
    return folder


@pytest.fixture(scope="module")
def index(tree: Path) -> WindowIndex:
    return WindowIndex.open(tree / "index.arrow")


@pytest.fixture(scope="module")
def drawn(index: WindowIndex) -> Any:
    return np.random.default_rng(0).integers(0, len(index), 1_000_000)


def reported(*command: str) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    report: dict[str, float] = json.loads(run.stdout)
    return report


@pytest.mark.benchmark(group="windows: build with filter, 57,000 episodes")
@pytest.mark.parametrize("which", ["loop", "ours"])
def test_build(benchmark: Any, tree: Path, tmp_path: Path, which: str) -> None:
    arguments = (tree / "success", tree / "keep.json", tmp_path / "out.npz")
    report = reported("-m", "tests.benchmarks.window_builds", which, *map(str, arguments))
    benchmark.extra_info |= report
    built = benchmark.pedantic(BUILDS[which], arguments, rounds=3)
    index = WindowIndex.open(tree / "index.arrow")
    assert built == (report["windows"], report["spans"]) == (len(index), len(index.spans["length"]))
    assert which == "loop" or report["peak_mb"] <= 400


@pytest.mark.benchmark(group="windows: open, 57,000 episodes")
def test_open(benchmark: Any, tree: Path) -> None:
    report = reported("-c", OPEN, str(tree / "index.arrow"))
    benchmark.extra_info |= report
    opened = benchmark.pedantic(WindowIndex.open, (tree / "index.arrow",), rounds=20)
    assert len(opened) == report["windows"]
    assert report["grown_mb"] <= 20


@pytest.mark.benchmark(group="windows: resolve 10,000, one by one")
@pytest.mark.parametrize("which", ["loop", "ours"])
def test_resolve(benchmark: Any, index: WindowIndex, drawn: Any, which: str) -> None:
    asked = drawn[:10_000].tolist()
    names = ("dataset_index", "first_row", "length", "episode_index")
    records = list(zip(*(index.spans[name].tolist() for name in names), strict=True))
    ends = index.spans["cumulative_end"].tolist()
    resolve = index.resolve if which == "ours" else lambda at: bisected(ends, records, at)
    benchmark.pedantic(lambda: [resolve(at) for at in asked], rounds=5, warmup_rounds=1)
    for at in asked[:100]:
        window = index.resolve(at)
        assert (window.dataset_index, window.row, window.episode_index) == bisected(ends, records, at)


@pytest.mark.benchmark(group="windows: resolve a million at once")
def test_resolve_many(benchmark: Any, index: WindowIndex, drawn: Any) -> None:
    many = benchmark.pedantic(index.resolve_many, (drawn,), rounds=5, warmup_rounds=1)
    assert [field[7] for field in many] == list(index.resolve(drawn[7]))
