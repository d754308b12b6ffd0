"""The loader beside torch's own DataLoader, with the same batches in the same order; and a late resume.

Run with `make bench` where torch is installed.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from prep.dataflow import CosmosDataLoader, IdentityProcessor, MapDistributor  # noqa: E402

COUNT = 64_000
BATCH = 32
STEPS = 1500
ROUNDS = 7
MOST = {0: 1.5, 2: 1.15}
LATE = 1_000_000
MOST_SECONDS = 1.0


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples of one small tensor and a number."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values = torch.arange(64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"values": self.values, "number": index}


class SameOrder:
    """The batches that our streams give, for torch's loader: each worker's own slice in turn."""

    def __init__(self, streams: int) -> None:
        self.streams = streams

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0)).tolist()
        slices = [order[stream :: self.streams] for stream in range(self.streams)]
        for first in range(0, len(slices[0]) - BATCH + 1, BATCH):
            for each in slices:
                yield each[first : first + BATCH]

    def __len__(self) -> int:
        return COUNT // BATCH


def plain(workers: int) -> Iterator[Any]:
    order = SameOrder(max(workers, 1))
    return iter(torch.utils.data.DataLoader(Samples(COUNT), batch_sampler=order, num_workers=workers))


def ours(workers: int) -> Iterator[Any]:
    loader = CosmosDataLoader(
        MapDistributor(Samples(COUNT), seed=0), IdentityProcessor(), batch_size=BATCH, num_workers=workers
    )
    return iter(loader)


def seconds(batches: Iterator[Any]) -> float:
    next(batches)
    began = time.perf_counter()
    for _ in itertools.islice(batches, STEPS):
        pass
    return time.perf_counter() - began


@pytest.mark.parametrize("workers", [0, 2])
def test_identity_samples_beside_torchs_loader(benchmark: Any, workers: int) -> None:
    for mine, theirs in itertools.islice(zip(ours(workers), plain(workers), strict=False), 20):
        assert mine["number"].tolist() == theirs["number"].tolist()

    ratios: list[float] = []

    def both() -> None:
        base = seconds(plain(workers))
        ratios.append(seconds(ours(workers)) / base)

    benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=1)
    ratio = statistics.median(ratios)
    benchmark.extra_info["times_torchs_own"] = round(ratio, 2)
    assert ratio <= MOST[workers]


def test_resume_at_a_late_position(benchmark: Any) -> None:
    def loader() -> CosmosDataLoader:
        return CosmosDataLoader(MapDistributor(Samples(4 * LATE), seed=0), batch_size=1)

    fresh = loader()
    next(iter(fresh))
    state = fresh.state_dict()
    state["streams"]["0"]["position"] = LATE

    def resume() -> int:
        again = loader()
        again.load_state_dict(state)
        return int(next(iter(again))["number"])

    found = benchmark.pedantic(resume, rounds=3)
    order = torch.randperm(4 * LATE, generator=torch.Generator().manual_seed(0))
    assert found == int(order[LATE])
    benchmark.extra_info["seconds"] = round(benchmark.stats.stats.median, 3)
    assert benchmark.stats.stats.median <= MOST_SECONDS
