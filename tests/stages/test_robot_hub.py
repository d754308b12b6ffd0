"""Robot data from the Hub: planned from the metadata, fetched exactly, resumed, and never twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from prep.errors import EnvironmentLacksError, PrepError, UsageError, WouldChangeError
from prep.loopback import Fault, FaultKind, LoopbackHub
from prep.manifest import Manifest
from tests.commands import PROJECT
from tests.robot_trees import NAME, droid_tree, episode_id, keep, listing, run
from tests.runs import digests, wait_for

REPO = "nvidia/Cosmos3-DROID"
PAYLOAD = ("*.mp4", "data/*", "*/data/*")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub whose client keeps its cache in the test's folder."""
    with LoopbackHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "DROID_ROOT", "DATASET_PATH"):
            monkeypatch.delenv(name, raising=False)
        yield server


def publish(hub: LoopbackHub, tree: Path, repo: str = REPO) -> str:
    """Commit a tree; frame tables and videos are LFS files."""
    files = {path.relative_to(tree).as_posix(): path for path in tree.rglob("*") if path.is_file()}
    return hub.add_repo(repo, files, lfs=PAYLOAD)


def fetched(hub: LoopbackHub) -> set[str]:
    """The files of the dataset that were asked for."""
    return {
        unquote(record.path).partition("/resolve/")[2].partition("/")[2].partition("?")[0]
        for record in hub.requests
        if "/resolve/" in record.path
    }


def payload(tree: Path, below: str) -> dict[str, int]:
    """The data and video files below a part of a tree, with their bytes."""
    paths = [path for path in (tree / below).rglob("*") if path.is_file() and "meta" not in path.parts]
    return {path.relative_to(tree).as_posix(): path.stat().st_size for path in paths}


def test_the_recipes_groups_are_fetched_and_proven_by_the_hubs_own_hashes(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree")
    commit = publish(hub, tree)
    result = run(tmp_path / "data")
    assert (result.outcome, result.root) == ("complete", tmp_path / "data" / NAME)
    assert digests(result.root / "success") == digests(tree / "success")
    assert not (result.root / "failure").exists()
    assert not any(name.startswith("failure") for name in fetched(hub))
    manifest = Manifest.load(result.root)
    assert manifest is not None
    source = manifest.document["sources"][0]
    assert (source["kind"], source["repo"], source["commit"]) == ("hub", REPO, commit)
    known = {row.path: row for row in manifest.files() if row.role == "payload"}
    assert {row.known for row in known.values()} == {"hub_listing"}
    assert {name: row.sha256 for name, row in known.items()} == {
        name: digest for name, digest in digests(result.root).items() if name in known
    }
    assert not (result.root / ".prep/ledger").exists()


def test_a_second_run_opens_no_socket_and_a_new_commit_is_not_taken(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    first = run(tmp_path / "data")
    before = listing(tmp_path / "data")
    publish(hub, droid_tree(tmp_path / "newer", lengths=(50, 60, 70)))
    hub.clear_requests()
    for options in ({}, {"offline": True}):
        again = run(tmp_path / "data", **options)
        assert (again.outcome, again.dataset_id) == ("unchanged", first.dataset_id)
    assert hub.requests == []
    assert listing(tmp_path / "data") == before


def test_metadata_only_fetches_no_more_and_is_completed_later_at_its_commit(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    ranges = keep(tmp_path / "keep.json", {episode_id(number): [[0, 90]] for number in range(40)})
    first = run(tmp_path / "data", metadata_only=True, keep_ranges=str(ranges))
    assert first.outcome == "complete"
    assert {name.split("/")[1] for name in fetched(hub)} == {"meta"}
    total = sum(payload(tree, "success").values())
    assert any(
        note.startswith(f"4 data and video files not fetched: {total} bytes (") for note in first.notes
    )
    assert first.consumption["train"]["windows"] < first.consumption["train"]["windows_without_filter"]
    assert run(tmp_path / "data", metadata_only=True, keep_ranges=str(ranges)).outcome == "unchanged"
    publish(hub, droid_tree(tmp_path / "newer", lengths=(50, 60, 70)))
    hub.clear_requests()
    second = run(tmp_path / "data", keep_ranges=str(ranges))
    assert second.outcome == "complete"
    assert digests(second.root / "success") == digests(tree / "success")
    assert fetched(hub) == set(payload(tree, "success"))


def test_beyond_the_limit_it_stops_with_the_exact_bytes(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    total = sum(payload(tree, "success").values())
    with pytest.raises(UsageError, match=rf": {total} bytes ") as error:
        run(tmp_path / "data", max_download=total - 1)
    assert error.value.exit_status == 2
    assert not (tmp_path / "data").exists()
    assert run(tmp_path / "data", max_download=total).outcome == "complete"


def test_what_is_there_already_is_not_fetched_and_not_counted(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    made = run(tmp_path / "data")
    lost = sorted(payload(tree, "success"))[1]
    (made.root / lost).unlink()
    hub.clear_requests()
    with pytest.raises(UsageError, match=rf": {payload(tree, 'success')[lost]} bytes "):
        run(tmp_path / "data", max_download=1)
    again = run(tmp_path / "data")
    assert (again.outcome, again.fetched, again.dataset_id) == ("complete", 1, made.dataset_id)
    # The Hub's cache still had it.
    assert not fetched(hub) & set(payload(tree, "success"))


@pytest.mark.parametrize(
    ("recipe", "include", "roots"),
    [
        ("droid_policy", "success", ["success/IRIS", "success/RAIL"]),
        ("droid_policy", "IRIS", ["success/IRIS"]),
        ("droid_forward_dynamics", "failure", ["failure/IRIS", "failure/RAIL"]),
        ("droid_forward_dynamics", "RAIL", ["success/RAIL", "failure/RAIL"]),
    ],
)
def test_a_part_of_the_repository(
    recipe: str, include: str, roots: list[str], hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree", "sharded")
    publish(hub, tree)
    result = run(tmp_path / "data", recipe, include=include)
    assert result.root.name == f"{NAME}_sharded"
    assert [path.name for path in (tmp_path / "data").iterdir()] == [result.root.name]
    expected: dict[str, int] = {}
    for root in roots:
        expected |= payload(tree, root)
    assert payload(result.root, "success") | payload(result.root, "failure") == expected
    codes = [item.code for item in result.findings]
    assert codes == (["ROB004"] if recipe == "droid_policy" else [])
    reader = {"droid_policy": "action_policy_droid_nano"}.get(recipe, "action_fd_droid_posttrain")
    assert f"for upstream's {reader}" in result.notes
    assert run(tmp_path / "data", recipe, include=include).outcome == "unchanged"


def test_a_part_that_is_not_there_or_not_of_the_recipe_is_refused(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, droid_tree(tmp_path / "tree", "sharded"))
    with pytest.raises(UsageError, match="no metadata for TRI") as error:
        run(tmp_path / "data", include="TRI")
    assert "success/IRIS" in error.value.remedy
    with pytest.raises(UsageError, match="droid_policy reads success; failure is none of it"):
        run(tmp_path / "data", include="failure")
    with pytest.raises(UsageError, match="--include"):
        run(tmp_path / "data", include="IRIS", root=tmp_path / "tree")
    assert not (tmp_path / "data").exists()


def test_another_part_is_added_only_with_update(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree", "sharded")
    publish(hub, tree)
    first = run(tmp_path / "data", include="IRIS")
    hub.clear_requests()
    with pytest.raises(WouldChangeError, match="would add"):
        run(tmp_path / "data", include="RAIL")
    assert not fetched(hub) & set(payload(tree, "success/RAIL"))
    second = run(tmp_path / "data", include="RAIL", update=True)
    assert second.dataset_id != first.dataset_id
    assert payload(second.root, "success") == payload(tree, "success")
    assert run(tmp_path / "data").outcome == "unchanged"


def test_forward_dynamics_after_the_policy_adds_the_failures(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    run(tmp_path / "data")
    with pytest.raises(WouldChangeError, match="failure/"):
        run(tmp_path / "data", "droid_forward_dynamics")
    result = run(tmp_path / "data", "droid_forward_dynamics", update=True)
    assert payload(result.root, "failure") == payload(tree, "failure")
    # Both recipes now read one dataset.
    assert run(tmp_path / "data").dataset_id == result.dataset_id


def test_a_dry_run_says_what_would_come_and_writes_nothing(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    result = run(tmp_path / "data", dry_run=True)
    whole = [path for path in (tree / "success").rglob("*") if path.is_file()]
    assert (result.outcome, result.fetched) == ("planned", len(whole))
    assert result.bytes == sum(path.stat().st_size for path in whole)
    assert not (tmp_path / "data").exists()
    assert not fetched(hub) & set(payload(tree, "success"))


def test_a_filter_that_is_refused_costs_no_download(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    ranges = keep(tmp_path / "keep.json", {"LAB/success/none/such": [[0, 9]]})
    with pytest.raises(PrepError, match="no key matches"):
        run(tmp_path / "data", keep_ranges=str(ranges))
    few = run(tmp_path / "data", ranks=1000)
    assert [item.code for item in few.findings] == ["ROB003"]
    assert not fetched(hub) & set(payload(tree, "success"))
    assert not (tmp_path / "data").exists()


def test_the_published_filter(hub: LoopbackHub, tmp_path: Path) -> None:
    publish(hub, droid_tree(tmp_path / "tree"))
    ranges = keep(tmp_path / "keep.json", {episode_id(number): [[0, 90]] for number in range(40)})
    commit = hub.add_repo("KarlP/droid", {"keep_ranges_1_0_1.json": ranges}, repo_type="model")
    # The pin is a commit of the real Hub: there is none such here, and that is said.
    with pytest.raises(PrepError, match="bcb840c3"):
        run(tmp_path / "data", keep_ranges="hub", root=tmp_path / "tree")
    from prep.recipe import load_recipe, recipe_from
    from prep.robots import RobotOptions, prepare_robots

    document = dict(load_recipe("droid_policy").document)
    document["filter"] = document["filter"] | {"revision": commit}
    recipe = recipe_from(document, folder=tmp_path, named="mine.toml")
    options = RobotOptions(keep_ranges="hub", root=tmp_path / "tree")
    (result,) = prepare_robots(recipe, tmp_path / "data", options=options)
    assert any("40 of 40 episodes matched" in note for note in result.notes)


def test_offline_takes_what_the_cache_holds_and_names_what_it_lacks(hub: LoopbackHub, tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    with pytest.raises(EnvironmentLacksError):
        run(tmp_path / "data", offline=True)
    run(tmp_path / "first", metadata_only=True)
    hub.clear_requests()
    assert run(tmp_path / "data", offline=True, metadata_only=True).outcome == "complete"
    with pytest.raises(EnvironmentLacksError, match="not in the Hub's cache"):
        run(tmp_path / "other", offline=True)
    run(tmp_path / "whole")
    hub.clear_requests()
    assert run(tmp_path / "third", offline=True).outcome == "complete"
    assert hub.requests == []


def test_a_file_that_the_repository_lacks_is_named_before_anything_is_fetched(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree")
    lost = sorted(payload(tree, "success"))[0]
    (tree / lost).unlink()
    publish(hub, tree)
    with pytest.raises(PrepError, match=lost) as error:
        run(tmp_path / "data")
    assert error.value.exit_status == 1
    assert not (tmp_path / "data").exists()


def test_a_suite_is_fetched_out_of_its_folder(hub: LoopbackHub, tmp_path: Path) -> None:
    for suite in ("libero_10", "libero_goal"):
        droid_tree(tmp_path / "tree" / suite, "flat", fps=20)
    publish(hub, tmp_path / "tree", "nvidia/LIBERO_LeRobot_v3")
    result = run(tmp_path / "data", "libero_10", metadata_only=True)
    assert result.root == tmp_path / "data/LIBERO_LeRobot_v3/libero_10"
    assert (result.root / "meta/info.json").is_file()
    assert not any(name.startswith("libero_goal") for name in fetched(hub))


def test_a_recipe_without_a_repository_asks_for_a_tree(hub: LoopbackHub, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no Hub repository"):
        run(tmp_path / "data", "lerobot")
    assert hub.requests == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_was_stopped_goes_on_at_its_commit(
    how: signal.Signals, hub: LoopbackHub, tmp_path: Path
) -> None:
    tree = droid_tree(tmp_path / "tree")
    publish(hub, tree)
    names = sorted(payload(tree, "success"))
    hub.faults.set(names[-1], Fault(FaultKind.SLOW, seconds=3.0), times=1)
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    command = [
        sys.executable,
        "-m",
        "prep",
        "droid",
        "--out-root",
        str(tmp_path / "data"),
        "--jobs",
        "1",
        "-q",
    ]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd="/")
    root = tmp_path / "data" / NAME
    assert wait_for((root / names[0]).is_file, process)
    process.send_signal(how)
    hub.faults.clear()
    _, said = process.communicate(timeout=90)
    assert process.returncode == {signal.SIGKILL: -9}.get(how, 3), said
    assert not (root / "manifest.json").exists()
    publish(hub, droid_tree(tmp_path / "newer", lengths=(50, 60, 70)))
    hub.clear_requests()
    result = run(tmp_path / "data")
    assert names[0] not in fetched(hub)
    assert digests(root / "success") == digests(tree / "success")
    assert result.outcome == "complete"
    assert {path.name for path in (root / ".prep").iterdir()} == {"files.parquet", "records.parquet"}
