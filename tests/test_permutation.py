"""The permutation is torch's own, and the held-out episodes are those that Python's generator draws."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.permutation import sampled_fraction, torch_permutation

# sha256 over the int64 little-endian bytes of what torch 2.14.1 gave:
# for every count from 0 to 2,000 with seed 42, and for the drawn counts and seeds below.
EVERY_COUNT = "253f4b261884aafce0bcb9d44302a2542bf2403c9bba0e0dfd0010b9820203e1"
DRAWN_COUNTS = "bdf5e26ad518b748421cfaef00b88e3bfa3454c50fc857007264f4806efdfae9"
# The first eight of torch's permutation of 50, by seed: only the lowest 32 bits of a seed count.
FIRST_OF_FIFTY = {
    0: [44, 39, 7, 6, 17, 29, 21, 37],
    -1: [21, 20, 46, 7, 12, 15, 40, 38],
    -5: [30, 48, 29, 1, 15, 46, 7, 3],
    2**32: [44, 39, 7, 6, 17, 29, 21, 37],
    2**32 + 42: [42, 17, 30, 34, 20, 25, 0, 8],
    2**63 - 1: [21, 20, 46, 7, 12, 15, 40, 38],
}


def drawn_cases() -> list[tuple[int, int]]:
    """200 counts up to 200,000, each with a seed; every second seed is upstream's own."""
    stream = np.random.RandomState(7)
    counts = 2001 + stream.randint(0, 446, size=199) * stream.randint(0, 444, size=199)
    seeds = [42 if at % 2 else at * 2654435761 for at in range(200)]
    return list(zip([*counts.tolist(), 200_000], seeds, strict=True))


def digest(cases: Iterable[tuple[int, int]]) -> str:
    running = hashlib.sha256()
    for count, seed in cases:
        running.update(torch_permutation(count, seed).astype("<i8").tobytes())
    return running.hexdigest()


def test_every_count_up_to_2000_is_permuted_as_torch_permuted_it() -> None:
    assert digest((count, 42) for count in range(2001)) == EVERY_COUNT


def test_200_drawn_counts_are_permuted_as_torch_permuted_them() -> None:
    assert digest(drawn_cases()) == DRAWN_COUNTS


@pytest.mark.parametrize("seed", FIRST_OF_FIFTY)
def test_seeds_are_taken_as_torch_takes_them(seed: int) -> None:
    assert torch_permutation(50, seed)[:8].tolist() == FIRST_OF_FIFTY[seed]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 5000), st.integers(-(2**63), 2**63 - 1))
def test_torch_that_is_installed_agrees(count: int, seed: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; its digests stand in for it")
    expected = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    assert torch_permutation(count, seed).tolist() == expected


@pytest.mark.parametrize("count", [-1, 2**32 // 20])
def test_count_that_torch_permutes_by_another_rule_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"a permutation of {count} is not"):
        torch_permutation(count, 42)


def test_permutation_of_nothing_and_of_one() -> None:
    assert (torch_permutation(0, 1).tolist(), torch_permutation(1, 1).tolist()) == ([], [0])
    assert torch_permutation(0, 1).dtype == np.int64


@pytest.mark.parametrize(("count", "held_out"), [(1, 1), (49, 1), (100, 1), (150, 2), (250, 2), (251, 3)])
def test_held_out_share_is_at_least_one_and_rounds_halves_to_even(count: int, held_out: int) -> None:
    assert len(sampled_fraction(range(count), 0.01, 0)) == held_out


def test_held_out_episodes_are_pythons_own_sample() -> None:
    numbers = list(range(0, 3000, 7))
    assert sampled_fraction(numbers, 0.01, 0) == set(random.Random(0).sample(numbers, 4))
    assert sampled_fraction(range(379), 0.01, 0) == {197, 215, 20, 132}
    assert sampled_fraction([], 0.01, 0) == set()
