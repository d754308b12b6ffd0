"""From metadata on disk to a saved index, by this project and by a straightforward loop; run as a process.

    python -m tests.benchmarks.window_builds ours|loop ROOT FILTER OUT

prints one line of JSON: seconds without imports, peak memory in MB, windows, spans.
"""

from __future__ import annotations

import bisect
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from prep.keep_ranges import load_keep_ranges, upstream_key
from prep.layouts.lerobot import Root
from prep.permutation import torch_permutation
from prep.windows import WindowIndex, join_spans, root_spans

__all__ = ["BUILDS", "CHUNK", "bisected"]

CHUNK = 32


def ours(root: Path, keep: Path, out: Path) -> tuple[int, int]:
    """The training windows of one root behind a filter; gives windows and spans."""
    episodes = Root.open(root).episodes()
    assert episodes.ids is not None
    ranges = load_keep_ranges(keep, example_id=episodes.ids[0].as_py())
    order = torch_permutation(len(episodes.numbers), 42)
    order = order[round(len(order) * 0.03) :]
    index = WindowIndex(join_spans([root_spans(episodes, order, CHUNK, ranges=ranges)]), {"inputs": []})
    index.save(out)
    return len(index), len(index.spans["length"])


def loop(root: Path, keep: Path, out: Path) -> tuple[int, int]:
    """The same with pandas, dicts and lists, as one would write it first."""
    import pandas as pd

    files = sorted(root.glob("meta/episodes/chunk-*/file-*.parquet"))
    table = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    ranges = json.loads(keep.read_text(encoding="utf-8"))
    order = torch_permutation(len(table), 42).tolist()
    records, ends = [], [0]
    for position in order[round(len(order) * 0.03) :]:
        row = table.iloc[position]
        first, length = int(row["dataset_from_index"]), int(row["length"])
        for start, end in ranges.get(upstream_key(row["episode_id"]), ()):
            begin = max(start, 0)
            count = min(end - CHUNK, length - CHUNK) - begin
            if count > 0:
                records.append((0, first + begin, count, int(row["episode_index"])))
                ends.append(ends[-1] + count)
    np.savez(out, records=np.array(records), ends=np.array(ends[1:]))
    return ends[-1], len(records)


def bisected(ends: list[int], records: list[tuple[int, int, int, int]], index: int) -> tuple[int, int, int]:
    """A window's dataset, row and episode, as a loop over lists finds them."""
    span = bisect.bisect_right(ends, index)
    offset = index - (ends[span - 1] if span else 0)
    dataset, row, _, episode = records[span]
    return dataset, row + offset, episode


BUILDS: dict[str, Callable[[Path, Path, Path], tuple[int, int]]] = {"ours": ours, "loop": loop}


def peak_mb() -> float:
    """The most memory that this program held; on Linux `ru_maxrss` may still be that of its parent."""
    status = Path("/proc/self/status")
    if status.is_file():
        held = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(held.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    which, root, keep, out = sys.argv[1:]
    started = time.perf_counter()
    windows, spans = BUILDS[which](Path(root), Path(keep), Path(out))
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb(), "windows": windows, "spans": spans}))


if __name__ == "__main__":
    main()
