"""The snapshot stage and sources on this disk: what was changed, mistyped, or is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import prep
from prep.cli_snapshot import llava_ov
from prep.errors import IncompleteError, PrepError, UsageError, WouldChangeError
from prep.manifest import Manifest
from prep.preparation import failures
from prep.reasoning import prepare_video_reasoning
from prep.recipe import load_recipe
from prep.sft import prepare_sft
from prep.snapshots import SnapshotOptions, prepare_snapshots
from prep.stages.options import Options, Result
from prep.stages.sources import asked_source, local_table, open_source
from tests.llava import card, parquet, picture, row


@pytest.fixture(autouse=True)
def _no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)


def prepare(recipe: str = "llava_ov", **options: Any) -> Result:
    [result] = prepare_snapshots(recipe, "data", subsets=["default"], options=SnapshotOptions(**options))
    return result


def rows_file(name: str, *numbers: int) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(parquet([row(n) for n in numbers]))
    return name


def table(folder: Path, *images: str) -> str:
    """A recipe of one's own with a table that names images; its first two pictures are there."""
    (folder / "pictures/deep").mkdir(parents=True)
    (folder / "pictures/one.png").write_bytes(picture(1))
    (folder / "pictures/deep/two.png").write_bytes(picture(2))
    turns = [{"from": "human", "value": "<image>\nWho?"}, {"from": "gpt", "value": "A cat."}]
    rows = [{"image": image, "conversations": turns} for image in images]
    (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    recipe = folder / "mine.toml"
    recipe.write_text(
        'name = "mine"\nkind = "arrow_snapshot"\n[splits.train]\ndirectory = "made"\n'
        'table = "rows.jsonl"\nmedia_root = "pictures"\n'
        '[columns]\nimage = "image"\nconversations = "conversations"\n[keep]\nminimum_turns = 2\n'
    )
    return str(recipe)


@pytest.mark.parametrize("size", ["0", "0.4"])
def test_a_shard_that_could_hold_no_row_is_refused(size: str) -> None:
    failed = CliRunner().invoke(
        llava_ov, ["--subset", "default", "--source", rows_file("a.parquet", 1), "--shard-size", size]
    )
    assert isinstance(failed.exception, UsageError)
    assert "--shard-size" in failed.exception.remedy
    assert not Path("data").exists()
    with pytest.raises(UsageError, match="A shard of -1 bytes"):
        SnapshotOptions(shard_bytes=-1)


def test_a_shard_has_at_least_one_row() -> None:
    result = prepare(source=rows_file("a.parquet", 1, 2, 3), shard_bytes=1)
    assert result.kept == 3
    shards = Manifest.load(result.root).document["details"]["shards"]  # type: ignore[union-attr]
    assert [shard["rows"] for shard in shards] == [1, 1, 1, 0]


def test_other_content_of_a_local_file_is_told_and_made_with_update() -> None:
    source = rows_file("a.parquet", 1, 2)
    prepare(source=source)
    assert prepare(source=source).outcome == "unchanged"
    rows_file("a.parquet", 1, 3)
    with pytest.raises(WouldChangeError, match=r"source a\.parquet: sha256 \w{12} → \w{12}"):
        prepare(source=source)
    planned = prepare(source=source, dry_run=True)
    assert any("would change source a.parquet" in note for note in planned.notes)
    result = prepare(source=source, update=True)
    assert result.outcome == "complete"
    assert [each["id"] for each in prep.open(result.root)] == ["row 1", "row 3"]
    assert prepare(source=source, update=True).outcome == "unchanged"


def test_another_local_file_is_told_and_a_copy_is_not() -> None:
    prepare(source=rows_file("a.parquet", 1))
    assert prepare(source=rows_file("copy/b.parquet", 1)).outcome == "unchanged"
    with pytest.raises(WouldChangeError, match=r"source c\.parquet: a\.parquet, sha256"):
        prepare(source=rows_file("c.parquet", 2))


def test_a_further_file_of_a_local_folder_counts_unless_the_bounds_were_met() -> None:
    rows_file("copy/default/train-00000.parquet", 1, 2)
    Path("copy/README.md").write_bytes(card(["default"]))
    options: dict[str, Any] = {"source": "copy"}
    prepare_snapshots("llava_ov", "data", subsets=["default"], options=SnapshotOptions(**options))
    prepare_snapshots("llava_ov", "two", subsets=["default"], options=SnapshotOptions(**options, limit=2))
    rows_file("copy/default/train-00001.parquet", 3)
    with pytest.raises(WouldChangeError, match="source files: 1 → 2"):
        prepare(**options)
    [bounded] = prepare_snapshots(
        "llava_ov", "two", subsets=["default"], options=SnapshotOptions(**options, limit=2)
    )
    assert bounded.outcome == "unchanged"
    assert prepare(**options, update=True).kept == 3


def test_an_image_of_a_table_that_was_replaced_is_told_and_made_with_update(tmp_path: Path) -> None:
    recipe = table(tmp_path / "own", "one.png", "deep/two.png")
    prepare(recipe)
    assert prepare(recipe).outcome == "unchanged"
    image = tmp_path / "own/pictures/deep/two.png"
    before = image.stat().st_size
    image.write_bytes(picture(3))
    assert image.stat().st_size == before
    with pytest.raises(WouldChangeError, match="images: "):
        prepare(recipe)
    result = prepare(recipe, update=True)
    assert result.outcome == "complete"
    assert [each["image"]["bytes"] for each in _rows(result.root)] == [picture(1), picture(3)]


def _rows(root: Path) -> list[dict[str, Any]]:
    import datasets

    made = datasets.load_from_disk(str(root)).cast_column("image", datasets.Image(decode=False))
    return [dict(each) for each in made]


def test_an_image_of_a_table_that_is_not_there_is_told_by_its_whole_name(tmp_path: Path) -> None:
    recipe = table(tmp_path / "own", "one.png", "deep/flower.jpg", "../out.png")
    result = prepare(recipe)
    assert (result.outcome, result.failed) == ("failed", {"image_absent": 2})
    _, failed = failures(tmp_path / "data/made/default/.train.building")
    assert [each.detail for each in failed] == [
        f"'deep/flower.jpg' is not in {tmp_path / 'own/pictures'}",
        "The path '../out.png' leaves its directory.",
    ]
    assert prepare(recipe, on_bad_image="drop").kept == 1


def test_the_only_subset_of_a_source_needs_no_name() -> None:
    source = rows_file("mine.parquet", 1, 2)
    done = CliRunner().invoke(llava_ov, ["--source", source, "-q", "--format", "json"])
    assert done.exit_code == 0
    [result] = json.loads(done.stdout)
    assert (result["name"], result["kept"]) == ("llava_ov/default/train", 2)
    assert "no --subset given: 'default' is the only one that the source has" in result["notes"]


def test_of_several_subsets_one_must_be_named() -> None:
    for subset in ("a", "b"):
        rows_file(f"copy/{subset}/train-00000.parquet", 1)
    Path("copy/README.md").write_bytes(card("ab"))
    with pytest.raises(UsageError, match="the source has 2") as caught:
        prepare_snapshots("llava_ov", subsets=[], options=SnapshotOptions(source="copy"))
    assert "--subset list" in caught.value.remedy


@pytest.mark.parametrize("source", ["lv/nonexist.parquet", "here/nonexist", "here/nonexist.PARQUET"])
def test_a_mistyped_local_source_is_not_asked_of_the_hub(source: str) -> None:
    Path("here").mkdir()
    with pytest.raises(UsageError, match=f"There is no source at {source}"):
        prepare(source=source)
    part = load_recipe("videophy2").splits[0]
    options = Options(sources={part.name: source})
    with pytest.raises(UsageError, match=f"There is no source at {source}"):
        asked_source(part, options)
    assert local_table(load_recipe("videophy2"), part, Options(sources={part.name: "some/name"})) is None


def test_a_name_that_may_be_the_hubs_is_told_to_have_been_taken_so() -> None:
    told = "There is no folder some/name here, so it was taken for a Hub repository"
    with pytest.raises(PrepError, match=told) as caught:
        prepare(source="some/name", offline=True)
    assert not isinstance(caught.value, UsageError)
    recipe = load_recipe("videophy2")
    part = recipe.splits[0]
    with pytest.raises(PrepError, match=told):
        open_source(recipe, part, Options(sources={part.name: "some/name"}, offline=True), None, None)
    Path("some").mkdir()  # a revision is named: it is the Hub's
    with pytest.raises(PrepError, match="taken for a Hub") as caught:
        prepare(source="some/name@main", offline=True)
    assert not isinstance(caught.value, (UsageError, IncompleteError))


def test_an_out_root_that_is_a_file_is_refused() -> None:
    Path("taken").write_text("")
    for run in (
        lambda: prepare_snapshots("llava_ov", "taken", subsets=["default"]),
        lambda: prepare_sft("sft", "taken"),
        lambda: prepare_video_reasoning("video_reasoning", "taken"),
    ):
        with pytest.raises(UsageError, match="--out-root taken is a file"):
            run()
