"""`CosmosDataLoader`: the four roles, wired in their fixed order inside torch's own DataLoader.

The arguments, the defaults and the stamps are the guide's (contracts, section 7). On top of them: finite
epochs that end on all ranks together, a state that resumes exactly, and counts of all that was left out.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.utils.data

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
from prep.dataflow.cursors import position_at
from prep.dataflow.engine import Engine, Mark, Roles, sample_seed
from prep.dataflow.plans import OnUneven, Place
from prep.dataflow.processors import IdentityProcessor
from prep.dataflow.refusals import refuse_outside, refuse_states
from prep.dataflow.resharding import delivered_masks
from prep.dataflow.state import VERSION, Progress, dealt_anew
from prep.dataflow.wiring import (
    as_it_is,
    coordinates,
    ending,
    own_generators,
    persistent,
    refuse_arguments,
    stamp,
)
from prep.log import logger

__all__ = ["CosmosDataLoader"]


class _Streams(torch.utils.data.IterableDataset[Any]):
    """What runs in a worker: its stream's batches, each with its mark."""

    def __init__(
        self, distributor: DataDistributor, roles: Roles, place: Place, *, seed: int | None, may_skip: bool
    ) -> None:
        self.distributor = distributor
        self.place = place
        self._roles = roles
        self._seed = seed
        self._may_skip = may_skip
        self.start: Progress | None = None

    def __iter__(self) -> Iterator[tuple[Any, Mark]]:
        info = torch.utils.data.get_worker_info()
        start, place = self.start or Progress(self.place.workers), self.place
        # Once: an iterator that is made later begins at the beginning.
        self.start = None
        # The stream that is due next is the first worker's, since a DataLoader asks that one first.
        worker = ((info.id if info else 0) + start.next_stream) % place.workers
        cursor = cursor_of(self.distributor, place.of(worker).with_delivered(start.delivered))
        position = start.streams.get(worker)
        if position is not None:
            cursor.restore(position)
        engine = Engine(
            cursor,
            self._roles,
            worker=worker,
            seed=self._seed,
            may_skip=self._may_skip,
            keep=nullcontext if info else own_generators,
        )
        return engine.run()


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
        roles_given = {
            "distributor": (distributor, DataDistributor),
            "processor": (processor, RawItemProcessor),
            "batcher": (batcher, SampleBatcher),
            "collator": (collator, BatchCollator),
        }
        refuse_arguments(roles_given, batch_size, epochs, on_uneven)
        processor = processor or IdentityProcessor()
        chosen = batcher if batcher is not None else SimpleBatcher(operator.index(batch_size or 0))
        rank, world = coordinates(parallel_dims)
        if seed_samples is None:
            seed_samples = not isinstance(processor, IdentityProcessor)
        roles = Roles(processor, chosen, collator or DefaultBatchCollator())
        place = Place(rank, world, 0, max(num_workers, 1), epochs, on_uneven)
        refuse_undealt(distributor, place)
        self._agreement, may_skip = ending(distributor, roles, place)
        self._rank_seed = int(getattr(distributor, "seed", 0))
        streams = _Streams(
            distributor, roles, place, seed=self._rank_seed if seed_samples else None, may_skip=may_skip
        )
        self._roles = roles
        self._progress = Progress(place.workers)
        self._loaded: Progress | None = None
        self._clock = [0.0, 0.0]
        more: dict[str, Any] = {"prefetch_factor": prefetch_factor} if num_workers > 0 else {}
        super().__init__(
            streams,
            batch_size=None,
            collate_fn=as_it_is,  # else torch goes through each batch once more, for arrays to convert
            num_workers=num_workers,
            persistent_workers=persistent(distributor, num_workers, persistent_workers),
            pin_memory=pin_memory,
            multiprocessing_context=multiprocessing_context if num_workers > 0 else None,
            timeout=timeout if num_workers > 0 else 0,
            worker_init_fn=worker_init_fn,
            generator=torch.Generator(),  # its own, so that a loader draws nothing from the trainer's
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
        return self._begun(Progress(self._streams.place.workers))

    def again(self) -> Iterator[Any]:
        """An iterator from the beginning that counts on where the last one stopped."""
        return self._begun(self._progress.again())

    def _begun(self, fresh: Progress) -> Iterator[Any]:
        streams, workers = self._streams, self._streams.place.workers
        positions = environment_positions(streams.distributor, workers)
        if positions and self._loaded is None:
            self.load_positions(positions)
        self._progress, self._loaded = self._loaded or fresh, None
        # Workers' own generators: others on each rank, and others after a resume.
        seed = sample_seed(self._rank_seed, streams.place.rank, self._progress.batches)
        self.generator.manual_seed(seed >> 1)
        streams.start = self._progress.copy()
        inner = super().__iter__()
        streams.start = None
        forget_environment(streams.distributor, workers)
        return self._delivered(inner)

    def _delivered(self, inner: Iterator[tuple[Any, Mark]]) -> Iterator[Any]:
        progress, finite = self._progress, self._streams.place.epochs is not None
        began = before = time.perf_counter()
        self._clock = [0.0, 0.0]
        source = self._agreement.together(inner, self._spare) if self._agreement else inner
        for batch, mark in source:
            now = time.perf_counter()
            progress.note(mark)
            self._clock[:] = self._clock[0] + now - before, now - began
            if mark.samples:
                if isinstance(batch, dict):
                    stamp(batch, mark, finite=finite)
                yield batch
            before = time.perf_counter()
        if self._agreement and self._streams.place.on_uneven == "drop":
            progress.cut_off(self._due())

    def _spare(self) -> tuple[Any, Mark]:
        """A batch that only fills up: the first of this rank, made anew."""
        streams = self._streams
        found = next(iter(streams), None)
        if found is None or not found[1].samples:
            raise LoaderError("This rank has no batch at all.", remedy="Use fewer ranks, or more data.")
        batch, mark = found
        mark.fills, mark.padding, mark.discarded, mark.dropped = True, [True] * mark.samples, None, 0
        return batch, mark

    def _due(self) -> int:
        """The samples that this rank's epochs have, without padding, from where its counts begin."""
        progress, place = self._progress, self._streams.place.with_delivered(self._progress.delivered)
        planner = planner_of(self._streams.distributor)
        if planner is None or place.epochs is None:
            return 0
        plans = [
            planner.plan(epoch, place.of(worker))
            for epoch in range(progress.first_epoch, place.epochs)
            for worker in range(place.workers)
        ]
        return sum(plan.own for plan in plans)

    def stats(self) -> dict[str, Any]:
        """Counts of what was delivered so far, and of what was left out, by reason.

        `fill` is tokens / (padded or allowed) tokens of the packed batches, else None. `wait_share` is the
        share of this iterator's time that its caller waited for batches.
        """
        counts = self._progress.counts()
        del counts["done_before"]
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
            "distributor": self._streams.distributor.state_dict(),
            **progress.saved(),
        }

    def refuse_state(self, state: Any, *, reshard: bool = False) -> None:
        """Raise LoaderError, by name, if `load_state_dict` would refuse this state; changes nothing."""
        self._resumed([state] if isinstance(state, Mapping) else state, reshard=reshard)

    def _resumed(self, states: Any, *, reshard: bool) -> Progress:
        """The progress that states tell of, once nothing speaks against them."""
        place, planner = self._streams.place, planner_of(self._streams.distributor)
        refuse_states(states, self.identity(), place.rank, planner=planner, reshard=reshard)
        if planner is not None and not reshard:
            refuse_outside(states[0], planner, place)
        dealt = self._dealt_anew(states) if reshard and not states[0]["obstacle"] else None
        if any(state["obstacle"] for state in states):
            return Progress(place.workers)
        return dealt or Progress.restored(states[0], place.workers)

    def load_state_dict(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, reshard: bool = False
    ) -> None:
        """Go on from a state: the next iterator begins after what it says was delivered.

        With `reshard`, `state` is the list of all ranks' states, and the rest of the begun epochs is dealt
        out to this loader's streams, nothing twice and nothing left out; counts begin at 0. Raises
        LoaderError if the state is damaged, or belongs to another dataset, seed, world size, worker count
        or batcher, by name; then nothing is changed. `epochs` may be another number than it was.
        """
        states: Any = [state] if isinstance(state, Mapping) else state
        self._go_on(self._resumed(states, reshard=reshard))
        if any(each["obstacle"] for each in states):
            logger.warning("the stream begins anew: {}", states[0]["obstacle"])
        if states[0]["distributor"]:
            self._streams.distributor.load_state_dict(states[0]["distributor"])

    def load_positions(self, positions: Mapping[int, Mapping[str, Any]]) -> None:
        """Go on from positions by worker: `epoch`, and `position` of the next sample in the stream's part.

        Raises LoaderError if this loader's source has no order that positions could be in.
        """
        if planner_of(self._streams.distributor) is None:
            raise LoaderError(
                f"{type(self._streams.distributor).__name__} has no positions of samples.",
                remedy="Give the loader its own state_dict(), or use MapDistributor.",
            )
        streams = {int(worker): {**position_at(), **position} for worker, position in positions.items()}
        self._go_on(Progress(self._streams.place.workers, dict(streams)))

    def _go_on(self, progress: Progress) -> None:
        self._loaded = progress
        # Workers that persist hold the old position: the next iterator makes new ones.
        self._iterator = None

    def _dealt_anew(self, states: Sequence[Mapping[str, Any]]) -> Progress:
        planner, place = planner_of(self._streams.distributor), self._streams.place
        if planner is None:
            raise LoaderError(
                f"{type(self._streams.distributor).__name__} cannot be dealt anew: it has no fixed order.",
                remedy="Use the same ranks and workers, or MapDistributor or SpanDistributor.",
            )
        epoch, masks = delivered_masks(states, planner)
        if place.on_uneven == "error":
            for begun in masks:
                planner.plan(begun, place.with_delivered(masks))  # raises now, not in a worker
        return dealt_anew(place.workers, epoch, masks)
