"""The 17 real rows of VideoPhy-2's test table with real clips, one a row, through the loopback Hub."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

import prep
from prep.manifest import Manifest
from tests.world import REPO, TABLE, World, tree

EXCERPT = "videophy2/videophy2_test_excerpt.csv"


@pytest.fixture
def rows(world: World, real_data: Path) -> list[dict[str, str]]:
    """The real rows; their table is in the Hub, and a real clip at each address."""
    with (real_data / EXCERPT).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    world.hub.add_repo(REPO, {TABLE: real_data / EXCERPT})
    for row, clip in zip(rows, clips(real_data), strict=True):
        world.hub.add_file(row["video_url"].removeprefix("https://"), clip)
    return rows


def clips(real_data: Path) -> list[Path]:
    """Seventeen real clips: those of VideoPhy-2, then others in MP4."""
    own = sorted((real_data / "videophy2" / "examples").glob("*.mp4"))
    others = sorted(path for path in (real_data / "video").rglob("*.mp4") if path.stat().st_size < 2_000_000)
    return [*own, *others][:17]


def run(world: World, **changes: object) -> prep.Result:
    return world.run(mirrors=(("https://", f"{world.hub.endpoint}/files/"),), timeout=10.0, **changes)


def answers(root: Path) -> list[str]:
    texts = [json.loads(path.read_bytes()) for path in sorted((root / "text").iterdir())]
    return [text["conversations"][1]["content"][0]["text"] for text in texts]


def test_all_rows_are_kept_each_with_its_clip(
    world: World, rows: list[dict[str, str]], real_data: Path
) -> None:
    result = run(world)
    assert (result.outcome, result.rows, result.kept, result.fetched) == ("complete", 17, 17, 17)
    assert [finding.code for finding in result.findings] == ["TAB007"]
    assert sorted(tree(world.root)) == sorted(
        [
            ".prep/files.parquet",
            ".prep/records.parquet",
            f".prep/source/{TABLE}",
            "manifest.json",
            "meta.json",
            *(f"media/video_{row:04d}.mp4" for row in range(1, 18)),
            *(f"text/conversation_{row:04d}.json" for row in range(1, 18)),
        ]
    )
    for number, clip in enumerate(clips(real_data), start=1):
        assert (world.root / "media" / f"video_{number:04d}.mp4").read_bytes() == clip.read_bytes()
    asked = {unquote(record.path) for record in world.hub.requests if record.path.startswith("/files/")}
    assert asked == {"/files/" + row["video_url"].removeprefix("https://") for row in rows}


def test_the_table_is_the_real_one(rows: list[dict[str, str]]) -> None:
    """What makes it worth a test: a column without a name, curly quotes, and names that need encoding."""
    assert len(rows) == 17
    assert list(rows[0])[13] == ""
    assert any("“" in row["upsampled_caption"] for row in rows)
    assert any(any(mark in row["video_url"] for mark in ";,'+") for row in rows)


def test_files_are_ascii_and_in_the_order_of_the_rows(world: World, rows: list[dict[str, str]]) -> None:
    run(world, include_caption=True)
    meta = (world.root / "meta.json").read_bytes()
    entries = json.loads(meta)
    assert meta == json.dumps(entries, indent=2).encode("ascii")
    assert [entry["id"] for entry in entries] == [f"conversation_{row:04d}" for row in range(1, 18)]
    for entry, row in zip(entries, rows, strict=True):
        text = (world.root / entry["conversation"]).read_bytes()
        document = json.loads(text)
        assert text == json.dumps(document).encode("ascii")
        user, assistant = document["conversations"]
        assert user["content"][0] == {"type": "video", "video": "video_0"}
        assert user["content"][1]["text"].endswith(f"\nCaption: {row['upsampled_caption']}\n")
        assert assistant["content"] == [{"type": "text", "text": row["pc"]}]


@pytest.mark.parametrize("field", ["pc", "sa", "joint"])
def test_each_score_field_gives_its_answers(world: World, rows: list[dict[str, str]], field: str) -> None:
    result = run(world, score_field=field)
    words = {"0": "no", "1": "yes"} if field == "joint" else {}
    expected = [words.get(row[field], row[field]) for row in rows]
    assert answers(world.root) == expected
    assert result.consumption == {"samples": 17, "dropped": {}, "answers": dict(Counter(expected))}


def test_the_plain_caption_can_be_asked_for(world: World, rows: list[dict[str, str]]) -> None:
    run(world, include_caption=True, caption_field="caption")
    for number, row in enumerate(rows, start=1):
        text = json.loads((world.root / "text" / f"conversation_{number:04d}.json").read_bytes())
        question = text["conversations"][0]["content"][1]["text"]
        assert question.endswith(f"\nCaption: {row['caption']}\n")


def test_a_limit_and_then_all_fetches_the_rest(world: World, rows: list[dict[str, str]]) -> None:
    limited = run(world, limit=5)
    assert (limited.rows, limited.kept, len(world.fetched())) == (5, 5, 5)
    everything = run(world, update=True)
    assert (everything.kept, everything.reused, len(world.fetched())) == (17, 5, 12)
    run(world, out=world.folder / "fresh")
    assert tree(world.root) == tree(world.folder / "fresh" / "videophy2_val")


def test_the_reader_gives_what_was_served(world: World, rows: list[dict[str, str]], real_data: Path) -> None:
    run(world)
    reader = prep.open(world.root)
    assert len(reader) == 17
    for index, clip in enumerate(clips(real_data)):
        assert reader[index]["media"] == {"video_0": clip.read_bytes()}


def test_the_manifest_proves_every_file(world: World, rows: list[dict[str, str]]) -> None:
    run(world)
    manifest = Manifest.load(world.root)
    assert manifest is not None
    assert manifest.document["counts"] == {"rows": 17, "kept": 17, "failed": 0}
    assert [record.source for record in manifest.records()] == [row["video_url"] for row in rows]
    listed = {row.path for row in manifest.files()}
    own = {"manifest.json", ".prep/files.parquet", ".prep/records.parquet"}
    assert listed == set(tree(world.root)) - own
    assert len((world.root / "manifest.json").read_bytes()) < 1_000_000
