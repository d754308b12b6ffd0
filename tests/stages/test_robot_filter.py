"""The robot stage with a filter: what it matches, what is refused, and what the report counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prep.errors import PrepError, UsageError
from prep.keep_ranges import upstream_key
from prep.permutation import torch_permutation
from tests.robot_trees import (
    LENGTHS,
    droid_tree,
    episode_id,
    identities,
    index,
    keep,
    literal_windows,
    run,
)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine names a tree."""
    for name in ("DROID_ROOT", "DATASET_PATH", "LIBERO_ROOT", "DROID_FILTER_SOURCE_PREFIX"):
        monkeypatch.delenv(name, raising=False)


def test_the_report_counts_what_a_literal_reading_counts(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    ranges: dict[int, list[list[int]]] = {
        number: [[0, 38], [40, LENGTHS[number]]] if number % 3 else [[3, LENGTHS[number] + 9]]
        for number in range(36)
    }
    named = {episode_id(number): pairs for number, pairs in ranges.items()}
    path = keep(tmp_path / "keep.json", {**named, "LAB/success/none/such": [[0, 9]]})
    result = run(tmp_path / "data", root=tree, keep_ranges=str(path))
    order = torch_permutation(40, 42).tolist()
    for split, episodes in {"val": order[:1], "train": order[1:]}.items():
        literal = literal_windows(LENGTHS, episodes, 32, ranges)
        assert identities(index(result.root, f"droid_policy-{split}-c32-filtered")) == literal
        facts = result.consumption[split]
        assert facts["windows"] == len(literal)
        assert facts["windows_without_filter"] == len(literal_windows(LENGTHS, episodes, 32))
        assert facts["episodes"] == len({each.episode_index for each in literal})
        spans = {
            (number, start)
            for number in episodes
            for start, end in ranges.get(number, [])
            if min(end, LENGTHS[number]) - 32 > start
        }
        assert facts["spans"] == len(spans)
        several = [number for number in episodes if sum(number == each for each, _ in spans) > 1]
        assert facts["episodes_with_several_spans"] == len(several)
    told = {item.code: item.message for item in result.findings}
    assert "12 ranges are past the episode's end" in told["KEP002"]
    assert "74.41% on the full release" in told["KEP003"]
    unmatched = [item.message for item in result.findings if item.code == "KEP004"]
    assert unmatched[0].startswith("4 episodes are in no key, such as LAB/success/")
    assert unmatched[1] == "1 key is of no episode here, such as LAB/success/none/such"
    assert any(
        "filter: 36 of 40 episodes matched, 37 keys (keys under gs://elsewhere/r2d2)" in note
        for note in result.notes
    )


def test_keys_of_a_group_that_the_recipe_does_not_read_are_no_strays(tmp_path: Path) -> None:
    kinds = ("success", "failure")
    named = {episode_id(number, kind): [[0, 40]] for number in range(40) for kind in kinds}
    path = keep(tmp_path / "keep.json", named)
    result = run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), keep_ranges=str(path))
    assert [item.code for item in result.findings] == ["KEP003"]


def test_the_pinned_share_is_that_of_the_recipes_own_windows(tmp_path: Path) -> None:
    path = keep(tmp_path / "keep.json", {episode_id(number): [[0, 40]] for number in range(40)})
    tree = droid_tree(tmp_path / "tree")
    for chunk, codes in ((None, ["KEP003"]), (32, ["KEP003"]), (8, [])):
        result = run(tmp_path / "data", root=tree, keep_ranges=str(path), chunk_length=chunk)
        assert [item.code for item in result.findings] == codes


@pytest.mark.parametrize("prefix", [None, "gs://elsewhere/r2d2", "/a/b/c"])
def test_the_filter_is_written_in_upstreams_key_form(prefix: str | None, tmp_path: Path) -> None:
    ranges = {episode_id(number): [[0, 90]] for number in range(40)}
    path = keep(tmp_path / "keep.json", ranges, prefix)
    result = run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), keep_ranges=str(path))
    (written,) = (result.root / "filters").iterdir()
    assert json.loads(written.read_text()) == {upstream_key(name): pairs for name, pairs in ranges.items()}


def test_the_kept_share_near_the_pinned_figure_is_not_reported(tmp_path: Path) -> None:
    kept = {
        episode_id(number): [[0, 32 + round((length - 32) * 0.75)]] for number, length in enumerate(LENGTHS)
    }
    path = keep(tmp_path / "keep.json", kept)
    result = run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), keep_ranges=str(path))
    assert [item.message for item in result.findings if "train" in item.message] == []
    assert any(note.startswith("train: ") and "74.41% on the full release" in note for note in result.notes)


GOOD = {episode_id(number): [[0, 90]] for number in range(40)}
REFUSED: dict[str, Any] = {
    "not an object": [],
    "no episode": {},
    "cut short": '{"a": [[0, 1]',
    "no pairs": {**GOOD, episode_id(3): [[0]]},
    "no whole numbers": {**GOOD, episode_id(3): [[0, 1.5]]},
    "a truth value": {**GOOD, episode_id(3): [[0, True]]},
    "end before start": {**GOOD, episode_id(3): [[9, 3]]},
    "mixed keys": {**GOOD, upstream_key(episode_id(1)): [[0, 5]]},
    "mixed prefixes": {
        upstream_key(episode_id(1)): [[0, 5]],
        upstream_key(episode_id(2)).replace("gs://", "s3://"): [[0, 5]],
    },
    "nothing matched": {"LAB/success/none/such": [[0, 90]]},
    "overlap": {**GOOD, episode_id(3): [[0, 20], [10, 30]]},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_filter_that_would_select_the_wrong_windows_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "keep.json"
    path.write_text(REFUSED[what] if isinstance(REFUSED[what], str) else json.dumps(REFUSED[what]))
    with pytest.raises(PrepError) as error:
        run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), keep_ranges=str(path))
    assert error.value.exit_status == 1
    assert "\n" not in str(error.value)
    assert error.value.remedy
    assert not (tmp_path / "data").exists()


def test_a_prefix_that_the_user_names_wrongly_is_shown_beside_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, path = droid_tree(tmp_path / "tree"), keep(tmp_path / "keep.json", GOOD)
    monkeypatch.setenv("DROID_FILTER_SOURCE_PREFIX", "gs://wrong")
    with pytest.raises(PrepError, match=r"gs://elsewhere.*gs://wrong.*LAB/success"):
        run(tmp_path / "data", root=tree, keep_ranges=str(path))
    right = run(tmp_path / "data", root=tree, keep_ranges=str(path), source_prefix="gs://elsewhere/r2d2/")
    assert right.outcome == "complete"


def test_an_overlap_may_be_accepted(tmp_path: Path) -> None:
    path = keep(tmp_path / "keep.json", {**GOOD, episode_id(3): [[0, 40], [0, 40]]})
    result = run(
        tmp_path / "data",
        root=droid_tree(tmp_path / "tree"),
        keep_ranges=str(path),
        ignore=("KEP001",),
    )
    assert [item.message for item in result.findings if item.code == "KEP001"] == [
        "1 episodes of success have ranges that overlap; accepted"
    ]
    assert result.exit_status == 0


def test_fewer_spans_than_streams_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    spans = run(tmp_path / "dry", root=tree, dry_run=True).consumption["train"]["spans"]
    refused = run(tmp_path / "data", root=tree, ranks=spans + 1, workers=1)
    assert (refused.exit_status, [item.code for item in refused.findings]) == (1, ["ROB003"])
    assert f"{spans} spans for {spans + 1} streams" in refused.message
    assert not (tmp_path / "data").exists()
    assert run(tmp_path / "data", root=tree, ranks=spans, workers=1).exit_status == 0
    accepted = run(tmp_path / "more", root=tree, ranks=spans, workers=2, ignore=("ROB003",))
    assert [(item.code, item.severity) for item in accepted.findings] == [("ROB003", "warning")]


def test_no_window_at_all_is_an_error(tmp_path: Path) -> None:
    result = run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), chunk_length=500)
    assert (result.exit_status, [item.code for item in result.findings]) == (1, ["ROB003"])


@pytest.mark.parametrize(("text", "count"), [("pick | place", 0), ("pick |  | place", 1), (" ", 1)])
def test_blank_instructions_are_counted_as_the_reader_draws_them(
    text: str, count: int, tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree")
    for kind in ("success", "failure"):
        path = tree / kind / "meta/tasks.parquet"
        table = pq.read_table(path)
        place = table.schema.get_field_index("__index_level_0__")
        pq.write_table(table.set_column(place, "__index_level_0__", pa.array([text])), path)
    found = run(tmp_path / "data", root=tree).findings
    assert [item.code for item in found] == ["ROB002"] * count


def test_a_code_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="KEP999"):
        run(tmp_path / "data", root=droid_tree(tmp_path / "tree"), ignore=("KEP999",))
