"""The reader of robot windows against what upstream's own classes gave for the committed trees.

Upstream is not needed here: `facts.json` holds the digests. Rows, actions and texts are always compared;
pixels where PyAV's FFmpeg and the processor's kind are those of the facts.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prep
from prep.errors import PrepError
from prep.robots import RobotOptions, prepare_robots
from prep.upstream.adapters.model_input import OurModelInputs
from prep.upstream.adapters.robot import OurWindows
from tests.robot_fixture import (
    CASES,
    FACTS,
    FIXTURE,
    Case,
    conversion,
    digest,
    file_digests,
    floats,
    prepare_fixture,
    with_split,
)
from tests.robots import edit_table

WORDS = "additional_view_description"
ROTATION = 1e-6
"""Rotations pass through a linear algebra library, whose last bit differs from processor to processor."""
CHECKED = [
    (name, form)
    for name, case in CASES.items()
    for form in ("windows", "models")
    if form == "windows" or case.models
]


@functools.cache
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepare_fixture(tmp_path_factory.mktemp("fixture"))


def need_scipy(case: Case) -> None:
    if case.needs_scipy and importlib.util.find_spec("scipy") is None:
        pytest.skip("the rotations are SciPy's (extra [robot])")


def pixels_are_comparable() -> bool:
    return bool(facts()["conversion"] == conversion())


@functools.cache
def read(name: str, directory: Path, form: str) -> list[tuple[int, dict[str, Any]]]:
    """Our samples or inputs of a case, in ascending order, with their identities; pixels as a digest."""
    return list(_read(CASES[name], directory, form))


def _read(case: Case, directory: Path, form: str) -> Iterator[tuple[int, dict[str, Any]]]:
    opened: Any = prep.open(directory, index=case.index, instruction="first", **case.options)
    reader = OurWindows(opened) if form == "windows" else OurModelInputs(opened)
    for place in case.places if form == "windows" else case.models:
        sample = reader[place]
        named = {"video": digest(sample["video"]), "identity": ":".join(map(str, reader.identity(place)))}
        yield place, {**sample, **named}


def differing(
    found: Mapping[str, Any], expected: Mapping[str, Any], *, exact: bool, apart: set[str]
) -> list[str]:
    """The fields in which a sample is not what the facts say, those `apart` left out."""
    return [
        key for key, value in expected.items() if key not in apart and not _same(found[key], value, exact)
    ]


def _same(found: Any, expected: Any, exact: bool) -> bool:
    if not isinstance(expected, Mapping):
        return bool(
            expected == found if isinstance(found, str) and ":" in expected else expected == digest(found)
        )
    values = floats(expected)
    if found.dtype != np.float32 or found.shape != values.shape:
        return False
    return bool(np.array_equal(found, values) if exact else np.allclose(found, values, rtol=0, atol=ROTATION))


def test_the_trees_are_those_of_the_facts() -> None:
    assert file_digests() == facts()["files"]


def test_the_facts_are_of_every_case() -> None:
    told = {name: (set(each["windows"]), set(each["models"])) for name, each in facts()["cases"].items()}
    assert told == {
        name: ({str(place) for place in case.places}, {str(place) for place in case.models})
        for name, case in CASES.items()
    }


@pytest.mark.parametrize(("name", "form"), CHECKED)
def test_rows_actions_and_texts_are_upstreams(places: dict[str, Path], name: str, form: str) -> None:
    case, expected = CASES[name], facts()["cases"][name]
    need_scipy(case)
    reader: Any = prep.open(places[case.dataset], index=case.index, **case.options)
    assert len(reader) == expected["length"]
    # Pixels have a test of their own; upstream's words for a view are known beside its files alone.
    apart = {"video"} if reader.description_source == "upstream" else {"video", WORDS}
    for place, found in read(name, places[case.dataset], form):
        upstream = expected[form][str(place)]
        assert set(found) == set(upstream)
        assert differing(found, upstream, exact=not case.needs_scipy, apart=apart) == [], place


@pytest.mark.parametrize(("name", "form"), CHECKED)
def test_pixels_are_upstreams(places: dict[str, Path], name: str, form: str) -> None:
    case = CASES[name]
    need_scipy(case)
    if not pixels_are_comparable():
        pytest.skip(f"the pixels are of {facts()['conversion']}, here is {conversion()}")
    for place, found in read(name, places[case.dataset], form):
        assert found["video"] == facts()["cases"][name][form][str(place)]["video"], place


def test_the_order_of_reading_changes_nothing(places: dict[str, Path]) -> None:
    case = CASES["joint_pos filtered"]
    first: Any = prep.open(places["droid"], index=case.index)
    again: Any = prep.open(places["droid"], index=case.index)
    wanted = [3, 9, 17]
    forward = {place: digest(first[place]["video"]) for place in wanted}
    assert {place: digest(again[place]["video"]) for place in (17, 3, 9)} == forward


def test_a_split_of_all_episodes_is_both_others_in_turn(places: dict[str, Path]) -> None:
    """Upstream's `full` keeps the order of the permutation, of which the first episodes are the split val."""
    readers = [
        prep.open(places["droid"], index=f"droid_policy{name}-c32")
        for name in ("-val", "-train", "_full-full")
    ]
    identities = [[reader.identity(at) for at in range(len(reader))] for reader in readers]  # type: ignore[attr-defined]
    assert identities[0] + identities[1] == identities[2]
    assert len(identities[0]) == 8


def test_a_recipe_with_another_split_is_the_same_recipe_otherwise(tmp_path: Path) -> None:
    text = with_split("droid_policy", "full", tmp_path / "a.toml").read_text()
    assert 'splits = ["full"]' in text
    assert 'name = "droid_policy_full"' in text


@pytest.mark.parametrize("ending", ["from_timestamp", "chunk_index"])
def test_a_camera_without_its_columns_is_refused_where_upstream_guesses(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the rotations are SciPy's (extra [robot])")
    tree = tmp_path / "tree"
    shutil.copytree(FIXTURE / "libero", tree)
    column = f"videos/observation.images.wrist_image/{ending}"
    for path in (tree / "meta/episodes").rglob("*.parquet"):
        edit_table(path, lambda table: table.drop_columns([column]))
    (result,) = prepare_robots("libero_10", tmp_path / "out", options=RobotOptions(root=tree))
    reader: Any = prep.open(result.root, index="libero_10-train-c16")
    with pytest.raises(PrepError, match=column):
        reader[0]
