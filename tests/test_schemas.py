"""The schemas: each a valid one, and a breach named by its place."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest

from prep import recipe, schemas
from prep.resources import data_folder
from tests.trees import make_tree

NAMES = sorted(
    path.name.removesuffix(".schema.json") for path in data_folder("schemas").glob("*.schema.json")
)


@pytest.mark.parametrize("name", NAMES)
def test_each_schema_is_one_of_2020_12_and_closed(name: str) -> None:
    document = schemas.schema(name)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(document)
    assert document["title"] == name


def test_the_manifest_of_a_prepared_tree_obeys_and_a_changed_one_does_not(tmp_path: Path) -> None:
    document = json.loads((make_tree(tmp_path / "a", 1, manifest=True) / "manifest.json").read_text())
    assert schemas.is_valid("manifest", document)
    document["counts"]["kept"] = -1
    assert not schemas.is_valid("manifest", document)
    ((pointer, message),) = schemas.errors("manifest", document)
    assert pointer == "/counts/kept"
    assert "-1" in message


def test_every_breach_is_told_and_not_only_the_first() -> None:
    entry = {"id": 7, "media": "a.mp4", "conversation": None}
    pointers = {pointer for pointer, _ in schemas.errors("conversations-meta-entry", entry)}
    assert pointers == {"/id", "/conversation"}


def test_a_breach_becomes_a_finding_at_its_place() -> None:
    (finding,) = schemas.broken(
        "conversations-meta-entry", {"id": 7, "media": "a", "conversation": "b"}, "meta.json", place="/3"
    )
    assert (finding.code, finding.at()) == ("TXT005", "meta.json:/3/id")
    assert (
        schemas.broken(
            "conversations-meta-entry", {"id": "7", "media": "a", "conversation": "b"}, "meta.json"
        )
        == []
    )


def test_a_breach_that_quotes_a_huge_value_is_told_in_short() -> None:
    entry = {"id": ["x" * 100_000], "media": "a", "conversation": "b"}
    (finding,) = schemas.broken("conversations-meta-entry", entry, "meta.json")
    assert len(finding.message) < 400


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"vide_id": "a.mp4"}, "no video_id (it has 'vide_id')"),
        ({"imageid": "a.png"}, "no image_id (it has 'imageid')"),
        ({}, "no video_id, and no image_id (it has 'question', 'answer')"),
    ],
)
def test_of_several_forms_it_is_told_what_is_missing(changed: dict[str, str], told: str) -> None:
    item = {"question": "Why?", "answer": "So.", **changed}
    assert list(schemas.errors("reasoning-item", item)) == [("/", told)]
    (finding,) = schemas.broken("reasoning-item", item, "qa.json", place="/items/2")
    assert finding.at() == "qa.json:/items/2"


def test_a_recipe_without_a_source_is_told_what_each_form_needs() -> None:
    document = recipe.load_recipe("videophy2").document
    splits = {"val": {"directory": "videophy2_val"}}
    ((pointer, message),) = schemas.errors("recipe-conversations", {**document, "splits": splits})
    assert pointer == "/splits/val"
    assert message == "no repo or file, and no table (it has 'directory')"
