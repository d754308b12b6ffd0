"""Recipes: the built-in ones load, and a wrong one is told by its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from prep.errors import UsageError
from prep.recipe import built_in, load_recipe

OWN = """
name = "mine"
kind = "conversations"

[splits.train]
directory = "mine_train"
table = "rows.csv"

[splits.val]
aliases = ["test"]
directory = "mine_val"
repo = "owner/name"
file = "val.csv"

[record]
id = "{row:05d}"
media = "media/{row:05d}.mp4"
conversation = "text/{row:05d}.json"
media_type = "video"
media_key = "video_0"

[columns]
media = "clip"

[prompt]
column = "question"

[answers.answer]
kind = "text"
"""


def load(folder: Path, text: str) -> object:
    (folder / "my.toml").write_text(text, encoding="utf-8")
    return load_recipe(folder / "my.toml")


@pytest.mark.parametrize("name", built_in())
def test_each_built_in_recipe_loads_and_has_a_licence_and_who_reads_it(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.splits
    assert recipe.title


def test_the_videophy2_recipe_is_what_the_contract_says() -> None:
    recipe = load_recipe("videophy2")
    train, val = recipe.splits
    assert (train.directory, train.repo) == ("videophy2_train", "videophysics/videophy2_train")
    assert (val.directory, val.repo) == ("videophy2_val", "videophysics/videophy2_test")
    assert recipe.environment == {"VIDEOPHYSICS_ROOT": "{out_root}"}
    assert "VLM_SAFETENSORS_PATH" in recipe.not_provided


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("both", ["train", "val"]),
        ("all", ["train", "val"]),
        ("train", ["train"]),
        ("test", ["val"]),
        ("val,train", ["val", "train"]),
        ("val, test", ["val"]),
    ],
)
def test_splits_are_chosen_by_name_alias_and_list(wanted: str, names: list[str]) -> None:
    assert [split.name for split in load_recipe("videophy2").chosen(wanted)] == names


def test_a_split_that_is_not_there_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no split 'vla'") as error:
        load_recipe("videophy2").chosen("vla")
    assert "val" in error.value.remedy


def test_a_recipe_of_ones_own_loads(tmp_path: Path) -> None:
    load(tmp_path, OWN)
    recipe = load_recipe(str(tmp_path / "my.toml"))
    assert [split.table for split in recipe.splits] == ["rows.csv", None]
    assert recipe.folder == tmp_path


def test_comments_and_order_do_not_count_in_the_digest_and_content_does(tmp_path: Path) -> None:
    recipes = []
    head, splits, rest = OWN.partition("[splits.train]")
    moved = rest.partition("[splits.val]")
    for number, text in enumerate(
        [
            OWN,
            f"# mine\n{OWN}",
            f"{head}[splits.val]{moved[2]}\n{splits}{moved[0]}",
            OWN.replace("rows.csv", "r.csv"),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        load(tmp_path / str(number), text)
        recipes.append(load_recipe(tmp_path / str(number) / "my.toml").sha256)
    assert recipes[0] == recipes[1] == recipes[2] != recipes[3]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('kind = "conversations"', 'kind = "conversation"'), "conversation"),
        (('table = "rows.csv"', 'table = "rows.csv"\nrepo = "a/b"\nfile = "c"'), "/splits/train"),
        (('media_type = "video"', 'media_type = "vidoe"'), "/record/media_type"),
        (('directory = "mine_val"', 'directory = "../mine"'), "/splits/val/directory"),
        (('kind = "text"', 'kind = "integer"'), "/answers/answer"),
        (('name = "mine"', 'nmae = "mine"'), "name"),
        (("[columns]", "[column]"), "column"),
        (('name = "mine"', 'name = "mine'), "TOML"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_place(change: tuple[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load(tmp_path, OWN.replace(*change, 1))
    assert told in error.value.message
    assert "my.toml" in error.value.message
    assert error.value.remedy


def test_a_recipe_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_bytes(OWN.replace("mine_train", "mine").encode() + b"# \xff\n")
    with pytest.raises(UsageError, match="not UTF-8 at byte"):
        load_recipe(tmp_path / "my.toml")


def test_a_name_that_is_nearly_one_is_refused_with_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        load_recipe("videophy")
    assert "Did you mean videophy2?" in error.value.remedy
    with pytest.raises(UsageError):
        load_recipe(tmp_path)
