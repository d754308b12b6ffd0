"""torch's CPU permutation and Python's sample, by which upstream orders and splits episodes.

`torch.randperm(n, generator=manual_seed(s))` is Fisher-Yates from the front over the 32-bit
outputs of MT19937, each taken modulo what is left; numpy's legacy seeding gives the same
stream, so no torch is needed (contracts, section 4; the tests compare it with torch's own).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["sampled_fraction", "torch_permutation"]

_MOST = (2**32 - 1) // 20  # beyond this, torch draws 64 bits for each place


def torch_permutation(count: int, seed: int) -> NDArray[np.int64]:
    """int64 [count]: the numbers 0 to count - 1 in the order of torch's `randperm` on the CPU.

    Raises ValueError for a count that torch would permute by another rule.
    """
    import numpy as np

    if not 0 <= count < _MOST:
        raise ValueError(f"a permutation of {count} is not torch's 32-bit one")
    order = list(range(count))
    stream = np.random.RandomState(seed & 0xFFFFFFFF)
    drawn = stream.randint(0, 2**32, size=max(count - 1, 0), dtype=np.uint32)
    places = (drawn % np.arange(count, 1, -1, dtype=np.uint32)).tolist()
    for here, offset in enumerate(places):
        there = here + offset
        order[here], order[there] = order[there], order[here]
    return np.array(order, dtype=np.int64)


def sampled_fraction(episodes: Sequence[int], fraction: float, seed: int) -> set[int]:
    """The episodes that LIBERO's split holds out: at least one, drawn by Python's own generator."""
    if not episodes:
        return set()
    return set(random.Random(seed).sample(list(episodes), max(1, round(len(episodes) * fraction))))
