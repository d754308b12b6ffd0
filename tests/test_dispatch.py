"""`prepare` with a recipe of every kind: the local sources that it names, and the options of its kind."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import prep
from prep.errors import UsageError, WouldChangeError
from prep.recipe import KINDS, load_recipe
from prep.sft import SftOptions
from prep.stages.options import Options
from tests.clips import make_clip
from tests.commands import prep as command
from tests.commands import told
from tests.reasoning import annotation, clips, item
from tests.robots import PLAIN, make_root

Maker = Callable[[Path], str]

LOADER = """
[loader]
num_video_frames = -1
temporal_interval_mode = "max_30fps"
frame_selection_mode = "first"
min_short_edge = 0
"""
WINDOWS = """
[roots]
form = "single"

[windows]
chunk_length = 8
splits = ["full"]
order = "ascending"
seed = 0
validation_share = 0.0
"""
RECORD = """
[record]
id = "{row:03d}"
media = "media/{row:03d}.mp4"
conversation = "text/{row:03d}.json"
media_type = "video"
media_key = "video_0"

[columns]
media = "clip"

[prompt]
column = "question"

[answers.answer]
kind = "text"
"""
COLUMNS = """
[columns]
image = "image"
conversations = "conversations"

[keep]
minimum_turns = 2
"""


def write_csv(path: Path, *rows: Mapping[str, str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def conversations(folder: Path) -> str:
    clips(folder / "media", "a.mp4")
    row = {"clip": "a.mp4", "question": "Who?", "answer": "A cat.", "further": '["Sure?", "Yes."]'}
    write_csv(folder / "rows.csv", row)
    return (
        '[splits.train]\ndirectory = "made"\ntable = "rows.csv"\nmedia_root = "media"\n'
        f'{RECORD}\n[turns]\ncolumn = "further"\n'
    )


def sft(folder: Path) -> str:
    (folder / "texts").mkdir(parents=True)
    (folder / "clips").mkdir()
    make_clip(folder / "clips/a.mp4", frames=70, width=32, height=32)
    (folder / "texts/a.txt").write_text("A square moves.")
    return (
        f'[datasets.made]\ndirectory = "made"\n[source]\ncaptions = "texts"\nvideos = "clips"\n{LOADER}'
        'resolution = "256"\n'
    )


def snapshot(folder: Path) -> str:
    (folder / "pictures").mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(folder / "pictures/a.png")
    turns = [{"role": "user", "content": "<image>\nWho?"}, {"role": "assistant", "content": "A cat."}]
    (folder / "rows.jsonl").write_text(json.dumps({"image": "a.png", "conversations": turns}) + "\n")
    place = 'table = "rows.jsonl"\nmedia_root = "pictures"'
    return f'[splits.train]\ndirectory = "made"\n{place}\n{COLUMNS}'


def robot(folder: Path) -> str:
    make_root(folder / "tree", PLAIN)
    return f'[datasets.made]\ndirectory = "made"\ntree = "tree"\n{WINDOWS}'


def reasoning(folder: Path) -> str:
    clips(folder, "a.mp4")
    annotation(folder / "rows.json", [item("a.mp4")])
    return '[splits.train]\ndirectory = "made"\n[inputs.train]\nannotations = "rows.json"\n'


MAKERS: Mapping[str, Maker] = {
    "conversations": conversations,
    "sft_jsonl": sft,
    "arrow_snapshot": snapshot,
    "lerobot": robot,
    "reasoning_qa": reasoning,
}


def recipe_of(kind: str, folder: Path) -> Path:
    """A recipe with its data beside it, which names them by relative paths."""
    body = MAKERS[kind](folder)
    path = folder / "my.toml"
    path.write_text(f'name = "my"\nkind = "{kind}"\n{body}')
    return path


def test_there_is_a_recipe_of_every_kind() -> None:
    assert set(MAKERS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_of_every_kind_is_whole(kind: str, tmp_path: Path) -> None:
    recipe, out = recipe_of(kind, tmp_path / "mine"), tmp_path / "out"
    (result,) = prep.prepare(recipe, out)
    assert (result.outcome, result.kept > 0) == ("complete", True)
    assert result.root.is_relative_to(out / "made")
    assert prep.validate(out, level="quick").errors == 0
    (again,) = prep.prepare(recipe, out, options=Options(offline=True))
    assert (again.outcome, again.dataset_id) == ("unchanged", result.dataset_id)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_of_every_kind_writes_nothing(kind: str, tmp_path: Path) -> None:
    recipe, out = recipe_of(kind, tmp_path / "mine"), tmp_path / "out"
    (result,) = prep.prepare(recipe, out, options=Options(dry_run=True))
    assert (result.outcome, out.exists()) == ("planned", False)


@pytest.mark.parametrize(
    ("kind", "options", "flag"),
    [
        ("sft_jsonl", {"score_field": "pc"}, "--score-field"),
        ("lerobot", {"reuse": Path("x")}, "--reuse"),
        ("arrow_snapshot", {"mirrors": (("a", "b"),)}, "--mirror"),
        ("arrow_snapshot", {"min_coverage": 0.5}, "--min-coverage"),
        ("lerobot", {"limit": 3}, "--limit"),
        ("reasoning_qa", {"limit": 3}, "--limit"),
        ("reasoning_qa", {"download_only": True}, "--download-only"),
    ],
)
def test_an_option_that_the_kind_has_not_is_refused(
    kind: str, options: Mapping[str, Any], flag: str, tmp_path: Path
) -> None:
    recipe = recipe_of(kind, tmp_path / "mine")
    with pytest.raises(UsageError, match=f"{flag} is no option for the kind {kind}") as caught:
        prep.prepare(recipe, tmp_path / "out", options=Options(**options))
    assert "--help" in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_limit_is_honoured_where_it_is_taken(tmp_path: Path) -> None:
    recipe = recipe_of("sft_jsonl", tmp_path)
    make_clip(tmp_path / "clips/b.mp4", frames=70, width=32, height=32)
    (tmp_path / "texts/b.txt").write_text("Another.")
    (result,) = prep.prepare(recipe, tmp_path / "out", options=Options(limit=1))
    assert (result.rows, result.kept) == (1, 1)


def test_options_of_the_kind_itself_are_taken(tmp_path: Path) -> None:
    recipe = recipe_of("sft_jsonl", tmp_path)
    (result,) = prep.prepare(recipe, tmp_path / "out", options=SftOptions(name="other"))
    assert result.root == tmp_path / "out/other"
    with pytest.raises(UsageError, match="SftOptions"):
        prep.prepare(recipe_of("lerobot", tmp_path / "robot"), tmp_path / "out", options=SftOptions())


def test_a_source_that_is_given_goes_before_the_recipe(tmp_path: Path) -> None:
    recipe = recipe_of("lerobot", tmp_path / "mine")
    recipe.write_text(recipe.read_text().replace('tree = "tree"', ""))
    with pytest.raises(UsageError, match="names no source"):
        prep.prepare(recipe, tmp_path / "out")
    given = Options(sources={"made": str(tmp_path / "mine/tree")})
    (result,) = prep.prepare(recipe, tmp_path / "out", options=given)
    assert result.outcome == "complete"
    with pytest.raises(UsageError, match="has not"):
        prep.prepare(recipe, tmp_path / "out", options=Options(sources={"mad": "x"}))


def test_one_split_of_reasoning_data(tmp_path: Path) -> None:
    recipe = recipe_of("reasoning_qa", tmp_path)
    more = '[splits.val]\ndirectory = "made_val"\n[inputs.val]\nannotations = "val.json"\n'
    recipe.write_text(recipe.read_text() + more)
    make_clip(tmp_path / "b.mp4", frames=9, width=32, height=32)
    annotation(tmp_path / "val.json", [item("b.mp4")])
    (result,) = prep.prepare(recipe, tmp_path / "out", split="val")
    assert (result.name, result.outcome) == ("made_val", "complete")
    assert not (tmp_path / "out/made").exists()


def test_further_turns_are_written_and_read(tmp_path: Path) -> None:
    (result,) = prep.prepare(recipe_of("conversations", tmp_path), tmp_path / "out")
    roles = [turn["role"] for turn in prep.open(result.root)[0]["texts"]]
    texts = [turn["content"][-1]["text"] for turn in prep.open(result.root)[0]["texts"]]
    assert roles == ["user", "assistant"] * 2
    assert texts == ["Who?", "A cat.", "Sure?", "Yes."]


@pytest.mark.parametrize("cell", ['["Sure?"]', "[1, 2]", "{}", "no"])
def test_further_turns_that_are_no_pairs_are_a_failure(cell: str, tmp_path: Path) -> None:
    recipe = recipe_of("conversations", tmp_path)
    row = {"clip": "a.mp4", "question": "Who?", "answer": "A cat."}
    write_csv(tmp_path / "rows.csv", {**row, "further": cell}, {**row, "further": ""})
    (result,) = prep.prepare(recipe, tmp_path / "out")
    assert (result.failed, result.kept) == ({"broken_turn": 1}, 1)


def test_an_edited_table_of_images_is_a_change(tmp_path: Path) -> None:
    recipe, table = recipe_of("arrow_snapshot", tmp_path), tmp_path / "rows.jsonl"
    (before,) = prep.prepare(recipe, tmp_path / "out")
    table.write_text(table.read_text().replace("A cat.", "A dog."))
    with pytest.raises(WouldChangeError, match="table"):
        prep.prepare(recipe, tmp_path / "out")
    (after,) = prep.prepare(recipe, tmp_path / "out", options=Options(update=True))
    assert (after.outcome, after.dataset_id != before.dataset_id) == ("complete", True)
    assert prep.open(after.root)[0]["messages"][1]["content"] == "A dog."


@pytest.mark.parametrize("named", ["b.png", "../rows.jsonl"])
def test_an_image_that_is_not_there_is_a_failure(named: str, tmp_path: Path) -> None:
    recipe, table = recipe_of("arrow_snapshot", tmp_path), tmp_path / "rows.jsonl"
    table.write_text(table.read_text() + table.read_text().replace("a.png", named))
    (result,) = prep.prepare(recipe, tmp_path / "out")
    assert (result.outcome, result.failed) == ("failed", {"image_absent": 1})
    done = command("prepare", recipe, "--out-root", tmp_path / "out", "--on-bad-image", "drop")
    assert (done.returncode, "complete" in done.stderr) == (0, True)


def test_wrong_columns_leave_nothing_that_blocks_the_mended_recipe(tmp_path: Path) -> None:
    recipe = recipe_of("arrow_snapshot", tmp_path)
    right = recipe.read_text()
    recipe.write_text(right.replace('image = "image"', 'image = "picture"'))
    with pytest.raises(UsageError, match="no column 'picture'"):
        prep.prepare(recipe, tmp_path / "out")
    recipe.write_text(right)
    assert prep.prepare(recipe, tmp_path / "out")[0].outcome == "complete"


@pytest.mark.parametrize("kind", ["conversations", "arrow_snapshot"])
def test_a_media_root_that_is_no_folder_is_told(kind: str, tmp_path: Path) -> None:
    recipe = recipe_of(kind, tmp_path)
    recipe.write_text(recipe.read_text().replace('media_root = "', 'media_root = "no'))
    with pytest.raises(UsageError, match="media_root of split train is no folder"):
        prep.prepare(recipe, tmp_path / "out")


def test_a_hub_source_of_images_needs_its_subsets(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no subset of lmms-lab") as caught:
        prep.prepare("llava_ov", tmp_path)
    assert "subsets = " in caught.value.remedy


@pytest.mark.parametrize("name", ["sft", "video_reasoning", "lerobot"])
def test_a_built_in_recipe_without_a_source_says_so(name: str, tmp_path: Path) -> None:
    text = told(command("prepare", name, "--out-root", tmp_path), 2)
    assert f"The recipe {name} names no source" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("annotations", "anotations", "did you mean 'annotations'?"),
        ("reasoning_qa", "reasoning_ga", "Did you mean reasoning_qa?"),
        ('kind = "reasoning_qa"', "", "it states no kind"),
        ("[inputs.train]", "[input.train]", "did you mean 'inputs'?"),
    ],
)
def test_a_misspelt_recipe_is_told_with_the_near_name(old: str, new: str, said: str, tmp_path: Path) -> None:
    recipe = recipe_of("reasoning_qa", tmp_path)
    recipe.write_text(recipe.read_text().replace(old, new))
    assert said in told(command("prepare", recipe, "--out-root", tmp_path / "out"), 2)


def test_what_is_no_recipe_is_told_with_the_way_to_one(tmp_path: Path) -> None:
    recipe = recipe_of("conversations", tmp_path)
    assert "prep init" in told(command("prepare", tmp_path), 2)
    assert "prep init" in told(command("prepare", tmp_path / "rows.csv"), 2)
    assert str(recipe) in told(command("prepare", tmp_path / "mi.toml"), 2)


def test_near_names_are_known_within_alternatives(tmp_path: Path) -> None:
    recipe = recipe_of("conversations", tmp_path)
    recipe.write_text(recipe.read_text().replace("[prompt]\ncolumn", "[prompt]\ncolum"))
    with pytest.raises(UsageError, match=r"/prompt: the key 'colum' is not known; did you mean 'column'\?"):
        load_recipe(recipe)


def test_a_lost_shard_of_images_is_mended_from_the_table(tmp_path: Path) -> None:
    recipe = recipe_of("arrow_snapshot", tmp_path)
    (before,) = prep.prepare(recipe, tmp_path / "out")
    next(before.root.glob("*.arrow")).unlink()
    (after,) = prep.prepare(recipe, tmp_path / "out")
    assert (after.outcome, after.dataset_id) == ("complete", before.dataset_id)
    assert prep.validate(after.root, level="deep").errors == 0
