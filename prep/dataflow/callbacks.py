"""Checkpoint callbacks for a trainer that calls them by name; nothing of a trainer is needed.

Given its loader, a callback keeps the loader's own state and resumes exactly, whatever the batcher.
Without it, it does what the guide describes: it reads the stamps of the batches, and on loading sets
`COSMOS_DL_STATE_*` for the workers that start after; a batch that stamps cannot speak for is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from prep.dataflow.base import LoaderError
from prep.dataflow.distributors import environment_prefix

if TYPE_CHECKING:
    from prep.dataflow.joint import JointCosmosDataLoader
    from prep.dataflow.loader import CosmosDataLoader

__all__ = ["CosmosDataLoaderStateCallback", "JointCosmosDataLoaderStateCallback"]

_EXACT = "loader"


class CosmosDataLoaderStateCallback:
    """The state of one loader. `name` is that of its MapDistributor, empty for none.

    With `loader` the state is of what the loader has given: a trainer that fetches a batch ahead of the step
    that it saves at would skip that batch. Save it before the next batch is taken.

    `distributor_type` is taken and not used, so that a configuration made for the older loader fits.
    """

    checkpoint_component = "dataloader"

    def __init__(
        self, name: str = "", distributor_type: str | None = None, *, loader: CosmosDataLoader | None = None
    ) -> None:
        del distributor_type
        self.name = name
        self.config: Any = None
        self.positions: dict[int, tuple[int, int]] = {}
        """(epoch, position) of the furthest sample that each worker delivered."""
        self._loader = loader

    def on_training_step_batch_end(
        self, model: Any, data_batch: Mapping[str, Any], output_batch: Any, loss: Any, iteration: int = 0
    ) -> None:
        """Take in what a batch's stamps say. Raises LoaderError for one that they cannot speak for."""
        del model, output_batch, loss, iteration
        self.note(data_batch)

    def on_training_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: a trainer that calls this finds it."""

    def note(self, batch: Mapping[str, Any]) -> None:
        """Take in what a batch's stamps say."""
        if "sample_worker_id" not in batch:
            return
        if self._loader is None and "sample_pending" in batch:
            raise LoaderError(
                "Map-style resume cannot safely stamp a multi-sample batch of a reordering batcher: "
                f"{int(batch['sample_pending'][0])} earlier samples are still pending.",
                remedy="Give the callback loader=, which keeps them; or use max_batch_size=1.",
            )
        stamps = ("sample_worker_id", "sample_epoch", "sample_index")
        for worker, *position in zip(*(batch[stamp].tolist() for stamp in stamps), strict=True):
            self.positions[worker] = max(self.positions.get(worker, (-1, -1)), tuple(position))

    def has_checkpoint_state(self) -> bool:
        """Always: a trainer asks."""
        return True

    def state_dict(self) -> dict[Any, Any]:
        """Positions by worker, as the guide's; with the loader, its own state as well."""
        found: dict[Any, Any] = {
            worker: {"epoch": epoch, "index": index} for worker, (epoch, index) in self.positions.items()
        }
        if self._loader is not None:
            # One text: a checkpoint that takes mappings apart looks for the keys of a fresh loader.
            found[_EXACT] = json.dumps(self._loader.state_dict())
        return found

    def refuse_state(self, state_dict: Mapping[Any, Any]) -> None:
        """Raise LoaderError if the loader would refuse this state; changes nothing."""
        if self._loader is not None and _EXACT in state_dict:
            self._loader.refuse_state(json.loads(state_dict[_EXACT]))

    def load_state_dict(self, state_dict: Mapping[Any, Any]) -> None:
        """Go on from a state of this callback, or of the guide's own.

        Where the loader is known it is told, exactly if its own state is there; else the environment is
        set, from which workers that start after take their position.
        """
        self.positions = {
            int(worker): (int(position["epoch"]), int(position["index"]))
            for worker, position in state_dict.items()
            if worker != _EXACT
        }
        if self._loader is not None:
            if _EXACT in state_dict:
                self._loader.load_state_dict(json.loads(state_dict[_EXACT]))
            elif self.positions:
                self._loader.load_positions(
                    {
                        worker: {"epoch": epoch, "position": index + 1}
                        for worker, (epoch, index) in self.positions.items()
                    }
                )
            return
        prefix = environment_prefix(self.name)
        for worker, (epoch, index) in self.positions.items():
            os.environ[f"{prefix}WORKER_{worker}_EPOCH"] = str(epoch)
            os.environ[f"{prefix}WORKER_{worker}_INDEX"] = str(index)


class JointCosmosDataLoaderStateCallback:
    """The state of a joint loader and of all loaders in it: use this one alone."""

    checkpoint_component = "dataloader"

    def __init__(self, outer_loader: JointCosmosDataLoader) -> None:
        self.config: Any = None
        self._outer = outer_loader
        self._inner = {
            name: CosmosDataLoaderStateCallback(name, loader=loader)
            for name, loader in outer_loader.loaders.items()
        }

    def on_training_step_batch_end(
        self, model: Any, data_batch: Mapping[str, Any], output_batch: Any, loss: Any, iteration: int = 0
    ) -> None:
        """Take in what a batch's stamps say, for the loader that it names."""
        del model, output_batch, loss, iteration
        name = data_batch.get("dataset_name")
        if name in self._inner:
            self._inner[name].note(data_batch)

    def on_training_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: a trainer that calls this finds it."""

    def has_checkpoint_state(self) -> bool:
        """Always: a trainer asks."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """The step of the draws, and each loader's state, by its name."""
        return {
            **self._outer.draw_state(),
            **{name: callback.state_dict() for name, callback in self._inner.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of this callback, or of the guide's own, which has no draws.

        Raises LoaderError if it belongs to other loaders or draws; then nothing is changed.
        """
        self._outer.refuse_state(state)
        for name, callback in self._inner.items():
            callback.refuse_state(state[name])
        for name, callback in self._inner.items():
            callback.load_state_dict(state[name])
        self._outer.begin_at(int(state["global_id"]))
