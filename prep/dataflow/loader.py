"""`CosmosDataLoader`: the four roles, wired in their fixed order inside torch's own DataLoader.

The arguments, the defaults and the stamps are the guide's (contracts, section 7). On top of them: finite
epochs that end on all ranks together, a state that resumes exactly, and counts of all that was left out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.utils.data

from prep.dataflow.agreement import Agreement
from prep.dataflow.base import BatchCollator, DataDistributor, LoaderError, RawItemProcessor, SampleBatcher
from prep.dataflow.batchers import SimpleBatcher
from prep.dataflow.collators import DefaultBatchCollator
from prep.dataflow.combined import (
    cursor_of,
    environment_positions,
    forget_environment,
    planner_of,
    refuse_undealt,
)
from prep.dataflow.distributors import MapDistributor
from prep.dataflow.engine import Engine, Mark, Roles
from prep.dataflow.plans import OnUneven, Place
from prep.dataflow.processors import IdentityProcessor
from prep.dataflow.state import (
    VERSION,
    Progress,
    dealt_anew,
    decode_masks,
    delivered_masks,
    encode_masks,
    refuse_other,
    still_needed,
)
from prep.log import logger

__all__ = ["CosmosDataLoader"]


class _Streams(torch.utils.data.IterableDataset[Any]):
    """What runs in a worker: its stream's batches, each with its mark."""

    def __init__(self, distributor: DataDistributor, roles: Roles, place: Place, seed: int | None) -> None:
        self.distributor = distributor
        self._roles = roles
        self._seed = seed
        self.place = place
        self.first = 0
        self.starts: dict[int, dict[str, Any] | None] = {}

    def __iter__(self) -> Iterator[tuple[Any, Mark]]:
        info = torch.utils.data.get_worker_info()
        # The stream that is due next is the first worker's, since a DataLoader asks that one first.
        worker = ((info.id if info else 0) + self.first) % self.place.workers
        start, keep = self.starts.get(worker), nullcontext if info else _own_generators
        self.begun()
        cursor = cursor_of(self.distributor, self.place.of(worker))
        if start is not None:
            cursor.restore(start)
        return Engine(cursor, self._roles, worker=worker, seed=self._seed, keep=keep).run()

    def begun(self) -> None:
        """Forget the start: an iterator made later begins at the beginning."""
        self.first, self.starts = 0, {}


class CosmosDataLoader(torch.utils.data.DataLoader[Any]):
    """Batches of any dataset, by four roles. Endless, unless `epochs` says how many.

    Give either a `batcher` (and a `collator`, by default the stacking one), or `batch_size` for batches of
    fixed size. Ranks are those of `parallel_dims.dp_coord`, else of `torch.distributed`, else (0, 1).

    Batches that are dicts get `sample_worker_id`, `sample_epoch` and `sample_index`, each int64 [samples]
    and holding the furthest of the batch; with `epochs` also `is_padding`, bool [samples]: True for a
    sample that only fills up a stream, so that all end together (`on_uneven="pad"`). `"drop"` leaves
    such remainders out, counted; `"error"` refuses them.

    `seed_samples`: seed Python's, numpy's and torch's global generators from (seed, epoch, index) before
    each item is read, so that random augmentation is alike for any number of workers and after a
    resume. By default on, but for `IdentityProcessor`.

    `state_dict()` is plain JSON and belongs to what was delivered to the caller; `load_state_dict` goes on
    from there, also under `fork` or `spawn`, any number of times. `stats()` gives the counts.

    Raises LoaderError (a ValueError) for arguments that contradict one another, and for data that cannot
    be dealt to all streams.
    """

    def __init__(
        self,
        distributor: DataDistributor,
        processor: RawItemProcessor | None = None,
        batcher: SampleBatcher | None = None,
        collator: BatchCollator | None = None,
        batch_size: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        parallel_dims: Any = None,
        *,
        epochs: int | None = None,
        on_uneven: OnUneven = "pad",
        seed_samples: bool | None = None,
        multiprocessing_context: Any = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        _refuse_arguments(batcher, batch_size, epochs, on_uneven)
        processor = processor or IdentityProcessor()
        chosen: SampleBatcher = SimpleBatcher(batch_size) if batch_size is not None else batcher  # type: ignore[assignment]
        rank, world = _coordinates(parallel_dims)
        if seed_samples is None:
            seed_samples = not isinstance(processor, IdentityProcessor)
        roles = Roles(processor, chosen, collator or DefaultBatchCollator())
        place = Place(rank, world, 0, max(num_workers, 1), epochs, on_uneven)
        refuse_undealt(distributor, place)
        streams = _Streams(
            distributor, roles, place, int(getattr(distributor, "seed", 0)) if seed_samples else None
        )
        self._roles = roles
        self._progress = Progress(place.workers)
        self._loaded: Progress | None = None
        self._clock = [0.0, 0.0]
        self._agreement = Agreement.needed(epochs, world, chosen, on_uneven)
        persistent = _persistent(distributor, num_workers, persistent_workers)
        more: dict[str, Any] = {"prefetch_factor": prefetch_factor} if num_workers > 0 else {}
        super().__init__(
            streams,
            batch_size=None,
            collate_fn=_as_it_is,  # else torch goes through each batch once more, for arrays to convert
            num_workers=num_workers,
            persistent_workers=persistent,
            pin_memory=pin_memory,
            multiprocessing_context=multiprocessing_context if num_workers > 0 else None,
            timeout=timeout if num_workers > 0 else 0,
            worker_init_fn=worker_init_fn,
            # Its own, so that a loader draws nothing from the trainer's.
            generator=torch.Generator().manual_seed(int(getattr(distributor, "seed", 0))),
            **more,
        )

    @property
    def _streams(self) -> _Streams:
        streams: _Streams = self.dataset
        return streams

    def __len__(self) -> int:
        """Batches of this rank, where that is known: fixed size and finite epochs. Else TypeError."""
        batcher, place, streams = self._roles.batcher, self._streams.place, self._streams
        planner = planner_of(streams.distributor)
        if place.epochs is None or planner is None or type(batcher) is not SimpleBatcher:
            raise TypeError("This loader's number of batches is not known beforehand.")
        total = 0
        for worker in range(place.workers):
            here = place.of(worker)
            samples = sum(planner.plan(epoch, here).length for epoch in range(place.epochs))
            total += samples // batcher.batch_size if batcher.drop_last else -(-samples // batcher.batch_size)
        return total

    def __iter__(self) -> Iterator[Any]:
        workers = self._streams.place.workers
        given = environment_positions(self._streams.distributor, workers)
        self._progress = self._loaded or Progress(workers, dict(given))
        self._loaded = None
        self._streams.first = self._progress.next_stream
        self._streams.starts = dict(self._progress.streams)
        inner = super().__iter__()
        self._streams.begun()
        forget_environment(self._streams.distributor, workers)
        return self._delivered(inner)

    def _delivered(self, inner: Iterator[tuple[Any, Mark]]) -> Iterator[Any]:
        progress, finite = self._progress, self._streams.place.epochs is not None
        began = before = time.perf_counter()
        self._clock = [0.0, 0.0]
        source = self._agreement.together(inner) if self._agreement else inner
        for batch, mark in source:
            now = time.perf_counter()
            progress.note(mark)
            self._clock[:] = self._clock[0] + now - before, now - began
            if mark.samples:
                if isinstance(batch, dict) and mark.known:
                    _stamp(batch, mark, finite=finite)
                yield batch
            before = time.perf_counter()

    def stats(self) -> dict[str, Any]:
        """Counts of what was delivered so far, and of what was left out, by reason.

        `fill` is tokens / (padded or allowed) tokens of the packed batches, else None. `wait_share` is the
        share of this iterator's time that its caller waited for batches.
        """
        counts = self._progress.counts()
        tokens, capacity = counts.pop("tokens"), counts.pop("capacity")
        waited, total = self._clock
        return {
            **counts,
            "fill": tokens / capacity if capacity else None,
            "wait_share": waited / total if total else None,
        }

    @property
    def obstacle(self) -> str:
        """Why the delivered position cannot be saved, as far as batches have shown; empty if it can."""
        return self._progress.obstacle

    def identity(self) -> dict[str, Any]:
        """What a state of this loader belongs to."""
        place, streams = self._streams.place, self._streams
        return {
            "distributor": dict(streams.distributor.fingerprint()),
            "batcher": dict(self._roles.batcher.fingerprint()),
            "dp_world_size": place.world,
            "num_workers": place.workers,
            "epochs": place.epochs,
            "on_uneven": place.on_uneven,
        }

    def state_dict(self) -> dict[str, Any]:
        """The position after the last delivered batch, as plain JSON."""
        progress, place = self._loaded or self._progress, self._streams.place
        if progress.obstacle:
            logger.warning("this loader will begin anew after a resume: {}", progress.obstacle)
        return {
            "version": VERSION,
            "identity": self.identity(),
            "dp_rank": place.rank,
            "next_stream": progress.next_stream,
            "streams": {str(worker): progress.streams.get(worker) for worker in range(place.workers)},
            "delivered": encode_masks(still_needed(place.delivered, progress.streams.values())),
            "obstacle": progress.obstacle,
            "counts": progress.counts(),
            "distributor": self._streams.distributor.state_dict(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, reshard: bool = False
    ) -> None:
        """Go on from a state: the next iterator begins after what it says was delivered.

        With `reshard`, `state` is the list of all ranks' states, and the rest of the begun epochs is dealt
        out to this loader's streams, nothing twice and nothing left out. Raises LoaderError if the state
        belongs to another dataset, seed, world size, worker count or batcher, by name.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        _refuse_states(states, self.identity(), self._streams.place.rank, reshard=reshard)
        place = self._streams.place
        if any(each["obstacle"] for each in states):
            logger.warning("the stream begins anew: {}", states[0]["obstacle"])
            self._loaded = Progress(place.workers)
        elif reshard:
            self._loaded = self._dealt_anew(states)
        else:
            self._streams.place = place.with_delivered(decode_masks(states[0]["delivered"]))
            self._loaded = Progress.restored(states[0], place.workers)
        if states[0]["distributor"]:
            self._streams.distributor.load_state_dict(states[0]["distributor"])
        # Workers that persist hold the old position: the next iterator makes new ones.
        self._iterator = None

    def _dealt_anew(self, states: Sequence[Mapping[str, Any]]) -> Progress:
        planner = planner_of(self._streams.distributor)
        if planner is None:
            raise LoaderError(
                f"{type(self._streams.distributor).__name__} cannot be dealt anew: it has no fixed order.",
                remedy="Use the same ranks and workers, or MapDistributor or SpanDistributor.",
            )
        epoch, masks = delivered_masks(states, planner)
        place = self._streams.place.with_delivered(masks)
        if place.on_uneven == "error":
            for begun in masks:
                planner.plan(begun, place)  # raises now, not in a worker
        self._streams.place = place
        return dealt_anew(place.workers, epoch)


def _refuse_arguments(
    batcher: SampleBatcher | None, batch_size: int | None, epochs: int | None, on_uneven: str
) -> None:
    if batcher is not None and batch_size is not None:
        raise LoaderError("Both batcher= and batch_size= were given.", remedy="Give one of them.")
    if batcher is None and batch_size is None:
        raise LoaderError(
            "Provide either a batcher= or a batch_size=.", remedy="batch_size=32 is the short way."
        )
    if epochs is not None and epochs < 1:
        raise LoaderError(f"epochs={epochs} is less than 1.", remedy="Leave it out for endless streams.")
    if on_uneven not in ("pad", "drop", "error"):
        raise LoaderError(f"on_uneven={on_uneven!r} is unknown.", remedy='It is "pad", "drop" or "error".')


def _refuse_states(
    states: Sequence[Mapping[str, Any]], identity: Mapping[str, Any], rank: int, *, reshard: bool
) -> None:
    for state in states:
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            raise LoaderError(
                "This is no state of a loader of this version.",
                remedy="Give what state_dict() returned, or its list of all ranks.",
            )
        refuse_other(state["identity"], identity, reshard=reshard)
    if not states or (not reshard and (len(states) != 1 or states[0]["dp_rank"] != rank)):
        given = [state["dp_rank"] for state in states]
        raise LoaderError(
            f"Rank {rank} was given the states of the ranks {given}.",
            remedy="Give each rank its own, or all of them with reshard=True.",
        )


def _coordinates(parallel_dims: Any) -> tuple[int, int]:
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


def _persistent(distributor: DataDistributor, num_workers: int, asked: bool) -> bool:
    """Whether workers outlive an iterator: asked for, or over a map-style source, as the guide says."""
    if num_workers == 0:
        if asked:
            logger.info("persistent_workers=True is ignored because num_workers=0")
        return False
    return asked or isinstance(distributor, MapDistributor)


def _as_it_is(pair: Any) -> Any:
    return pair


def _stamp(batch: dict[str, Any], mark: Mark, *, finite: bool) -> None:
    """Say in the batch where it comes from."""
    count = mark.samples
    batch["sample_worker_id"] = torch.full((count,), mark.worker)
    batch["sample_epoch"] = torch.full((count,), mark.epoch)
    batch["sample_index"] = torch.full((count,), mark.position)
    if mark.behind:
        batch["sample_pending"] = torch.full((count,), mark.behind)
    if finite:
        padding = mark.padding or [False] * count
        batch["is_padding"] = torch.tensor(padding)


@contextmanager
def _own_generators() -> Iterator[None]:
    """Give the global generators back as they were: in the main process they are the trainer's."""
    python, numpy, ours = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(ours)
