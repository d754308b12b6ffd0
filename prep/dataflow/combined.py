"""The distributors of several datasets, and what the loader asks of any distributor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prep.dataflow.base import DataDistributor, LoaderError
from prep.dataflow.cursors import Cursor, MixtureCursor
from prep.dataflow.distributors import (
    IterableDistributor,
    MapDistributor,
    Planned,
    Streaming,
    dataset_identity,
)
from prep.dataflow.iterables import Source, StreamCursor
from prep.dataflow.plans import Place, Planner

__all__ = [
    "MixtureDistributor",
    "RankPartitionedDistributor",
    "cursor_of",
    "environment_positions",
    "forget_environment",
    "planner_of",
    "refuse_undealt",
]

_WORKER_STRIDE = 100003  # of the mixture's seed, from rank to rank (contracts, section 7)


class RankPartitionedDistributor(Streaming):
    """Gives whole ranks to datasets by ratio: `{name: {"dataset": ..., "ratio": ...}}`.

    A rank's ideal share is ratio / sum of ratios times the ranks, at least one; what is left goes to the
    largest remainders. The chosen dataset is told its part by `shard_world_size` and `shard_rank`, and
    shards itself; one that has only `len` and `[index]` is dealt out here, and can be resumed. `dataset`
    may be a function that makes it, called only on the ranks that read it.
    """

    def __init__(
        self, datasets: Mapping[str, Mapping[str, Any]], seed: int = 0, shuffle: bool = True
    ) -> None:
        self._entries = {name: entry for name, entry in datasets.items() if entry["ratio"] > 0}
        if not self._entries:
            raise LoaderError(
                "No dataset of the partition has a ratio above 0.",
                remedy="Give at least one a positive ratio.",
            )
        self.seed = seed
        self._shuffle = shuffle
        self._made: dict[str, Source] = {}

    def allocation(self, world: int) -> dict[str, int]:
        """How many of `world` ranks each dataset gets. Raises LoaderError for fewer ranks than datasets."""
        names = list(self._entries)
        counts = _allocate([float(self._entries[name]["ratio"]) for name in names], world)
        return dict(zip(names, counts, strict=True))

    def chosen(self, rank: int, world: int) -> tuple[str, int, int]:
        """The dataset of a rank, and its shard: (name, rank among those that share it, their number)."""
        for name, share in self.allocation(world).items():
            if rank < share:
                return name, rank, share
            rank -= share
        raise LoaderError(f"Rank {rank + world} is outside 0 to {world - 1}.")

    def cursor(self, place: Place) -> Cursor:
        """The stream of one place, of the dataset that its rank reads."""
        name, shard_rank, shard_world_size = self.chosen(place.rank, place.world)
        source = self._source(name)
        here = replace(place, rank=shard_rank, world=shard_world_size)
        dealt = self._dealt(source.iterable)
        if dealt is not None:
            return dealt.fresh_cursor(here)
        dataset = source.iterable
        dataset.shard_world_size = shard_world_size
        dataset.shard_rank = shard_rank
        dataset.shard_id = list(self._entries).index(name)
        return StreamCursor(dataset.__iter__, source, place)

    def refuse(self, place: Place) -> None:
        """Raise LoaderError if the dataset of this rank cannot be dealt out, or not for finite epochs."""
        own, _, _ = self.chosen(place.rank, place.world)
        for name, share in self.allocation(place.world).items():
            # Every rank looks at all datasets that are there, so that none waits for one that has refused.
            if name != own and _is_made_later(self._entries[name]["dataset"]):
                continue
            dealt = self._dealt(self._source(name).iterable)
            if dealt is not None:
                dealt.refuse_uneven(replace(place, rank=0, world=share))
            elif place.epochs is not None:
                raise LoaderError(
                    f"epochs= needs datasets of known length; {name!r} shards itself.",
                    remedy="Leave epochs= out, or give map-style datasets.",
                )

    def _dealt(self, dataset: Any) -> MapDistributor | None:
        """What deals a map-style dataset out; None for one that shards itself."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(dataset, torch.utils.data.IterableDataset):
            return None
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            return None
        return MapDistributor(dataset, seed=self.seed, shuffle=self._shuffle)

    def _source(self, name: str) -> Source:
        """The dataset of a name, made once if it is given as a function or a class."""
        if name not in self._made:
            given = self._entries[name]["dataset"]
            made = given() if _is_made_later(given) else given
            if isinstance(made, Mapping):
                raise LoaderError(
                    f"The dataset {name!r} is a mapping with the keys {', '.join(map(str, list(made)[:4]))}.",
                    remedy="Give the dataset itself, or a function that makes it.",
                )
            self._made[name] = Source(made)
        return self._made[name]

    def fingerprint(self) -> Mapping[str, Any]:
        """What a saved position belongs to."""
        return {
            "distributor": "RankPartitionedDistributor",
            "seed": self.seed,
            "shuffle": self._shuffle,
            "datasets": {
                name: {"ratio": float(entry["ratio"]), **_given_identity(entry["dataset"])}
                for name, entry in self._entries.items()
            },
        }


class MixtureDistributor(Streaming):
    """Several distributors as one stream, one drawn for each item: `{name: (distributor, ratio)}`.

    Draws come from `random.Random(seed + dp_rank * 100003 + worker_id)`; an exhausted source restarts.
    """

    def __init__(self, sources: Mapping[str, tuple[DataDistributor, float]], seed: int = 0) -> None:
        self._sources = {name: pair for name, pair in sources.items() if pair[1] > 0}
        if not self._sources:
            raise LoaderError(
                "No source of the mixture has a ratio above 0.", remedy="Give at least one a positive ratio."
            )
        _refuse_shared(self._sources)
        self.seed = seed

    @property
    def inner(self) -> list[DataDistributor]:
        """The distributors that are mixed."""
        return [source for source, _ in self._sources.values()]

    def refuse_finite(self, place: Place) -> None:
        """Raise LoaderError for finite epochs, which a mixture has not."""
        if place.epochs is not None:
            raise LoaderError(
                "epochs= has no meaning for a mixture, whose sources end at different times.",
                remedy="Leave epochs= out and stop after a number of steps.",
            )

    def cursor(self, place: Place) -> Cursor:
        """The stream of one place. Raises LoaderError for finite epochs."""
        self.refuse_finite(place)
        seed = self.seed + place.rank * _WORKER_STRIDE + place.worker
        cursors = [cursor_of(source, place) for source, _ in self._sources.values()]
        ratios = [float(ratio) for _, ratio in self._sources.values()]
        return MixtureCursor(list(self._sources), cursors, ratios, seed)

    def fingerprint(self) -> Mapping[str, Any]:
        """What a saved position belongs to."""
        return {
            "distributor": "MixtureDistributor",
            "seed": self.seed,
            "sources": {
                name: {"ratio": float(ratio), **source.fingerprint()}
                for name, (source, ratio) in self._sources.items()
            },
        }


def cursor_of(source: DataDistributor, place: Place) -> Cursor:
    """The source's cursor; for a distributor of the user's, one over its stream that has no position."""
    found = source.cursor(place)
    if found is not None:
        return found
    coordinates = (place.rank, place.world, place.worker, place.workers)
    reason = f"{type(source).__name__} has stream() and no cursor(), and workers tell nothing of their copies"
    return StreamCursor(lambda: source.stream(*coordinates), Source((), obstacle=reason), place)


def refuse_undealt(source: DataDistributor, place: Place) -> None:
    """Raise LoaderError now for what could not be dealt out, before any worker is started."""
    if isinstance(source, Planned):
        source.refuse_uneven(place)
    elif isinstance(source, MixtureDistributor):
        source.refuse_finite(place)
        for inner in source.inner:
            refuse_undealt(inner, place)
    elif isinstance(source, RankPartitionedDistributor):
        source.refuse(place)
    elif place.epochs is not None:
        raise LoaderError(
            f"epochs= needs a source of known length; {type(source).__name__} has none.",
            remedy="Leave epochs= out, or use MapDistributor or SpanDistributor.",
        )


def planner_of(source: DataDistributor) -> Planner | None:
    """The order of a source that has one by arithmetic."""
    return source.planner if isinstance(source, Planned) else None


def environment_positions(source: DataDistributor, workers: int) -> dict[int, dict[str, Any]]:
    """The positions by worker that the environment gives this very source, taken out of it."""
    if not isinstance(source, Planned):
        return {}
    found = {worker: source.environment_position(worker) for worker in range(workers)}
    return {worker: position for worker, position in found.items() if position is not None}


def forget_environment(source: DataDistributor, workers: int) -> None:
    """Take the positions of mixed sources out of the environment, once workers have begun from them."""
    for inner in source.inner if isinstance(source, MixtureDistributor) else ():
        environment_positions(inner, workers)
        forget_environment(inner, workers)


def _allocate(ratios: Sequence[float], world: int) -> list[int]:
    """Ranks for each ratio: floors of the ideal shares, at least 1, then by the largest remainders."""
    if world < len(ratios):
        raise LoaderError(
            f"{world} ranks cannot read {len(ratios)} datasets, one rank at least for each.",
            remedy=f"Use {len(ratios)} ranks or more, or MixtureDistributor.",
        )
    ideal = [ratio / sum(ratios) * world for ratio in ratios]
    shares = [max(1, int(share)) for share in ideal]
    by_remainder = sorted(range(len(ratios)), key=lambda i: ideal[i] - shares[i], reverse=True)
    for i in by_remainder[: max(world - sum(shares), 0)]:
        shares[i] += 1
    while sum(shares) > world:
        rich = [i for i in range(len(shares)) if shares[i] > 1]
        shares[max(rich, key=lambda i: (shares[i] - ideal[i], shares[i]))] -= 1
    return shares


def _is_made_later(given: Any) -> bool:
    """Whether it is a function or class that makes the dataset."""
    return isinstance(given, type) or not (hasattr(given, "__getitem__") or hasattr(given, "__iter__"))


def _given_identity(dataset: Any) -> dict[str, Any]:
    """What names a dataset that is given, or the function that makes it."""
    if _is_made_later(dataset):
        return {"made by": getattr(dataset, "__qualname__", type(dataset).__name__)}
    count = {"count": len(dataset)} if hasattr(dataset, "__len__") else {}
    return {"dataset": dataset_identity(dataset), **count}


def _refuse_shared(sources: Mapping[str, tuple[DataDistributor, float]]) -> None:
    """Raise LoaderError for one object with a state under two names: each would move the other's place."""
    seen: dict[int, str] = {}
    for name, (source, _) in sources.items():
        if not isinstance(source, IterableDistributor) or source.source.obstacle:
            continue
        other = seen.setdefault(id(source.source.iterable), name)
        if other != name:
            raise LoaderError(
                f"{other!r} and {name!r} are the same object, which has one position.",
                remedy="Make it twice, one for each name.",
            )
