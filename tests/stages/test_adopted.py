"""Adopting trees of other tools: what passes stays, the rest is fetched, and nothing is changed unasked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prep.errors import PrepError, UsageError, WouldChangeError
from prep.loopback import Fault, FaultKind
from prep.manifest import Manifest
from prep.preparation import adopt
from prep.prompts import resolve_prompt
from prep.recipe import load_recipe
from tests.world import TABLE, World, csv_bytes, tree

PROMPT = resolve_prompt(load_recipe("videophy2").document["prompt"], "builtin").text


def as_upstream(world: World, count: int, *, field: str = "pc", root: Path | None = None) -> list[list[str]]:
    """Commit `count` rows and write the tree that upstream's script leaves for them; the rows."""
    rows = world.rows(count)
    root = root or world.root
    for folder in ("media", "text"):
        (root / folder).mkdir(parents=True)
    entries = []
    for number, row in enumerate(rows, start=1):
        entry = {
            "id": f"conversation_{number:04d}",
            "media": f"media/video_{number:04d}.mp4",
            "conversation": f"text/conversation_{number:04d}.json",
        }
        entries.append(entry)
        (root / entry["media"]).write_bytes(world.clip(number))
        user = [{"type": "video", "video": "video_0"}, {"type": "text", "text": PROMPT}]
        answer = row[3] if field == "pc" else row[2]
        turns = [
            {"role": "user", "content": user},
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        ]
        (root / entry["conversation"]).write_text(json.dumps({"conversations": turns}))
    (root / "meta.json").write_text(json.dumps(entries, indent=2))
    done = {"done": [entry["id"] for entry in entries]}
    (root / ".build_progress.json").write_text(json.dumps(done))
    return rows


def clip(world: World, number: int) -> Path:
    return world.root / "media" / f"video_{number:04d}.mp4"


def test_a_whole_tree_is_kept_and_proved_without_a_fetch(world: World) -> None:
    as_upstream(world, 3)
    (world.root / ".build_progress.json").unlink()
    inodes = [clip(world, number).stat().st_ino for number in (1, 2, 3)]
    result, adoption = world.adopt()
    assert (result.outcome, result.kept, result.reused, result.fetched) == ("complete", 3, 3, 0)
    assert (adoption.kept, adoption.unverified, adoption.broken) == (3, 0, [])
    assert world.fetched() == []
    assert [clip(world, number).stat().st_ino for number in (1, 2, 3)] == inodes
    world.run(out=world.folder / "fresh")
    assert tree(world.root) == tree(world.folder / "fresh" / "videophy2_val")
    assert world.run().outcome == "unchanged"


def damaged(world: World) -> None:
    """A tree of eight whose clips 2 to 6 and 8 are bad, each in its own way."""
    as_upstream(world, 8)
    clip(world, 2).write_bytes(b"<!DOCTYPE html><html><body>Sign in</body></html>" * 20)
    clip(world, 3).write_bytes(world.clip(3)[:-200])
    clip(world, 4).unlink()
    clip(world, 5).write_bytes(b"")
    clip(world, 6).write_bytes(world.clip(6)[:-16])  # whole boxes, yet shorter than the server says
    clip(world, 8).write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9\n"
    )
    (world.root / "media" / "video_0004.mp4.part").write_bytes(b"half")


def test_a_tree_with_every_fault_keeps_the_good_and_fetches_the_bad(world: World) -> None:
    damaged(world)
    result, adoption = world.adopt()
    assert (result.outcome, result.exit_status, result.kept) == ("complete", 0, 8)
    assert world.fetched() == ["2.mp4", "3.mp4", "4.mp4", "5.mp4", "6.mp4", "8.mp4"]
    assert (adoption.kept, result.reused) == (2, 2)
    assert sorted({finding.path for finding in adoption.broken}) == [
        f"media/video_{number:04d}.mp4" for number in (2, 3, 5, 6, 8)
    ]
    assert "FIL003" in {finding.code for finding in adoption.broken}
    assert sorted(adoption.leftovers) == [".build_progress.json", "media/video_0004.mp4.part"]
    assert any("2 leftovers of another tool left alone" in note for note in result.notes)
    assert [clip(world, number).read_bytes() for number in range(1, 9)] == [
        world.clip(number) for number in range(1, 9)
    ]


def test_prune_takes_leftovers_and_broken_clips_away(world: World) -> None:
    damaged(world)
    result, _ = world.adopt(prune=True)
    assert any("2 leftovers of another tool removed" in note for note in result.notes)
    world.run(out=world.folder / "fresh")
    assert tree(world.root) == tree(world.folder / "fresh" / "videophy2_val")


def test_a_dry_run_says_what_adopting_would_do_and_writes_nothing(world: World) -> None:
    damaged(world)
    (world.root / "text" / "conversation_0001.json").write_text("{}")
    before = tree(world.root)
    result, adoption = world.adopt(dry_run=True, prune=True)
    assert (result.outcome, result.reused, result.fetched) == ("planned", 2, 6)
    assert len({finding.path for finding in result.findings if finding.path.startswith("media")}) == 5
    assert any("1 conversation file would be rewritten (needs --update)" in note for note in result.notes)
    assert len(adoption.leftovers) == 2
    assert tree(world.root) == before


def test_an_adoption_that_cannot_be_finished_goes_on_later(world: World) -> None:
    as_upstream(world, 3)
    clip(world, 2).unlink()
    world.fail(2, FaultKind.UNAVAILABLE)
    result, _ = world.adopt(prune=True)
    assert (result.outcome, result.exit_status) == ("incomplete", 3)
    assert (world.root / ".build_progress.json").exists()
    assert not (world.root / "manifest.json").exists()
    world.hub.faults.clear()
    result, _ = world.adopt(prune=True)
    assert (result.outcome, world.fetched()) == ("complete", ["2.mp4"])
    assert not (world.root / ".build_progress.json").exists()


def test_a_plain_run_does_not_take_over_an_adoption_that_was_begun(world: World) -> None:
    as_upstream(world, 3)
    clip(world, 2).unlink()
    world.fail(2, FaultKind.UNAVAILABLE)
    world.adopt()
    world.hub.faults.clear()
    before = tree(world.root)
    with pytest.raises(UsageError, match="adoption has not come to its end") as caught:
        world.run(score_field="sa")
    assert f"prep adopt {world.root}" in caught.value.remedy
    after = tree(world.root)
    assert {name: after[name] for name in before if not name.startswith(".prep")} == {
        name: data for name, data in before.items() if not name.startswith(".prep")
    }
    assert world.adopt()[0].outcome == "complete"
    assert world.run().outcome == "unchanged"


def test_a_host_that_is_silent_is_not_asked_for_every_size(world: World) -> None:
    as_upstream(world, 80)
    world.hub.faults.set(".mp4", Fault(FaultKind.RESET))
    result, adoption = world.adopt(jobs=1)
    assert (result.outcome, adoption.kept, adoption.unverified) == ("complete", 80, 80)
    heads = [record for record in world.hub.requests if record.method == "HEAD" and "/files/" in record.path]
    assert len(heads) == 32


def test_other_texts_are_not_rewritten_unasked(world: World) -> None:
    as_upstream(world, 3, field="sa")
    before = tree(world.root)
    with pytest.raises(
        WouldChangeError, match="holds another text than the recipe gives in 3 conversation files"
    ) as caught:
        world.adopt()
    assert "--score-field" in caught.value.remedy
    assert tree(world.root) == before
    assert not (world.root / ".prep").exists()
    with pytest.raises(UsageError, match="no run of prep made"):
        world.run()

    result, _ = world.adopt(score_field="sa")
    assert (result.outcome, world.fetched()) == ("complete", [])
    assert world.run(score_field="sa").outcome == "unchanged"


def test_other_texts_are_rewritten_with_update(world: World) -> None:
    as_upstream(world, 3, field="sa")
    result, adoption = world.adopt(update=True)
    assert (result.outcome, world.fetched()) == ("complete", [])
    assert adoption.changed
    assert world.run().outcome == "unchanged"


def test_clips_of_no_row_are_not_taken_out_unasked(world: World) -> None:
    as_upstream(world, 4)
    before = tree(world.root)
    with pytest.raises(WouldChangeError, match="holds 4 files of no row") as caught:
        world.adopt(limit=2)
    assert "--limit" in caught.value.remedy
    assert tree(world.root) == before
    planned, _ = world.adopt(limit=2, dry_run=True)
    assert any("4 files of no row would be taken out" in note for note in planned.notes)
    result, _ = world.adopt(limit=2, update=True)
    assert (result.outcome, result.kept) == ("complete", 2)
    unused = {path.read_bytes() for path in (world.root / ".prep" / "unused").iterdir()}
    assert unused == {world.clip(3), world.clip(4)}


def test_a_row_that_fails_here_may_have_had_files_there(world: World) -> None:
    rows = as_upstream(world, 3)
    rows[1][3] = "3.7"  # upstream cuts it to 3
    world.commit(rows)
    result, _ = world.adopt(min_coverage=0.6)
    assert (result.outcome, result.failed) == ("complete", {"not_an_integer": 1})
    assert not clip(world, 2).exists()


def test_a_tree_without_texts_gets_them(world: World) -> None:
    as_upstream(world, 2)
    shutil.rmtree(world.root / "text")
    (world.root / "meta.json").unlink()
    result, _ = world.adopt()
    assert (result.outcome, world.fetched()) == ("complete", [])


def test_a_server_that_tells_no_size_leaves_clips_unverified(world: World) -> None:
    as_upstream(world, 2)
    world.fail(2, FaultKind.NOT_FOUND)
    result, adoption = world.adopt()
    assert (result.outcome, adoption.kept, adoption.unverified) == ("complete", 2, 1)
    assert any("1 kept clip could not be compared" in note for note in result.notes)


def test_a_tree_is_adopted_offline_with_the_table_at_hand(world: World) -> None:
    rows = as_upstream(world, 2)
    (world.folder / TABLE).write_bytes(csv_bytes(rows))
    result, adoption = world.adopt(offline=True, sources={"val": str(world.folder)})
    assert (result.outcome, adoption.kept, adoption.unverified) == ("complete", 2, 2)
    assert world.hub.requests == []


def test_a_broken_clip_offline_is_incomplete(world: World) -> None:
    rows = as_upstream(world, 2)
    (world.folder / TABLE).write_bytes(csv_bytes(rows))
    clip(world, 2).write_bytes(b"")
    result, _ = world.adopt(offline=True, sources={"val": str(world.folder)})
    assert (result.outcome, result.exit_status, result.failed) == ("incomplete", 3, {"offline": 1})


# Finished datasets.


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"score_field": "sa"},
        {"include_caption": True, "caption_field": "caption", "limit": 2},
        {"on_bad_bytes": "replace", "prompt": "auto"},
    ],
)
def test_a_finished_dataset_with_a_flipped_byte_gets_back_that_clip(
    world: World, options: dict[str, object]
) -> None:
    rows = world.rows(3)
    world.run(**{**options, "prompt": "builtin"})
    before = tree(world.root)
    world.commit([world.row(4), *rows])  # the Hub has moved on; the dataset stays at its commit
    flip(clip(world, 2))
    assert world.run(**{**options, "prompt": "builtin"}).outcome == "unchanged"
    result, adoption = world.adopt(prompt="auto", prune=True)
    assert [finding.code for finding in adoption.broken] == ["FIL004"]
    assert world.fetched() == ["2.mp4"]
    assert result.outcome == "complete"
    assert tree(world.root) == before


def test_what_is_asked_for_wins_over_what_the_dataset_was_made_with(world: World) -> None:
    world.rows(2)
    world.run()
    with pytest.raises(WouldChangeError):
        world.adopt(score_field="sa")
    result, _ = world.adopt(score_field="sa", update=True)
    assert result.outcome == "complete"
    assert Manifest.load(world.root).document["request"]["score_field"] == "sa"  # type: ignore[union-attr]
    assert world.fetched() == []


@pytest.mark.parametrize("broken", [b"", b"{", b'{"schema": "prep-manifest/1"}'])
def test_a_dataset_with_a_broken_manifest_is_proved_again(world: World, broken: bytes) -> None:
    world.rows(2)
    world.run()
    before = tree(world.root)
    (world.root / "manifest.json").write_bytes(broken)
    result, _ = world.adopt()
    assert (result.outcome, world.fetched()) == ("complete", [])
    assert tree(world.root) == before


def test_counts_that_cannot_be_ask_for_no_more_than_all_rows(world: World) -> None:
    world.rows(2)
    world.run()
    before = tree(world.root)
    manifest = world.root / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"kept": 2', '"kept": 3'))
    result, _ = world.adopt()
    assert (result.outcome, result.kept) == ("complete", 2)
    assert tree(world.root) == before


def test_a_dataset_with_a_lost_proof_is_proved_again(world: World) -> None:
    world.rows(3)
    world.fail(2, FaultKind.GONE)
    world.run(min_coverage=0.5)
    before = tree(world.root)
    (world.root / ".prep" / "files.parquet").write_bytes(b"PAR1")
    (world.root / ".prep" / "records.parquet").unlink()
    with pytest.raises(PrepError, match="prep adopt"):
        world.run(min_coverage=0.5)
    result, _ = world.adopt()
    assert (result.outcome, result.failed, world.fetched()) == ("complete", {"http_410": 1}, ["2.mp4"])
    assert tree(world.root) == before


def test_a_finished_dataset_is_adopted_offline(world: World) -> None:
    world.rows(2)
    world.run()
    before = tree(world.root)
    shutil.rmtree(world.folder / "hub-cache")
    result, adoption = world.adopt(offline=True)
    assert (result.outcome, adoption.kept, adoption.unverified) == ("complete", 2, 0)
    assert world.hub.requests == []
    assert tree(world.root) == before


# Which tree it is.


def test_a_download_of_the_source_is_no_tree(world: World) -> None:
    folder = world.folder / "videophy2_test"
    folder.mkdir()
    (folder / TABLE).write_bytes(csv_bytes([world.row(1)]))
    with pytest.raises(UsageError, match="is a download of the source") as caught:
        world.adopt(folder)
    assert f"`prep videophy2 --split val --source val={folder}`" in caught.value.remedy
    assert world.run(sources={"val": str(folder)}).outcome == "complete"


def test_a_directory_of_another_name_needs_recipe_and_split(world: World) -> None:
    as_upstream(world, 2, root=world.folder / "mine")
    with pytest.raises(UsageError, match="no recipe makes a directory of this name") as caught:
        world.adopt(world.folder / "mine")
    assert "--recipe videophy2 --split val" in caught.value.remedy
    result, _ = world.adopt(world.folder / "mine", recipe="videophy2", split="test")
    assert (result.outcome, result.name) == ("complete", "videophy2_val")


def test_a_split_that_the_directory_is_not_is_refused(world: World) -> None:
    as_upstream(world, 1)
    with pytest.raises(UsageError, match="as split 'train'"):
        world.adopt(split="train")
    with pytest.raises(UsageError, match="several splits"):
        world.adopt(recipe="videophy2", split="both")
    assert world.adopt(split="test")[0].outcome == "complete"


@pytest.mark.parametrize("make", [False, True])
def test_what_is_no_tree_at_all_is_wrong_usage(world: World, make: bool) -> None:
    if make:
        world.root.mkdir(parents=True)
    with pytest.raises(UsageError, match="neither meta.json nor media/" if make else "is not a directory"):
        world.adopt()


# What is no tree of conversations.


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["datasets--a--b/snapshots/main/x"], "a folder of the Hub's cache: dataset a/b"),
        (["state.json", "dataset_info.json"], "a Dataset saved by `datasets`"),
        (["one/meta.json"], "such as {root}/one"),
        (["meta/info.json"], "prep lerobot --root {root}"),
        (["rows.csv"], "a source table, rows.csv"),
        ([], "holds neither meta.json nor media/ nor text/"),
    ],
)
def test_another_layout_is_refused_by_its_name(tmp_path: Path, files: list[str], words: str) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('{"codebase_version": "v3.0"}')
    for options in ({}, {"recipe": "videophy2", "split": "val"}):
        with pytest.raises(UsageError) as caught:
            adopt(root, **options)  # type: ignore[arg-type]
        assert words.format(root=root) in f"{caught.value.message} {caught.value.remedy}"


def test_a_recipe_of_several_splits_wants_one_named(world: World, tmp_path: Path) -> None:
    as_upstream(world, 1, root=tmp_path / "by-hand")
    with pytest.raises(UsageError, match="any split of the recipe videophy2") as caught:
        adopt(tmp_path / "by-hand", recipe="videophy2")
    assert caught.value.remedy == "Name it with --split: train, val."
