"""Lists of windows by identity: written, read, excluded, held out; and how people name windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prep.errors import PrepError, UsageError
from prep.window_lists import (
    Found,
    episode_spans,
    exclude,
    hold_out,
    index_parameters,
    open_index,
    parse_episode,
    parse_identity,
    read_list,
    write_list,
)
from prep.windows import Episodes, Identity, WindowIndex, join_spans, root_spans


def found(chunk: int = 4, roots: tuple[str, ...] = ("success", "failure"), skip: int = 0) -> Found:
    """An index over two episodes a root; `skip` leaves out the first episodes of the order."""
    lengths = np.array([12, 9], np.int64)
    episodes = Episodes(np.array([0, 1]), lengths, np.array([0, 12]))
    order = np.array([1, 0])[skip:]
    parts = [root_spans(episodes, order, chunk, dataset_index=at) for at in range(len(roots))]
    return Found(Path("x.arrow"), WindowIndex(join_spans(parts), {"roots": list(roots), "inputs": []}))


def write(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_a_list_holds_identities_and_comes_back(tmp_path: Path) -> None:
    one = found()
    path = tmp_path / "new" / "ids.parquet"
    write_list(one, np.array([0, 7, len(one.index) - 1]), path)
    table = pq.read_table(path).to_pylist()
    wanted = [one.index.resolve(place).identity for place in (0, 7, len(one.index) - 1)]
    assert table == [
        {"dataset": one.roots[root], "episode_index": episode, "frame": frame}
        for root, episode, frame in wanted
    ]
    assert [
        Identity(*row) for row in zip(*map(np.ndarray.tolist, read_list(path, one.roots)), strict=True)
    ] == wanted


def test_equal_lists_have_equal_bytes_and_an_empty_one_is_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_list(found(), np.array([3, 4]), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_list(found(), np.array([], np.int64), tmp_path / "none")
    assert [len(column) for column in read_list(tmp_path / "none", ["success"])] == [0, 0, 0]
    assert len(exclude(found(), tmp_path / "none")) == len(found().index)


def test_excluded_windows_are_the_same_under_another_index(tmp_path: Path) -> None:
    """Made from one index, applied to another whose flat indices are not those of the first."""
    source, other = found(), found(skip=1)
    drawn = hold_out(9, len(source.index), 5)
    write_list(source, drawn, tmp_path / "ids.parquet")
    gone = {source.index.resolve(int(place)).identity for place in drawn}
    left = exclude(other, tmp_path / "ids.parquet").tolist()
    every = {place: other.index.resolve(place).identity for place in range(len(other.index))}
    assert left == [place for place, identity in every.items() if identity not in gone]
    assert 0 < len(left) < len(other.index)


def test_roots_are_named_not_numbered(tmp_path: Path) -> None:
    write_list(found(), np.arange(5), tmp_path / "ids.parquet")
    turned = found(roots=("failure", "success"))
    left = exclude(turned, tmp_path / "ids.parquet")
    half = len(turned.index) // 2
    assert left.tolist() == [place for place in range(2 * half) if not half <= place < half + 5]


@pytest.mark.parametrize(
    ("episode", "frame"), [(0, 1 << 27), (1 << 27, 0), (-1, 0), (0, -1), (1 << 62, 1 << 62)]
)
def test_a_window_that_cannot_be_takes_out_none(episode: int, frame: int, tmp_path: Path) -> None:
    path = write(tmp_path / "ids.parquet", dataset=["success"], episode_index=[episode], frame=[frame])
    assert len(exclude(found(), path)) == len(found().index)


def test_held_out_windows_are_drawn_once_and_by_seed() -> None:
    drawn = hold_out(500, 2000, 7)
    assert len(set(drawn.tolist())) == 500
    assert drawn.tolist() == sorted(drawn.tolist())
    assert (hold_out(500, 2000, 7) == drawn).all()
    assert (hold_out(500, 2000, 8) != drawn).any()
    assert hold_out(5, 5, 0).tolist() == [0, 1, 2, 3, 4]
    # A list that was drawn by another version of prep or numpy names these windows.
    assert hold_out(5, 1000, 7).tolist() == np.sort(np.random.RandomState(7).permutation(1000)[:5]).tolist()


@pytest.mark.parametrize(("count", "total"), [(0, 5), (6, 5), (1, 0)])
def test_more_than_there_is_cannot_be_drawn(count: int, total: int) -> None:
    with pytest.raises(UsageError):
        hold_out(count, total, 0)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"dataset": ["success"], "frame": [1]}, "no column episode_index"),
        ({"episode_index": [0], "frame": [1]}, "no column dataset"),
        ({"dataset": ["left"], "episode_index": [0], "frame": [1]}, "'left' is no root"),
        ({"dataset": [None], "episode_index": [0], "frame": [1]}, "None is no root"),
        ({"dataset": ["success"], "episode_index": [None], "frame": [1]}, "episode_index"),
        ({"dataset": ["success"], "episode_index": [0], "frame": ["1"]}, "frame"),
    ],
)
def test_another_table_is_no_list(columns: dict[str, object], what: str, tmp_path: Path) -> None:
    with pytest.raises(PrepError, match=what) as error:
        read_list(write(tmp_path / "ids.parquet", **columns), ["success"])
    assert error.value.exit_status == 1


def test_another_file_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "ids.parquet").write_text("dataset,frame")
    with pytest.raises(PrepError, match="not a list of windows"):
        read_list(tmp_path / "ids.parquet", ["success"])
    with pytest.raises(UsageError, match="no list"):
        read_list(tmp_path / "absent.parquet", ["success"])


@pytest.mark.parametrize(
    ("text", "roots", "expected"),
    [
        ("success:3:4", ["success", "failure"], (0, 3, 4)),
        ("failure/IRIS:3:4", ["success/IRIS", "failure/IRIS"], (1, 3, 4)),
        ("1:3:4", ["success", "failure"], (1, 3, 4)),
        ("3:4", [""], (0, 3, 4)),
        ("0:3:4", [""], (0, 3, 4)),
    ],
)
def test_an_identity_as_people_write_it(text: str, roots: list[str], expected: tuple[int, int, int]) -> None:
    assert parse_identity(text, roots) == expected
    assert parse_episode(text.rpartition(":")[0], roots) == expected[:2]


@pytest.mark.parametrize("text", ["", "3", "3:4", "left:3:4", "success:3:x", "success:a:4", "a:b:c:d"])
def test_what_is_no_identity_is_told_with_the_roots(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_identity(text, ["success", "failure"])
    assert "success, failure" in error.value.remedy


def test_what_is_no_episode_is_told_as_it_was_written() -> None:
    with pytest.raises(UsageError, match="'31450' is not an episode"):
        parse_episode("31450", ["success", "failure"])


def test_the_spans_of_an_episode_have_frames_and_indices() -> None:
    one = found()
    (span,) = episode_spans(one, 1, 0)
    first = one.index.index_of((1, 0, 0))
    assert span == {"first_frame": 0, "end_frame": 8, "first_index": first, "end_index": first + 8}
    assert list(episode_spans(one, 2, 0)) == []


def test_an_index_is_opened_by_the_beginning_of_its_name(tmp_path: Path) -> None:
    for name in ("a-train-c4", "a-val-c4", "b-train-c4"):
        found().index.save(tmp_path / "windows" / f"{name}.arrow")
    assert open_index(tmp_path, "b").path.name == "b-train-c4.arrow"
    assert open_index(tmp_path, "a-val-c4.arrow").path.name == "a-val-c4.arrow"
    assert len(open_index(tmp_path / "windows" / "a-val-c4.arrow").index) == len(found().index)
    assert [path.name for path, _ in index_parameters(tmp_path)] == [
        "a-train-c4.arrow",
        "a-val-c4.arrow",
        "b-train-c4.arrow",
    ]
    found(chunk=8).index.save(tmp_path / "windows" / "b-train-c4-filtered.arrow")
    assert open_index(tmp_path, "b-train-c4").path.name == "b-train-c4.arrow"
    for name, count in (("a", 2), ("b", 2), (None, 4), ("c", "no")):
        with pytest.raises(UsageError, match=f"{count} window indices") as error:
            open_index(tmp_path, name)
        assert "b-train-c4.arrow" in error.value.remedy
    with pytest.raises(UsageError, match="no window indices"):
        open_index(tmp_path / "elsewhere")
