"""The window index against a literal reading of its contract, and against upstream's own records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.errors import UsageError
from prep.keep_ranges import KeepRanges, load_keep_ranges
from prep.layouts.lerobot import Root, frame_episodes
from prep.permutation import sampled_fraction, torch_permutation
from prep.windows import COLUMNS, Episodes, WindowIndex, join_spans, root_spans
from tests.window_trees import draw_droid, draw_libero, write_filter, write_frames, write_root

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

# What upstream's DROIDLeRobotDataset (cosmos-framework 5eee9ed, lerobot 0.4.4, torch 2.14.1; unmodified,
# constructed on the metadata alone) held for `draw_droid(3, 300, 60)`: windows, spans, and the first 16
# digits of `digest`, by split, chunk length, success only, filtered.
UPSTREAM_DROID = {
    ("full", 16, False, False): (65223, 344, "dfb3aa9d29859764"),
    ("full", 16, False, True): (33920, 363, "4191167271e4bb15"),
    ("full", 16, True, False): (54265, 287, "c48378df62868850"),
    ("full", 16, True, True): (27077, 297, "afc4b55a6b7ce7ef"),
    ("full", 32, False, False): (59826, 330, "db1a7706f1c8f0d6"),
    ("full", 32, False, True): (28715, 285, "7a219991d6db4e6e"),
    ("full", 32, True, False): (49754, 276, "888faca0cea692f8"),
    ("full", 32, True, True): (22865, 230, "6d09deb1b67c5bae"),
    ("train", 16, False, False): (63398, 334, "48d9f76b64b42c1d"),
    ("train", 16, False, True): (32531, 351, "b5a112f22df9a563"),
    ("train", 16, True, False): (52470, 279, "fd1300c08ea47cc2"),
    ("train", 16, True, True): (25703, 286, "8660c1a519240e05"),
    ("train", 32, False, False): (58144, 322, "2eebb81f0d2c4a94"),
    ("train", 32, False, True): (27513, 276, "18d1afa581fa674e"),
    ("train", 32, True, False): (48084, 269, "c2b1f48edb4b73b6"),
    ("train", 32, True, True): (21663, 221, "f0a413e294730bc9"),
    ("val", 16, False, False): (1825, 10, "68ebc5564af95727"),
    ("val", 16, False, True): (1389, 12, "b90e0ae21a301a71"),
    ("val", 16, True, False): (1795, 8, "db6f42bfd8a4cc22"),
    ("val", 16, True, True): (1374, 11, "7acc619ebbb8875c"),
    ("val", 32, False, False): (1682, 8, "7861606a4fab64a8"),
    ("val", 32, False, True): (1202, 9, "a306a93cd73799d1"),
    ("val", 32, True, False): (1670, 7, "8faf10c5807a9676"),
    ("val", 32, True, True): (1202, 9, "a306a93cd73799d1"),
}
# The same of its LIBEROLeRobotDataset for `draw_libero(4, 150)`, by split and chunk length. Its records of
# episodes without a window are left out.
UPSTREAM_LIBERO = {
    ("train", 16): (7161, 132, "a295ba7ccf62a383"),
    ("train", 32): (5154, 118, "5f92706cadc3cb4e"),
    ("val", 16): (57, 1, "e3c575ffc150a31d"),
    ("val", 32): (41, 1, "34552c14343b9ec8"),
    ("full", 16): (7218, 133, "dc06e365d1655312"),
    ("full", 32): (5195, 119, "6ea247f93cc34ea2"),
}


# A literal, slow reading of the contract: frame by frame.


@dataclass(frozen=True)
class DrawnTree:
    """Roots as lists of episodes (number, length, id), with the order of each root's positions."""

    roots: Sequence[Sequence[tuple[int, int, str]]]
    orders: Sequence[Sequence[int]]
    chunk: int
    ranges: Mapping[str, Sequence[tuple[int, int]]] | None

    def episodes(self, root: int) -> Episodes:
        numbers, lengths, ids = zip(*self.roots[root], strict=True)
        counts = np.array(lengths, np.int64)
        return Episodes(np.array(numbers, np.int64), counts, np.cumsum(counts) - counts, pa.array(ids))

    def keep(self) -> KeepRanges | None:
        if self.ranges is None:
            return None
        pairs = [pair for some in self.ranges.values() for pair in some]
        starts, ends = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
        offsets = np.cumsum([0, *map(len, self.ranges.values())], dtype=np.int64)
        return KeepRanges(None, pa.array(self.ranges, pa.string()), offsets, starts, ends)

    def index(self) -> WindowIndex:
        parts = [
            root_spans(
                self.episodes(root),
                np.array(order, np.int64),
                self.chunk,
                dataset_index=root,
                ranges=self.keep(),
            )
            for root, order in enumerate(self.orders)
        ]
        return WindowIndex(join_spans(parts), {})

    def literal_spans(self) -> list[list[tuple[int, int, int, int]]]:
        """For each span its windows: root, episode, frame, row."""
        spans = []
        for place, (root, order) in enumerate(zip(self.roots, self.orders, strict=True)):
            for position in order:
                number, length, name = root[position]
                first_row = sum(before for _, before, _ in root[:position])
                for start, end in [(0, length)] if self.ranges is None else self.ranges.get(name, ()):
                    allowed = {read for read in range(length) if start <= read < end}
                    span = [
                        (place, number, frame, first_row + frame)
                        for frame in range(length)
                        if all(read in allowed for read in range(frame, frame + self.chunk + 1))
                    ]
                    spans += [span] if span else []
        return spans


@st.composite
def trees(draw: st.DrawFn, *, apart: bool = False) -> DrawnTree:
    """A tree; with `apart` the ranges of an episode do not overlap."""
    count = draw(st.integers(1, 3))
    lengths = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 90)), min_size=1, max_size=6)
    roots = []
    for root in range(count):
        drawn = draw(lengths)
        first = draw(st.integers(0, 3))
        roots.append([(first + at, length, f"{root}/{at}") for at, length in enumerate(drawn)])
    orders = [
        draw(st.permutations(range(len(root))).map(lambda order: order[: len(order) * 3 // 4 + 1]))
        for root in roots
    ]
    ranges = None
    if draw(st.booleans()):
        names = [name for root in roots for _, _, name in root]
        kept = draw(st.lists(st.sampled_from([*names, "unknown"]), unique=True))
        shape = _ranges_apart() if apart else _ranges()
        ranges = {name: draw(shape) for name in kept}
    chunk = draw(st.one_of(st.integers(1, 5), st.integers(1, 64)))
    return DrawnTree(roots, orders, chunk, ranges)


def _ranges() -> st.SearchStrategy[list[tuple[int, int]]]:
    far = st.sampled_from([0, 1, 90, 2**31, 2**63 - 1, -(2**63)])
    frame = st.one_of(st.integers(-20, 110), st.integers(0, 30), far)
    return st.lists(st.tuples(frame, frame).map(lambda pair: (min(pair), max(pair))), max_size=4)


def _ranges_apart() -> st.SearchStrategy[list[tuple[int, int]]]:
    cuts = st.lists(st.integers(0, 100), max_size=8, unique=True).map(sorted)
    pairs = cuts.map(lambda some: list(zip(some[::2], some[1::2], strict=False)))
    return pairs.flatmap(st.permutations)


@settings(max_examples=300, deadline=None)
@given(trees())
def test_spans_are_those_of_a_literal_reading(tree: DrawnTree) -> None:
    index = tree.index()
    spans = tree.literal_spans()
    columns = {
        "dataset_index": [span[0][0] for span in spans],
        "episode_index": [span[0][1] for span in spans],
        "first_row": [span[0][3] for span in spans],
        "first_frame": [span[0][2] for span in spans],
        "length": [len(span) for span in spans],
        "cumulative_end": [sum(map(len, spans[: at + 1])) for at in range(len(spans))],
    }
    assert {name: values.tolist() for name, values in index.spans.items()} == columns
    assert {values.dtype for values in index.spans.values()} == {np.dtype(np.int64)}
    ends = columns["cumulative_end"]
    assert list(index.blocks()) == list(zip([0, *ends], columns["length"], strict=False))


@settings(max_examples=200, deadline=None)
@given(trees())
def test_every_window_resolves_to_that_of_a_literal_reading(tree: DrawnTree) -> None:
    index = tree.index()
    windows = [(*window, at) for at, span in enumerate(tree.literal_spans()) for window in span]
    assert len(index) == len(windows)
    assert [tuple(index.resolve(at)) for at in range(len(index))] == windows
    many = index.resolve_many(np.arange(len(index))[::-1])
    assert list(zip(*(field.tolist() for field in many), strict=True)) == windows[::-1]
    first = {identity: at for at, identity in reversed(list(enumerate(window[:3] for window in windows)))}
    assert {identity: index.index_of(identity) for identity in first} == first


@settings(max_examples=200, deadline=None)
@given(trees(apart=True))
def test_identities_are_distinct_and_lead_back(tree: DrawnTree) -> None:
    index = tree.index()
    identities = [index.resolve(at).identity for at in range(len(index))]
    assert len(set(identities)) == len(identities)
    assert [index.index_of(identity) for identity in identities] == list(range(len(index)))
    lengths = {(root, number): length for root, some in enumerate(tree.roots) for number, length, _ in some}
    for root, number, frame in identities:
        assert 0 <= frame < lengths[root, number] - tree.chunk
    rows = index.resolve_many(range(len(index)))
    first_rows = index.spans["first_row"] - index.spans["first_frame"]
    assert (rows.row - rows.frame == first_rows[rows.span]).all()


@settings(max_examples=100, deadline=None)
@given(trees(), st.integers(-3, 5), st.integers(-3, 9), st.integers(-200, 200))
def test_identity_that_no_window_has_is_refused(tree: DrawnTree, root: int, number: int, frame: int) -> None:
    index = tree.index()
    wanted = (root, number, frame)
    if wanted in {window[:3] for span in tree.literal_spans() for window in span}:
        assert index.resolve(index.index_of(wanted)).identity == wanted
    else:
        with pytest.raises(KeyError, match=f"no window of dataset {root}, episode {number} starts"):
            index.index_of(wanted)


# One index by hand.


@pytest.fixture
def split_episode() -> WindowIndex:
    """Chunk 2; episode 7 of 10 frames has the ranges [0, 4) and [6, 10); episode 8 of 5 frames is whole."""
    tree = DrawnTree([[(7, 10, "a"), (8, 5, "b")]], [[0, 1]], 2, {"a": [(0, 4), (6, 10)], "b": [(0, 5)]})
    return tree.index()


def test_spans_of_a_split_episode_count_frames_from_its_start(split_episode: WindowIndex) -> None:
    assert [split_episode.resolve(at).identity for at in range(len(split_episode))] == [
        (0, 7, 0),
        (0, 7, 1),
        (0, 7, 6),
        (0, 7, 7),
        (0, 8, 0),
        (0, 8, 1),
        (0, 8, 2),
    ]
    assert split_episode.resolve(2) == (0, 7, 6, 6, 1)
    assert split_episode.resolve(4) == (0, 8, 0, 10, 2)
    assert [split_episode.spans_of(0, number) for number in (7, 8, 9)] == [[0, 1], [2], []]
    assert list(split_episode.blocks()) == [(0, 2), (2, 2), (4, 3)]


def test_episode_numbers_that_would_meet_in_one_key_are_kept_apart() -> None:
    index = DrawnTree([[(0, 5, "a")], [(0, 5, "b")]], [[0], [0]], 1, None).index()
    assert index.index_of((1, 0, 0)) == 4
    for identity in ((0, 1 << 40, 0), (0, 2**70, 0), (2**70, 0, 0), (-1, 1 << 40, 0)):
        with pytest.raises(KeyError):
            index.index_of(identity)


def test_chunk_length_below_one_is_a_wrong_argument() -> None:
    with pytest.raises(UsageError, match="The chunk length 0 is less than 1"):
        DrawnTree([[(0, 5, "a")]], [[0]], 0, None).index()


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint8, np.uint64])
def test_whole_numbers_of_every_kind_are_indices(
    split_episode: WindowIndex, kind: Callable[[int], Any]
) -> None:
    assert split_episode.resolve(kind(6)) == (0, 8, 2, 12, 2)
    assert all(type(value) is int for value in split_episode.resolve(kind(6)))
    assert split_episode.resolve_many([kind(6), kind(0)]).row.tolist() == [12, 0]
    assert split_episode.resolve_many(np.array([6, 0]).astype(kind)).row.tolist() == [12, 0]


@pytest.mark.parametrize("index", [-1, -7, 7, 8, 2**62, -(2**62), np.int64(-1), np.uint64(2**64 - 1)])
def test_index_outside_is_refused(split_episode: WindowIndex, index: int) -> None:
    for ask in (split_episode.resolve, lambda at: split_episode.resolve_many([at, at])):
        with pytest.raises(IndexError, match=f"window {int(index)}: the index has 7"):
            ask(index)


@pytest.mark.parametrize("index", [True, np.True_, 1.0, np.float64(1), "1", None, 1.5])
def test_what_is_no_whole_number_is_refused(split_episode: WindowIndex, index: Any) -> None:
    for ask in (split_episode.resolve, lambda at: split_episode.resolve_many([at])):
        with pytest.raises(TypeError):
            ask(index)


def test_a_mask_is_not_taken_for_indices(split_episode: WindowIndex) -> None:
    with pytest.raises(TypeError, match="whole numbers, not bool"):
        split_episode.resolve_many(np.arange(7) > 3)


@pytest.mark.parametrize("indices", [3, [[0, 1]], np.int64(3)])
def test_many_windows_are_asked_by_one_list(split_episode: WindowIndex, indices: Any) -> None:
    with pytest.raises(TypeError, match="one list"):
        split_episode.resolve_many(indices)


def test_many_short_spans_beside_long_ones_resolve_as_one_by_one() -> None:
    lengths = np.array([1] * 300 + [100_000] + [1, 2] * 200 + [50_000, 1], np.int64)
    zeros = np.zeros(len(lengths), np.int64)
    part = dict.fromkeys(COLUMNS, zeros) | {"length": lengths, "episode_index": np.arange(len(lengths))}
    index = WindowIndex(join_spans([part]), {})
    expected = np.repeat(np.arange(len(lengths)), lengths)
    assert (index.resolve_many(np.arange(len(index))).span == expected).all()
    drawn = np.random.default_rng(2).integers(0, len(index), 500)
    assert index.resolve_many(drawn).span.tolist() == [index.resolve(at).span for at in drawn]


def test_nothing_asked_gives_nothing(split_episode: WindowIndex) -> None:
    for empty in ([], np.array([]), np.array([], np.int64), range(0)):
        assert [len(field) for field in split_episode.resolve_many(empty)] == [0] * 5


def test_200000_drawn_windows_have_200000_identities() -> None:
    roots, _ = draw_droid(5, 1500, 300)
    parts = [
        root_spans(
            Episodes(np.arange(len(root.ids)), root.lengths, root.ends - root.lengths),
            torch_permutation(len(root.ids), 42),
            16,
            dataset_index=place,
        )
        for place, root in enumerate(roots.values())
    ]
    index = WindowIndex(join_spans(parts), {})
    drawn = np.random.default_rng(1).permutation(len(index))[:200_000]
    many = index.resolve_many(drawn)
    assert len(set(zip(many.dataset_index, many.episode_index, many.frame, strict=True))) == 200_000
    for at in drawn[:2000].tolist():
        assert index.index_of(index.resolve(at).identity) == at


# Upstream's own records.


def digest(index: WindowIndex) -> str:
    """Over int64 little-endian: (dataset, first row, length, episode) by span, then the cumulative ends."""
    names = ("dataset_index", "first_row", "length", "episode_index")
    records = np.stack([index.spans[name] for name in names], axis=1)
    data = records.astype("<i8").tobytes() + index.spans["cumulative_end"].astype("<i8").tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.fixture(scope="module")
def droid(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Episodes], KeepRanges]:
    folder = tmp_path_factory.mktemp("droid")
    roots, ranges = draw_droid(3, 300, 60)
    read = [Root.open(write_root(folder / name, root)).episodes() for name, root in roots.items()]
    keep = load_keep_ranges(write_filter(folder / "keep.json", ranges), example_id=roots["success"].ids[0])
    return read, keep


@pytest.mark.parametrize("case", UPSTREAM_DROID, ids=lambda case: "-".join(map(str, case)))
def test_droid_spans_are_upstreams_records(
    droid: tuple[list[Episodes], KeepRanges], case: tuple[str, int, bool, bool]
) -> None:
    split, chunk, success_only, filtered = case
    roots, keep = droid
    parts = []
    for place, episodes in enumerate(roots[:1] if success_only else roots):
        order = torch_permutation(len(episodes.numbers), 42)
        held_out = round(len(order) * 0.03)
        order = {"train": order[held_out:], "val": order[:held_out], "full": order}[split]
        ranges = keep if filtered else None
        parts.append(root_spans(episodes, order, chunk, dataset_index=place, ranges=ranges))
    index = WindowIndex(join_spans(parts), {})
    assert (len(index), len(index.spans["length"]), digest(index)) == UPSTREAM_DROID[case]


@pytest.fixture(scope="module")
def libero(tmp_path_factory: pytest.TempPathFactory) -> Episodes:
    folder = tmp_path_factory.mktemp("libero")
    root, numbers = draw_libero(4, 150)
    write_frames(write_root(folder, root, fps=20), root, numbers, files=5)
    episodes = frame_episodes(Root.open(folder))
    assert episodes is not None
    return episodes


@pytest.mark.parametrize("case", UPSTREAM_LIBERO, ids=lambda case: "-".join(map(str, case)))
def test_libero_spans_are_upstreams_records(libero: Episodes, case: tuple[str, int]) -> None:
    split, chunk = case
    held_out = sampled_fraction(libero.numbers.tolist(), 0.01, 0)
    is_val = np.isin(libero.numbers, sorted(held_out))
    order = np.flatnonzero({"train": ~is_val, "val": is_val, "full": is_val | ~is_val}[split])
    index = WindowIndex(join_spans([root_spans(libero, order, chunk)]), {})
    assert (len(index), len(index.spans["length"]), digest(index)) == UPSTREAM_LIBERO[case]
