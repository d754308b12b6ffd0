"""Real processes that are the ranks of one torch.distributed group over gloo."""

from __future__ import annotations

import datetime
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_TIMEOUT = 90  # seconds, after which a rank that hangs is ended

_numbers = itertools.count()


def run(world: int, job: Callable[[int], Any], folder: Path) -> list[Any]:
    """What `job(rank)` gives on each rank, as JSON; None for a rank that ended without a result."""
    folder = folder / f"run-{next(_numbers)}"
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(rank, world, job, folder)) for rank in range(world)]
    for process in processes:
        process.start()
    end = time.monotonic() + _TIMEOUT
    # Not `join`: it waits for the loader's workers too, who outlive a rank that was killed for some seconds.
    while any(process.exitcode is None for process in processes) and time.monotonic() < end:
        time.sleep(0.01)
    hanging = [rank for rank, process in enumerate(processes) if process.exitcode is None]
    for rank in hanging:
        processes[rank].kill()
    assert not hanging, f"ranks {hanging} hung"
    results = [folder / f"{rank}.json" for rank in range(world)]
    return [json.loads(result.read_text()) if result.exists() else None for result in results]


def _rank(rank: int, world: int, job: Callable[[int], Any], folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=_TIMEOUT),
    )
    result = job(rank)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    torch.distributed.barrier()  # no rank takes its connections away while another still asks
    torch.distributed.destroy_process_group()
