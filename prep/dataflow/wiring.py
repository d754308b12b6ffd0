"""What the loader needs to know before it begins, and what it writes on a batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from prep.dataflow.agreement import Agreement, ranks_can_talk
from prep.dataflow.base import DataDistributor, LoaderError
from prep.dataflow.combined import RankPartitionedDistributor
from prep.dataflow.distributors import MapDistributor
from prep.dataflow.engine import Mark, Roles
from prep.dataflow.plans import Place
from prep.dataflow.processors import IdentityProcessor
from prep.log import logger

__all__ = [
    "as_it_is",
    "coordinates",
    "ending",
    "own_generators",
    "persistent",
    "refuse_arguments",
    "stamp",
]


def refuse_arguments(
    roles: Mapping[str, tuple[Any, type]], batch_size: int | None, epochs: int | None, on_uneven: str
) -> None:
    """Raise LoaderError for arguments that contradict one another, or are not what their names say.

    `roles` gives for each argument what was given, if anything was, and the class that it must be of.
    """
    for name, (given, kind) in roles.items():
        if given is not None and not isinstance(given, kind):
            raise LoaderError(
                f"{name}= is a {type(given).__name__}; a {kind.__name__} was expected.",
                remedy=f"Make it a subclass of prep.dataflow.{kind.__name__}, or use a built-in one.",
            )
    batcher = roles["batcher"][0]
    if batcher is not None and batch_size is not None:
        raise LoaderError("Both batcher= and batch_size= were given.", remedy="Give one of them.")
    if batcher is None and batch_size is None:
        raise LoaderError(
            "Provide either a batcher= or a batch_size=.", remedy="batch_size=32 is the short way."
        )
    for name, number in (("batch_size", batch_size), ("epochs", epochs)):
        if number is not None and (not hasattr(number, "__index__") or number < 1):
            raise LoaderError(
                f"{name}={number!r} is no whole number of at least 1.",
                remedy="Leave it out for endless streams." if name == "epochs" else "Give how many samples.",
            )
    if on_uneven not in ("pad", "drop", "error"):
        raise LoaderError(f"on_uneven={on_uneven!r} is unknown.", remedy='It is "pad", "drop" or "error".')


def ending(distributor: DataDistributor, roles: Roles, place: Place) -> tuple[Agreement | None, bool]:
    """How ranks end together, by asking one another or (None) by themselves; whether items may be skipped.

    Raises LoaderError where they would have to ask and cannot.
    """
    if place.epochs is None or place.world == 1:
        return None, True
    alike = roles.batcher.draws_exactly and not isinstance(distributor, RankPartitionedDistributor)
    if alike and type(roles.processor) is IdentityProcessor:
        return None, False
    if ranks_can_talk():
        return Agreement(place.on_uneven), True
    if alike:
        return None, False
    which = distributor if roles.batcher.draws_exactly else roles.batcher
    raise LoaderError(
        f"{type(which).__name__} makes unequal numbers of batches on {place.world} ranks, which would end at "
        "different steps.",
        remedy="Call torch.distributed.init_process_group before, or leave epochs= out.",
    )


def coordinates(parallel_dims: Any) -> tuple[int, int]:
    """(rank, world) of data parallelism."""
    if parallel_dims is not None:
        rank, world = parallel_dims.dp_coord
        return int(rank), int(world)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
        if world > 1:
            logger.info("data is dealt out by the global rank; give parallel_dims= for FSDP with TP or PP")
        return torch.distributed.get_rank(), world
    return 0, 1


def persistent(distributor: DataDistributor, num_workers: int, asked: bool) -> bool:
    """Whether workers outlive an iterator: asked for, or over a map-style source, as the guide says."""
    if num_workers == 0:
        if asked:
            logger.info("persistent_workers=True is ignored because num_workers=0")
        return False
    return asked or isinstance(distributor, MapDistributor)


def as_it_is(pair: Any) -> Any:
    """What torch's loader shall do to a batch."""
    return pair


@lru_cache(maxsize=256)
def _same(count: int, value: int) -> torch.Tensor:
    """int64 [count] of one value, alike for many batches: to be read, not to be written to."""
    return torch.full((count,), value)


def stamp(batch: dict[str, Any], mark: Mark, *, finite: bool) -> None:
    """Say in the batch where it comes from."""
    count = mark.samples
    if mark.known and not mark.fills:
        batch["sample_worker_id"] = _same(count, mark.worker)
        batch["sample_epoch"] = _same(count, mark.epoch)
        batch["sample_index"] = torch.full((count,), mark.position)
        if mark.behind:
            batch["sample_pending"] = torch.full((count,), mark.behind)
    if finite:
        padding = mark.padding or [False] * count
        batch["is_padding"] = torch.tensor(padding)


@contextmanager
def own_generators() -> Iterator[None]:
    """Give the global generators back as they were: in the main process they are the trainer's."""
    python, numpy, ours = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(ours)
