"""The conversations stage over loopback: what is fetched, what fails, what a second run does."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from prep.errors import EnvironmentLacksError, IncompleteError, PrepError, UsageError, WouldChangeError
from prep.files import sha256_of
from prep.loopback import FaultKind, LoopbackHub
from prep.manifest import Manifest
from prep.preparation import failures
from prep.workspace import Workspace
from tests.world import HOST, REPO, TABLE, World, csv_bytes, tree


def media(root: Path) -> dict[str, tuple[int, bytes]]:
    """Each clip's inode and bytes."""
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in sorted((root / "media").iterdir())}


def answers(root: Path) -> list[str]:
    texts = [json.loads(path.read_bytes()) for path in sorted((root / "text").iterdir())]
    return [text["conversations"][1]["content"][0]["text"] for text in texts]


# A plain run.


def test_a_run_makes_the_layout_and_leaves_nothing_else(world: World) -> None:
    world.rows(3)
    result = world.run()
    assert (result.outcome, result.exit_status, result.rows, result.kept) == ("complete", 0, 3, 3)
    assert (result.reused, result.fetched, result.failed) == (0, 3, {})
    assert sorted(tree(world.root)) == [
        ".prep/files.parquet",
        ".prep/records.parquet",
        f".prep/source/{TABLE}",
        "manifest.json",
        "media/video_0001.mp4",
        "media/video_0002.mp4",
        "media/video_0003.mp4",
        "meta.json",
        "text/conversation_0001.json",
        "text/conversation_0002.json",
        "text/conversation_0003.json",
    ]
    assert [row.sha256 for row in Manifest.load(world.root).files()] == [  # type: ignore[union-attr]
        sha256_of(world.root / row.path)
        for row in Manifest.load(world.root).files()  # type: ignore[union-attr]
    ]


def test_a_second_run_opens_no_socket_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.rows(3)
    first = world.run()
    before = tree(world.root)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    second = world.run()
    assert (second.outcome, second.reused, second.fetched) == ("unchanged", 3, 0)
    assert second.dataset_id == first.dataset_id
    assert world.hub.requests == []
    assert tree(world.root) == before


def test_a_finished_tree_that_may_not_be_written_is_confirmed(world: World) -> None:
    world.rows(1)
    world.run()
    folders = [world.root, *(path for path in world.root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert world.run().outcome == "unchanged"
    finally:
        for folder in folders:
            folder.chmod(0o755)


# Faults of the server on one clip of three.

FINAL = {
    FaultKind.UNAUTHORIZED: "http_401",
    FaultKind.FORBIDDEN: "http_403",
    FaultKind.GATED: "http_401",
    FaultKind.NOT_FOUND: "http_404",
    FaultKind.GONE: "http_410",
    FaultKind.WRONG_BYTES: "broken_media",
    FaultKind.HTML: "not_media",
    FaultKind.LFS_POINTER: "lfs_pointer",
    FaultKind.EMPTY: "empty",
}
PASSING = {
    FaultKind.TOO_MANY: "http_429",
    FaultKind.SERVER_ERROR: "http_500",
    FaultKind.UNAVAILABLE: "http_503",
    FaultKind.CUT: "cut_body",
    FaultKind.STALL: "stalled",
    FaultKind.RESET: "reset",
}
HARMLESS = {FaultKind.NO_RANGE, FaultKind.SLOW, FaultKind.NEW_ETAG}


def test_every_fault_of_the_server_is_tried_here() -> None:
    assert FINAL.keys() | PASSING.keys() | HARMLESS == set(FaultKind)


@pytest.mark.parametrize("kind", FINAL)
def test_a_clip_that_fails_for_good_costs_no_other(world: World, kind: FaultKind) -> None:
    world.rows(3)
    world.fail(2, kind)
    result = world.run()
    assert (result.outcome, result.exit_status) == ("failed", 1)
    assert result.failed == {FINAL[kind]: 1}
    assert "2 of 3 rows kept (0.6667), below --min-coverage 1" in result.message
    assert not (world.root / "manifest.json").exists()
    of, (row,) = failures(world.root)
    assert (of, row.row, row.reason, row.source) == (
        "the unfinished run",
        2,
        FINAL[kind],
        f"{HOST}clips/2.mp4",
    )
    assert "2.mp4" in row.detail

    accepted = world.run(min_coverage=0.66)
    assert (accepted.outcome, accepted.exit_status, accepted.kept, accepted.reused) == ("complete", 0, 2, 2)
    assert set(world.fetched()) == {"2.mp4"}
    meta = json.loads((world.root / "meta.json").read_bytes())
    assert [entry["id"] for entry in meta] == ["conversation_0001", "conversation_0003"]
    assert sorted(media(world.root)) == ["video_0001.mp4", "video_0003.mp4"]
    of, (row,) = failures(world.root)
    assert (of, row.row, row.status, row.reason) == ("the finished dataset", 2, "failed", FINAL[kind])


@pytest.mark.parametrize("kind", PASSING)
def test_a_clip_that_fails_this_time_is_fetched_by_a_rerun(world: World, kind: FaultKind) -> None:
    world.rows(3)
    undisturbed = world.run(out=world.folder / "undisturbed")
    world.fail(2, kind)
    result = world.run(min_coverage=0.5)
    assert (result.outcome, result.exit_status) == ("incomplete", 3)
    assert result.failed == {PASSING[kind]: 1}
    assert not (world.root / "manifest.json").exists()
    assert failures(world.root)[1][0].reason == PASSING[kind]

    world.hub.faults.clear()
    mended = world.run()
    assert (mended.outcome, mended.fetched, mended.reused) == ("complete", 1, 2)
    assert world.fetched() == ["2.mp4"]
    assert mended.dataset_id == undisturbed.dataset_id
    assert tree(world.root) == tree(world.folder / "undisturbed" / "videophy2_val")


@pytest.mark.parametrize("kind", sorted(HARMLESS))
def test_a_slow_or_simple_server_is_no_failure(world: World, kind: FaultKind) -> None:
    world.rows(2)
    world.fail(2, kind, seconds=0.1)
    assert world.run().outcome == "complete"


@pytest.mark.parametrize("kind", PASSING)
def test_a_fault_that_passes_is_mended_within_the_run(world: World, kind: FaultKind) -> None:
    world.rows(2)
    world.fail(2, kind, times=1)
    assert world.run(attempts=2).outcome == "complete"


def test_giving_up_makes_a_passing_fault_final(world: World) -> None:
    world.rows(3)
    world.fail(2, FaultKind.UNAVAILABLE)
    assert world.run(give_up=True).exit_status == 1
    result = world.run(give_up=True, min_coverage=0.6)
    assert (result.outcome, result.failed) == ("complete", {"http_503": 1})
    world.hub.faults.clear()
    assert world.run(min_coverage=0.6).outcome == "unchanged"
    again = world.run(min_coverage=0.6, update=True)
    assert (again.outcome, again.kept, world.fetched()) == ("complete", 3, ["2.mp4"])


def test_failed_rows_that_fail_again_leave_the_finished_dataset(world: World) -> None:
    world.rows(2)
    world.fail(2, FaultKind.GONE)
    world.run(min_coverage=0.5)
    before = tree(world.root)
    assert world.run(update=True).exit_status == 1
    assert failures(world.root)[0] == "the unfinished run"
    assert world.run(min_coverage=0.5).outcome == "unchanged"
    assert tree(world.root) == before


def test_an_incomplete_run_says_how_to_go_on_and_how_to_give_up(world: World) -> None:
    world.rows(2)
    world.fail(2, FaultKind.UNAVAILABLE)
    result = world.run()
    assert result.message.startswith("1 clip could not be had this time, such as ")
    assert "503" in result.message
    assert "again" in result.remedy
    assert "--give-up" in result.remedy


# The share that must be kept.


def test_coverage_at_the_border_is_enough_and_below_it_is_not(world: World) -> None:
    world.rows(4)
    world.fail(3, FaultKind.NOT_FOUND)
    below = world.run(min_coverage=0.7500001)
    assert (below.exit_status, below.outcome) == (1, "failed")
    assert not (world.root / "manifest.json").exists()
    world.hub.faults.clear()
    world.hub.add_file("clips/3.mp4", b"")
    at = world.run(min_coverage=0.75)
    assert (at.exit_status, at.outcome, at.reused) == (0, "complete", 3)
    assert world.fetched() == ["3.mp4"]


def test_a_finished_dataset_below_the_asked_coverage_fails_without_a_change(world: World) -> None:
    world.rows(2)
    world.fail(2, FaultKind.GONE)
    world.run(min_coverage=0.5)
    before = tree(world.root)
    strict = world.run()
    assert (strict.outcome, strict.exit_status) == ("failed", 1)
    assert "Finished with 1 of 2 rows" in strict.message
    assert [row.row for row in strict.failures] == [2]
    assert tree(world.root) == before
    assert world.run(min_coverage=0.5).outcome == "unchanged"


def test_nothing_kept_is_a_failure_even_when_all_may_fail(world: World) -> None:
    world.rows(2)
    for number in (1, 2):
        world.fail(number, FaultKind.GONE)
    result = world.run(min_coverage=0.0)
    assert (result.outcome, result.exit_status) == ("failed", 1)
    assert [finding.code for finding in result.findings if finding.severity == "error"] == ["TAB008"]
    assert not (world.root / "manifest.json").exists()


def test_a_table_without_rows_is_a_failure(world: World) -> None:
    world.commit([])
    result = world.run(min_coverage=0.0)
    assert (result.outcome, result.rows, result.message) == ("failed", 0, "The table has no rows.")
    world.rows(1)
    assert world.run(refresh=True).outcome == "complete"


# Changes of a finished dataset.


def test_another_score_field_needs_update_and_then_rewrites_texts_alone(world: World) -> None:
    world.rows(3)
    world.run()
    before, clips = tree(world.root), media(world.root)
    with pytest.raises(WouldChangeError) as caught:
        world.run(score_field="sa")
    assert 'score_field: "pc" → "sa"' in caught.value.message
    assert "--update" in caught.value.remedy
    assert caught.value.exit_status == 2
    assert tree(world.root) == before

    result = world.run(score_field="sa", update=True)
    assert (result.outcome, result.reused, result.fetched) == ("complete", 3, 0)
    assert world.fetched() == []
    assert media(world.root) == clips
    assert answers(world.root) == ["4", "2", "5"]
    fresh = world.run(out=world.folder / "fresh", score_field="sa")
    assert result.dataset_id == fresh.dataset_id
    assert tree(world.root) == tree(world.folder / "fresh" / "videophy2_val")


def test_a_row_inserted_near_the_front_fetches_one_clip(world: World) -> None:
    rows = world.rows(6)
    world.run()
    world.commit([rows[0], world.row(7), *rows[1:]])
    assert world.run().outcome == "unchanged"
    before = tree(world.root)
    with pytest.raises(WouldChangeError, match=r"source table videophy2_test.csv: commit \w{12} → \w{12}"):
        world.run(refresh=True)
    assert tree(world.root) == before

    result = world.run(update=True, refresh=True)
    assert (result.outcome, result.rows, result.reused) == ("complete", 7, 6)
    assert world.fetched() == ["7.mp4"]
    world.run(out=world.folder / "fresh")
    assert tree(world.root) == tree(world.folder / "fresh" / "videophy2_val")


def test_a_removed_row_leaves_its_clip_aside_until_it_is_pruned(world: World) -> None:
    rows = world.rows(4)
    world.run()
    world.commit(rows[:1] + rows[2:])
    result = world.run(update=True, refresh=True)
    assert (result.kept, world.fetched()) == (3, [])
    (unused,) = (world.root / ".prep" / "unused").iterdir()
    assert unused.read_bytes() == world.clip(2)
    assert not (world.root / "text" / "conversation_0004.json").exists()

    size = unused.stat().st_size
    pruned = world.run(prune=True)
    assert pruned.outcome == "unchanged"
    assert any(note.startswith("pruned 1 unused file, ") for note in pruned.notes), (size, pruned.notes)
    world.run(out=world.folder / "fresh")
    assert tree(world.root) == tree(world.folder / "fresh" / "videophy2_val")


def test_a_clip_that_comes_back_is_not_fetched_again(world: World) -> None:
    rows = world.rows(3)
    world.run()
    world.commit(rows[:2])
    world.run(update=True, refresh=True)
    world.commit(rows)
    result = world.run(update=True, refresh=True)
    assert (result.kept, result.outcome) == (3, "complete")


def test_refresh_without_a_new_commit_changes_nothing(world: World) -> None:
    world.rows(2)
    world.run()
    before = {path: path.stat().st_mtime_ns for path in world.root.rglob("*") if path.is_file()}
    for update in (False, True):
        assert world.run(refresh=True, update=update).outcome == "unchanged"
        assert {path: path.stat().st_mtime_ns for path in world.root.rglob("*") if path.is_file()} == before


def test_a_new_commit_with_the_same_table_changes_nothing(world: World) -> None:
    rows = world.rows(2)
    world.run()
    before = tree(world.root)
    world.hub.add_repo(REPO, {TABLE: csv_bytes(rows), "README.md": b"# More words\n"})
    assert world.run(refresh=True).outcome == "unchanged"
    assert tree(world.root) == before


def test_an_update_that_fails_leaves_the_finished_dataset_and_its_clips(world: World) -> None:
    rows = world.rows(2)
    world.run()
    before = tree(world.root)
    world.commit([*rows, world.row(3), world.row(4)])
    world.fail(4, FaultKind.UNAVAILABLE)
    assert world.run(update=True, refresh=True).exit_status == 3
    assert {name: data for name, data in tree(world.root).items() if name in before} == before
    assert failures(world.root)[0] == "the unfinished run"

    plain = world.run()
    assert plain.outcome == "unchanged"
    assert any("1 clip of an unfinished update" in note for note in plain.notes)
    world.hub.faults.clear()
    result = world.run(update=True, refresh=True)
    assert (result.kept, world.fetched()) == (4, ["4.mp4"])


def test_a_plain_run_with_prune_drops_an_unfinished_update(world: World) -> None:
    rows = world.rows(1)
    world.run()
    before = tree(world.root)
    world.commit([*rows, world.row(2), world.row(3)])
    world.fail(3, FaultKind.UNAVAILABLE)
    world.run(update=True, refresh=True)
    assert world.run(prune=True).outcome == "unchanged"
    assert tree(world.root) == before


def test_a_killed_update_goes_on_with_the_table_of_its_manifest(world: World) -> None:
    """The manifest is removed before the texts are rewritten; the commit must not be lost with it."""
    world.rows(2)
    world.run()
    fresh = world.run(out=world.folder / "fresh", score_field="sa")

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prep.stages.conversations_views.Publication._write_meta", die)
        with pytest.raises(Killed):
            world.run(score_field="sa", update=True)
    assert not (world.root / "manifest.json").exists()
    world.commit([world.row(8)])
    shutil.rmtree(world.folder / "hub-cache")
    result = world.run(score_field="sa", offline=True)
    assert (result.outcome, result.rows, result.dataset_id) == ("complete", 2, fresh.dataset_id)
    assert tree(world.root) == tree(world.folder / "fresh" / "videophy2_val")


def test_a_damaged_clip_is_mended_by_a_plain_run(world: World) -> None:
    world.rows(3)
    world.run()
    before = tree(world.root)
    (world.root / "media" / "video_0001.mp4").unlink()
    with (world.root / "media" / "video_0002.mp4").open("r+b") as file:
        file.truncate(100)
    result = world.run()
    assert (result.outcome, result.reused) == ("complete", 1)
    assert world.fetched() == ["1.mp4", "2.mp4"]
    world.run(prune=True)
    assert tree(world.root) == before


@pytest.mark.parametrize("kind", [FaultKind.GONE, FaultKind.UNAVAILABLE])
def test_mending_a_clip_does_not_try_rows_that_were_given_up(world: World, kind: FaultKind) -> None:
    world.commit([world.row(1), world.row(2), world.row(3, pc="3.7"), world.row(4)])
    world.fail(2, kind)
    world.run(give_up=True, min_coverage=0.5)
    before = tree(world.root)
    world.hub.faults.clear()
    clip = world.root / "media" / "video_0001.mp4"
    clip.unlink()
    planned = world.run(min_coverage=0.5, dry_run=True)
    assert (planned.fetched, planned.failed[f"http_{410 if kind is FaultKind.GONE else 503}"]) == (1, 1)
    assert world.run(min_coverage=0.5).outcome == "complete"
    assert world.fetched() == ["1.mp4"]
    assert tree(world.root) == before

    clip.write_bytes(clip.read_bytes()[:-1] + b"\xff")
    assert world.adopt(prune=True)[0].outcome == "complete"
    assert world.fetched() == ["1.mp4"]
    assert tree(world.root) == before
    assert world.run(min_coverage=0.5, update=True).kept == 3


def test_a_clip_of_a_bad_row_is_still_wanted_by_a_good_one(world: World) -> None:
    world.commit([world.row(1), world.row(1, pc="3.7"), world.row(2)])
    world.run(min_coverage=0.5)
    before = tree(world.root)
    (world.root / "media" / "video_0001.mp4").unlink()
    assert world.run(min_coverage=0.5).outcome == "complete"
    assert tree(world.root) == before


def test_a_damaged_text_or_table_is_mended_without_a_fetch(world: World) -> None:
    rows = world.rows(2)
    world.run()
    before = tree(world.root)
    (world.root / "text" / "conversation_0002.json").write_bytes(b"{}")
    (world.root / ".prep" / "source" / TABLE).write_bytes(b"")
    world.commit([*rows, world.row(3)])
    assert world.run().outcome == "complete"
    assert world.fetched() == []
    assert tree(world.root) == before


# Reuse, download only, offline, dry run.


@pytest.mark.parametrize("offline", [False, True])
def test_clips_of_another_out_root_are_linked(world: World, offline: bool) -> None:
    world.rows(3)
    world.run()
    other = world.folder / "other"
    result = world.run(out=other, reuse=world.out, score_field="joint", offline=offline)
    assert (result.outcome, result.reused, result.fetched) == ("complete", 3, 0)
    assert world.fetched() == []
    theirs, ours = media(world.root), media(other / "videophy2_val")
    assert {name: data for name, (_, data) in ours.items()} == {
        name: data for name, (_, data) in theirs.items()
    }
    assert answers(other / "videophy2_val") == ["yes", "no", "yes"]


def test_reuse_of_what_is_no_dataset_is_refused(world: World) -> None:
    world.rows(1)
    for dry_run in (False, True):
        with pytest.raises(PrepError, match="has no manifest to reuse"):
            world.run(reuse=world.folder / "nowhere", dry_run=dry_run)
    assert not world.root.exists()


def test_download_only_and_then_offline(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.rows(3)
    world.fail(3, FaultKind.GONE)
    first = world.run(download_only=True, min_coverage=0.6)
    assert (first.outcome, first.exit_status, first.fetched) == ("downloaded", 0, 2)
    assert not (world.root / "manifest.json").exists()
    assert "--offline" in first.remedy
    assert [row.reason for row in failures(world.root)[1]] == ["http_410"]
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    shutil.rmtree(world.folder / "hub-cache")
    missing = world.run(offline=True, min_coverage=0.6)
    assert (missing.outcome, missing.failed) == ("incomplete", {"offline": 1})
    result = world.run(offline=True, min_coverage=0.6, give_up=True)
    assert (result.outcome, result.kept, world.hub.requests) == ("complete", 2, [])


def test_offline_with_nothing_here_asks_for_a_connected_machine(world: World) -> None:
    world.rows(2)
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        world.run(offline=True)
    assert not world.root.exists()
    world.run(dry_run=True)  # brings the table into the Hub's cache
    result = world.run(offline=True)
    assert (result.outcome, result.exit_status, result.failed) == ("incomplete", 3, {"offline": 2})
    assert "--download-only" in result.remedy
    assert world.hub.requests == []


@pytest.mark.parametrize("other", [{"download_only": True}, {"refresh": True}])
def test_offline_contradicts_what_needs_the_network(world: World, other: dict[str, bool]) -> None:
    with pytest.raises(UsageError, match="contradict"):
        world.run(offline=True, **other)


def test_a_dry_run_writes_nothing_and_says_what_would_be_fetched(world: World) -> None:
    rows = world.rows(40)
    rows[4][3] = "3.7"
    world.commit(rows)
    result = world.run(dry_run=True)
    assert not world.out.exists()
    assert (result.outcome, result.exit_status) == ("planned", 0)
    assert (result.rows, result.kept, result.fetched, result.reused) == (40, 39, 39, 0)
    assert result.failed == {"not_an_integer": 1}
    assert result.bytes == 39 * len(world.clip(1))
    assert any("estimated from 32 clips" in note for note in result.notes)
    heads = [record for record in world.hub.requests if record.method == "HEAD" and "/files/" in record.path]
    assert len(heads) == 32
    assert world.fetched() == []


def test_a_dry_run_on_a_finished_dataset_says_what_would_change(world: World) -> None:
    rows = world.rows(3)
    world.run()
    assert world.run(dry_run=True).outcome == "unchanged"
    world.commit([rows[0], rows[2], world.row(4)])
    (world.root / "media" / "video_0003.mp4").unlink()
    before = tree(world.root)
    result = world.run(dry_run=True, score_field="sa", refresh=True, prune=True)
    assert result.outcome == "planned"
    assert (result.fetched, result.reused) == (2, 1)
    told = "\n".join(result.notes)
    assert 'would change score_field: "pc" → "sa" (needs --update)' in told
    assert "would change source table" in told
    assert "would mend 1 file missing" in told
    assert "1 clip would no longer be named" in told
    assert "--prune would delete 0 unused files" in told
    assert tree(world.root) == before


def test_a_dry_run_counts_what_another_out_root_holds(world: World) -> None:
    world.rows(2)
    world.run()
    result = world.run(out=world.folder / "other", reuse=world.out, dry_run=True)
    assert (result.fetched, result.reused) == (0, 2)
    assert not (world.folder / "other").exists()


def test_a_mirror_leads_to_another_host_or_to_a_folder(world: World) -> None:
    world.rows(2)
    reference = world.run()
    with LoopbackHub() as other:
        for number in (1, 2):
            other.add_file(f"copy/{number}.mp4", world.clip(number))
        mirrors = ((f"{HOST}clips/", f"{other.endpoint}/files/copy/"),)
        result = world.run(out=world.folder / "host", mirrors=mirrors)
        assert len([record for record in other.requests if record.method == "GET"]) == 2
    assert result.dataset_id == reference.dataset_id

    folder = world.folder / "a copy"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"{number}.mp4").write_bytes(world.clip(number))
    mirrors = ((f"{HOST}clips/", folder.as_uri() + "/"),)
    result = world.run(out=world.folder / "files", mirrors=mirrors)
    assert world.fetched() == []
    # A folder needs no connection.
    offline = world.run(out=world.folder / "offline", mirrors=mirrors, offline=True)
    assert {tree(world.folder / name / "videophy2_val")["manifest.json"] for name in ("host", "files")} == {
        tree(world.root)["manifest.json"]
    }
    assert result.dataset_id == offline.dataset_id == reference.dataset_id


# Whose directory it is.


def test_a_directory_of_somebody_else_is_refused(world: World) -> None:
    world.rows(1)
    world.root.mkdir(parents=True)
    (world.root / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="no run of prep made") as caught:
        world.run()
    assert f"prep adopt {world.root}" in caught.value.remedy
    assert sorted(tree(world.root)) == ["notes.txt"]
    (world.root / "notes.txt").unlink()
    assert world.run().outcome == "complete"


def test_a_file_in_the_place_of_the_directory_is_refused(world: World) -> None:
    world.rows(1)
    world.out.mkdir()
    world.root.write_text("a file")
    with pytest.raises(UsageError, match="is a file"):
        world.run()


def test_a_run_that_cannot_begin_leaves_no_trace(world: World) -> None:
    world.rows(1)
    with pytest.raises(PrepError, match="column 'nowhere' is missing"):
        world.run(include_caption=True, caption_field="nowhere")
    assert not world.root.exists()
    world.root.mkdir()  # a folder that the user made stays, as empty as it was
    with pytest.raises(PrepError, match="column 'nowhere' is missing"):
        world.run(include_caption=True, caption_field="nowhere")
    assert list(world.root.iterdir()) == []


def test_a_dataset_that_another_run_holds_is_left_alone(world: World) -> None:
    world.rows(1)
    with Workspace(world.root), pytest.raises(IncompleteError, match="held by process"):
        world.run()
    assert world.run().outcome == "complete"


def test_a_broken_manifest_points_to_adopt(world: World) -> None:
    world.rows(1)
    world.run()
    (world.root / "manifest.json").write_text("{")
    with pytest.raises(PrepError, match="not valid JSON") as caught:
        world.run()
    assert "prep adopt" in caught.value.remedy


# The same bytes everywhere.


def test_the_number_of_jobs_leaves_the_tree_the_same(world: World) -> None:
    world.rows(9)
    world.run(jobs=1)
    world.run(out=world.folder / "many", jobs=16)
    assert tree(world.root) == tree(world.folder / "many" / "videophy2_val")


def test_nothing_of_the_machine_is_in_the_proof(world: World) -> None:
    rows = world.rows(3)
    rows.append(world.row(4, pc="3.7"))
    world.commit(rows)
    world.fail(3, FaultKind.NOT_FOUND)
    world.run(min_coverage=0.5)
    for name, data in tree(world.root).items():
        if name.startswith("media/"):
            continue
        for secret in (
            str(world.folder),
            world.hub.endpoint,
            "127.0.0.1",
            os.uname().nodename,
            str(Path.home()),
        ):
            assert secret.encode() not in data, (name, secret)
