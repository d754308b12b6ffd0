"""The four-role loader: distribute, process, batch, collate.

The public names are loaded when first used; those that make tensors need the extra `torch`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prep.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from prep.dataflow.base import (
        BatchCollator,
        DataDistributor,
        LoaderError,
        RawItemProcessor,
        SampleBatcher,
        SkipSample,
    )
    from prep.dataflow.batchers import PoolPackingBatcher, SimpleBatcher
    from prep.dataflow.callbacks import CosmosDataLoaderStateCallback, JointCosmosDataLoaderStateCallback
    from prep.dataflow.collators import DefaultBatchCollator, VFMListCollator
    from prep.dataflow.combined import MixtureDistributor, RankPartitionedDistributor
    from prep.dataflow.distributors import IterableDistributor, MapDistributor, SpanDistributor
    from prep.dataflow.engine import sample_seed
    from prep.dataflow.joint import JointCosmosDataLoader
    from prep.dataflow.loader import CosmosDataLoader
    from prep.dataflow.processors import IdentityProcessor
    from prep.dataflow.sequential import SequentialPackingBatcher
    from prep.dataflow.vlm import VLMCollator

__all__ = [
    "BatchCollator",
    "CosmosDataLoader",
    "CosmosDataLoaderStateCallback",
    "DataDistributor",
    "DefaultBatchCollator",
    "IdentityProcessor",
    "IterableDistributor",
    "JointCosmosDataLoader",
    "JointCosmosDataLoaderStateCallback",
    "LoaderError",
    "MapDistributor",
    "MixtureDistributor",
    "PoolPackingBatcher",
    "RankPartitionedDistributor",
    "RawItemProcessor",
    "SampleBatcher",
    "SequentialPackingBatcher",
    "SimpleBatcher",
    "SkipSample",
    "SpanDistributor",
    "VFMListCollator",
    "VLMCollator",
    "sample_seed",
]

_HOMES = {
    "base": (
        "BatchCollator", "DataDistributor", "LoaderError", "RawItemProcessor", "SampleBatcher", "SkipSample",
    ),
    "batchers": ("PoolPackingBatcher", "SimpleBatcher"),
    "callbacks": ("CosmosDataLoaderStateCallback", "JointCosmosDataLoaderStateCallback"),
    "collators": ("DefaultBatchCollator", "VFMListCollator"),
    "combined": ("MixtureDistributor", "RankPartitionedDistributor"),
    "distributors": ("IterableDistributor", "MapDistributor", "SpanDistributor"),
    "engine": ("sample_seed",),
    "joint": ("JointCosmosDataLoader",),
    "loader": ("CosmosDataLoader",),
    "processors": ("IdentityProcessor",),
    "sequential": ("SequentialPackingBatcher",),
    "vlm": ("VLMCollator",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'prep.dataflow' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"prep.dataflow.{home}"), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise EnvironmentLacksError(
            f"{name} needs torch, which is not installed.", remedy="pip install 'cosmos-prep[torch]'"
        ) from None
