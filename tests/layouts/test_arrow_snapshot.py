"""Names, documents and rows of the snapshot layout."""

from __future__ import annotations

import re

import datasets
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.errors import PrepError
from prep.layouts.arrow_snapshot import features_of, messages, safe_name, shard_name, with_features

REAL = [
    "ai2d(gpt4v)",
    "CLEVR-Math(MathV360K)",
    "si",
    "vision_flan(filtered)",
    "ai2d(cauldron,llava_format)",
    "VisualWebInstruct(filtered)",
    "PMC-VQA(MathV360K)",
]


@pytest.mark.parametrize("name", ["si", "chartqa", "a-b_c.d"])
def test_a_plain_name_is_kept(name: str) -> None:
    assert safe_name(name) == name


def test_real_names_are_safe_and_readable() -> None:
    for name in REAL[:2] + REAL[3:]:
        safe = safe_name(name)
        assert re.fullmatch(r"[A-Za-z0-9_.-]+-[0-9a-f]{8}", safe)
        assert safe.startswith(re.split(r"[^A-Za-z0-9_.-]", name)[0])


@given(st.text(min_size=1, max_size=200))
def test_any_name_gives_one_sound_folder(name: str) -> None:
    safe = safe_name(name)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", safe)
    assert len(safe) <= 80


def test_names_do_not_collide_even_where_case_is_lost() -> None:
    names = [
        "a b",
        "a_b",
        "a(b)",
        "A_B",
        "a/b",
        "a:b",
        "con",
        "CON",
        "a.",
        "a",
        safe_name("a b"),
        "ä",
        "Ä",
        "..",
        ".",
    ]
    assert len({safe_name(name).casefold() for name in names}) == len(names)
    assert not {safe_name(name) for name in names} & {"con", "CON", "..", "."}


def test_shards_are_named_as_datasets_and_the_hub_do() -> None:
    assert shard_name("arrow", "train", 3, 12) == "data-00003-of-00012.arrow"
    assert shard_name("hub", "train", 0, 1) == "train-00000-of-00001.parquet"


def test_stated_features_are_kept_as_they_are() -> None:
    stated = {"image": {"_type": "Image", "mode": "RGB"}, "n": {"dtype": "int32", "_type": "Value"}}
    plain = pa.schema(
        [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("n", pa.int32())]
    )
    assert features_of(with_features(plain, stated), "image") == stated


def test_features_are_derived_as_the_real_library_derives_them() -> None:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    turn = pa.struct([("from", pa.string()), ("value", pa.string())])
    kinds = [
        ("image", image),
        ("turns", pa.list_(turn)),
        ("score", pa.float64()),
        ("small", pa.float32()),
        ("n", pa.int64()),
        ("flag", pa.bool_()),
    ]
    made = datasets.Features.from_dict(features_of(pa.schema(kinds), "image"))
    wanted = datasets.Features.from_arrow_schema(pa.schema(kinds))
    wanted["image"] = datasets.Image()
    assert made.arrow_schema.remove_metadata() == wanted.arrow_schema.remove_metadata()
    with pytest.raises(PrepError, match="no feature is stated"):
        features_of(pa.schema([("when", pa.timestamp("us"))]), "image")


def test_messages_as_upstream_makes_them() -> None:
    turns = [
        {"from": "system", "value": "Be brief.<image>"},
        {"from": "human", "value": "What is it?\n<image>"},
        {"from": "gpt", "value": " A <image>cat. "},
        {"from": "human", "value": "<image> Sure?"},
    ]
    assert messages(turns, "image_0") == [
        {"role": "assistant", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "image", "image": "image_0"}, {"type": "text", "text": "What is it?"}],
        },
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "Sure?"},
    ]
