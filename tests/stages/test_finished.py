"""A finished dataset met by a new run: what counts as a change, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prep.errors import WouldChangeError
from prep.manifest import Manifest
from prep.recipe import load_recipe, recipe_from
from prep.stages.finished import confirm, differences, refuse_change, settled_result, sound_manifest
from prep.stages.options import Options, overall_status
from tests.world import World, tree


@pytest.fixture
def finished(world: World) -> Manifest:
    world.commit([world.row(1), world.row(2, pc="3.7")])
    world.run(min_coverage=0.5)
    manifest = Manifest.load(world.root)
    assert manifest is not None
    return manifest


def request(manifest: Manifest) -> dict[str, object]:
    return dict(manifest.document["request"])


def test_the_same_request_changes_nothing(finished: Manifest) -> None:
    facts = finished.document["sources"][0]
    assert differences(finished, request(finished), load_recipe("videophy2"), facts) == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("score_field", "sa", 'score_field: "pc" → "sa"'),
        ("limit", 5, "limit: null → 5"),
        ("captions", ["caption"], 'captions: [] → ["caption"]'),
        ("on_bad_bytes", "replace", 'on_bad_bytes: "fail" → "replace"'),
        ("new_option", True, "new_option: null → true"),
    ],
)
def test_each_option_that_differs_is_named(finished: Manifest, key: str, value: object, words: str) -> None:
    asked = request(finished) | {key: value}
    assert differences(finished, asked, load_recipe("videophy2"), None) == [words]


def test_a_long_value_is_cut(finished: Manifest) -> None:
    (told,) = differences(finished, request(finished) | {"prompt": "0" * 64}, load_recipe("videophy2"), None)
    assert len(told) < 100
    assert told.endswith("…")


def test_another_recipe_and_another_table_are_named(finished: Manifest) -> None:
    recipe = load_recipe("videophy2")
    other = recipe_from({**recipe.document, "title": "Another"}, folder=Path(), named="other")
    facts = finished.document["sources"][0] | {"sha256": "f" * 64, "commit": "e" * 40}
    told = differences(finished, request(finished), other, facts)
    assert told[0] == f"recipe (title): {recipe.sha256[:12]} → {other.sha256[:12]}"
    assert told[1].endswith(f" → {'e' * 12}")


def test_another_commit_with_the_same_bytes_is_no_change(finished: Manifest) -> None:
    facts = finished.document["sources"][0] | {"commit": "e" * 40}
    assert differences(finished, request(finished), load_recipe("videophy2"), facts) == []


def test_all_changes_are_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WouldChangeError, match="would change it: one: 1 → 2; two: 3 → 4") as caught:
        refuse_change(tmp_path, ["one: 1 → 2", "two: 3 → 4"])
    assert caught.value.exit_status == 2


def test_what_confirm_needs_to_confirm(world: World, finished: Manifest) -> None:
    recipe = load_recipe("videophy2")
    split = recipe.chosen("val")[0]
    asked, options = request(finished), Options(min_coverage=0.5)

    def confirmed(**changes: object) -> bool:
        return confirm(world.root, asked, recipe, split, replace(options, **changes)) is not None

    assert confirmed()
    assert not confirmed(update=True)  # one row failed, and --update tries it again
    assert not confirmed(refresh=True)
    assert confirm(world.folder, asked, recipe, split, options) is None
    (world.root / "meta.json").write_bytes(b"[]")
    assert not confirmed()


def test_the_result_of_a_finished_dataset_tells_its_failures(finished: Manifest) -> None:
    result = settled_result(finished, Options(min_coverage=0.5))
    assert (result.outcome, result.rows, result.kept, result.failed) == (
        "unchanged",
        2,
        1,
        {"not_an_integer": 1},
    )
    assert [row.row for row in result.failures] == [2]
    assert result.consumption["samples"] == 1
    assert settled_result(finished, Options(min_coverage=0.51)).exit_status == 1


def test_a_manifest_that_cannot_be_read_is_none_to_adopt(world: World, finished: Manifest) -> None:
    assert sound_manifest(world.root) is not None
    for broken in (b"", b"{", b"[]", b"{}", b"\xff\xfe"):
        (world.root / "manifest.json").write_bytes(broken)
        assert sound_manifest(world.root) is None
    (world.root / "manifest.json").unlink()
    assert sound_manifest(world.root) is None


def test_statuses_of_several_splits_are_joined(world: World, finished: Manifest) -> None:
    good = settled_result(finished, Options(min_coverage=0.0))
    bad, later = replace(good, outcome="failed"), replace(good, outcome="incomplete")
    assert [overall_status(each) for each in ([good], [good, later], [later, bad, good])] == [0, 3, 1]


def test_a_second_run_reads_no_clip(world: World, finished: Manifest) -> None:
    """Sizes decide; `validate --level deep` and `adopt` are there for flipped bits."""
    clip = world.root / "media" / "video_0001.mp4"
    data = bytearray(clip.read_bytes())
    data[-1] ^= 1
    clip.write_bytes(data)
    before = tree(world.root)
    assert world.run(min_coverage=0.5).outcome == "unchanged"
    assert tree(world.root) == before
