"""prepare, adopt and failures as a program calls them: splits, recipes, an own table, the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import prep
from prep.errors import EnvironmentLacksError, UsageError, WouldChangeError
from prep.loopback import Fault, FaultKind
from prep.preparation import failures, prepare
from prep.recipe import built_in, load_recipe
from prep.stages.options import Options, overall_status
from tests.world import TABLE, World, csv_bytes, tree

TRAIN = {"repo": "videophysics/videophy2_train", "table": "videophy2_training.csv"}


def both(world: World, **changes: object) -> list[prep.Result]:
    return prepare("videophy2", world.out, options=world.options(**changes))


def serve_train(world: World, *numbers: int) -> None:
    rows = [world.row(number) for number in numbers]
    world.hub.add_repo(TRAIN["repo"], {TRAIN["table"]: csv_bytes(rows)})


# Splits.


def test_both_splits_are_made_beside_one_another(world: World) -> None:
    serve_train(world, 11, 12)
    world.rows(1)
    results = both(world)
    assert [(result.name, result.outcome, result.kept) for result in results] == [
        ("videophy2_train", "complete", 2),
        ("videophy2_val", "complete", 1),
    ]
    assert sorted(path.name for path in world.out.iterdir()) == ["videophy2_train", "videophy2_val"]


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ("val", ["videophy2_val"]),
        ("test", ["videophy2_val"]),
        ("train", ["videophy2_train"]),
        ("val,train", ["videophy2_val", "videophy2_train"]),
        ("all", ["videophy2_train", "videophy2_val"]),
    ],
)
def test_splits_go_by_name_and_alias(world: World, split: str, names: list[str]) -> None:
    serve_train(world, 11)
    world.rows(1)
    results = prepare("videophy2", world.out, split=split, options=world.options())
    assert [result.name for result in results] == names


@pytest.mark.parametrize("split", ["vall", "", "validation"])
def test_a_split_that_is_not_there_is_wrong_usage(world: World, split: str) -> None:
    with pytest.raises(UsageError, match="has no split") as caught:
        prepare("videophy2", world.out, split=split, options=world.options())
    assert caught.value.remedy == "It has: train, val, both."
    assert world.hub.requests == []


@pytest.mark.parametrize(
    ("spoil", "outcome", "status"),
    [
        (lambda world: world.hub.add_repo(TRAIN["repo"], {"other.csv": b"a\n"}), "failed", 1),
        (
            lambda world: world.hub.faults.set(TRAIN["repo"], Fault(FaultKind.UNAVAILABLE, 0)),
            "incomplete",
            3,
        ),
    ],
)
def test_a_split_that_cannot_be_done_keeps_no_other_from_being_done(
    world: World, monkeypatch: pytest.MonkeyPatch, spoil: object, outcome: str, status: int
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    serve_train(world, 11)
    world.rows(1)
    assert callable(spoil)
    spoil(world)
    train, val = both(world)
    assert (train.outcome, train.exit_status, val.outcome) == (outcome, status, "complete")
    assert train.message
    assert overall_status([train, val]) == status


def test_wrong_usage_of_one_split_stops_all(world: World) -> None:
    serve_train(world, 11)
    world.rows(1)
    both(world)
    with pytest.raises(WouldChangeError, match="videophy2_train is finished"):
        both(world, score_field="sa")


@pytest.mark.parametrize("wrong", [{"sources": {"val": "/not/there"}}, {"reuse": Path("not/there")}])
def test_what_is_wrong_with_a_later_split_is_said_before_the_first_is_fetched(
    world: World, wrong: dict[str, object]
) -> None:
    serve_train(world, 11)
    if "reuse" in wrong:
        prepare("videophy2", world.folder / "other", split="train", options=world.options())
        wrong = {"reuse": world.folder / "other"}
    asked = len(world.hub.requests)
    with pytest.raises(UsageError, match=r"split val|videophy2_val has no manifest"):
        both(world, **wrong)
    assert (len(world.hub.requests), world.out.exists()) == (asked, False)


def test_a_missing_prompt_stops_before_anything_is_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's text is nowhere here, and the network is off."""
    rows = world.rows(1)
    (world.folder / TABLE).write_bytes(csv_bytes(rows))
    monkeypatch.setattr("prep.upstream.checkout.data_folder", _lock_alone(world.folder / "vendor"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.folder / "cache"))
    with pytest.raises(EnvironmentLacksError) as caught:
        world.run(prompt="auto", offline=True, sources={"val": str(world.folder)})
    assert caught.value.exit_status == 4
    assert "--prompt builtin" in caught.value.remedy
    assert "--prompt FILE" in caught.value.remedy
    assert not world.root.exists()
    assert world.run(prompt="builtin", sources={"val": str(world.folder)}).outcome == "complete"


def _lock_alone(folder: Path) -> object:
    """A vendor folder that holds the lock and nothing else, as `data_folder` gives it."""
    from prep.resources import data_folder

    folder.mkdir()
    lock = "upstream.lock.json"
    (folder / lock).write_bytes((data_folder("vendor") / lock).read_bytes())
    return lambda name: folder if name == "vendor" else data_folder(name)


# Recipes.

OWN = """
name = "my-clips"
kind = "conversations"

[splits.dev]
directory = "my_dev"
table = "clips.csv"

[record]
id = "clip-{row}"
media = "videos/{row:05d}.mp4"
conversation = "talk/{row:05d}.json"
media_type = "video"
media_key = "clip"

[columns]
media = "file"

[prompt]
column = "question"

[answers.answer]
kind = "text"
"""


def own(world: World, recipe: str = OWN) -> Path:
    path = world.folder / "my.toml"
    path.write_text(recipe)
    return path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "conversations"', 'kind = "conversation"', "kind"),
        ('name = "my-clips"', 'name = "my-clips"\ncolour = "red"', "colour"),
        ('directory = "my_dev"', 'directory = "../my_dev"', "/splits/dev/directory"),
        ('directory = "my_dev"', 'directory = "my_dev"\nexpected_rows = "17"', "/splits/dev/expected_rows"),
        ('table = "clips.csv"', "", "/splits/dev"),
        ('media = "videos/{row:05d}.mp4"', 'media = "videos/clip.mp4"', "gives every row the same name"),
        ('media = "videos/{row:05d}.mp4"', 'media = "../{row}.mp4"', "leaves the dataset"),
        ('id = "clip-{row}"', 'id = "clip-{number}"', "cannot be filled in"),
        ('[answers.answer]\nkind = "text"', "[answers]", "/answers"),
        ('kind = "text"', 'kind = "integer"', "/answers/answer"),
        ('column = "question"', 'column = "question"\ntext = "And a text"', "/prompt"),
        ("[columns]", "[columns", "not valid TOML"),
        (
            "[record]",
            '[splits.twin]\ndirectory = "My_Dev"\ntable = "clips.csv"\n\n[record]',
            "two splits make the directory",
        ),
    ],
)
def test_a_recipe_that_is_wrong_says_where(world: World, old: str, new: str, words: str) -> None:
    assert OWN.count(old) >= 1
    with pytest.raises(UsageError) as caught:
        prepare(own(world, OWN.replace(old, new, 1)), world.out)
    assert words in caught.value.message
    assert caught.value.remedy
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("videophi2", "Did you mean videophy2?"), ("bridge-data", "Built in: "), ("my.toml", "Built in: ")],
)
def test_a_recipe_that_is_not_there_names_what_is(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match="There is no recipe") as caught:
        prepare(name, tmp_path)
    assert words in caught.value.remedy


def test_robot_data_are_not_adopted(tmp_path: Path) -> None:
    robot = next(name for name, path in built_in().items() if 'kind = "lerobot"' in path.read_text())
    (tmp_path / "media").mkdir()
    with pytest.raises(UsageError, match="is of the kind 'lerobot'"):
        prep.adopt(tmp_path, recipe=robot, split=load_recipe(robot).splits[0].name)


def test_a_recipe_that_is_not_utf8_is_wrong_usage(world: World) -> None:
    path = own(world)
    path.write_bytes(path.read_bytes().replace(b"my-clips", b"my-cl\xefps"))
    with pytest.raises(UsageError, match="not UTF-8 at byte"):
        prepare(path, world.out)


# A table of one's own.


def serve_own(world: World, rows: Mapping[str, tuple[str, str]]) -> Path:
    """Clips `take 1.mp4`, `b/2.mp4` and one outside beside the recipe, with this table; the recipe."""
    folder = world.folder / "own"
    (folder / "b").mkdir(parents=True)
    (folder / "take 1.mp4").write_bytes(world.clip(1))
    (folder / "b" / "2.mp4").write_bytes(world.clip(2))
    (world.folder / "outside.mp4").write_bytes(world.clip(3))
    table = [[file, question, answer] for file, (question, answer) in rows.items()]
    (folder / "clips.csv").write_bytes(csv_bytes(table, ("file", "question", "answer")))
    path = folder / "my.toml"
    path.write_text(OWN)
    return path


GOOD = {"take 1.mp4": ("What falls?", "A “red” ball."), "b/2.mp4": ("And then?", "It bounces,\ntwice.")}


def test_a_manifest_does_not_grow_with_the_answers(world: World) -> None:
    rows = [["take 1.mp4", "What falls?", f"{number:03d} " + "A red ball. " * 300] for number in range(300)]
    recipe = serve_own(world, GOOD)
    (recipe.parent / "clips.csv").write_bytes(csv_bytes(rows, ("file", "question", "answer")))
    (result,) = prep.prepare(recipe, world.out)
    assert (result.outcome, result.kept) == ("complete", 300)
    assert result.consumption == {"samples": 300, "dropped": {}}
    assert (world.out / "my_dev" / "manifest.json").stat().st_size < 10_000


def test_a_manifest_of_a_wide_scale_does_not_grow_either(world: World) -> None:
    rows = [["take 1.mp4", "How many?", f"{number}"] for number in range(1_001)]
    recipe = serve_own(world, GOOD)
    scale = 'kind = "integer"\nminimum = 0\nmaximum = 1000000'
    recipe.write_text(OWN.replace('kind = "text"', scale))
    (recipe.parent / "clips.csv").write_bytes(csv_bytes(rows, ("file", "question", "answer")))
    (all_told,) = prep.prepare(recipe, world.out / "1000", options=Options(limit=1_000))
    (none_told,) = prep.prepare(recipe, world.out / "1001")
    assert len(all_told.consumption["answers"]) == 1_000
    assert none_told.consumption == {"samples": 1_001, "dropped": {}}


@pytest.mark.parametrize("offline", [False, True])
def test_an_own_table_is_prepared_and_read_back(world: World, offline: bool) -> None:
    recipe = serve_own(world, GOOD)
    (result,) = prep.prepare(recipe, world.out, options=Options(offline=offline))
    assert (result.outcome, result.kept, result.name) == ("complete", 2, "my_dev")
    reader = prep.open(world.out / "my_dev")
    samples = [reader[index] for index in range(len(reader))]
    assert [sample["id"] for sample in samples] == ["clip-1", "clip-2"]
    assert [sample["media"] for sample in samples] == [{"clip": world.clip(1)}, {"clip": world.clip(2)}]
    assert [(sample["texts"][0]["content"], sample["texts"][1]["content"]) for sample in samples] == [
        (
            [{"type": "video", "video": "clip"}, {"type": "text", "text": question}],
            [{"type": "text", "text": answer}],
        )
        for question, answer in GOOD.values()
    ]
    assert sorted(path.name for path in (world.out / "my_dev").iterdir() if path.name[0] != ".") == [
        "manifest.json",
        "meta.json",
        "talk",
        "videos",
    ]
    (again,) = prep.prepare(recipe, world.out, options=Options(offline=offline))
    assert again.outcome == "unchanged"
    assert world.hub.requests == []


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("../outside.mp4", "outside_source"),
        ("b/../../outside.mp4", "outside_source"),
        ("{folder}/outside.mp4", "outside_source"),
        ("file://{folder}/outside.mp4", "bad_url"),
        ("b", "not_a_file"),
        ("b/3.mp4", "missing_file"),
        ("b%2F2.mp4", "missing_file"),
        ("clips.csv", "not_media"),
    ],
)
def test_a_clip_that_leaves_the_folder_or_is_none_fails_its_row(world: World, file: str, reason: str) -> None:
    recipe = serve_own(world, {**GOOD, file.format(folder=world.folder): ("Why?", "Because.")})
    (result,) = prepare(recipe, world.out)
    assert (result.exit_status, result.failed, result.fetched) == (1, {reason: 1}, 2)
    (accepted,) = prepare(recipe, world.out, options=Options(min_coverage=0.6))
    assert accepted.kept == 2
    if "{folder}" not in file:
        assert str(world.folder).encode() not in b"".join(tree(world.out / "my_dev").values())


def test_rows_without_question_or_answer_fail(world: World) -> None:
    recipe = serve_own(world, {"take 1.mp4": ("", "Yes."), "b/2.mp4": ("Is it?", "")})
    (result,) = prepare(recipe, world.out)
    assert result.failed == {"no_answer": 1, "no_prompt": 1}


def test_a_prompt_of_ones_own_needs_no_question_column(world: World) -> None:
    recipe = serve_own(world, GOOD)
    (recipe.parent / "clips.csv").write_bytes(csv_bytes([["b/2.mp4", "Yes."]], ("file", "answer")))
    prompt = world.folder / "prompt.txt"
    prompt.write_text("Is it so?")
    (result,) = prepare(recipe, world.out, options=Options(prompt=str(prompt)))
    assert result.outcome == "complete"
    text = json.loads((world.out / "my_dev" / "talk" / "00001.json").read_bytes())
    assert text["conversations"][0]["content"][1]["text"] == "Is it so?"


def test_an_own_dataset_is_adopted_with_the_folder_of_its_clips(world: World) -> None:
    recipe = serve_own(world, GOOD)
    prepare(recipe, world.out)
    before = tree(world.out / "my_dev")
    clip = world.out / "my_dev" / "videos" / "00002.mp4"
    clip.write_bytes(clip.read_bytes()[:-1] + b"\xff")
    result, adoption = prep.adopt(
        world.out / "my_dev", options=Options(sources={"dev": str(recipe.parent)}, prune=True)
    )
    assert [finding.code for finding in adoption.broken] == ["FIL004"]
    assert (result.outcome, result.fetched) == ("complete", 1)
    assert tree(world.out / "my_dev") == before


# Failures.


def test_failures_of_what_is_no_dataset_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no manifest and no unfinished run"):
        failures(tmp_path)


def test_failures_of_a_run_that_was_killed_are_not_known_yet(world: World) -> None:
    (world.root / ".prep").mkdir(parents=True)
    (world.root / ".prep" / "ledger").write_bytes(b"")
    with pytest.raises(UsageError, match="has not come to its end") as caught:
        failures(world.root)
    assert "Run the prepare command again" in caught.value.remedy


def test_a_finished_dataset_without_failures_has_none(world: World) -> None:
    world.rows(1)
    world.run()
    assert failures(world.root) == ("the finished dataset", [])


# The same bytes anywhere.

SCRIPT = """
import sys
from prep.preparation import Options, prepare
endpoint, out, start = sys.argv[1:]
(result,) = prepare("videophy2", out, split="val", options=Options(
    prompt="builtin", include_caption=True, mirrors=((start, endpoint),), min_coverage=0.5))
assert result.exit_status == 0, result
"""


def test_the_tree_is_the_same_for_any_user_zone_locale_and_mirror(world: World) -> None:
    rows = [world.row(1, upsampled_caption="“Ünï” 日本"), world.row(2, pc="3.7"), world.row(3)]
    world.commit(rows)
    for number in (1, 3):
        world.hub.add_file(f"other place/{number}.mp4", world.clip(number))
    ways = {
        "first": (f"{world.hub.endpoint}/files/", "https://videos.example/", {}),
        "second": (
            f"{world.hub.endpoint}/files/other place/",
            "https://videos.example/clips/",
            {
                "LC_ALL": "C",
                "PYTHONUTF8": "0",
                "PYTHONCOERCECLOCALE": "0",
                "TZ": "Pacific/Chatham",
                "USER": "somebody",
                "LOGNAME": "somebody",
                "HOME": str(world.folder),
                "PYTHONHASHSEED": "7",
            },
        ),
    }
    trees = []
    for name, (endpoint, start, environment) in ways.items():
        out = world.folder / name / "a folder"
        subprocess.run(
            [sys.executable, "-c", SCRIPT, endpoint, str(out), start],
            env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[1])},
            check=True,
        )
        trees.append(tree(out / "videophy2_val"))
    assert trees[0] == trees[1]
