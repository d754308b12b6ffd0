"""The filter: refusals are one clear sentence, oddities are counted, every spelling of the keys is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.errors import PrepError, UsageError
from prep.keep_ranges import UPSTREAM_PREFIX, KeepRanges, RangeCensus, load_keep_ranges, upstream_key
from prep.windows import Episodes
from tests.window_trees import Ranges, draw_droid, write_filter

EXAMPLE = "Lab1/success/2023-07-01/Fri_000001"
OTHER = "Lab2/success/2023-07-02/Fri_000002"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("filters") / "keep_ranges.json"


def key(episode_id: str, prefix: str = UPSTREAM_PREFIX) -> str:
    return f"{prefix}/{episode_id}/recordings/MP4--{prefix}/{episode_id}/trajectory.h5"


def loaded(path: Path, document: Any, *, example: str = EXAMPLE, prefix: str | None = None) -> KeepRanges:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(text)
    return load_keep_ranges(path, example_id=example, prefix=prefix)


def refusal(path: Path, document: Any, **options: Any) -> PrepError:
    with pytest.raises(PrepError) as caught:
        loaded(path, document, **options)
    assert caught.value.exit_status == 1
    assert "\n" not in str(caught.value)
    assert caught.value.message.startswith(f"{path}: ")
    assert caught.value.remedy
    return caught.value


def as_dict(ranges: KeepRanges) -> Ranges:
    """The filter as it was read, in its order."""
    pairs = np.stack([ranges.starts, ranges.ends], axis=1).tolist()
    offsets = ranges.offsets.tolist()
    return {name: pairs[offsets[at] : offsets[at + 1]] for at, name in enumerate(ranges.ids.to_pylist())}


def episodes(lengths: dict[str, int]) -> Episodes:
    counts = np.array(list(lengths.values()), dtype=np.int64)
    return Episodes(np.arange(len(counts)), counts, np.cumsum(counts) - counts, pa.array(list(lengths)))


# Refusals.


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([["a", [[0, 1]]]], "holds a list; expected an object"),
        ("text", "holds a str; expected an object"),
        (None, "holds a NoneType; expected an object"),
        (b'{"a": [[0, 1], [2', "not valid JSON, or cut short"),
        (b"", "not valid JSON, or cut short"),
        (b'{"a\xff": [[0, 1]]}', "not valid JSON, or cut short"),
        ({}, "names no episode"),
        ({"a": {"start": 0, "end": 1}}, "a: {'end': 1, 'start': 0} is not a list of [start, end]"),
        ({"a": None}, "a: None is not a list of [start, end]"),
        ({"a": [0, 10]}, "a: 0 is not a pair of whole numbers"),
        ({"a": [[0, 10], [1]]}, "a: [1] is not a pair of whole numbers"),
        ({"a": [[0, 10, 20]]}, "a: [0, 10, 20] is not a pair of whole numbers"),
        ({"a": [[0, 10.0]]}, "a: [0, 10.0] is not a pair of whole numbers"),
        ({"a": [[True, 10]]}, "a: [True, 10] is not a pair of whole numbers"),
        ({"a": [["0", "10"]]}, "a: ['0', '10'] is not a pair of whole numbers"),
        ({"a": [[0, None]]}, "a: [0, None] is not a pair of whole numbers"),
        ({"a": [None]}, "a: None is not a pair of whole numbers"),
        ({"a": [[[0], [1]]]}, "a: [[0], [1]] is not a pair of whole numbers"),
        ({"a": [[0, 2**63]]}, "9223372036854775808 is no frame number"),
        ({"a": [[0, 2**70]]}, "is not a pair of whole numbers"),
        ({"a": [[0, 9]], "b": [[0, 5], [9, 3]]}, "b: the range [9, 3] ends before it starts"),
    ],
)
def test_file_of_another_form_is_refused(scratch: Path, document: Any, words: str) -> None:
    assert words in refusal(scratch, document).message


def test_long_wrong_value_is_cut_in_the_message(scratch: Path) -> None:
    assert len(refusal(scratch, {"a": [list(range(10_000))]}).message) < 300


def test_end_before_start_names_the_episode_and_not_the_whole_key(scratch: Path) -> None:
    message = refusal(scratch, {key(EXAMPLE): [[0, 4]], key(OTHER): [[7, 6]]}).message
    assert message == f"{scratch}: {OTHER}: the range [7, 6] ends before it starts."


def test_file_that_is_not_there_or_is_a_folder_is_a_wrong_argument(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.json", "no filter file"), (tmp_path, "directory")):
        with pytest.raises(UsageError, match=words):
            load_keep_ranges(path, example_id=EXAMPLE)


def test_full_and_bare_keys_in_one_file_are_refused(scratch: Path) -> None:
    message = refusal(scratch, {key(EXAMPLE): [[0, 4]], OTHER: [[0, 4]]}).message
    assert key(EXAMPLE) in message
    assert message.endswith(f"bare ids ({OTHER}).")


@pytest.mark.parametrize(
    ("second", "prefix"),
    [
        (key(OTHER, "gs://elsewhere"), None),
        (key(OTHER).replace("/MP4--", "/MP4--x"), None),
        (key(OTHER).replace(".h5", ".hdf5"), None),
        (key(OTHER), "gs://elsewhere"),
        (key(OTHER), ""),
    ],
)
def test_wrong_prefix_shows_a_key_and_an_episode_id(scratch: Path, second: str, prefix: str | None) -> None:
    error = refusal(scratch, {key(EXAMPLE): [[0, 4]], second: [[0, 4]]}, prefix=prefix)
    assert (key(EXAMPLE) if prefix is not None else second) in error.message
    assert f"(an episode of the dataset: {EXAMPLE})" in error.message
    assert "--source-prefix or DROID_FILTER_SOURCE_PREFIX" in error.remedy


def test_full_key_without_any_prefix_is_refused(scratch: Path) -> None:
    bare = f"{EXAMPLE}/recordings/MP4--{EXAMPLE}/trajectory.h5"
    assert bare in refusal(scratch, {bare: [[0, 4]]}).message


# Keys.


@pytest.mark.parametrize("prefix", [UPSTREAM_PREFIX, "/data", "s3://a/b/c/d/e", "x", "gs://ends/", ""])
def test_prefix_is_taken_from_the_keys(scratch: Path, prefix: str) -> None:
    ranges = loaded(scratch, {key(EXAMPLE, prefix): [[0, 4]], key(OTHER, prefix): [[1, 2]]})
    assert (ranges.prefix, ranges.ids.to_pylist()) == (prefix, [EXAMPLE, OTHER])


@pytest.mark.parametrize("example", ["one", "two/parts", "a/b/c/d/e/f"])
def test_prefix_ends_where_an_id_of_this_dataset_begins(scratch: Path, example: str) -> None:
    ranges = loaded(scratch, {key(example): [[0, 4]]}, example=example)
    assert (ranges.prefix, ranges.ids.to_pylist()) == (UPSTREAM_PREFIX, [example])


@pytest.mark.parametrize("prefix", ["gs://mine/and/deep", "gs://mine/and/deep/", "gs://mine/and/deep//"])
def test_named_prefix_may_end_in_slashes(scratch: Path, prefix: str) -> None:
    ids = ["short", "an/id/of/five/parts"]  # what no example could tell apart
    document = {key(name, "gs://mine/and/deep"): [[0, 4]] for name in ids}
    assert loaded(scratch, document, prefix=prefix).ids.to_pylist() == ids


def test_bare_keys_need_no_prefix(scratch: Path) -> None:
    for prefix in (None, "gs://anything"):
        ranges = loaded(scratch, {EXAMPLE: [[0, 4]], OTHER: []}, prefix=prefix)
        assert (ranges.prefix, as_dict(ranges)) == (None, {EXAMPLE: [[0, 4]], OTHER: []})


@pytest.mark.parametrize("prefix", [None, UPSTREAM_PREFIX, "gs://other/place"])
def test_rekeyed_is_the_file_that_upstream_reads(scratch: Path, prefix: str | None) -> None:
    _, wanted = draw_droid(1, 40, 10)
    document = {name if prefix is None else key(name, prefix): pairs for name, pairs in wanted.items()}
    text = b"".join(loaded(scratch, document).rekeyed())
    assert list(json.loads(text).items()) == [(upstream_key(name), pairs) for name, pairs in wanted.items()]
    again = loaded(scratch, text)
    assert (as_dict(again), again.prefix) == (wanted, UPSTREAM_PREFIX)


# Matching.


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary("int32", "string")]
)
def test_match_gives_each_episodes_entry(scratch: Path, kind: pa.DataType) -> None:
    ranges = loaded(scratch, {OTHER: [[0, 4]], "unknown": [[0, 4]], EXAMPLE: [[0, 4]]})
    ids = pa.array([EXAMPLE, None, "absent", OTHER, EXAMPLE], pa.string()).cast(kind)
    zeros = np.zeros(5, np.int64)
    assert ranges.match(Episodes(zeros, zeros, zeros, ids)).tolist() == [2, -1, -1, 0, 2]


def test_numbers_as_ids_match_their_text_as_upstream_prints_them(scratch: Path) -> None:
    zeros = np.zeros(2, np.int64)
    ranges = loaded(scratch, {"7": [[0, 4]]}, example="7")
    assert ranges.match(Episodes(zeros, zeros, zeros, pa.array([8, 7]))).tolist() == [-1, 0]


@pytest.mark.parametrize("ids", [None, pa.array([["a"]])])
def test_tree_without_usable_ids_is_refused(scratch: Path, ids: pa.Array | None) -> None:
    zeros = np.zeros(1, np.int64)
    with pytest.raises(PrepError, match="column episode_id") as caught:
        loaded(scratch, {EXAMPLE: [[0, 4]]}).match(Episodes(zeros, zeros, zeros, ids))
    assert caught.value.exit_status == 1


def test_spread_follows_the_order_and_the_file(scratch: Path) -> None:
    ranges = loaded(scratch, {"a": [[5, 9], [0, 3]], "b": [], "c": [[1, 2]], "unknown": [[0, 1]]})
    tree = episodes({"a": 10, "b": 10, "absent": 10, "c": 10})
    place, start, end = ranges.spread(tree, np.array([3, 1, 2, 0]))
    assert [place.tolist(), start.tolist(), end.tolist()] == [[3, 0, 0], [1, 5, 0], [2, 9, 3]]


# Oddities.


@pytest.mark.parametrize(
    ("pairs", "counted"),
    [
        ([[0, 10]], {}),
        ([[0, 4], [4, 10]], {}),
        ([[-1, 4]], {"negative_starts": 1}),
        ([[-9, -4], [-3, 2]], {"negative_starts": 2}),
        ([[0, 11]], {"past_the_end": 1}),
        ([[0, 2**63 - 1]], {"past_the_end": 1}),
        ([[3, 3], [10, 10]], {"empty": 2}),
        ([[5, 9], [0, 3]], {"unsorted": 1}),
        ([[5, 9], [0, 3], [1, 2], [0, 0]], {"unsorted": 2, "empty": 1, "overlapping": 1}),
        ([[0, 5], [4, 9]], {"overlapping": 1}),
        ([[4, 9], [4, 9]], {"overlapping": 1}),
        ([[0, 9], [2, 3], [5, 6]], {"overlapping": 1}),
        ([[0, 9], [2, 2]], {"empty": 1}),
        ([[5, 20], [10, 20]], {"past_the_end": 2}),  # they meet beyond the episode only
        ([], {}),
    ],
)
def test_oddities_of_an_episode_are_counted(
    scratch: Path, pairs: list[list[int]], counted: dict[str, int]
) -> None:
    tree = episodes({"before": 10, "odd": 10, "after": 10})
    ranges = loaded(scratch, {"odd": pairs, "before": [[0, 10]], "after": [[0, 10]], "unknown": [[-1, 99]]})
    none = dict.fromkeys(("negative_starts", "past_the_end", "empty", "unsorted", "overlapping"), 0)
    overlap = "odd" if "overlapping" in counted else None
    assert RangeCensus.of(ranges, tree) == RangeCensus(**none | counted, overlap=overlap)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 20),
            st.lists(st.tuples(st.integers(-10, 25), st.integers(0, 15)), max_size=5),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_overlap_is_a_frame_that_two_ranges_hold(
    scratch: Path, drawn: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    lengths = {str(at): length for at, (length, _) in enumerate(drawn)}
    pairs = {str(at): [[start, start + size] for start, size in some] for at, (_, some) in enumerate(drawn)}
    twice = [
        name
        for name, length in lengths.items()
        if any(sum(start <= frame < end for start, end in pairs[name]) > 1 for frame in range(length))
    ]
    census = RangeCensus.of(loaded(scratch, pairs, example="0"), episodes(lengths))
    assert (census.overlapping, census.overlap) == (len(twice), twice[0] if twice else None)


def test_oddities_of_a_large_tree_are_counted(scratch: Path) -> None:
    roots, wanted = draw_droid(3, 300, 60)
    ranges = load_keep_ranges(write_filter(scratch, wanted), example_id=roots["success"].ids[0])
    lengths = dict(zip(roots["success"].ids, roots["success"].lengths.tolist(), strict=True))
    matched = [(lengths[name], pairs) for name, pairs in wanted.items() if name in lengths]
    flat = [(length, start, end) for length, pairs in matched for start, end in pairs]
    census = RangeCensus.of(ranges, episodes(lengths))
    assert census.negative_starts == sum(start < 0 for _, start, _ in flat) > 0
    assert census.past_the_end == sum(end > length for length, _, end in flat) > 0
    assert census.empty == sum(start == end for _, start, end in flat) > 0
    assert census.unsorted > 0
    assert census.overlapping > 0
