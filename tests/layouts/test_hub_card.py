"""Subsets by a Hub card's configs, in every form that a card may take, and by folders without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from prep.errors import PrepError
from prep.layouts.hub_card import subsets_in

NAMES = [
    "a(b)/train-00000-of-00002.parquet",
    "a(b)/train-00001-of-00002.parquet",
    "a(b)/val-00000-of-00001.parquet",
]


@pytest.mark.parametrize(
    ("data_files", "expected"),
    [
        ("\n  - split: train\n    path: a(b)/train-*", {"train": NAMES[:2]}),
        (
            "\n  - split: train\n    path: [a(b)/train-00001*, a(b)/train-00000*]",
            {"train": [NAMES[1], NAMES[0]]},
        ),
        (" a(b)/*.parquet", {"train": NAMES}),
        (
            "\n    train: a(b)/train-*\n    val: '**/val-?????-of-00001.parquet'",
            {"train": NAMES[:2], "val": NAMES[2:]},
        ),
        ("\n  - split: train\n    path: other/*", {"train": []}),
        (" '*.parquet'", {"train": []}),
    ],
)
def test_forms_of_data_files(tmp_path: Path, data_files: str, expected: dict[str, list[str]]) -> None:
    card = tmp_path / "README.md"
    card.write_text(f"---\nconfigs:\n- config_name: a(b)\n  data_files:{data_files}\n---\n")
    assert subsets_in(card, NAMES)["a(b)"].files == expected


def test_rows_are_read_where_the_card_states_them(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text(
        "---\nconfigs:\n- config_name: x\n  data_files: a(b)/train*\n"
        "dataset_info:\n- config_name: x\n  splits:\n  - name: train\n    num_examples: 7\n---\n"
    )
    assert subsets_in(card, NAMES)["x"].rows == {"train": 7}


def test_folders_serve_without_a_card(tmp_path: Path) -> None:
    names = [*NAMES, "data/train-00000-of-00001.parquet", "loose.parquet", "c/train/0.parquet"]
    found = subsets_in(None, names)
    assert {name: subset.files for name, subset in found.items()} == {
        "a(b)": {"train": NAMES[:2], "val": NAMES[2:]},
        "default": {"train": ["data/train-00000-of-00001.parquet", "loose.parquet"]},
        "c": {"train": ["c/train/0.parquet"]},
    }


def test_a_card_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text("---\n- a: [\n---\n")
    with pytest.raises(PrepError, match="head cannot be read"):
        subsets_in(card, NAMES)
