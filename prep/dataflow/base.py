"""The four roles: distribute, process, batch, collate.

Names, signatures and meanings are those of the guide to custom datasets (contracts, section 7), so
that a role written to the guide works here unchanged. What this project adds is optional: a
distributor that gives a `cursor` can be resumed exactly; a batcher that calls `discard` has its
discards counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prep.errors import UsageError
from prep.log import logger

if TYPE_CHECKING:
    from prep.dataflow.cursors import Cursor
    from prep.dataflow.plans import Place

__all__ = [
    "BatchCollator",
    "DataDistributor",
    "LoaderError",
    "RawItemProcessor",
    "SampleBatcher",
    "SkipSample",
]


class LoaderError(UsageError, ValueError):
    """Arguments, data or a saved state that a loader cannot work with; a ValueError, as in the guide."""


class SkipSample(Exception):  # noqa: N818 (a signal like StopIteration, not a failure)
    """Raised by a processor for an item that shall not be trained on; counted under `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DataDistributor(ABC):
    """Owns the dataset; gives each (rank, worker) its own part of the raw items."""

    @abstractmethod
    def stream(self, dp_rank: int, dp_world_size: int, worker_id: int, num_workers: int) -> Iterator[Any]:
        """The raw items of this rank and worker, disjoint from those of every other.

        `dp_rank` is 0 to dp_world_size - 1, `worker_id` 0 to num_workers - 1, `num_workers` at least 1.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a distributor of one's own wants kept in a checkpoint; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (a hook, optional on purpose)
        """Take back what `state_dict` gave; nothing by default."""

    def cursor(self, place: Place) -> Cursor | None:  # noqa: ARG002
        """The stream as a cursor whose position can be saved, or None if there is no such thing."""
        return None

    def fingerprint(self) -> Mapping[str, Any]:
        """What a saved position belongs to; a state is refused where this differs."""
        return {"distributor": type(self).__name__}


class RawItemProcessor(ABC):
    """Makes one sample of one raw item."""

    @abstractmethod
    def process(self, item: Any) -> dict[str, Any]:
        """The sample of `item`. Raise SkipSample to leave the item out, counted."""


class SampleBatcher(ABC):
    """Decides which samples of a stream go into a batch together."""

    draws_exactly = False
    """Whether each batch is just the samples drawn since the batch before, so that none is ever pending."""

    measured: tuple[int, int] | None = None
    """What `load` would say of the batch that is being yielded, where the batcher has it at hand."""

    _on_discard: Callable[[Any, str], None] | None = None

    @abstractmethod
    def batches(self, samples: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The batches of a stream, each a list of its samples.

        For an exact resume, what is drawn and not yet yielded must be a function of the samples drawn
        before, in their order: a resumed batcher is first given the samples that were pending. A sample
        that is yielded is done with: one that is yielded again later is not kept for that.
        """

    def sample_size(self, sample: dict[str, Any]) -> int:
        """Tokens of one sample; only packing batchers ask."""
        raise NotImplementedError(f"{type(self).__name__} does not say how large a sample is")

    def load(self, group: list[dict[str, Any]]) -> tuple[int, int] | None:  # noqa: ARG002
        """Tokens of a batch's samples, and tokens that the batch costs with padding or may hold.

        None, the default, where a batch is not measured.
        """
        return None

    def fingerprint(self) -> Mapping[str, Any]:
        """What a saved state depends on; a state is refused where this differs."""
        return {"batcher": type(self).__name__}

    def discard(self, sample: Any, reason: str) -> None:
        """Say that `sample` will be in no batch. `reason` is a stable word, such as ``oversized``."""
        logger.debug("{} discards a sample: {}", type(self).__name__, reason)
        if self._on_discard is not None:
            self._on_discard(sample, reason)


class BatchCollator(ABC):
    """Makes one batch of the samples of a group."""

    @abstractmethod
    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch that the model is given."""
