"""Upstream's reader of conversations (contracts, section 2), with the keys of ours."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from prep.comparison import Side
from prep.errors import PrepError
from prep.layouts.conversations import META
from prep.manifest import Manifest
from prep.upstream.adapters.requirements import CONVERSATIONS, require
from prep.upstream.loading import import_upstream

__all__ = ["CosmosConversations", "open_side"]

_MODULE = "cosmos_framework.data.reasoner.local_sft_dataset"


def open_side(manifest: Manifest, *, index: str | None = None, ours: Any = None) -> Side:
    """Upstream's `LocalSFTDataset` over the dataset; raises EnvironmentLacksError if it cannot be had."""
    del index, ours  # conversations have no windows, and nothing is drawn
    require("cosmos", CONVERSATIONS)
    module, upstream = import_upstream(_MODULE)
    dataset = module.LocalSFTDataset(
        str(manifest.root / META), augmentor_config=None, shuffle=False, is_infinite_loader=False
    )
    facts = {**upstream.facts(), "reader": f"{_MODULE}.LocalSFTDataset"}
    return Side("cosmos", CosmosConversations(dataset), facts)


class CosmosConversations:
    """`LocalSFTDataset`, unshuffled and without augmentors, as a map-style reader.

    `__key__` is our `id` and `__url__` our `path`; `__source__`, the name that a recipe gives the
    dataset, is left out. Upstream gives a stream that skips what it cannot read, so a sample is
    found by going on to it: ascending places cost one pass over the files, a step back another.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._stream: Iterator[Mapping[str, Any]] | None = None
        self._next = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stream": None, "_next": 0}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index` of the stream, 0 to len - 1.

        Raises IndexError outside, PrepError where the stream ends earlier.
        """
        place, count = operator.index(index), len(self)
        if not 0 <= place < count:
            raise IndexError(f"sample {place}: there are {count}")
        sample = self._at(place)
        return {
            "id": sample["__key__"],
            "texts": sample["texts"],
            "media": dict(sample["media"]),
            "path": sample["__url__"],
        }

    def _at(self, place: int) -> Mapping[str, Any]:
        if self._stream is None or place < self._next:
            self._stream, self._next = iter(self._dataset), 0
        ahead = islice(self._stream, place - self._next, None)
        sample: Mapping[str, Any] | None = next(ahead, None)
        self._next = place + 1
        if sample is None:
            raise PrepError(
                f"Upstream's stream ends before sample {place} of {len(self)}: it skips what it cannot read.",
                remedy="`prep validate` says which files are missing.",
            )
        return sample
