"""Batches of a fixed size, and batches packed from a pool under a budget of padded tokens.

Both give the batches of the guide (contracts, section 7), sample for sample. The pool keeps its samples
ordered by size, so that a pick is a bisection and each sample is sized once, when it is drawn.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from operator import itemgetter
from typing import Any

from prep.dataflow.base import SampleBatcher

__all__ = ["PoolPackingBatcher", "SimpleBatcher"]

_STRATEGIES = ("prefer_first", "prefer_closest")
_LONG = 1000  # tokens; from here on a batch has half the budget, if halving is on
_LAST = float("inf")


class SimpleBatcher(SampleBatcher):
    """`batch_size` samples to a batch, in their order.

    What is left at the end of a stream makes a smaller batch, or is discarded with `drop_last`.
    Raises ValueError for a batch size below 1.
    """

    def __init__(self, batch_size: int, drop_last: bool = False) -> None:
        _at_least("batch_size", batch_size, 1, "Give the number of samples in a batch.")
        self.batch_size = int(batch_size)
        self.drop_last = bool(drop_last)
        self.draws_exactly = type(self).batches is SimpleBatcher.batches

    def batches(self, samples: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The batches of a stream, each as soon as its last sample is drawn."""
        source = iter(samples)
        while len(group := list(islice(source, self.batch_size))) == self.batch_size:
            yield group
            del group  # while the next samples are made, the batch is the receiver's alone
        if not self.drop_last and group:
            yield group
        elif group:
            for sample in group:
                self.discard(sample, "incomplete batch")

    def fingerprint(self) -> Mapping[str, Any]:
        """The batcher's name and its parameters."""
        return {**super().fingerprint(), "batch_size": self.batch_size, "drop_last": self.drop_last}


class PoolPackingBatcher(SampleBatcher):
    """Batches under a budget of padded tokens, picked from the next `pool_size` samples.

    A batch costs its longest sample times its count, and holds one modality only: images
    (`pixel_values`), videos (`pixel_values_videos`) or text. It begins with the sample that waits longest.
    One of `long_threshold` tokens or more, or as large as the budget, stays alone. To others is added,
    as long as the cost stays within `max_tokens`, the candidate that raises the cost least; of equals the
    one closest in length ("prefer_closest"), then the one drawn first ("prefer_first" looks at that
    only). With `apply_long_sample_halving` the budget is half as large once a batch's longest sample has
    1,000 tokens. `max_batch_size` 0 or None: no limit. With 1, nothing is drawn ahead, sized or
    reordered.

    A sample's size is `size_fn(sample)`, or the length of its `input_ids`.
    Raises ValueError for a parameter that no batch can come from.
    """

    def __init__(
        self,
        max_tokens: int,
        pool_size: int = 16,
        max_batch_size: int | None = 1,
        long_threshold: int = 6400,
        batching_strategy: str = "prefer_closest",
        apply_long_sample_halving: bool = True,
        size_fn: Callable[[dict[str, Any]], int] | None = None,
    ) -> None:
        if batching_strategy not in _STRATEGIES:
            raise ValueError(
                f"batching_strategy must be one of {', '.join(map(repr, _STRATEGIES))}, "
                f"but it is {batching_strategy!r}. Give one of them."
            )
        _at_least("max_tokens", max_tokens, 1, "Give the padded tokens that a batch may cost.")
        _at_least("pool_size", pool_size, 1, "Give the number of samples to choose from.")
        _at_least("max_batch_size", max_batch_size or 0, 0, "Give 0 for batches of any count.")
        _at_least("long_threshold", long_threshold, 0, "Give the tokens from which a sample stays alone.")
        self.max_tokens = max_tokens
        self.pool_size = pool_size
        self.max_batch_size = max_batch_size
        self.long_threshold = long_threshold
        self.batching_strategy = batching_strategy
        self.apply_long_sample_halving = apply_long_sample_halving
        self._size_fn = size_fn
        self.draws_exactly = max_batch_size == 1 and type(self).batches is PoolPackingBatcher.batches

    def sample_size(self, sample: dict[str, Any]) -> int:
        """Tokens of one sample. Raises KeyError if it has no `input_ids` and no `size_fn` was given."""
        if self._size_fn is not None:
            return self._size_fn(sample)
        try:
            return len(sample["input_ids"])
        except KeyError:
            keys = ", ".join(sorted(key for key in map(str, sample) if not key.startswith("_")))
            raise KeyError(f"'input_ids' is not in a sample with the keys {keys}; give size_fn=") from None

    def batches(self, samples: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """The batches of a stream.

        At each yield at most `pool_size` - 1 samples are drawn and not delivered, in drawing order; the
        next batch depends on them and what follows them alone.
        """
        if self.max_batch_size == 1:
            for sample in samples:
                yield [sample]
                del sample
            return
        source, pool, size_of = iter(samples), _Pool(self.max_tokens / 2), self.sample_size
        # Most of the work of a stream of long samples is this loop: no calls but those that it needs.
        fresh, seen, numbers = pool.fresh, pool.seen, count(0, -1)
        drawn: Any
        oldest: Any
        while True:
            for drawn in islice(source, self.pool_size - len(fresh) - len(seen)):
                fresh.append((size_of(drawn), next(numbers), drawn))
            if not fresh and not seen:
                return
            size, _, oldest = pool.pop_oldest() if seen else fresh.popleft()
            # Nothing can stand beside a sample whose double is over the budget.
            if size >= self.long_threshold or 2 * size > self._budget(size):
                group = [oldest]
            else:
                group = self._group(oldest, size, pool)
            drawn = oldest = None
            yield group
            del group  # while the next samples are made, the batch is the receiver's alone

    def _group(self, oldest: dict[str, Any], longest: int, pool: _Pool) -> list[dict[str, Any]]:
        chosen = [oldest]
        shelf = pool.shelf_for(oldest)
        most = self.max_batch_size or self.pool_size
        in_drawing_order = self.batching_strategy == "prefer_first"
        while shelf and len(chosen) < most:
            budget = self._budget(longest)
            candidates, longest = shelf.candidates(longest, in_drawing_order)
            for entry in candidates:
                if len(chosen) == most or longest * (len(chosen) + 1) > budget:
                    return chosen
                pool.remove(shelf, entry)
                chosen.append(entry[2])
        return chosen

    def _budget(self, longest: int) -> int:
        if self.apply_long_sample_halving and longest >= _LONG:
            return self.max_tokens // 2
        return self.max_tokens

    def load(self, group: list[dict[str, Any]]) -> tuple[int, int]:
        """Tokens of a batch's samples, and what the batch costs when all are padded to the longest."""
        sizes = [self.sample_size(sample) for sample in group]
        return sum(sizes), max(sizes) * len(sizes)

    def fingerprint(self) -> Mapping[str, Any]:
        """The batcher's name and its parameters; `size_fn` by its qualified name."""
        return {
            **super().fingerprint(),
            "max_tokens": self.max_tokens,
            "pool_size": self.pool_size,
            "max_batch_size": self.max_batch_size or 0,
            "long_threshold": self.long_threshold,
            "batching_strategy": self.batching_strategy,
            "apply_long_sample_halving": self.apply_long_sample_halving,
            "size_fn": _qualified_name(self._size_fn),
        }


# Size in tokens, minus the number in drawing order, sample. Numbers are unique, so that no comparison
# reaches the sample; in sorted order the last of those of one size is the one drawn first.
_Entry = tuple[int, int, dict[str, Any]]


class _Shelf(list[_Entry]):
    """The samples of one modality that may stand beside others, sorted."""

    def candidates(self, longest: int, in_drawing_order: bool) -> tuple[Iterable[_Entry], int]:
        """Who may come next, best first, as long as the longest chosen sample has `longest` tokens.

        Those not longer, since they cost the same; where there are none, the shortest of the longer
        ones. With them comes the longest sample's size after they are added.
        """
        end = bisect_right(self, (longest, _LAST))
        if end == 0:
            longest = self[0][0]
            return (self[bisect_right(self, (longest, _LAST)) - 1],), longest
        if in_drawing_order:
            return sorted(self[:end], key=itemgetter(1), reverse=True), longest
        return reversed(self[:end]), longest


class _Pool:
    """Samples that wait, those looked at and then the fresh ones, in drawing order.

    Those looked at stand on a shelf for each modality too, but for the ones of more than `largest`
    tokens, which are never candidates. A stream of samples that all stay alone is never sorted.
    """

    def __init__(self, largest: float) -> None:
        self.fresh: deque[_Entry] = deque()
        self.seen: OrderedDict[int, _Entry] = OrderedDict()
        self._largest = largest
        self._shelves: dict[str, _Shelf] = {"image": _Shelf(), "video": _Shelf(), "text": _Shelf()}

    def pop_oldest(self) -> _Entry:
        """Take out the sample that was drawn first, of those that were looked at."""
        _, entry = self.seen.popitem(last=False)
        if entry[0] <= self._largest:
            shelf = self._shelves[_modality(entry[2])]
            del shelf[bisect_left(shelf, entry)]
        return entry

    def shelf_for(self, sample: dict[str, Any]) -> _Shelf:
        """The candidates to stand beside `sample`."""
        for entry in self.fresh:
            self.seen[entry[1]] = entry
            if entry[0] <= self._largest:
                insort(self._shelves[_modality(entry[2])], entry)
        self.fresh.clear()
        return self._shelves[_modality(sample)]

    def remove(self, shelf: _Shelf, entry: _Entry) -> None:
        """Take out a candidate."""
        del shelf[bisect_left(shelf, entry)]
        del self.seen[entry[1]]


def _modality(sample: dict[str, Any]) -> str:
    if "pixel_values" in sample:
        return "image"
    return "video" if "pixel_values_videos" in sample else "text"


def _at_least(name: str, value: int, least: int, remedy: str) -> None:
    if value is None or value < least:
        raise ValueError(f"{name} must be at least {least}, but it is {value}. {remedy}")


def _qualified_name(function: Callable[..., Any] | None) -> str | None:
    if function is None:
        return None
    return getattr(function, "__qualname__", type(function).__qualname__)
