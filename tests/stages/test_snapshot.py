"""The snapshot stage: a loopback Hub's parquet becomes what the real `datasets` opens."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from prep.errors import EnvironmentLacksError, FetchError, PrepError, UsageError, WouldChangeError
from prep.layouts.arrow_snapshot import safe_name
from prep.loopback import Fault, FaultKind, LoopbackHub
from prep.manifest import Manifest
from prep.preparation import failures
from prep.snapshots import SnapshotOptions, list_subsets, prepare_snapshots
from prep.stages.options import Result
from tests.llava import REPO, Rows, parquet, picture, publish, qwen_rows, row

SUBSET = "ai2d(gpt4v)"
FOLDER = f"llava_ov/{safe_name(SUBSET)}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with LoopbackHub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield made


def prepare(out: Path, subset: str = SUBSET, **options: Any) -> Result:
    [result] = prepare_snapshots("llava_ov", out, subsets=[subset], options=SnapshotOptions(**options))
    return result


def files(root: Path) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def raw(root: Path) -> list[dict[str, Any]]:
    """The rows as the real library reads them, images encoded."""
    made = datasets.load_from_disk(str(root)).cast_column("image", datasets.Image(decode=False))
    return [dict(each) for each in made]


def test_every_row_comes_back_as_it_was(hub: LoopbackHub, tmp_path: Path) -> None:
    parts: list[Rows] = [[row(n) for n in range(70)], [row(n) for n in range(70, 90)]]
    publish(hub, {SUBSET: parts}, group=7)
    result = prepare(tmp_path / "data", shard_bytes=2000)
    assert (result.outcome, result.rows, result.kept, result.fetched) == ("complete", 90, 90, 2)
    root = tmp_path / "data" / FOLDER / "train"
    assert raw(root) == [row(n) for n in range(90)]
    shards = sorted(root.glob("*.arrow"))
    assert [path.name for path in shards] == [f"data-{at:05d}-of-00010.arrow" for at in range(10)]
    assert max(path.stat().st_size for path in shards) < 8000


def test_fetched_files_are_removed_below_a_relative_folder_too(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(start, start + 5)] for start in range(0, 60, 5)]})
    monkeypatch.chdir(tmp_path)
    # What is counted as fetched is what was removed when it was done with.
    assert prepare(Path("data"), shard_bytes=2000).fetched == 12


def test_upstreams_filter_is_applied_and_counted(hub: LoopbackHub, tmp_path: Path) -> None:
    rows = [row(n) for n in range(10)]
    rows[2] = row(2, image=None)
    rows[5] = row(5, conversations=[{"from": "human", "value": "Alone?"}])
    rows[6] = row(6, conversations=None)
    publish(hub, {SUBSET: [rows]})
    result = prepare(tmp_path / "data", max_samples=6)
    assert result.outcome == "complete"
    assert result.consumption == {"samples": 6, "dropped": {"no_image": 1, "too_few_turns": 2}}
    kept = raw(tmp_path / "data" / FOLDER / "train")
    source = datasets.load_dataset(
        "parquet", data_files=_local(tmp_path, rows), split="train", cache_dir=str(tmp_path)
    )
    wanted = source.filter(lambda x: x.get("image") is not None and len(x.get("conversations") or []) >= 2)
    assert [each["id"] for each in kept] == wanted.select(range(6))["id"]


def _local(folder: Path, rows: Rows) -> str:
    path = folder / "rows.parquet"
    path.write_bytes(parquet(rows))
    return str(path)


def test_limit_counts_source_rows_and_reads_no_further(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(10)], [row(n) for n in range(10, 20)]]})
    result = prepare(tmp_path / "data", limit=8)
    assert (result.rows, result.kept, result.fetched) == (8, 8, 1)
    assert Manifest.load(tmp_path / "data" / FOLDER / "train").document["counts"]["rows"] == 8  # type: ignore[union-attr]


def test_real_conversations_and_images(hub: LoopbackHub, tmp_path: Path, real_data: Path) -> None:
    rows = qwen_rows(real_data)
    publish(hub, {"qwen": [rows]})
    failed = prepare(tmp_path / "data", "qwen")
    assert failed.outcome == "failed"
    assert failed.failed == {"image_broken": 2, "image_unknown": 2}
    assert not (tmp_path / "data/llava_ov/qwen/train").exists()
    hub.clear_requests()
    result = prepare(tmp_path / "data", "qwen", on_bad_image="drop")
    assert (result.outcome, result.kept, result.fetched) == ("complete", 16, 0)
    assert not [record for record in hub.requests if "parquet" in record.path]
    broken = {"multipage_rgb.tif", "corrupt.jpg", "heapbof.png", "sigsegv.png"}
    root = tmp_path / "data/llava_ov/qwen/train"
    assert raw(root) == [each for each in rows if each["image"]["path"] not in broken]
    modes = {image.mode for image in datasets.load_from_disk(str(root))["image"]}
    assert modes == {"RGB", "RGBA", "L", "LA", "CMYK", "I;16"}
    again = prepare(tmp_path / "data", "qwen")
    assert (again.outcome, again.exit_status) == ("failed", 1)  # the loss was accepted by an option


def test_the_hub_layout_opens_by_name_offline(hub: LoopbackHub, tmp_path: Path, real_data: Path) -> None:
    rows = [
        each for each in qwen_rows(real_data) if each["image"]["path"].endswith(("a.jpg", "o.png", "r.jpg"))
    ]
    publish(hub, {SUBSET: [[row(n) for n in range(30)]], "qwen": [rows], "Qwen": [[row(1)]]}, group=4)
    out = tmp_path / "data"
    for subset in (SUBSET, "qwen", "Qwen"):
        assert prepare(out, subset, form="hub", shard_bytes=3000).outcome == "complete"
    script = (
        "import datasets, json, sys\n"
        f"d = datasets.load_dataset({REPO!r}, name=sys.argv[1], split='train')\n"
        "last = d[d.num_rows - 1]['conversations']\n"
        "print(json.dumps([d.num_rows, d[0]['id'], d[0]['image'].size, last]))\n"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HF_HOME": str(tmp_path / "other"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    for subset, expected in ((SUBSET, [row(n) for n in range(30)]), ("qwen", rows), ("Qwen", [row(1)])):
        answer = subprocess.run(
            [sys.executable, "-c", script, subset],
            cwd=out,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        count, first, size, last = json.loads(answer.stdout)
        assert (count, first, last) == (len(expected), expected[0]["id"], expected[-1]["conversations"])
        assert size != [0, 0]
    assert prepare(out, "qwen", form="hub", shard_bytes=3000).outcome == "unchanged"
    (out / REPO / "README.md").unlink()
    assert prepare(out, "qwen", form="hub", shard_bytes=3000).dataset_id
    assert b'"Qwen"' in (out / REPO / "README.md").read_bytes()


def test_bytes_do_not_depend_on_jobs(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(60)]]}, group=9)
    trees = []
    for jobs in (1, 7):
        prepare(tmp_path / str(jobs), jobs=jobs, shard_bytes=3000)
        trees.append(files(tmp_path / str(jobs)))
    assert trees[0] == trees[1]
    # Caches of map and filter are named by it; `datasets` derives it from the one in state.json.
    made = [datasets.load_from_disk(str(tmp_path / jobs / FOLDER / "train")) for jobs in ("1", "7")]
    assert made[0]._fingerprint == made[1]._fingerprint


def test_a_finished_snapshot_is_confirmed_without_the_hub(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(20)]]})
    out = tmp_path / "data"
    first = prepare(out)
    before = files(out)
    hub.clear_requests()
    second = prepare(out)
    assert (second.outcome, second.dataset_id) == ("unchanged", first.dataset_id)
    assert hub.requests == []
    assert files(out) == before


def test_another_request_changes_nothing_without_update(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(20)]]})
    out = tmp_path / "data"
    prepare(out)
    before = files(out)
    with pytest.raises(WouldChangeError, match="max_samples: null → 5"):
        prepare(out, max_samples=5)
    assert files(out) == before
    assert prepare(out, max_samples=5, update=True).kept == 5
    root = out / FOLDER / "train"
    assert [path.name for path in (root / ".prep/unused").iterdir()] == [
        before[f"{FOLDER}/train/data-00000-of-00001.arrow"]
    ]
    pruned = prepare(out, max_samples=5, prune=True)
    assert pruned.outcome == "unchanged"
    assert not (root / ".prep/unused").exists()
    assert len(raw(root)) == 5


def test_only_a_damaged_shard_is_made_again(hub: LoopbackHub, tmp_path: Path) -> None:
    parts: list[Rows] = [[row(n) for n in range(start, start + 30)] for start in (0, 30, 60)]
    publish(hub, {SUBSET: parts}, group=5)
    out = tmp_path / "data"
    first = prepare(out, shard_bytes=2000)
    before = files(out)
    victim = out / FOLDER / "train/data-00000-of-00010.arrow"
    victim.write_bytes(victim.read_bytes()[:-100])
    mended = prepare(out, shard_bytes=2000)
    assert (mended.dataset_id, mended.fetched) == (first.dataset_id, 1)
    assert files(out) == before


def test_a_moved_branch_keeps_the_commit_until_refresh(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(1)]]})
    out = tmp_path / "data"
    prepare(out)
    publish(hub, {SUBSET: [[row(1), row(2)]]})
    assert prepare(out).kept == 1
    with pytest.raises(WouldChangeError, match="commit"):
        prepare(out, refresh=True)
    assert prepare(out, refresh=True, update=True).kept == 2


def test_nothing_is_kept_in_the_hubs_cache_but_the_card(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(20)]]})
    prepare(tmp_path / "data")
    cached = [path.name for path in (tmp_path / "hub").rglob("*") if path.is_symlink()]
    assert cached == ["README.md"]


def test_what_the_cache_holds_is_not_fetched(hub: LoopbackHub, tmp_path: Path) -> None:
    from huggingface_hub import snapshot_download

    publish(hub, {SUBSET: [[row(n) for n in range(20)]]})
    with pytest.raises(EnvironmentLacksError):
        prepare(tmp_path / "data", offline=True)
    assert not (tmp_path / "data").exists()
    snapshot_download(REPO, repo_type="dataset", cache_dir=tmp_path / "hub/hub", endpoint=hub.endpoint)
    hub.clear_requests()
    assert prepare(tmp_path / "data", offline=True).kept == 20
    assert hub.requests == []


@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.WRONG_BYTES])
def test_a_body_that_is_wrong_once_is_fetched_again(
    hub: LoopbackHub, tmp_path: Path, kind: FaultKind
) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(20)]]})
    hub.faults.set("train-00000-of-00001.parquet", Fault(kind, after_bytes=500), times=1)
    assert prepare(tmp_path / "data").kept == 20


@pytest.mark.parametrize("kind", [FaultKind.LFS_POINTER, FaultKind.HTML, FaultKind.UNAVAILABLE])
def test_another_body_ends_the_run_and_the_next_goes_on(
    hub: LoopbackHub, tmp_path: Path, kind: FaultKind
) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(20)]]})
    hub.faults.set("train-00000-of-00001.parquet", Fault(kind))
    with pytest.raises(FetchError):
        prepare(tmp_path / "data")
    hub.faults.clear()
    assert prepare(tmp_path / "data").kept == 20


def test_bytes_that_differ_from_the_listing_are_refused(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(n) for n in range(20)]]})
    hub.faults.set("train-00000-of-00001.parquet", Fault(FaultKind.WRONG_BYTES))
    with pytest.raises(FetchError) as caught:
        prepare(tmp_path / "data")
    assert caught.value.reason == "wrong_bytes"
    hub.faults.clear()
    assert prepare(tmp_path / "data").kept == 20


def test_an_unknown_subset_names_the_nearest_and_leaves_no_trace(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(1)]], "chartqa": [[row(2)]]})
    with pytest.raises(UsageError) as caught:
        prepare(tmp_path / "data", "ai2d")
    assert SUBSET in caught.value.remedy
    assert not (tmp_path / "data").exists()


def test_subsets_are_listed_with_their_bytes(hub: LoopbackHub) -> None:
    publish(hub, {SUBSET: [[row(1)], [row(2)]], "chartqa": [[row(3)]]})
    listed = {subset.name: (subset.splits, subset.files) for subset in list_subsets("llava_ov")}
    assert listed == {SUBSET: (("train",), 2), "chartqa": (("train",), 1)}


def test_a_local_copy_serves_as_well(tmp_path: Path) -> None:
    source = tmp_path / "copy"
    (source / SUBSET).mkdir(parents=True)
    (source / SUBSET / "train-00000-of-00001.parquet").write_bytes(parquet([row(n) for n in range(5)]))
    result = prepare(tmp_path / "data", source=str(source))
    assert result.kept == 5
    text = (tmp_path / "data" / FOLDER / "train/manifest.json").read_text()
    assert str(tmp_path) not in text


def test_features_are_stated_where_the_parquet_states_none(tmp_path: Path) -> None:
    source = tmp_path / "plain.parquet"
    source.write_bytes(parquet([row(n) for n in range(5)], stated=False))
    prepare(tmp_path / "data", "default", source=str(source))
    made = datasets.load_from_disk(str(tmp_path / "data/llava_ov/default/train"))
    assert isinstance(made.features["image"], datasets.Image)
    assert made[3]["image"].size == (24, 16)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"image": {"bytes": None, "path": "/nfs/1.png"}}, "image_absent"),
        ({"image": {"bytes": None, "path": None}}, "image_absent"),
        ({"image": {"bytes": b"", "path": "1.png"}}, "image_empty"),
        ({"image": {"bytes": picture(1)[:-30], "path": "1.png"}}, "image_broken"),
        ({"image": {"bytes": b"<html><body>404</body></html>", "path": "1.png"}}, "image_unknown"),
        ({"image": {"bytes": picture(1, (900, 2)), "path": "1.png"}}, "image_size"),
        ({"conversations": [{"from": "human", "value": None}, {"from": "gpt", "value": "x"}]}, "broken_turn"),
    ],
)
def test_a_row_that_would_end_training_fails_the_run(
    tmp_path: Path, broken: dict[str, Any], reason: str
) -> None:
    source = tmp_path / "rows.parquet"
    source.write_bytes(parquet([row(0), row(1, **broken), row(2)]))
    result = prepare(tmp_path / "data", "default", source=str(source))
    assert (result.outcome, result.failed) == ("failed", {reason: 1})
    _, failed = failures(tmp_path / "data/llava_ov/default/.train.building")
    assert [(each.row, each.id, each.reason) for each in failed] == [(2, "row 1", reason)]
    dropped = prepare(tmp_path / "data", "default", source=str(source), on_bad_image="drop")
    assert (dropped.outcome, dropped.kept) == ("complete", 2)
    assert [each["id"] for each in raw(tmp_path / "data/llava_ov/default/train")] == ["row 0", "row 2"]


def test_an_unfinished_run_of_other_options_is_not_dropped_silently(tmp_path: Path) -> None:
    source = tmp_path / "rows.parquet"
    source.write_bytes(parquet([row(0), row(1, b"x")]))
    assert prepare(tmp_path / "data", "default", source=str(source)).outcome == "failed"
    with pytest.raises(UsageError, match="limit: None → 1"):
        prepare(tmp_path / "data", "default", source=str(source), limit=1)
    assert prepare(tmp_path / "data", "default", source=str(source), limit=1, update=True).kept == 1


def test_no_row_at_all_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "rows.parquet"
    source.write_bytes(parquet([row(0, image=None)]))
    result = prepare(tmp_path / "data", "default", source=str(source), on_bad_image="drop")
    assert (result.exit_status, result.findings[0].code) == (1, "TAB008")


def test_a_broken_parquet_and_foreign_files_are_refused_in_words(tmp_path: Path) -> None:
    source = tmp_path / "rows.parquet"
    source.write_bytes(parquet([row(0)])[:-40])
    with pytest.raises(PrepError, match="cannot be read as parquet"):
        prepare(tmp_path / "data", "default", source=str(source))
    (tmp_path / "data/llava_ov/other/train").mkdir(parents=True)
    (tmp_path / "data/llava_ov/other/train/mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="no run of prep made"):
        prepare(tmp_path / "data", "other", source=str(source))


def test_a_card_that_names_absent_files(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo(REPO, {"README.md": b"---\nconfigs:\n- config_name: a\n  data_files: a/*.parquet\n---\n"})
    with pytest.raises(FetchError, match="names no parquet file"):
        prepare(tmp_path / "data", "a")


def test_a_dry_run_writes_nothing(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, {SUBSET: [[row(1)], [row(2)]]})
    result = prepare(tmp_path / "data", dry_run=True)
    assert (result.outcome, result.fetched) == ("planned", 2)
    assert not (tmp_path / "data").exists()
