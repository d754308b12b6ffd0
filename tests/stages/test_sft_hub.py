"""Bridge from the Hub: pinned, resumed, finished offline, and never fetched twice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prep.errors import EnvironmentLacksError, UsageError, WouldChangeError
from prep.loopback import LoopbackHub
from prep.manifest import Manifest
from prep.recipe import load_recipe
from tests.commands import PROJECT
from tests.runs import wait_for
from tests.sft_trees import bridge_tree, build, lines, settled
from tests.trees import make_tree

LINES = "train/video_dataset_file.jsonl"
REPO = "nvidia/BridgeData2-Subset-Synthetic-Captions"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub whose client keeps its cache in the test's folder."""
    with LoopbackHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield server


def publish(hub: LoopbackHub, tree: Path) -> str:
    files = {
        f"sft_dataset_bridge/{path.relative_to(tree)}": path for path in tree.rglob("*") if path.is_file()
    }
    return hub.add_repo(REPO, files, lfs=("*.mp4", "*.png"))


def test_bridge_from_the_hub_is_the_local_one_and_then_opens_no_socket(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = bridge_tree(tmp_path / "src")
    commit = publish(hub, tree)
    result = build(tmp_path / "data", "bridge", source=REPO)
    assert result.dataset_id == build(tmp_path / "local", "bridge", source=str(tree)).dataset_id
    manifest = Manifest.load(result.root)
    assert manifest is not None
    assert {source["commit"] for source in manifest.document["sources"]} == {commit}
    assert (result.fetched, result.reused) == (7, 0)
    publish(hub, bridge_tree(tmp_path / "newer", train=("ep9_clip000",)))
    hub.clear_requests()
    for options in ({}, {"offline": True}):
        again = build(tmp_path / "data", "bridge", source=REPO, **options)
        assert (again.outcome, again.dataset_id) == ("unchanged", result.dataset_id)
    assert hub.requests == []
    with pytest.raises(WouldChangeError, match=r"source train/video_dataset_file\.jsonl has changed"):
        build(tmp_path / "data", "bridge", source=REPO, refresh=True)
    newer = build(tmp_path / "data", "bridge", source=REPO, refresh=True, update=True)
    assert [item["uuid"] for item in lines(newer.root / LINES)] == ["ep9_clip000"]


def test_the_recipe_pins_its_revision(hub: LoopbackHub, tmp_path: Path) -> None:
    (split,) = load_recipe("bridge").splits
    assert (split.repo, split.revision) == (REPO, "40d018ac1c1a2a4b9734f17fdb21f3d933c49a01")
    publish(hub, bridge_tree(tmp_path / "src"))
    with pytest.raises(Exception, match="40d018ac"):
        build(tmp_path / "data", "bridge")
    assert not (tmp_path / "data").exists()


def test_fetched_on_one_machine_and_finished_offline(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = bridge_tree(tmp_path / "src")
    publish(hub, tree)
    first = build(tmp_path / "data", "bridge", source=REPO, download_only=True)
    assert (first.outcome, first.exit_status) == ("downloaded", 0)
    assert not (first.root / "manifest.json").exists()
    hub.clear_requests()
    second = build(tmp_path / "data", "bridge", source=REPO, offline=True)
    assert (second.outcome, hub.requests) == ("complete", [])
    settled(second.root)
    with pytest.raises(EnvironmentLacksError):
        build(tmp_path / "never", "bridge", source="nvidia/Nowhere", offline=True)


def test_a_file_that_cannot_be_had_now_is_fetched_by_the_next_run_alone(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = bridge_tree(tmp_path / "src")
    publish(hub, tree)
    missing = tree / "train/videos/ep1_clip001.mp4"
    kept = missing.read_bytes()
    missing.unlink()
    publish(hub, tree)
    result = build(tmp_path / "data", "bridge", source=REPO)
    assert (result.exit_status, result.failed) == (1, {"missing_video": 1})
    missing.write_bytes(kept)
    publish(hub, tree)
    hub.clear_requests()
    whole = build(tmp_path / "data", "bridge", source=REPO, refresh=True)
    assert whole.outcome == "complete"
    fetched = [item.path for item in hub.requests if "/resolve/" in item.path and ".mp4" in item.path]
    assert {path.rpartition("/")[2] for path in fetched} == {"ep1_clip001.mp4"}


def test_a_killed_download_goes_on_where_it_was(hub: LoopbackHub, tmp_path: Path) -> None:
    names = tuple(f"ep{number}_clip000" for number in range(8))
    tree = bridge_tree(tmp_path / "src", train=names)
    publish(hub, tree)
    whole = settled(build(tmp_path / "whole", "bridge", source=REPO).root)
    shutil.rmtree(tmp_path / "cache")
    script = (
        "import sys; from prep.sft import SftOptions, prepare_sft\n"
        f"prepare_sft('bridge', sys.argv[1], options=SftOptions(source={REPO!r}, jobs=1))"
    )
    out = tmp_path / "data"
    hub.clear_requests()
    child = subprocess.Popen([sys.executable, "-c", script, str(out)], cwd=PROJECT, env=dict(os.environ))
    try:
        wait_for(lambda: sum("/resolve/" in item.path for item in hub.requests) > 8)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert settled(build(out, "bridge", source=REPO).root) == whole


# --- of another out-root ------------------------------------------------------------------


def fetched(hub: LoopbackHub) -> list[str]:
    """The names of the payload that was asked for."""
    asked = {item.path.rpartition("/")[2] for item in hub.requests if "/resolve/" in item.path}
    return sorted(name for name in asked if name.endswith((".mp4", ".png", "caption.json")))


def test_clips_of_another_out_root_are_linked(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, bridge_tree(tmp_path / "src"))
    first = build(tmp_path / "one", "bridge", source=REPO)
    shutil.rmtree(tmp_path / "cache")
    hub.clear_requests()
    planned = build(tmp_path / "two", "bridge", source=REPO, reuse=tmp_path / "one", dry_run=True)
    assert (planned.fetched, planned.reused, planned.bytes) == (0, 3, 0)
    second = build(tmp_path / "two", "bridge", source=REPO, reuse=tmp_path / "one")
    assert fetched(hub) == ["caption.json"]  # no LFS file: its digest is not listed
    assert (second.outcome, second.dataset_id, second.reused) == ("complete", first.dataset_id, 4)
    assert settled(second.root) == settled(first.root)


def test_a_dataset_itself_and_another_commit_serve_by_what_the_hub_lists(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = bridge_tree(tmp_path / "src")
    publish(hub, tree)
    first = build(tmp_path / "one", "bridge", source=REPO, name="mine")
    replaced = tree / "train/videos/ep1_clip001.mp4"
    replaced.write_bytes((tree / "train/videos/ep1_clip000.mp4").read_bytes())
    publish(hub, tree)
    hub.clear_requests()
    second = build(tmp_path / "two", "bridge", source=REPO, reuse=first.root)
    assert second.outcome == "complete"
    assert [name for name in fetched(hub) if name.endswith(".mp4")] == []
    assert (second.root / "train/videos/ep1_clip001.mp4").read_bytes() == replaced.read_bytes()


def test_a_damaged_clip_of_another_out_root_is_fetched(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, bridge_tree(tmp_path / "src"))
    first = build(tmp_path / "one", "bridge", source=REPO)
    whole = settled(first.root)
    shutil.rmtree(tmp_path / "cache")
    damaged = first.root / "train/videos/ep1_clip000.mp4"
    data = bytearray(damaged.read_bytes())
    data[-9] ^= 1
    damaged.unlink()
    damaged.write_bytes(data)
    hub.clear_requests()
    second = build(tmp_path / "two", "bridge", source=REPO, reuse=tmp_path / "one")
    assert fetched(hub) == ["caption.json", "ep1_clip000.mp4"]
    assert settled(second.root) == whole


def test_another_out_root_serves_offline(hub: LoopbackHub, tmp_path: Path) -> None:
    """Of the Hub's cache only the lists are left, as after a login node's clean-up."""
    publish(hub, bridge_tree(tmp_path / "src", val=()))
    first = build(tmp_path / "one", "bridge", source=REPO)
    for path in (tmp_path / "cache").rglob("*.mp4"):
        path.unlink()
    hub.clear_requests()
    second = build(tmp_path / "two", "bridge", source=REPO, reuse=tmp_path / "one", offline=True)
    assert (second.outcome, second.dataset_id, hub.requests) == ("complete", first.dataset_id, [])


def test_what_is_no_dataset_of_clips_cannot_be_reused(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, bridge_tree(tmp_path / "src"))
    for dry_run in (False, True):
        with pytest.raises(UsageError, match="has no manifest to reuse"):
            build(tmp_path / "two", "bridge", source=REPO, reuse=tmp_path / "one", dry_run=dry_run)
    other = make_tree(tmp_path / "other" / "videophy2_val", 1, manifest=True)
    with pytest.raises(UsageError, match="of the kind conversations, not sft_jsonl"):
        build(tmp_path / "two", "bridge", source=REPO, reuse=other)
    assert not (tmp_path / "two").exists()


def test_a_run_from_the_cache_gives_the_bytes_of_one_that_asked_the_hub(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Licence, digests and sizes of a listing depend on who was asked: none of them enters the manifest."""
    publish(hub, bridge_tree(tmp_path / "src"))
    online = build(tmp_path / "one", "bridge", source=REPO)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    offline = build(tmp_path / "two", "bridge", source=REPO, offline=True)
    assert settled(offline.root) == settled(online.root)
    manifest = Manifest.load(offline.root)
    assert manifest is not None
    for source in manifest.document["sources"]:
        assert source.keys() == {"kind", "repo", "asked", "commit", "file", "size", "sha256"}
