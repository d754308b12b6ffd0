"""Adapters over stand-ins for what they adapt; over upstream's own classes where those are installed."""

from __future__ import annotations

import importlib.util
import pickle
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import prep
from prep.comparison import Side, compare, diff
from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.manifest import Manifest
from prep.upstream.adapters import open_reference, open_sides
from prep.upstream.adapters.conversations import CosmosConversations
from prep.upstream.adapters.draws import Draws
from prep.upstream.adapters.requirements import CONVERSATIONS, LEROBOT, require
from prep.upstream.checkout import load_lock, local_copy
from tests.trees import make_tree


class Stream:
    """A stream of samples in the manner of upstream's dataset, of which some entries are skipped."""

    def __init__(self, root: Path, entries: int, skipped: tuple[int, ...] = ()) -> None:
        self.root, self.entries, self.skipped = root, entries, skipped
        self.given = 0

    def __len__(self) -> int:
        return self.entries

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        reader = prep.open(self.root)
        for place in range(self.entries):
            if place not in self.skipped:
                self.given += 1
                ours = reader[place]
                yield {
                    "__key__": ours["id"],
                    "__url__": ours["path"],
                    "__source__": "local_sft",
                    "texts": ours["texts"],
                    "media": ours["media"],
                }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "videophy2_val", 6, manifest=True)


def test_a_stream_stands_in_for_our_reader(tree: Path) -> None:
    stream = Stream(tree, 6)
    reader = CosmosConversations(stream)
    ours = prep.open(tree)
    assert len(reader) == len(ours)
    assert [reader[at] for at in range(6)] == [ours[at] for at in range(6)]
    assert stream.given == 6
    assert reader[2] == ours[2]
    assert pickle.loads(pickle.dumps(reader))[4] == ours[4]
    for place in (-1, 6):
        with pytest.raises(IndexError):
            reader[place]


def test_an_entry_that_the_stream_skips_shows_in_the_identities(tree: Path) -> None:
    reference = Side("cosmos", CosmosConversations(Stream(tree, 6, skipped=(3,))))
    found = compare(Side("ours", prep.open(tree)), reference)
    assert found.exit_status == 1
    assert found.order.differing == 2
    assert found.order.first == {"index": 3, "ours": "conversation_0004", "reference": "conversation_0005"}
    assert [place["index"] for place in found.unreadable] == [5]


def test_our_choice_is_handed_to_what_upstream_draws() -> None:
    module = ModuleType("upstream")
    exec("import random\ndef draw(options): return random.choice(options)", module.__dict__)
    own = module.random
    draws = Draws()
    with draws.hand_over(module, "b"):
        assert module.draw(["a", "b", ""]) == "b"
        assert module.draw(["x", "y"]) == "x"
    assert draws.candidates == [["a", "b", ""], ["x", "y"]]
    assert module.random is own
    with pytest.raises(PrepError, match="0 to 9"), draws.hand_over(module, None):
        module.random.randint(0, 9)
    assert module.random is own


def test_a_weighted_draw_never_gives_what_upstream_never_draws() -> None:
    draws = Draws()
    draws.wanted = "never"
    assert draws.choices(["never", "often"], weights=[0.0, 0.7], k=1) == ["often"]
    draws.wanted = "seldom"
    assert draws.choices(["often", "seldom"], weights=[0.7, 0.1], k=1) == ["seldom"]
    with pytest.raises(PrepError):
        draws.choices(["never"], weights=[0.0])
    # What is seeded is Python's own: upstream's split must not change.
    assert draws.Random(0).sample(range(9), 3) == random.Random(0).sample(range(9), 3)


def test_what_is_missing_is_named_with_the_line_that_installs_it() -> None:
    require("x", {"json": "json"})
    needed = {"json": "json", "no_such_module": "no-such[extra]>=1", "nor_this": "nor-this"}
    with pytest.raises(EnvironmentLacksError, match="no_such_module, nor_this") as lacks:
        require("x", needed)
    assert lacks.value.exit_status == 4
    assert lacks.value.remedy == "pip install 'no-such[extra]>=1' nor-this"


def test_lerobot_of_the_old_line_goes_in_by_itself() -> None:
    absent = {"no_such_module": LEROBOT["lerobot"], "nor_this": "nor-this"}
    with pytest.raises(EnvironmentLacksError) as lacks:
        require("lerobot", absent)
    if LEROBOT["lerobot"] == "lerobot==0.4.4":
        assert lacks.value.remedy == "pip install nor-this && pip install --no-deps lerobot==0.4.4"
    else:
        assert lacks.value.remedy == "pip install 'lerobot[dataset]>=0.6' nor-this"


def test_a_reference_that_is_not_installed_is_a_lack_of_the_environment(tree: Path) -> None:
    if all(importlib.util.find_spec(name) is not None for name in CONVERSATIONS):
        pytest.skip("what upstream's reader imports is installed here")
    with pytest.raises(EnvironmentLacksError) as lacks:
        diff(tree, "cosmos")
    assert "pip install" in lacks.value.remedy


def test_an_index_of_windows_is_refused_where_there_are_none(tree: Path) -> None:
    with pytest.raises(UsageError, match="Only robot data"):
        open_sides(tree, "cosmos", index="train")


def _upstream_is_here() -> str:
    """Why upstream cannot be run here, or nothing."""
    missing = [name for name in CONVERSATIONS if importlib.util.find_spec(name) is None]
    if missing:
        return f"upstream's reader needs {', '.join(missing)}"
    lock = load_lock()
    absent = [entry.path for entry in lock.files if local_copy(lock, entry.path) is None]
    return f"{absent[0]} is not here: run `prep vendor sync`" if absent else ""


def test_upstreams_own_reader_gives_the_same_samples(tree: Path) -> None:
    if reason := _upstream_is_here():
        pytest.skip(reason)
    found = diff(tree, "cosmos")
    assert found.exit_status == 0
    assert {name: tally.identical for name, tally in found.fields.items()} == dict.fromkeys(
        ("id", "texts", "media", "path"), 6
    )
    assert found.reference.facts["loaded"]


def test_upstreams_own_reader_skips_a_missing_clip_and_ours_refuses_it(tree: Path) -> None:
    if reason := _upstream_is_here():
        pytest.skip(reason)
    (tree / "media" / "video_0002.mp4").unlink()
    manifest = Manifest.load(tree)
    assert manifest is not None
    reference = open_reference(manifest, "cosmos")
    assert reference.reader[1]["id"] == "conversation_0003"
    found = diff(tree, "cosmos")
    assert found.exit_status == 1
    assert {place["side"] for place in found.unreadable} == {"ours", "reference"}
