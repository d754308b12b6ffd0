"""Fixed-size batches, and the pool against the literal algorithm of the contract and upstream's batches."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import chain, count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prep.dataflow.base import SampleBatcher
from prep.dataflow.batchers import PoolPackingBatcher, SimpleBatcher
from prep.dataflow.processors import IdentityProcessor
from tests.dataflow.packing_streams import (
    Sample,
    Source,
    check_every_resume,
    check_nothing_is_held,
    digest,
    indices,
    pool_stream,
    text_sample,
)

# sha256 of the batches' index lists that upstream's batcher gave at commit 5eee9ed, for
# pool_stream(3000, seed) with these parameters; made by hand.
UPSTREAM: list[tuple[int, dict[str, Any], str]] = [
    (0, {"max_tokens": 16000}, "b9b33235397c427b13c67ff1ecc3c87ba9c3dcbce79a97c369d18e7a7de35975"),
    (
        1,
        {"max_tokens": 16000, "max_batch_size": 0},
        "c31e35018557f248c082ac33d2171483ba2a11edf1233eafbd8d7920a1f05cae",
    ),
    (
        2,
        {"max_tokens": 8000, "max_batch_size": 0, "pool_size": 512},
        "76a6d4d6693a15a42d93dfb8329a17fe5e38837fd7b95cba322fadc20a635647",
    ),
    (
        3,
        {"max_tokens": 8000, "max_batch_size": 6, "pool_size": 512},
        "07957ceb9b846f0c82a0222d33fa20f36624a5ccfbd02e651f2a2120da035201",
    ),
    (
        4,
        {"max_tokens": 8000, "max_batch_size": 0, "batching_strategy": "prefer_first"},
        "21099e2b531a3921851c851baf1faa4717ab9d733d4769b0d4bb605c90428587",
    ),
    (
        5,
        {"max_tokens": 9000, "max_batch_size": 0, "batching_strategy": "prefer_first", "pool_size": 512},
        "5593e98e8da71dc7be47429fcacdd73a9f8a9f5bd22acd0a90358179a0f431c3",
    ),
    (
        6,
        {"max_tokens": 5000, "max_batch_size": 0, "apply_long_sample_halving": False},
        "ab5d7bedb2d24d08b8a71ec1fbd8bd80716775f71fb2b2fa0a2f298b8513a1f2",
    ),
    (
        7,
        {"max_tokens": 12000, "max_batch_size": 0, "long_threshold": 1500, "pool_size": 64},
        "14321499ab18baf26e5c01b0cedb86a107fcb599b195167b40c8d204abd8fd08",
    ),
]


def literal_pool(
    sizes: list[int],
    kinds: list[int],
    max_tokens: int,
    pool_size: int,
    max_batch_size: int,
    long_threshold: int,
    batching_strategy: str,
    apply_long_sample_halving: bool,
) -> list[list[int]]:
    """Contracts, section 7, word by word, with every candidate looked at each time."""

    def budget(longest: int) -> int:
        return max_tokens // 2 if apply_long_sample_halving and longest >= 1000 else max_tokens

    waiting = list(range(len(sizes)))
    batches = []
    while waiting:
        first = waiting[0]
        batch, longest = [first], sizes[first]
        alone = longest >= long_threshold or longest >= budget(longest)
        while not alone and (max_batch_size == 0 or len(batch) < max_batch_size):
            fitting = []
            pool = [each for each in waiting if each not in batch][: pool_size - len(batch)]
            for order, each in enumerate(pool):
                total = max(longest, sizes[each]) * (len(batch) + 1)
                if kinds[each] == kinds[first] and total <= budget(longest):
                    closeness = abs(sizes[each] - longest) if batching_strategy == "prefer_closest" else 0
                    fitting.append((total, closeness, order, each))
            if not fitting:
                break
            batch.append(min(fitting)[-1])
            longest = max(longest, sizes[batch[-1]])
        waiting = [each for each in waiting if each not in batch]
        batches.append(batch)
    return batches


def parameters() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "max_tokens": st.sampled_from([1, 7, 40, 1999, 2000, 2001, 4001, 9000]),
            "pool_size": st.sampled_from([1, 2, 3, 7, 16]),
            "max_batch_size": st.sampled_from([0, 1, 2, 5]),
            "long_threshold": st.sampled_from([0, 5, 999, 1000, 6400]),
            "batching_strategy": st.sampled_from(["prefer_first", "prefer_closest"]),
            "apply_long_sample_halving": st.booleans(),
        }
    )


def specifications() -> st.SearchStrategy[list[tuple[int, int]]]:
    sizes = st.one_of(st.integers(0, 12), st.integers(990, 1010), st.integers(0, 5000))
    return st.lists(st.tuples(sizes, st.integers(0, 2)), max_size=40)


def made(specification: list[tuple[int, int]]) -> list[Sample]:
    return [text_sample(index, size, kind) for index, (size, kind) in enumerate(specification)]


@given(specifications(), parameters())
@example(
    [(1000, 0)] + [(1000, 0)] * 5,
    {
        "max_tokens": 4001,
        "pool_size": 16,
        "max_batch_size": 0,
        "long_threshold": 6400,
        "batching_strategy": "prefer_closest",
        "apply_long_sample_halving": True,
    },
)
def test_the_pool_follows_the_literal_algorithm(
    specification: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    sizes, kinds = [size for size, _ in specification], [kind for _, kind in specification]
    got = indices(PoolPackingBatcher(**options), made(specification))
    assert got == literal_pool(sizes, kinds, **options)


@given(specifications(), parameters())
def test_the_pool_loses_nothing_and_keeps_to_the_budget(
    specification: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    batches = indices(PoolPackingBatcher(**options), made(specification))
    assert sorted(chain.from_iterable(batches)) == list(range(len(specification)))
    for batch in batches:
        sizes = [specification[index][0] for index in batch]
        assert len({specification[index][1] for index in batch}) == 1
        assert len(batch) == 1 or max(sizes) * len(sizes) <= options["max_tokens"]
        assert len(batch) <= (options["max_batch_size"] or len(batch))


@given(specifications(), parameters())
def test_the_pool_resumes_after_every_batch(
    specification: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    check_every_resume(lambda: PoolPackingBatcher(**options), made(specification))


@given(st.integers(0, 20), st.integers(1, 6), st.booleans())
def test_fixed_batches_resume_after_every_batch(samples: int, size: int, drop_last: bool) -> None:
    check_every_resume(lambda: SimpleBatcher(size, drop_last), made([(1, 0)] * samples))


@pytest.mark.parametrize(("seed", "options", "expected"), UPSTREAM)
def test_the_batches_are_upstreams(seed: int, options: dict[str, Any], expected: str) -> None:
    assert digest(indices(PoolPackingBatcher(**options), pool_stream(3000, seed))) == expected


def test_equal_sizes_are_taken_in_drawing_order() -> None:
    samples = made([(10, 0), (4, 0), (8, 0), (8, 0), (12, 0), (12, 0), (8, 1)])
    closest = PoolPackingBatcher(72, max_batch_size=0)
    first = PoolPackingBatcher(72, max_batch_size=0, batching_strategy="prefer_first")
    assert indices(closest, samples) == [[0, 2, 3, 1, 4, 5], [6]]
    assert indices(first, samples) == [[0, 1, 2, 3, 4, 5], [6]]


def test_the_budget_looks_at_the_longest_already_chosen() -> None:
    # 999 tokens have the whole budget, so 1,400 more fit beside them; then half of it is exceeded.
    samples = made([(999, 0), (1400, 0), (1400, 0)])
    assert indices(PoolPackingBatcher(2800, max_batch_size=0), samples) == [[0, 1], [2]]


def test_every_sample_is_sized_once_and_given_as_it_is() -> None:
    sized: list[int] = []

    def size(sample: Sample) -> int:
        sized.append(sample["index"])
        return len(sample["input_ids"])

    samples = pool_stream(300, 3)
    batches = list(PoolPackingBatcher(9000, 64, 0, size_fn=size).batches(iter(samples)))
    assert sized == list(range(300))
    assert all(type(batch) is list for batch in batches)
    assert {id(each) for batch in batches for each in batch} == {id(each) for each in samples}


def test_a_subclass_says_what_a_sample_costs() -> None:
    class Halves(PoolPackingBatcher):
        def sample_size(self, sample: Sample) -> int:
            return super().sample_size(sample) // 2

    assert indices(Halves(40, max_batch_size=0), made([(40, 0), (40, 0)])) == [[0, 1]]


@pytest.mark.parametrize(
    ("batcher", "ahead"),
    [
        (SimpleBatcher(4), 4),
        (PoolPackingBatcher(16000, pool_size=16), 1),
        (PoolPackingBatcher(40, pool_size=16, max_batch_size=0), 16),
    ],
)
def test_no_more_is_drawn_than_the_batch_needs(batcher: SampleBatcher, ahead: int) -> None:
    source = Source(text_sample(index, 10) for index in count())
    batches = batcher.batches(source)
    delivered = 0
    for _ in range(5):
        group = next(batches)
        assert len(source.drawn) == delivered + ahead
        delivered += len(group)


@pytest.mark.parametrize(
    ("batcher", "exact"),
    [
        (SimpleBatcher(4), True),
        (PoolPackingBatcher(16000), True),
        (PoolPackingBatcher(16000, max_batch_size=2), False),
        (type("Shuffled", (SimpleBatcher,), {"batches": lambda self, samples: iter(())})(4), False),
    ],
)
def test_who_keeps_samples_back_says_so(batcher: SampleBatcher, exact: bool) -> None:
    assert batcher.draws_exactly is exact


@pytest.mark.parametrize(
    "batcher",
    [
        SimpleBatcher(2),
        PoolPackingBatcher(900),
        PoolPackingBatcher(900, pool_size=3, max_batch_size=0),
        PoolPackingBatcher(1800, pool_size=3, max_batch_size=0),
    ],
    ids=["fixed", "of one", "alone", "pairs"],
)
def test_a_delivered_batch_is_not_held(batcher: SampleBatcher) -> None:
    check_nothing_is_held(batcher, lambda index: text_sample(index, 900))


def test_the_last_batch_is_smaller_or_discarded() -> None:
    samples = made([(1, 0)] * 5)
    discards: list[tuple[int, str]] = []
    assert indices(SimpleBatcher(2), samples) == [[0, 1], [2, 3], [4]]
    batcher = SimpleBatcher(3, drop_last=True)
    batcher._on_discard = lambda sample, reason: discards.append((sample["index"], reason))
    assert indices(batcher, samples) == [[0, 1, 2]]
    assert discards == [(3, "incomplete batch"), (4, "incomplete batch")]


def test_the_load_is_tokens_and_their_padded_cost() -> None:
    assert PoolPackingBatcher(100).load(made([(10, 0), (4, 0), (8, 0)])) == (22, 30)
    assert SimpleBatcher(3).load(made([(10, 0)])) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SimpleBatcher(0), ("batch_size", "0", "1")),
        (lambda: PoolPackingBatcher(0), ("max_tokens", "0", "1")),
        (lambda: PoolPackingBatcher(None), ("max_tokens", "None")),  # type: ignore[arg-type]
        (lambda: PoolPackingBatcher(9, pool_size=0), ("pool_size", "0", "1")),
        (lambda: PoolPackingBatcher(9, max_batch_size=-1), ("max_batch_size", "-1", "0")),
        (lambda: PoolPackingBatcher(9, long_threshold=-5), ("long_threshold", "-5", "0")),
        (
            lambda: PoolPackingBatcher(9, batching_strategy="best"),
            ("batching_strategy", "'best'", "'prefer_first'", "'prefer_closest'"),
        ),
    ],
)
def test_wrong_parameters_are_named(make: Callable[[], object], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"\.$") as caught:
        make()
    assert all(word in str(caught.value) for word in words)


def test_a_sample_without_ids_is_named_by_its_keys() -> None:
    batcher = PoolPackingBatcher(100, max_batch_size=0)
    with pytest.raises(KeyError, match=r"'input_ids'.*caption, pixel_values.*size_fn="):
        list(batcher.batches(iter([{"pixel_values": 0, "caption": "", "_own": 1}])))


def test_fingerprints_tell_every_parameter_and_are_plain_json() -> None:
    def cost(sample: Sample, factor: int = 1) -> int:
        return factor

    prints = [
        dict(each.fingerprint())
        for each in (
            SimpleBatcher(2),
            SimpleBatcher(3),
            SimpleBatcher(2, drop_last=True),
            PoolPackingBatcher(9),
            PoolPackingBatcher(8),
            PoolPackingBatcher(9, pool_size=8),
            PoolPackingBatcher(9, max_batch_size=2),
            PoolPackingBatcher(9, long_threshold=8),
            PoolPackingBatcher(9, batching_strategy="prefer_first"),
            PoolPackingBatcher(9, apply_long_sample_halving=False),
            PoolPackingBatcher(9, size_fn=cost),
            PoolPackingBatcher(9, size_fn=functools.partial(cost, factor=2)),
        )
    ]
    assert len({json.dumps(each, sort_keys=True) for each in prints}) == len(prints)
    assert prints[-2]["size_fn"].endswith("cost")
    unlimited = [PoolPackingBatcher(9, max_batch_size=value).fingerprint() for value in (0, None)]
    assert unlimited[0] == unlimited[1]


def test_the_identity_processor_gives_the_very_item() -> None:
    item = {"a": 1}
    assert IdentityProcessor().process(item) is item


def test_the_roles_import_no_torch_and_no_numpy() -> None:
    names = ("batchers", "sequential", "collators", "vlm", "processors")
    script = "import sys\n" + "".join(f"import prep.dataflow.{name}\n" for name in names)
    script += "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
