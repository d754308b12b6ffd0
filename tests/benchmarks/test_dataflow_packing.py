"""Samples a second of the packing batchers, each beside upstream's on the same stream.

Run by `make bench` with torch installed and PREP_UPSTREAM naming a checkout of upstream (whose own needs
must be installed too); compare the rows of a group. Batches are compared before they are timed.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from prep.dataflow import batchers, sequential  # noqa: E402
from tests.dataflow.packing_streams import Sample, indices, media_stream, pool_stream  # noqa: E402

CHECKOUT = os.environ.get("PREP_UPSTREAM", "")
MANY: dict[str, Any] = {"max_tokens": 16000, "max_batch_size": 0}
FIRST: dict[str, Any] = {**MANY, "batching_strategy": "prefer_first"}
POOLS: dict[str, tuple[int, dict[str, Any]]] = {
    "pool 16, batches of one": (6000, {"max_tokens": 16000}),
    "pool 16": (6000, MANY),
    "pool 16, 8 at most": (6000, {**MANY, "max_batch_size": 8}),
    "pool 16, prefer first": (6000, FIRST),
    "pool 16, all stay alone": (6000, {**MANY, "long_threshold": 0}),
    "pool 512": (2000, {**MANY, "pool_size": 512}),
    "pool 512, 8 at most": (2000, {**MANY, "pool_size": 512, "max_batch_size": 8}),
    "pool 512, prefer first": (2000, {**FIRST, "pool_size": 512}),
    "pool 512, all stay alone": (6000, {**MANY, "pool_size": 512, "long_threshold": 0}),
}
SEQUENCES: dict[str, dict[str, Any]] = {
    "45,056 tokens": {"max_sequence_length": 45056},
    "6,000 tokens": {"max_sequence_length": 6000},
    "6,000 tokens with sound": {"max_sequence_length": 6000, "sound_latent_fps": 25},
    "6,000 tokens, no lookahead": {"max_sequence_length": 6000, "lookahead_limit": 0},
    "8 samples": {"max_samples_per_batch": 8},
}


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    if not Path(CHECKOUT, "cosmos_framework").is_dir():
        pytest.skip("PREP_UPSTREAM names no checkout of upstream")
    # Last, since a checkout has a folder `tests` of its own.
    sys.path.append(CHECKOUT)
    try:
        return importlib.import_module("cosmos_framework.data.generator.dataflow.batchers")
    except ImportError as error:
        pytest.skip(f"upstream cannot be imported: {error}")
    finally:
        sys.path.remove(CHECKOUT)


def tensor(*shape: int) -> Any:
    return torch.zeros(1, dtype=torch.uint8).expand(*shape)


def drain(batcher: Any, samples: list[Sample]) -> int:
    return sum(map(len, batcher.batches(iter(samples))))


def compare(benchmark: Any, group: str, theirs: Any, ours: Any, which: str, samples: list[Sample]) -> None:
    assert indices(ours, samples) == indices(theirs, samples)
    benchmark.group = group
    timed = {"upstream": theirs, "ours": ours}[which]
    assert benchmark.pedantic(drain, args=(timed, samples), rounds=15, warmup_rounds=1) == len(samples)
    if benchmark.stats:
        benchmark.extra_info["samples_per_second"] = round(len(samples) / benchmark.stats.stats.min)


@pytest.mark.parametrize("which", ["upstream", "ours"])
@pytest.mark.parametrize("name", POOLS)
def test_pool_packing(benchmark: Any, upstream: ModuleType, name: str, which: str) -> None:
    count, options = POOLS[name]
    samples = [each | {"input_ids": tensor(len(each["input_ids"]))} for each in pool_stream(count, 0)]
    theirs, ours = upstream.PoolPackingBatcher(**options), batchers.PoolPackingBatcher(**options)
    compare(benchmark, f"pool packing, {name}, {count:,} samples", theirs, ours, which, samples)


@pytest.mark.parametrize("which", ["upstream", "ours"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequential_packing(benchmark: Any, upstream: ModuleType, name: str, which: str) -> None:
    options = SEQUENCES[name]
    samples = media_stream(3000, 0, tensor)
    theirs = upstream.SequentialPackingBatcher(**options)
    ours = sequential.SequentialPackingBatcher(**options)
    compare(benchmark, f"sequential packing, {name}, 3,000 samples", theirs, ours, which, samples)


@pytest.mark.parametrize("which", ["upstream", "ours"])
def test_fixed_batches(benchmark: Any, upstream: ModuleType, which: str) -> None:
    samples = pool_stream(20_000, 0)
    theirs, ours = upstream.SimpleBatcher(32), batchers.SimpleBatcher(32)
    compare(benchmark, "batches of 32, 20,000 samples", theirs, ours, which, samples)
