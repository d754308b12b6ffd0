"""Loaders over the shared datasets; needs torch."""

from __future__ import annotations

import itertools

from prep.dataflow import CosmosDataLoader
from tests.dataflow.sources import BATCHERS, COUNT, SOURCES, ListCollator, Numbers


class Dims:
    def __init__(self, rank, world):
        self.dp_coord = (rank, world)


def loader_of(source="map", batcher="pool", *, workers=0, rank=0, world=1, data=None, **more):
    distributor = SOURCES[source](data or Numbers(COUNT)) if isinstance(source, str) else source
    return CosmosDataLoader(
        distributor,
        batcher=BATCHERS[batcher]() if isinstance(batcher, str) else batcher,
        collator=ListCollator(),
        num_workers=workers,
        parallel_dims=Dims(rank, world),
        **more,
    )


def taken(loader, most):
    return [batch["numbers"] for batch in itertools.islice(loader, most)]
