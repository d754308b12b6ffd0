"""Where the table is from: the Hub at a commit, an earlier run, or this disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prep.errors import EnvironmentLacksError, FetchError, PrepError, UsageError
from prep.loopback import Fault, FaultKind
from prep.manifest import Manifest
from tests.world import REPO, TABLE, World, csv_bytes, tree


def facts(root: Path) -> dict[str, object]:
    manifest = Manifest.load(root)
    assert manifest is not None
    return dict(manifest.document["sources"][0])


def hub_requests(world: World) -> list[str]:
    return [record.path for record in world.hub.requests if not record.path.startswith("/files/")]


# The Hub.


def test_the_commit_of_an_unpinned_source_is_in_the_manifest(world: World) -> None:
    commit = world.commit([world.row(1)])
    world.run()
    assert facts(world.root) == {
        "kind": "hub",
        "repo": REPO,
        "asked": None,
        "commit": commit,
        "file": TABLE,
        "size": (world.root / ".prep" / "source" / TABLE).stat().st_size,
        "sha256": facts(world.root)["sha256"],
    }


def test_a_source_at_a_commit_stays_there(world: World) -> None:
    first = world.commit([world.row(1)])
    world.commit([world.row(1), world.row(2)])
    result = world.run(sources={"val": f"{REPO}@{first}"})
    assert (result.rows, facts(world.root)["asked"], facts(world.root)["commit"]) == (1, first, first)
    again = world.run(sources={"val": f"{REPO}@{first}"}, refresh=True)
    assert again.outcome == "unchanged"


def test_another_repository_may_hold_the_table(world: World) -> None:
    world.hub.add_repo("somebody/copy", {TABLE: csv_bytes([world.row(1)])})
    assert world.run(sources={"val": "somebody/copy"}).outcome == "complete"
    assert facts(world.root)["repo"] == "somebody/copy"


def test_an_alias_of_a_split_names_its_source(world: World) -> None:
    world.hub.add_repo("somebody/copy", {TABLE: csv_bytes([world.row(1)])})
    assert world.run(sources={"test": "somebody/copy"}).outcome == "complete"
    with pytest.raises(UsageError, match="--source names the split 'dev'") as caught:
        world.run(sources={"dev": "somebody/copy"})
    assert caught.value.remedy == "It has: train, val."


FAULTS = {
    FaultKind.NOT_FOUND: ("missing_file", 1),
    FaultKind.GONE: ("http_410", 1),
    FaultKind.TOO_MANY: ("http_429", 3),
    FaultKind.SERVER_ERROR: ("http_500", 3),
    FaultKind.UNAVAILABLE: ("http_503", 3),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_table_that_the_hub_refuses_stops_the_split(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: FaultKind
) -> None:
    # The client repeats what may pass; its waits would make the test slow.
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    world.rows(1)
    world.hub.faults.set(TABLE, Fault(kind, retry_after=0))
    with pytest.raises(FetchError) as caught:
        world.run()
    assert (caught.value.reason, caught.value.exit_status) == FAULTS[kind]
    assert not world.root.exists()
    world.hub.faults.clear()
    assert world.run().outcome == "complete"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FaultKind.WRONG_BYTES, "git blob id"),
        (FaultKind.HTML, "size"),
        (FaultKind.LFS_POINTER, "size"),
    ],
)
def test_a_table_of_other_bytes_than_the_listing_is_refused(
    world: World, kind: FaultKind, words: str
) -> None:
    world.rows(1)
    world.hub.faults.set(TABLE, Fault(kind))
    with pytest.raises(PrepError, match=words) as caught:
        world.run()
    assert caught.value.exit_status in (1, 3)
    assert not world.root.exists()
    world.hub.faults.clear()
    assert world.run().outcome == "complete"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n",
            "Git-LFS pointer.*oid sha256:aaaa",
        ),
        (b"<!DOCTYPE html><html><body>Please sign in</body></html>", "HTML"),
        (b"", "is empty"),
    ],
)
def test_a_table_that_is_committed_as_something_else_is_named(world: World, data: bytes, words: str) -> None:
    world.commit(data)
    with pytest.raises(PrepError, match=words) as caught:
        world.run()
    assert caught.value.message.startswith(TABLE)
    assert caught.value.exit_status == 1
    assert not world.root.exists()


def test_a_repository_that_is_not_there_is_named(world: World) -> None:
    with pytest.raises(FetchError, match=f"no dataset '{REPO}'") as caught:
        world.run()
    assert (caught.value.reason, caught.value.exit_status) == ("missing_repo", 1)
    assert "hf auth login" in caught.value.remedy


def test_a_repository_without_the_table_names_what_is_close(world: World) -> None:
    world.hub.add_repo(REPO, {"data/videophy2_test.csv": b"a\n"})
    with pytest.raises(FetchError) as caught:
        world.run()
    assert (caught.value.reason, caught.value.remedy) == (
        "missing_file",
        "The closest names: data/videophy2_test.csv.",
    )


def test_a_gated_repository_says_where_its_terms_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.hub.add_repo(REPO, {TABLE: csv_bytes([world.row(1)])}, gated=True)
    with pytest.raises(EnvironmentLacksError) as caught:
        world.run()
    assert caught.value.exit_status == 4
    assert f"{world.hub.endpoint}/datasets/{REPO}" in caught.value.remedy
    assert "hf auth login" in caught.value.remedy
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_reader")
    assert world.run().outcome == "complete"


# An earlier run.


def test_an_unfinished_run_keeps_its_commit(world: World) -> None:
    first = world.commit([world.row(1), world.row(2)])
    world.fail(2, FaultKind.UNAVAILABLE)
    assert world.run().exit_status == 3
    world.commit([world.row(1), world.row(2), world.row(3)])
    world.hub.faults.clear()
    result = world.run()
    assert (result.outcome, result.rows, facts(world.root)["commit"]) == ("complete", 2, first)
    assert hub_requests(world) == []


def test_an_unfinished_run_takes_the_newest_commit_where_that_is_asked(world: World) -> None:
    world.commit([world.row(1), world.row(2)])
    world.fail(2, FaultKind.UNAVAILABLE)
    world.run()
    world.hub.faults.clear()
    newest = world.commit([world.row(1), world.row(2), world.row(3)])
    result = world.run(refresh=True)
    assert (result.outcome, result.rows, facts(world.root)["commit"]) == ("complete", 3, newest)
    assert world.fetched() == ["2.mp4", "3.mp4"]


def test_a_lost_table_comes_back_from_the_commit_of_the_manifest(world: World) -> None:
    world.commit([world.row(1), world.row(2)])
    world.run()
    before = tree(world.root)
    world.commit([world.row(3)])
    shutil.rmtree(world.root / ".prep" / "source")
    shutil.rmtree(world.folder / "hub-cache")
    assert world.run().outcome == "complete"
    assert tree(world.root) == before


def test_what_the_hubs_cache_holds_is_not_fetched(world: World) -> None:
    world.rows(1)
    world.run()
    world.run(out=world.folder / "other")
    assert not [record for record in world.hub.requests if record.method == "GET" and TABLE in record.path]


# This disk.


def test_a_local_folder_is_a_source(world: World) -> None:
    folder = world.folder / "my copy"
    folder.mkdir()
    (folder / TABLE).write_bytes(csv_bytes([world.row(1), world.row(2)]))
    result = world.run(sources={"val": str(folder)})
    assert (result.outcome, result.kept) == ("complete", 2)
    assert hub_requests(world) == []
    assert facts(world.root).keys() == {"kind", "file", "size", "sha256"}
    assert world.run(sources={"val": str(folder / TABLE)}).outcome == "unchanged"


def test_a_local_table_that_changes_needs_update(world: World) -> None:
    table = world.folder / TABLE
    table.write_bytes(csv_bytes([world.row(1)]))
    world.run(sources={"val": str(table)})
    table.write_bytes(csv_bytes([world.row(1), world.row(2)]))
    with pytest.raises(PrepError, match=r"source table videophy2_test.csv: sha256 \w{12} → \w{12}"):
        world.run(sources={"val": str(table)})
    result = world.run(sources={"val": str(table)}, update=True)
    assert (result.kept, world.fetched()) == (2, ["2.mp4"])


def test_a_home_folder_may_be_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(world.folder))
    (world.folder / TABLE).write_bytes(csv_bytes([world.row(1)]))
    assert world.run(sources={"val": "~"}).outcome == "complete"
    assert world.run(sources={"val": f"~/{TABLE}"}).outcome == "unchanged"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/nowhere/at/all", "neither a local folder or file nor owner/name"),
        ("./nowhere", "neither a local folder"),
        ("justaname", "neither a local folder"),
        ("{folder}", f"no table at .*{TABLE}"),
    ],
)
def test_a_source_that_is_nothing_is_wrong_usage(world: World, given: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        world.run(sources={"val": given.format(folder=world.folder)})
    assert not world.root.exists()
    assert world.hub.requests == []


def test_the_hub_instead_of_a_local_table_is_a_change(world: World) -> None:
    rows = world.rows(1)
    (world.folder / TABLE).write_bytes(csv_bytes(rows))
    world.run(sources={"val": str(world.folder)})
    with pytest.raises(PrepError, match=f'source: "local" → "{REPO}"'):
        world.run()


def test_a_run_from_the_hubs_cache_gives_the_same_manifest(world: World, tmp_path: Path) -> None:
    world.rows(2)
    world.run()
    result = world.run(tmp_path / "again", offline=True, reuse=world.out)
    assert result.outcome == "complete"
    assert any("the Hub was not asked" in note for note in result.notes)
    again = tmp_path / "again" / world.root.name / "manifest.json"
    assert again.read_bytes() == (world.root / "manifest.json").read_bytes()
