"""Windows of three cameras at 640 by 360: ours beside upstream's reader on one thread, and a bare PyAV loop.

Run by `make bench`. Each group has its baselines in the same run: compare the rows. Upstream's rows
need torch, lerobot and upstream's files (`prep vendor sync`), and are skipped where these are not.
The peak of a process of its own, over that of one that only imports, is in the extra columns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import prep
from prep.errors import EnvironmentLacksError
from prep.layouts.lerobot import Root
from prep.manifest import Manifest
from prep.readers.robot_rows import EpisodeRoutes
from prep.robots import RobotOptions, prepare_robots
from prep.upstream.adapters import open_reference
from tests.benchmarks.full_droid import ROWS, write_full_droid
from tests.commands import PROJECT
from tests.robots import DROID, encode, make_root, video_path

INDEX = "droid_policy-train-c32"
LENGTHS = (60, 52, 70, 45, 60, 64)
FOOTAGE = "droid_lerobot_v30_nvidia/videos/observation.image.exterior_image_2_left/chunk-000/file-000.mp4"
SHAPE = replace(
    DROID,
    lengths=LENGTHS,
    packing=((3, 3), (2, 4), (6,)),
    data_files=(3, 3),
    meta_files=(6,),
    size=(640, 360),
)
READERS = ("baseline_upstream", "baseline_pyav_loop", "ours")


@pytest.fixture(scope="module")
def footage(real_data: Path) -> list[Any]:
    """Frames of a real DROID camera."""
    with av.open(str(real_data / FOOTAGE)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, footage: list[Any]) -> Path:
    """A prepared DROID tree of real pictures, key frames as close as lerobot sets them."""
    folder = tmp_path_factory.mktemp("reader")
    root = make_root(folder / "tree/success", SHAPE)
    pictures = cycle(footage)
    for camera, packing in zip(SHAPE.cameras, SHAPE.packing, strict=True):
        lengths = iter(LENGTHS)
        for file, episodes in enumerate(packing):
            frames = sum(next(lengths) for _ in range(episodes))
            shown = [next(pictures) for _ in range(frames)]
            encode(video_path(root, camera, file), shown, rate=SHAPE.fps, codec=SHAPE.codec)
    options = RobotOptions(root=folder / "tree")
    (result,) = prepare_robots("droid_policy", folder / "out", options=options)
    assert result.exit_status == 0, result.report
    (place,) = (folder / "out").iterdir()
    return place


class Loop:
    """What one would write first: seek, decode, frames as pixels, stacked; nothing is scaled or joined."""

    def __init__(self, directory: Path) -> None:
        self._reader: Any = prep.open(directory, index=INDEX)
        root = Root.open(directory / "success")
        self._routes = EpisodeRoutes(root, SHAPE.cameras)
        self._containers: dict[Path, Any] = {}

    def __getitem__(self, index: int) -> list[Any]:
        window = self._reader.index.resolve(index)
        return [self._frames(window, camera) for camera in SHAPE.cameras]

    def _frames(self, window: Any, camera: str) -> Any:
        shot = self._routes.shot(window.episode_index, camera)
        if shot.path not in self._containers:
            self._containers[shot.path] = av.open(str(shot.path))
            self._containers[shot.path].streams.video[0].codec_context.thread_count = 1
        container = self._containers[shot.path]
        stream = container.streams.video[0]
        first = shot.start + window.frame / SHAPE.fps
        container.seek(round(first / stream.time_base), stream=stream)
        pictures: list[Any] = []
        for frame in container.decode(stream):
            if frame.time > first - 0.5 / SHAPE.fps:
                pictures.append(frame.to_ndarray(format="rgb24"))
            if len(pictures) == 33:
                break
        return np.stack(pictures)


def opened(name: str, directory: Path) -> Any:
    """A reader by the name of its row; upstream's on one thread."""
    if name == "baseline_upstream":
        try:
            side = open_reference(Manifest.load(directory), "cosmos", index=INDEX)  # type: ignore[arg-type]
        except EnvironmentLacksError as error:
            pytest.skip(str(error))
        import torch

        torch.set_num_threads(1)
        return side.reader
    return Loop(directory) if name == "baseline_pyav_loop" else prep.open(directory, index=INDEX)


def each(reader: Any, places: Iterator[int], count: int) -> Callable[[], None]:
    """Read the next windows and keep none."""

    def read() -> None:
        for _ in range(count):
            reader[next(places)]

    return read


@pytest.mark.benchmark(group="windows of three cameras, 640x360: 4 at random")
@pytest.mark.parametrize("name", READERS)
def test_random(benchmark: Any, made: Path, name: str) -> None:
    reader = opened(name, made)
    places = cycle(np.random.RandomState(0).permutation(sum(LENGTHS) - 34 * len(LENGTHS)).tolist())
    benchmark.pedantic(each(reader, places, 4), rounds=5, warmup_rounds=1)


@pytest.mark.benchmark(group="windows of three cameras, 640x360: 4 in order")
@pytest.mark.parametrize("name", READERS)
def test_in_order(benchmark: Any, made: Path, name: str) -> None:
    benchmark.pedantic(each(opened(name, made), iter(range(99)), 4), rounds=5, warmup_rounds=1)


def test_the_bytes_are_upstreams(made: Path) -> None:
    ours, upstream = prep.open(made, index=INDEX), opened("baseline_upstream", made)
    for place in (0, 1, 40, 70):
        assert (ours[place]["video"] == upstream[place]["video"]).all()


# One of the readers in a process of its own: its peak once it is open, and after a few windows.
MEMORY = """
import json, sys
from pathlib import Path
import prep
from prep.manifest import Manifest
from prep.upstream.adapters import open_reference

def peak_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

name, directory, index = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
if name == "ours":
    import av
    reader = prep.open(directory, index=index)
else:
    reader = open_reference(Manifest.load(directory), "cosmos", index=index).reader
    import torch
    torch.set_num_threads(1)
before = peak_mb()
for place in (0, 40, 1, 41, 70):
    reader[place]
print(json.dumps({"imports_mb": before, "peak_mb": peak_mb()}))
"""


def reported(*command: str) -> dict[str, Any]:
    """What a Python process of its own prints in its last line."""
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return report


@pytest.mark.benchmark(group="windows of three cameras, 640x360: memory of a process")
@pytest.mark.parametrize("name", ["baseline_upstream", "ours"])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
def test_memory(benchmark: Any, made: Path, name: str) -> None:
    opened(name, made)  # skips where upstream is not
    report = benchmark.pedantic(reported, ("-c", MEMORY, name, str(made), INDEX), rounds=1)
    benchmark.extra_info |= {**report, "above_imports_mb": report["peak_mb"] - report["imports_mb"]}
    if name == "ours":
        assert report["peak_mb"] < 300


# From a cold process to the first sample, in it and in workers of both kinds; a worker's peak is its own.
COLD = """
import json, sys, time
started = time.perf_counter()
import multiprocessing
from pathlib import Path

def peak_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024

def first(reader, place, answers):
    reader[place]
    answers.put(peak_mb())

if __name__ == "__main__":
    import prep
    directory, index, workers, method = sys.argv[1:]
    reader = prep.open(Path(directory), index=index)
    count, context = int(workers), multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    if count:
        places = [len(reader) * at // count for at in range(count)]
        processes = [context.Process(target=first, args=(reader, at, answers)) for at in places]
        for process in processes:
            process.start()
        peaks = [answers.get() for _ in processes]
    else:
        first(reader, len(reader) // 2, answers)
        peaks = [answers.get()]
    print(json.dumps({"first_samples_s": time.perf_counter() - started, "peak_mb": max(peaks)}))
"""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared root of 18 million rows."""
    folder = tmp_path_factory.mktemp("full")
    assert write_full_droid(folder / "tree/success") >= 0.99 * ROWS
    (result,) = prepare_robots("droid_policy", folder / "out", options=RobotOptions(root=folder / "tree"))
    assert result.exit_status == 0, result.report
    (place,) = (folder / "out").iterdir()
    return place


@pytest.mark.benchmark(group="first sample of a cold process, 18,000,000 rows")
@pytest.mark.parametrize(("workers", "method"), [(0, "spawn"), (4, "fork"), (4, "spawn")])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
def test_cold_start(benchmark: Any, full: Path, tmp_path: Path, workers: int, method: str) -> None:
    script = tmp_path / "cold.py"  # a file, so that spawned workers can import it
    script.write_text(COLD)
    report = benchmark.pedantic(
        reported, (str(script), str(full), INDEX, str(workers), method), rounds=3, warmup_rounds=1
    )
    benchmark.extra_info |= report
    assert report["peak_mb"] < 400
