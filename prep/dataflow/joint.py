"""`JointCosmosDataLoader`: whole pipelines side by side, one of them drawn for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from prep.dataflow.base import LoaderError
from prep.dataflow.loader import CosmosDataLoader
from prep.dataflow.refusals import refuse_other
from prep.log import logger

__all__ = ["JointCosmosDataLoader"]

_STEP, _DRAWS = "global_id", "_draws"
_RESERVED = (_STEP, _DRAWS)


class JointCosmosDataLoader:
    """Batches of several loaders, `{name: {"dataloader": CosmosDataLoader, "ratio": number}}`.

    Step i takes its batch from the loader that `numpy.random.RandomState(seed + i)` draws with the ratios
    as weights; a ratio of 0 or less leaves a loader out. Each batch, a dict, is tagged with
    `dataset_name`. An inner loader that ends begins anew.
    """

    def __init__(self, dataloaders: Mapping[str, Mapping[str, Any]], seed: int = 42) -> None:
        chosen = {name: entry for name, entry in dataloaders.items() if entry.get("ratio", 0) > 0}
        if not chosen:
            raise LoaderError("No loader has a ratio above 0.", remedy="Give at least one a positive ratio.")
        for name in set(_RESERVED) & set(chosen):
            raise LoaderError(
                f"The name {name!r} is reserved: a checkpoint keeps the draws under it.",
                remedy="Give this loader another name.",
            )
        self.loaders: dict[str, CosmosDataLoader] = {
            name: entry["dataloader"] for name, entry in chosen.items()
        }
        ratios = np.array([entry["ratio"] for entry in chosen.values()], dtype=float)
        self._shares = ratios / ratios.sum()
        self._seed = seed
        self._step = 0
        self._iterators: dict[str, Iterator[Any]] = {}
        self._begun: set[str] = set()
        for name, share in zip(self.loaders, self._shares, strict=True):
            logger.info("{}: {:.1%} of the batches", name, share)

    @property
    def names(self) -> list[str]:
        """The loaders that are drawn from, in the order of their weights."""
        return list(self.loaders)

    @property
    def step(self) -> int:
        """How many batches were delivered."""
        return self._step

    def set_start_iteration(self, iteration: int) -> None:
        """Go on with the draws of a later step; the inner loaders have states of their own."""
        self._step = iteration

    def __iter__(self) -> Iterator[Any]:
        while True:
            generator = np.random.RandomState(self._seed + self._step)
            name = self.names[int(generator.choice(len(self.loaders), p=self._shares))]
            batch = self._next(name)
            batch["dataset_name"] = name
            self._step += 1
            yield batch

    def _next(self, name: str) -> Any:
        for _ in range(2):
            if name not in self._iterators:
                loader = self.loaders[name]
                # One that ended begins anew, and counts on.
                self._iterators[name] = loader.again() if name in self._begun else iter(loader)
                self._begun.add(name)
            batch = next(self._iterators[name], None)
            if batch is not None:
                return batch
            del self._iterators[name]
        raise LoaderError(f"The loader {name!r} gives no batch at all.", remedy="Leave it out.")

    def stats(self) -> dict[str, Any]:
        """The counts of each loader, by its name."""
        return {name: loader.stats() for name, loader in self.loaders.items()}

    def draws(self) -> dict[str, Any]:
        """What the sequence of draws depends on."""
        shares = dict(zip(self.names, map(float, self._shares), strict=True))
        return {"seed": self._seed, "shares": shares}

    def draw_state(self) -> dict[str, Any]:
        """The part of a state that is of the draws: the step, and what they depend on."""
        return {_STEP: self._step, _DRAWS: self.draws()}

    def state_dict(self) -> dict[str, Any]:
        """The step, what is drawn by, and the state of each loader, as plain JSON."""
        return {
            **self.draw_state(),
            **{name: loader.state_dict() for name, loader in self.loaders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises LoaderError if it belongs to others; then nothing is changed."""
        self.refuse_state(state)
        for name, loader in self.loaders.items():
            loader.refuse_state(state[name])
        for name, loader in self.loaders.items():
            loader.load_state_dict(state[name])
        self.begin_at(state[_STEP])

    def refuse_state(self, state: Mapping[str, Any]) -> None:
        """Raise LoaderError for a state of other loaders, or of other draws."""
        if not isinstance(state, Mapping) or not isinstance(state.get(_STEP), int):
            raise LoaderError(
                f"This is no state of a joint loader: it has no {_STEP}.",
                remedy="Give what state_dict() returned.",
            )
        saved, here = sorted(set(state) - set(_RESERVED)), sorted(self.loaders)
        if saved != here:
            raise LoaderError(
                f"The saved state belongs to another loader: of {', '.join(saved)}, not {', '.join(here)}.",
                remedy="Use the same names, or load each loader's state by itself.",
            )
        refuse_other(state.get(_DRAWS, self.draws()), self.draws(), reshard=False)

    def begin_at(self, step: int) -> None:
        """Go on at a step with new iterators of the loaders, whatever was drawn from them before."""
        self._iterators.clear()
        self._begun.clear()
        self._step = step
