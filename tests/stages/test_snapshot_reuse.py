"""Snapshots made in two steps, or from another one: nothing is fetched twice, and the bytes are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prep.errors import EnvironmentLacksError, UsageError
from prep.layouts.arrow_snapshot import safe_name
from prep.loopback import LoopbackHub
from prep.snapshots import SnapshotOptions, prepare_snapshots
from prep.stages.options import Result
from tests.llava import REPO, Rows, parquet, publish, row
from tests.runs import digests

SUBSET = "ai2d(gpt4v)"
BELOW = {"arrow": f"llava_ov/{safe_name(SUBSET)}/train", "hub": f"{REPO}/{safe_name(SUBSET)}/train"}
PARTS: list[Rows] = [
    [row(n) for n in range(30)],
    [row(30, image=None), *(row(n) for n in range(31, 60))],
    [*(row(n) for n in range(60, 80)), row(80, image=None)],
]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with LoopbackHub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        publish(made, {SUBSET: PARTS, "other": [[row(1)]]}, group=7)
        yield made


def prepare(out: Path, subset: str = SUBSET, **options: Any) -> Result:
    options = {"shard_bytes": 2000, "jobs": 2, **options}
    [result] = prepare_snapshots("llava_ov", out, subsets=[subset], options=SnapshotOptions(**options))
    return result


def fetched(hub: LoopbackHub) -> list[str]:
    asked = (record.path.rpartition("/")[2] for record in hub.requests if "/resolve/" in record.path)
    return sorted({name for name in asked if name.endswith(".parquet")})


def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


# --- download, then offline ---------------------------------------------------------------


@pytest.mark.parametrize("form", ["arrow", "hub"])
def test_fetched_on_one_machine_and_made_offline(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    whole = prepare(tmp_path / "whole", form=form)
    first = prepare(tmp_path / "out", form=form, download_only=True)
    assert (first.outcome, first.exit_status, first.fetched) == ("downloaded", 0, 3)
    assert "--offline" in first.remedy
    assert not (tmp_path / "out").exists()
    again = prepare(tmp_path / "out", form=form, download_only=True)
    assert (again.fetched, again.bytes, again.reused) == (0, 0, 3)
    hub.clear_requests()
    cut_off(monkeypatch)
    second = prepare(tmp_path / "out", form=form, offline=True)
    assert (second.outcome, second.dataset_id, hub.requests) == ("complete", whole.dataset_id, [])
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    settled = prepare(tmp_path / "out", form=form, download_only=True)
    assert settled.outcome == "unchanged"


@pytest.mark.parametrize(
    ("bounds", "files", "rows", "kept"),
    [
        ({"limit": 30}, 1, 30, 30),
        ({"limit": 31}, 2, 31, 30),
        ({"max_samples": 30}, 1, 30, 30),
        ({"max_samples": 59}, 2, 60, 59),
        ({"max_samples": 60}, 3, 61, 60),
        ({"max_samples": 900}, 3, 81, 79),
    ],
)
def test_no_more_is_fetched_than_the_bounds_need(
    hub: LoopbackHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bounds: dict[str, int],
    files: int,
    rows: int,
    kept: int,
) -> None:
    assert prepare(tmp_path / "out", download_only=True, **bounds).fetched == files
    cut_off(monkeypatch)
    result = prepare(tmp_path / "out", offline=True, **bounds)
    assert (result.outcome, result.rows, result.kept) == ("complete", rows, kept)


def test_a_part_of_the_cache_does_not_pass_for_the_whole(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "out", download_only=True, limit=30)
    cut_off(monkeypatch)
    for number, options in enumerate(({}, {"limit": 40}, {"max_samples": 31})):
        out = tmp_path / str(number)
        with pytest.raises(EnvironmentLacksError, match="train-00001-of-00003") as lacks:
            prepare(out, offline=True, **options)
        assert "--download-only" in lacks.value.remedy
        assert not (out / BELOW["arrow"]).exists()
    with pytest.raises(EnvironmentLacksError, match="the subset 'other'"):
        prepare(tmp_path / "out", "other", offline=True)


def test_download_only_contradicts_offline_and_has_nothing_to_do_for_a_local_source(tmp_path: Path) -> None:
    source = tmp_path / "rows.parquet"
    source.write_bytes(parquet([row(0)]))
    with pytest.raises(UsageError, match="--download-only contradict"):
        prepare(tmp_path / "out", "default", source=str(source), offline=True, download_only=True)
    result = prepare(tmp_path / "out", "default", source=str(source), download_only=True)
    assert (result.outcome, result.fetched, result.reused) == ("downloaded", 0, 1)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_run_goes_on_at_its_commit(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fetched for it is what it began with, though the branch has moved."""
    bad = [*PARTS[:2], [row(60), row(61, b"no image")]]
    publish(hub, {SUBSET: bad}, group=7)
    assert prepare(tmp_path / "out").outcome == "failed"
    publish(hub, {SUBSET: PARTS}, group=7)
    prepare(tmp_path / "out", download_only=True)
    cut_off(monkeypatch)
    result = prepare(tmp_path / "out", offline=True, on_bad_image="drop")
    assert (result.outcome, result.rows, result.failed) == ("complete", 62, {"image_unknown": 1})


# --- of another snapshot ------------------------------------------------------------------


@pytest.mark.parametrize("form", ["arrow", "hub"])
def test_the_same_snapshot_is_linked(hub: LoopbackHub, tmp_path: Path, form: str) -> None:
    first = prepare(tmp_path / "one", form=form)
    hub.clear_requests()
    for named, place in (("two", tmp_path / "one"), ("three", first.root)):
        result = prepare(tmp_path / named, form=form, reuse=place)
        assert (result.outcome, result.dataset_id, result.fetched) == ("complete", first.dataset_id, 0)
        assert digests(tmp_path / named) == digests(tmp_path / "one")
    assert fetched(hub) == []


@pytest.mark.parametrize("form", ["arrow", "hub"])
@pytest.mark.parametrize(
    ("before", "now", "files"),
    [
        ({"max_samples": 40}, {}, {2, 3}),
        ({}, {"max_samples": 40}, {2}),
        ({}, {"limit": 31}, {1, 2}),
        ({}, {"limit": 900, "max_samples": 900}, set()),
        ({"limit": 70}, {"limit": 75}, {3}),
        ({"limit": 81}, {}, {3}),
        ({"max_samples": 79}, {"max_samples": 80}, {3}),
    ],
)
def test_other_bounds_take_what_they_have_in_common(
    hub: LoopbackHub, tmp_path: Path, form: str, before: dict[str, int], now: dict[str, int], files: set[int]
) -> None:
    prepare(tmp_path / "one", form=form, **before)
    prepare(tmp_path / "whole", form=form, **now)
    hub.clear_requests()
    result = prepare(tmp_path / "two", form=form, reuse=tmp_path / "one", **now)
    assert digests(tmp_path / "two") == digests(tmp_path / "whole")
    assert any("taken from" in note for note in result.notes)
    assert {int(name[6:11]) + 1 for name in fetched(hub)} == files


def test_a_damaged_shard_is_made_anew(hub: LoopbackHub, tmp_path: Path) -> None:
    first = prepare(tmp_path / "one")
    whole = digests(tmp_path / "one")
    victim = sorted(first.root.glob("*.arrow"))[2]
    data = bytearray(victim.read_bytes())
    data[700] ^= 1
    victim.write_bytes(data)
    result = prepare(tmp_path / "two", reuse=tmp_path / "one")
    assert result.fetched in (1, 2)  # the next file may be on its way while one is read
    assert digests(tmp_path / "two") == whole


def test_a_mending_run_of_the_hub_layout_fetches_what_it_needs(hub: LoopbackHub, tmp_path: Path) -> None:
    first = prepare(tmp_path / "one", form="hub")
    whole = digests(tmp_path / "one")
    sorted(first.root.glob("*.parquet"))[-1].write_bytes(b"")
    hub.clear_requests()
    assert prepare(tmp_path / "one", form="hub").outcome == "complete"
    assert fetched(hub) == ["train-00002-of-00003.parquet"]
    assert digests(tmp_path / "one") == whole


@pytest.mark.parametrize("reused", [{"shard_bytes": 3000}, {"form": "hub"}])
def test_shards_that_were_cut_otherwise_are_refused(
    hub: LoopbackHub, tmp_path: Path, reused: dict[str, Any]
) -> None:
    first = prepare(tmp_path / "one", **reused)
    for dry_run in (False, True):
        with pytest.raises(UsageError, match=f"other shards.*{next(iter(reused))}"):
            prepare(tmp_path / "two", reuse=first.root, dry_run=dry_run)
        with pytest.raises(UsageError, match="has no manifest to reuse"):
            prepare(tmp_path / "two", reuse=tmp_path / "nowhere", dry_run=dry_run)
    assert not (tmp_path / "two").exists()


def test_another_commit_or_another_local_source_is_refused(hub: LoopbackHub, tmp_path: Path) -> None:
    prepare(tmp_path / "one")
    publish(hub, {SUBSET: [*PARTS, [row(99)]]})
    with pytest.raises(UsageError, match="was made from commit"):
        prepare(tmp_path / "two", reuse=tmp_path / "one")
    sources = [tmp_path / name / "rows.parquet" for name in ("a", "b")]
    for number, source in enumerate(sources):
        source.parent.mkdir()
        source.write_bytes(parquet([row(number)]))
    prepare(tmp_path / "one", "default", source=str(sources[0]))
    with pytest.raises(UsageError, match=r"from another rows\.parquet"):
        prepare(tmp_path / "two", "default", source=str(sources[1]), reuse=tmp_path / "one")
    same = prepare(tmp_path / "two", "default", source=str(sources[0]), reuse=tmp_path / "one")
    assert same.outcome == "complete"
