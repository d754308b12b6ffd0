"""Preparing 2,000 clips of 50 kB from loopback, against a plain download of the same files.

Each side is a process of its own, start-up included. Run with `make bench`.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prep.loopback import RepositorySpec, file_url, loopback_process
from tests.clips import make_clip

CLIPS = 2000
CLIP_BYTES = 50_000
ROUNDS = 3

PLAIN_DOWNLOAD = textwrap.dedent("""
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path
    import requests
    from requests.adapters import HTTPAdapter

    urls = Path(sys.argv[1]).read_text().split()
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True)
    session = requests.Session()
    session.mount("http://", HTTPAdapter(pool_connections=16, pool_maxsize=16))

    def download(numbered):
        number, url = numbered
        with session.get(url, stream=True, timeout=30) as answer, open(folder / str(number), "wb") as file:
            answer.raise_for_status()
            for chunk in answer.iter_content(1 << 16):
                file.write(chunk)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(download, enumerate(urls)))
""")


@dataclass(frozen=True)
class World:
    """A table of clips on a loopback server: its folder, the endpoint, and the addresses."""

    folder: Path
    endpoint: str
    urls: list[str]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "HF_ENDPOINT": self.endpoint, "HF_HOME": str(self.folder / "cache")}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    body = make_clip(folder / "clip.mp4", frames=49).read_bytes()
    files = {f"clips/{number}.mp4": _padded(body, number) for number in range(CLIPS)}
    names = list(files)
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["video_url", "pc"])
    writer.writerows(
        [f"https://videos.example/{name}", str(1 + number % 5)] for number, name in enumerate(names)
    )
    repository = RepositorySpec(
        "videophysics/videophy2_test", {"videophy2_test.csv": table.getvalue().encode()}
    )
    with loopback_process(files, repositories=[repository]) as endpoint:
        yield World(folder, endpoint, [file_url(endpoint, name) for name in names])


def _padded(body: bytes, number: int) -> bytes:
    """A clip of CLIP_BYTES of its own content: a free box after the last."""
    size = CLIP_BYTES - len(body)
    filler = number.to_bytes(8, "big") * (size // 8)
    return body + size.to_bytes(4, "big") + b"free" + filler[: size - 8]


def run(arguments: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Wall seconds and peak resident kilobytes of a process that must succeed."""
    began = time.perf_counter()
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, said.decode()
    return time.perf_counter() - began, usage.ru_maxrss


def prepare_command(world: World, out: Path) -> list[str]:
    return [
        sys.executable, "-m", "prep", "videophy2", "--split", "val", "--out-root", str(out), "--jobs", "16",
        "--prompt", "builtin", "--quiet", "--mirror", f"https://videos.example/={world.endpoint}/files/",
    ]  # fmt: skip


def test_prepare_against_a_plain_download(world: World, tmp_path: Path, benchmark: Any) -> None:
    (tmp_path / "urls").write_text("\n".join(world.urls))
    plain, memory = [], []

    def baseline(round_number: int) -> None:
        command = [
            sys.executable,
            "-c",
            PLAIN_DOWNLOAD,
            str(tmp_path / "urls"),
            str(tmp_path / f"p{round_number}"),
        ]
        plain.append(run(command, world.environment())[0])

    rounds = iter(range(100))

    def ours() -> None:
        number = next(rounds)
        _seconds, peak = run(prepare_command(world, tmp_path / f"o{number}"), world.environment())
        memory.append(peak)

    for number in range(ROUNDS):
        baseline(number)
    benchmark.pedantic(ours, rounds=ROUNDS, iterations=1)
    ratio = benchmark.stats.stats.median / statistics.median(plain)
    benchmark.extra_info.update(
        baseline="16 threads of requests to disk", baseline_seconds=statistics.median(plain), ratio=ratio,
        peak_megabytes=max(memory) / 1000,
    )  # fmt: skip
    print(f"\nprepare {ratio:.2f} x the plain download; peak {max(memory) / 1000:.0f} MB")
    assert ratio <= 1.5
    assert max(memory) <= 300_000


def test_second_run_and_help(world: World, tmp_path: Path, benchmark: Any) -> None:
    command = prepare_command(world, tmp_path / "again")
    run(command, world.environment())
    python = [sys.executable, "-c", "import click, rich"]
    imports = statistics.median(run(python, dict(os.environ))[0] for _ in range(7))
    show_help = [sys.executable, "-m", "prep", "--help"]
    help_seconds = statistics.median(run(show_help, dict(os.environ))[0] for _ in range(7))
    benchmark.pedantic(lambda: run(command, world.environment()), rounds=7, iterations=1)
    extra = benchmark.stats.stats.median - help_seconds
    benchmark.extra_info.update(
        baseline="prep --help",
        baseline_seconds=help_seconds,
        extra_seconds=extra,
        help_ratio=help_seconds / imports,
    )
    print(
        f"\nsecond run {extra:.2f} s more than --help; --help {help_seconds / imports:.2f} x click and rich"
    )
    assert extra <= 0.5
    assert help_seconds <= 2 * imports
