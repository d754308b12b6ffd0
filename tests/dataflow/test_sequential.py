"""Sequential packing against the literal algorithm of the contract and upstream's batches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain, count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.dataflow.sequential import SequentialPackingBatcher
from tests.dataflow.packing_streams import (
    Sample,
    Source,
    blank,
    check_every_resume,
    check_nothing_is_held,
    digest,
    indices,
    media_stream,
)

# sha256 of the batches' index lists that upstream's batcher gave at commit 5eee9ed, for
# media_stream(2000, seed, tensor=torch.zeros) with these parameters; made by hand.
UPSTREAM: list[tuple[int, dict[str, Any], str]] = [
    (0, {"max_sequence_length": 45056}, "54ef976e4000b9ab190524a603005f03c0ddcf04a45a6548ba9c4fa2fb2ec47d"),
    (
        1,
        {"max_sequence_length": 3000, "sound_latent_fps": 25},
        "90fe8a32ec204cd8a730d7ff969379fda616fd55311916813a95b1aaa3d1fb51",
    ),
    (
        2,
        {"max_sequence_length": 900, "lookahead_limit": 3},
        "dd4aa781ad45425cb4c6e75424fe7082fde7727d923425c7eb9cade8d6392495",
    ),
    (
        3,
        {"max_sequence_length": 6000, "lookahead_limit": 0},
        "f84aa10ab4d5cca43c32062aadfcbeb5c294f31879a4e3bc06b67322101ecd5c",
    ),
    (
        4,
        {"max_sequence_length": 6000, "tokenizer_spatial_compression_factor": 8, "patch_spatial": 3},
        "5dddb71f0e980fc4ec74d5d8358489a65534ed8744fae233c7dc3f4a446aa99a",
    ),
    (
        5,
        {"max_sequence_length": 6000, "tokenizer_temporal_compression_factor": 8},
        "bc421053280c5a881b8099f6115901590e99c05014541a5c53ed17a3924bae73",
    ),
    (
        6,
        {"max_sequence_length": 6000, "sound_latent_fps": 12.5, "audio_sample_rate": 16000},
        "54d8a5caa0e5839af695d06b8e5acde311b59d4f4a050c596a1286dfb8ac1fd1",
    ),
    (7, {"max_samples_per_batch": 6}, "d604726c5ed235e093b27de61da3fbc0adbe96473798bc4f0662bdbd6b088b78"),
]
# sha256 of the sizes of media_stream(2000, 9) with sound_latent_fps=25, as JSON.
UPSTREAM_SIZES = "be37e55bc44e89fbefebc855bad10e46b621c937e098bc88cd57c64405eeaebb"


class Given(SequentialPackingBatcher):
    """Takes a sample's size as it is told, so that budgets can be met to the token."""

    def sample_size(self, sample: Sample) -> int:
        size: int = sample["size"]
        return size


def told(sizes: list[int]) -> list[Sample]:
    return [{"index": index, "size": size} for index, size in enumerate(sizes)]


def literal_packing(sizes: list[int], budget: int, limit: int) -> tuple[list[list[int]], list[int]]:
    """Contracts, section 7, word by word: the batches, and what is discarded."""
    waiting, batches, discarded = list(range(len(sizes))), [], []
    while waiting:
        batch: list[int] = []
        passed: list[int] = []
        while waiting and not (batch and len(passed) >= limit):
            first = waiting.pop(0)
            if sum(sizes[each] for each in batch) + sizes[first] < budget:
                batch.append(first)
            elif batch:
                passed.append(first)
            else:
                discarded.append(first)
        waiting = passed + waiting
        if batch:
            batches.append(batch)
    return batches, discarded


sizes_of_streams = st.lists(st.integers(0, 14), max_size=40)
budgets = st.integers(1, 16)
limits = st.integers(0, 4)


@given(sizes_of_streams, budgets, limits)
def test_it_follows_the_literal_algorithm(sizes: list[int], budget: int, limit: int) -> None:
    batcher, discarded = Given(budget, lookahead_limit=limit), []
    batcher._on_discard = lambda sample, reason: discarded.append((sample["index"], reason))
    got = indices(batcher, told(sizes))
    batches, oversized = literal_packing(sizes, budget, limit)
    assert got == batches
    assert discarded == [(index, "oversized") for index in oversized]


@given(sizes_of_streams, budgets, limits)
def test_nothing_is_lost_and_the_budget_is_kept(sizes: list[int], budget: int, limit: int) -> None:
    batches = indices(Given(budget, lookahead_limit=limit), told(sizes))
    fitting = [index for index, size in enumerate(sizes) if size < budget]
    assert sorted(chain.from_iterable(batches)) == fitting
    for batch in batches:
        assert batch == sorted(batch)
        assert sum(sizes[index] for index in batch) < budget


@given(sizes_of_streams, budgets, limits)
def test_it_resumes_after_every_batch(sizes: list[int], budget: int, limit: int) -> None:
    check_every_resume(lambda: Given(budget, lookahead_limit=limit), told(sizes))


@given(st.integers(0, 20), st.integers(1, 6))
def test_counting_resumes_after_every_batch(samples: int, most: int) -> None:
    check_every_resume(lambda: Given(max_samples_per_batch=most), told([1] * samples))


@given(sizes_of_streams, budgets, limits)
def test_those_that_wait_are_within_the_limit(sizes: list[int], budget: int, limit: int) -> None:
    source, seen = Source(told(sizes)), set[int]()
    batcher = Given(budget, lookahead_limit=limit)
    batcher._on_discard = lambda sample, reason: seen.add(sample["index"])
    for batch in batcher.batches(source):
        seen.update(sample["index"] for sample in batch)
        assert len(source.drawn) - len(seen) <= limit


@pytest.mark.parametrize(("seed", "options", "expected"), UPSTREAM)
def test_the_batches_are_upstreams(seed: int, options: dict[str, Any], expected: str) -> None:
    assert digest(indices(SequentialPackingBatcher(**options), media_stream(2000, seed))) == expected


def test_the_sizes_are_upstreams() -> None:
    batcher = SequentialPackingBatcher(1000, sound_latent_fps=25)
    assert digest([[batcher.sample_size(each) for each in media_stream(2000, 9)]]) == UPSTREAM_SIZES


@pytest.mark.parametrize(
    ("sample", "tokens"),
    [
        ({"text_token_ids": [5, 6, 7], "images": blank(3, 64, 96)}, 3 + 1 + 2 * 3 + 2),
        ({"text_token_ids": blank(4), "video": blank(3, 1, 64, 64)}, 4 + 1 + 4 + 2),
        ({"text_token_ids": blank(1, 9), "video": blank(3, 5, 95, 64)}, 9 + 1 + 2 * 2 * 2 + 2),
        ({"text_token_ids": [], "images": [blank(3, 32, 32)] * 3}, 0 + 1 + 3 * (1 + 2)),
        ({"text_token_ids": [blank(7), blank(9)], "video": [blank(3, 4, 32, 32)]}, 7 + 1 + 1 + 2),
        ({"text_token_ids": [0], "video": blank(3, 1, 8, 8), "action": blank(16, 7)}, 1 + 1 + 2 + 16),
        ({"text_token_ids": [0], "video": blank(3, 1, 8, 8), "action": [None, blank(5, 7)]}, 1 + 1 + 2 + 5),
        ({"text_token_ids": [0], "images": blank(3, 8, 8), "video": blank(3, 9, 640, 640)}, 1 + 1 + 2),
        ({"text_token_ids": [0], "images": blank(3, 8, 8), "sound": blank(2, 96000)}, 1 + 1 + 2 + 50),
        ({"text_token_ids": [0], "images": blank(3, 8, 8), "sound": [[blank(1, 47999)]]}, 1 + 1 + 2 + 24),
        ({"text_token_ids": [0], "images": blank(3, 8, 8), "sound": [None]}, 1 + 1 + 2),
    ],
)
def test_what_a_sample_costs(sample: Sample, tokens: int) -> None:
    assert SequentialPackingBatcher(1000, sound_latent_fps=25).sample_size(sample) == tokens


def test_sound_costs_nothing_unless_asked() -> None:
    sample = {"text_token_ids": [0], "images": blank(3, 8, 8), "sound": blank(2, 96000)}
    assert SequentialPackingBatcher(1000).sample_size(sample) == 4


def test_every_sample_is_sized_once() -> None:
    sized: list[int] = []

    class Counted(Given):
        def sample_size(self, sample: Sample) -> int:
            sized.append(sample["index"])
            return super().sample_size(sample)

    indices(Counted(16), told([9, 8, 3, 8, 1, 20, 7] * 20))
    assert sized == list(range(140))


def test_a_count_needs_no_sizes_and_draws_no_more_than_a_batch() -> None:
    source = Source({"index": index} for index in count())
    batcher = SequentialPackingBatcher(max_samples_per_batch=3)
    batches = batcher.batches(source)
    for done in range(1, 4):
        assert [sample["index"] for sample in next(batches)] == [3 * done - 3, 3 * done - 2, 3 * done - 1]
        assert len(source.drawn) == 3 * done
    assert batcher.draws_exactly
    assert batcher.load([{}]) is None


def test_batches_are_lists_of_the_very_samples() -> None:
    samples = told([5, 9, 5, 2])
    batches = list(Given(12).batches(iter(samples)))
    assert all(type(batch) is list for batch in batches)
    assert [[id(each) for each in batch] for batch in batches] == [
        [id(samples[0]), id(samples[2])],
        [id(samples[1]), id(samples[3])],
    ]
    assert not Given(12).draws_exactly


@pytest.mark.parametrize(
    "batcher",
    [Given(3), Given(3, lookahead_limit=0), Given(max_samples_per_batch=2)],
    ids=["budget", "no lookahead", "count"],
)
def test_a_delivered_batch_is_not_held(batcher: Given) -> None:
    check_nothing_is_held(batcher, lambda index: {"index": index, "size": 1 + index % 2})


def test_the_load_is_tokens_and_the_budget() -> None:
    assert Given(12).load(told([5, 2])) == (7, 12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ("max_sequence_length", "max_samples_per_batch", "None and None")),
        ({"max_sequence_length": 5, "max_samples_per_batch": 2}, ("Exactly one", "5 and 2")),
        ({"max_sequence_length": 0}, ("max_sequence_length", "0", "1")),
        ({"max_samples_per_batch": 0}, ("max_samples_per_batch", "0", "1")),
        ({"max_sequence_length": 9, "lookahead_limit": -1}, ("lookahead_limit", "-1", "0")),
        ({"max_sequence_length": 9, "patch_spatial": 0}, ("patch_spatial", "0", "1")),
        ({"max_sequence_length": 9, "audio_sample_rate": 0}, ("audio_sample_rate", "0", "1")),
    ],
)
def test_wrong_parameters_are_named(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"\.$") as caught:
        SequentialPackingBatcher(**options)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("sample", "error", "words"),
    [
        (
            {"text_token_ids": [1], "caption": ""},
            KeyError,
            "neither 'images' nor 'video'.*caption, text_token",
        ),
        ({"video": blank(3, 1, 8, 8)}, KeyError, "no 'text_token_ids'.* video"),
        ({"text_token_ids": [1], "video": blank(3, 8, 8)}, ValueError, r"'video'.*frame.*\[3, 8, 8\]"),
        ({"text_token_ids": [1], "images": None}, ValueError, "'images'.*height.*NoneType"),
    ],
)
def test_a_sample_that_cannot_be_sized_is_told(sample: Sample, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        list(SequentialPackingBatcher(1000).batches(iter([sample])))
    assert re.search(words, str(caught.value))


def test_fingerprints_tell_every_parameter_and_are_plain_json() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"max_sequence_length": 8},
        {"max_sequence_length": None, "max_samples_per_batch": 9},
        {"tokenizer_spatial_compression_factor": 8},
        {"tokenizer_temporal_compression_factor": 8},
        {"patch_spatial": 1},
        {"lookahead_limit": 9},
        {"sound_latent_fps": 25},
        {"audio_sample_rate": 16000},
    ]
    make: Callable[..., SequentialPackingBatcher] = SequentialPackingBatcher
    prints = [make(**({"max_sequence_length": 9} | change)).fingerprint() for change in changes]
    assert len({json.dumps(dict(each), sort_keys=True) for each in prints}) == len(changes)
