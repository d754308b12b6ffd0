"""Two values side by side: whether they are the same bytes, how far apart they are, and where.

Arithmetic is exact: whole numbers are subtracted as such, floats in float64. Two NaNs at one place,
and two infinities of one sign, are no distance apart; a NaN beside a number is infinitely far from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Difference", "Shape", "compare_values", "describe"]

_NUMBERS = "biuf"
_EXCERPT = 200


@dataclass(frozen=True, slots=True)
class Shape:
    """What a value is: its dtype in numpy's words (or text, bytes, list, mapping, none) and its shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """How two values differ.

    `identical`: the same dtype, shape and bytes. `within`: of the same dtype and shape, and nowhere
    further apart than the tolerance. `maximum`: the greatest distance, None where there is none to
    speak of, such as between texts. `place`: where that is. `values` of them are compared, `differing`
    of them are not equal.
    """

    identical: bool
    within: bool
    maximum: float | int | None
    values: int = 1
    differing: int = 0
    place: str = ""
    ours: str = ""
    reference: str = ""


def describe(value: object) -> Shape:
    """The dtype and shape of a value; a number is an array of no dimension."""
    plain = _plain(value)
    if isinstance(plain, np.ndarray):
        return Shape(str(plain.dtype), plain.shape)
    if isinstance(plain, str | bytes):
        return Shape("text" if isinstance(plain, str) else "bytes", (len(plain),))
    if isinstance(plain, Mapping | list):
        return Shape("list" if isinstance(plain, list) else "mapping", (len(plain),))
    return Shape("none" if plain is None else type(plain).__name__, ())


def compare_values(ours: object, reference: object, tolerance: float = 0.0) -> Difference:
    """Compare two values of a sample; `tolerance` is the greatest distance that counts as the same."""
    first, second = _plain(ours), _plain(reference)
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return _compare_arrays(first, second, tolerance)
    place = _first_place(first, second)
    if place is None:
        return Difference(identical=True, within=True, maximum=None)
    where, here, there = place
    return Difference(
        identical=False,
        within=False,
        maximum=None,
        differing=1,
        place=where,
        ours=_excerpt(here, there),
        reference=_excerpt(there, here),
    )


def _plain(value: object) -> Any:
    """Numbers, lists of numbers and whatever stands for an array as an array; the rest as it is."""
    if isinstance(value, str | bytes | Mapping | np.ndarray) or value is None:
        return value
    if isinstance(value, bool | int | float | np.generic):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        is_numeric = value and all(isinstance(each, bool | int | float | np.generic) for each in value)
        return np.asarray(value) if is_numeric else list(value)
    return np.asarray(value) if hasattr(value, "__array__") else value


def _compare_arrays(ours: NDArray[Any], reference: NDArray[Any], tolerance: float) -> Difference:
    if describe(ours) == describe(reference) and ours.tobytes() == reference.tobytes():
        return Difference(
            identical=True, within=True, maximum=_nothing(ours, reference), values=max(1, ours.size)
        )
    if ours.shape != reference.shape:
        shapes = f"shape {list(ours.shape)}", f"shape {list(reference.shape)}"
        return Difference(False, False, None, ours.size, ours.size, "", *shapes)
    if ours.dtype.kind not in _NUMBERS or reference.dtype.kind not in _NUMBERS:
        return _compare_others(ours, reference)
    distance = _distances(ours, reference)
    place = np.unravel_index(int(np.argmax(distance)), distance.shape) if distance.size else ()
    maximum = _number(distance[place]) if distance.size else 0
    return Difference(
        identical=False,
        within=ours.dtype == reference.dtype and bool(maximum <= tolerance),
        maximum=maximum,
        values=max(1, ours.size),
        differing=int(np.count_nonzero(distance)),
        place=_index_text(place),
        ours=f"{ours[place].item()} ({ours.dtype})" if distance.size else str(ours.dtype),
        reference=f"{reference[place].item()} ({reference.dtype})" if distance.size else str(reference.dtype),
    )


def _nothing(ours: NDArray[Any], reference: NDArray[Any]) -> int | float | None:
    kinds = {ours.dtype.kind, reference.dtype.kind}
    if not kinds <= set(_NUMBERS):
        return None
    return 0.0 if "f" in kinds else 0


def _compare_others(ours: NDArray[Any], reference: NDArray[Any]) -> Difference:
    unequal = np.asarray(ours != reference)
    place = np.unravel_index(int(np.argmax(unequal)), unequal.shape) if unequal.size else ()
    same = ours.dtype == reference.dtype and not unequal.any()
    return Difference(
        identical=same,
        within=same,
        maximum=None,
        values=max(1, ours.size),
        differing=int(np.count_nonzero(unequal)),
        place=_index_text(place),
        ours=repr(ours[place])[:_EXCERPT],
        reference=repr(reference[place])[:_EXCERPT],
    )


def _distances(ours: NDArray[Any], reference: NDArray[Any]) -> NDArray[Any]:
    """|ours - reference|, element by element, exactly: float64 beside a float, else whole numbers."""
    if ours.dtype == reference.dtype == np.uint8:  # pictures: no wider copy of them is needed
        return np.asarray(np.maximum(ours, reference) - np.minimum(ours, reference))
    if "f" in (ours.dtype.kind, reference.dtype.kind):
        return _float_distances(ours.astype(np.float64), reference.astype(np.float64))
    if max(ours.dtype.itemsize, reference.dtype.itemsize) < 4:
        return np.abs(ours.astype(np.int32) - reference.astype(np.int32)).astype(np.uint64)
    kinds = {ours.dtype.kind, reference.dtype.kind} - {"b"}
    if kinds == {"i", "u"}:
        signed, unsigned = (ours, reference) if ours.dtype.kind == "i" else (reference, ours)
        return _mixed_distances(signed, unsigned)
    wide = np.uint64 if kinds == {"u"} else np.int64
    first, second = ours.astype(wide), reference.astype(wide)
    # The true distance of two 64-bit numbers is below 2**64, so the subtraction may wrap round.
    greater, less = np.maximum(first, second), np.minimum(first, second)
    with np.errstate(over="ignore"):
        return np.asarray(greater.astype(np.uint64) - less.astype(np.uint64))


def _mixed_distances(signed: NDArray[Any], unsigned: NDArray[Any]) -> NDArray[Any]:
    """As exact whole numbers of any size: the distance of int64 and uint64 may pass 64 bits."""
    pairs = zip(signed.ravel().tolist(), unsigned.ravel().tolist(), strict=True)
    return np.array([abs(one - other) for one, other in pairs], dtype=object).reshape(signed.shape)


def _float_distances(ours: NDArray[Any], reference: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(ours - reference)
    distance = np.where((ours == reference) | (np.isnan(ours) & np.isnan(reference)), 0.0, distance)
    return np.where(np.isnan(distance), math.inf, distance)


def _number(value: Any) -> int | float:
    number: int | float = value.item() if isinstance(value, np.generic) else value
    return number


def _index_text(place: tuple[Any, ...]) -> str:
    return f"[{', '.join(str(int(part)) for part in place)}]" if place else ""


def _first_place(ours: Any, reference: Any, pointer: str = "") -> tuple[str, Any, Any] | None:
    """The first place at which two documents differ, as a JSON pointer; None if they are equal."""
    if isinstance(ours, Mapping) and isinstance(reference, Mapping):
        if ours.keys() != reference.keys():
            return f"{pointer}/", sorted(map(str, ours)), sorted(map(str, reference))
        pairs = [(str(key), ours[key], reference[key]) for key in ours]
    elif isinstance(ours, list | tuple) and isinstance(reference, list | tuple):
        if len(ours) != len(reference):
            return pointer, list(ours), list(reference)
        pairs = [(str(key), *both) for key, both in enumerate(zip(ours, reference, strict=True))]
    else:
        return None if _equal(ours, reference) else (pointer, ours, reference)
    places = (_first_place(one, other, f"{pointer}/{key}") for key, one, other in pairs)
    return next((place for place in places if place is not None), None)


def _equal(ours: Any, reference: Any) -> bool:
    first, second = _plain(ours), _plain(reference)
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return describe(first) == describe(second) and first.tobytes() == second.tobytes()
    return type(first) is type(second) and bool(first == second)


def _excerpt(value: Any, other: Any) -> str:
    """A value in few characters, from a little before the first that differs."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes, {_from_difference(value, other, 8)!r}"
    text = value if isinstance(value, str) else repr(value)
    against = other if isinstance(other, str) else repr(other)
    return str(_from_difference(text, against, _EXCERPT // 4))


def _from_difference(value: Any, other: Any, before: int) -> Any:
    same = 0
    if type(value) is type(other):
        pairs = zip(value, other, strict=False)
        same = next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(value), len(other)))
    start = max(0, same - before) if len(value) > _EXCERPT // 2 else 0
    return value[start : start + _EXCERPT // 2]
