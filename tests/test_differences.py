"""The arithmetic of a comparison, against Python's own exact numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from prep.differences import Shape, compare_values, describe

INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)


def arrays(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    return hnp.arrays(np.dtype(dtype), shape)


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), SHAPES)
def test_whole_numbers_are_subtracted_exactly(
    data: st.DataObject, first: str, second: str, shape: tuple[int, ...]
) -> None:
    ours, reference = data.draw(arrays(first, shape)), data.draw(arrays(second, shape))
    apart = [abs(int(one) - int(two)) for one, two in zip(ours.ravel(), reference.ravel(), strict=True)]
    found = compare_values(ours, reference)
    assert found.maximum == max(apart)
    assert found.differing == sum(distance > 0 for distance in apart)
    assert found.values == len(apart)
    assert found.identical == (first == second and not any(apart))


@given(st.data(), st.sampled_from(("float32", "float64")), SHAPES, st.floats(0, 1e3))
def test_floats_are_within_a_tolerance_exactly_when_every_distance_is(
    data: st.DataObject, dtype: str, shape: tuple[int, ...], tolerance: float
) -> None:
    numbers = st.floats(-1e3, 1e3, width=32)
    ours, reference = (data.draw(hnp.arrays(dtype, shape, elements=numbers)) for _ in range(2))
    found = compare_values(ours, reference, tolerance)
    pairs = list(zip(ours.ravel().tolist(), reference.ravel().tolist(), strict=True))
    assert found.maximum == max(abs(one - two) for one, two in pairs)
    assert found.within == all(abs(one - two) <= tolerance for one, two in pairs)
    # Two float32 that lie so near each other are subtracted in float64 without any loss.
    if dtype == "float32" and all(abs(one) > 1e-3 and abs(two) > 1e-3 for one, two in pairs):
        assert found.maximum == float(max(abs(Fraction(one) - Fraction(two)) for one, two in pairs))


@given(st.data(), SHAPES)
def test_a_value_is_identical_to_its_copy_and_the_order_of_the_sides_plays_no_part(
    data: st.DataObject, shape: tuple[int, ...]
) -> None:
    any_float = hnp.arrays(np.float32, shape, elements=st.floats(width=32))
    ours, reference = data.draw(any_float), data.draw(any_float)
    same = compare_values(ours, ours.copy())
    assert same.identical
    assert same.within
    assert same.maximum == 0
    there, back = compare_values(ours, reference), compare_values(reference, ours)
    assert (there.maximum, there.differing, there.within) == (back.maximum, back.differing, back.within)


@pytest.mark.parametrize(
    ("ours", "reference", "maximum", "identical", "within"),
    [
        (math.nan, math.nan, 0, True, True),
        (math.inf, math.inf, 0, True, True),
        (math.nan, 1.0, math.inf, False, False),
        (math.inf, -math.inf, math.inf, False, False),
        (0.0, -0.0, 0, False, True),
        (1.0, 1.0 + 2**-52, 2**-52, False, False),
        (1.7e308, -1.7e308, math.inf, False, False),
        (2**63 - 1, -(2**63), 2**64 - 1, False, False),
        (5, 5.0, 0, False, False),
        (True, 1, 0, False, False),
        (np.float32(0.1), 0.1, abs(float(np.float32(0.1)) - 0.1), False, False),
    ],
)
def test_single_numbers(ours: Any, reference: Any, maximum: float, identical: bool, within: bool) -> None:
    found = compare_values(ours, reference)
    assert (found.maximum, found.identical, found.within) == (maximum, identical, within)


def test_the_tolerance_is_inclusive_and_does_not_excuse_another_dtype_or_shape() -> None:
    ours = np.array([1, 2, 3], np.uint8)
    assert compare_values(ours, ours + np.uint8(2), 2).within
    assert not compare_values(ours, ours + np.uint8(2), 1.999).within
    assert not compare_values(ours, ours.astype(np.int16), 9).within
    other = compare_values(ours, ours[:2], 9)
    assert not other.within
    assert (other.ours, other.reference) == ("shape [3]", "shape [2]")


def test_the_place_of_the_greatest_distance_is_told() -> None:
    ours = np.zeros((2, 3, 4), np.uint8)
    reference = ours.copy()
    reference[0, 1, 2], reference[1, 2, 3] = 4, 250
    found = compare_values(ours, reference)
    assert (found.place, found.maximum, found.differing) == ("[1, 2, 3]", 250, 2)
    assert (found.ours, found.reference) == ("0 (uint8)", "250 (uint8)")


@pytest.mark.parametrize(
    ("ours", "reference", "place"),
    [
        ("pick up", "pick  up", ""),
        (b"\x00\x01", b"\x00\x02", ""),
        ({"video_0": b"a"}, {"video_0": b"b"}, "/video_0"),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, "/a/1/b"),
        ({"a": 1}, {"b": 1}, "/"),
        ([{"a": 1}], [{"a": 1}, {"a": 2}], ""),
        ({"a": 1}, {"a": True}, "/a"),
        ("1", 1, ""),
        (None, "", ""),
        (["a", "b"], ["b", "a"], "/0"),
    ],
)
def test_documents_texts_and_bytes_are_compared_whole(ours: Any, reference: Any, place: str) -> None:
    found = compare_values(ours, reference)
    assert not found.identical
    assert not found.within
    assert found.place == place
    assert found.maximum is None
    assert found.ours != found.reference
    assert compare_values(ours, ours).identical


def test_a_long_text_is_shown_from_where_it_differs() -> None:
    ours = "word " * 400 + "left" + " end" * 400
    found = compare_values(ours, ours.replace("left", "right"))
    assert "left" in found.ours
    assert "right" in found.reference
    assert len(found.ours) < 200


def test_dtypes_and_shapes_are_those_of_numpy() -> None:
    assert describe(np.zeros((2, 3), np.float32)) == Shape("float32", (2, 3))
    assert describe(5) == Shape("int64", ())
    assert describe(5) == describe(np.int64(5))
    assert describe((544, 736)) == describe([544, 736]) == Shape("int64", (2,))
    assert describe("wam") == Shape("text", (3,))
    assert describe([{"a": 1}]) == Shape("list", (1,))
    assert describe(None) == Shape("none", ())
