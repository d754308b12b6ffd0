"""One column of a frame table as an array, and its type against what the dataset declares."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from prep.findings import Finding, found
from prep.layouts.lerobot_facts import Facts, positive

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["Series", "batches", "is_numeric", "series", "type_findings"]

_BYTES: Final = 8
_AT_ONCE: Final = 16 << 20
_NAMES: Final[Mapping[str, str]] = {"double": "float64", "float": "float32", "halffloat": "float16"}


@dataclass(slots=True)
class Series:
    """The cells of a column: `values` [rows] or [rows, dimensions].

    `empty` cells and the row of the first; `uneven` is (row, its length, the usual length) where vectors
    differ in length. `whole` is false where `values` cannot be had, and they are then empty.
    """

    values: NDArray[Any]
    empty: int = 0
    first_empty: int = 0
    uneven: tuple[int, int, int] | None = None
    whole: bool = True

    def extremes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The least and greatest of each dimension; NaN where a NaN is in it."""
        if self.values.ndim == 1:
            return np.atleast_1d(self.values.min()), np.atleast_1d(self.values.max())
        return _column_extremes(self.values)

    def repeated(self) -> NDArray[np.intp]:
        """The rows whose successor is equal in every dimension.

        Later dimensions are compared only where the earlier ones are equal, which they seldom are.
        """
        values = self.values
        same = np.flatnonzero(values[1:, 0] == values[:-1, 0])
        for dimension in range(1, values.shape[1]):
            if not len(same):
                break
            column = values[:, dimension]
            same = same[column[same] == column[same + 1]]
        return same


def _column_extremes(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Extremes along the rows. Several rows are laid side by side, for numpy is slow on short ones."""
    rows, width = values.shape
    fold = max(1, 1024 // max(width, 1))
    whole = rows // fold * fold
    if whole < 2 * fold:
        return values.min(axis=0), values.max(axis=0)
    folded = np.ascontiguousarray(values[:whole]).reshape(whole // fold, fold * width)
    least = folded.min(axis=0).reshape(fold, width).min(axis=0)
    greatest = folded.max(axis=0).reshape(fold, width).max(axis=0)
    rest = values[whole:]
    if len(rest):
        least, greatest = np.minimum(least, rest.min(axis=0)), np.maximum(greatest, rest.max(axis=0))
    return least, greatest


def batches(facts: Facts, rows: int, names: Sequence[str]) -> Iterator[list[str]]:
    """The names in parts of which each is read at once: as many columns as give some 16 MB."""
    part: list[str] = []
    size = 0
    for name in names:
        shape = facts.root.features[name].get("shape")
        cost = rows * _BYTES * (math.prod(shape) if positive(shape) else 1)
        if part and size + cost > _AT_ONCE:
            yield part
            part, size = [], 0
        part.append(name)
        size += cost
    if part:
        yield part


def series(column: pa.ChunkedArray, name: str) -> Series:
    """The cells of a column; what is no number or vector of numbers has no values.

    Raises ArrowInvalid where vectors are of one length in one row group and of another in the next.
    """
    import pyarrow as pa

    parts = [_of(_plain(chunk)) for chunk in column.chunks if len(chunk)]
    if not parts:
        return Series(np.empty(0))
    if len(parts) == 1:
        return parts[0]
    joined = _join(parts)
    if joined is None:
        raise pa.ArrowInvalid(f"column {name} changes its form between row groups")
    return joined


def _join(parts: list[Series]) -> Series | None:
    rows, empty, first = 0, 0, 0
    uneven = None
    widths = {part.values.shape[1:] for part in parts if part.whole}
    for part in parts:
        if part.empty and not empty:
            first = rows + part.first_empty
        empty += part.empty
        if part.uneven and uneven is None:
            uneven = (rows + part.uneven[0], *part.uneven[1:])
        rows += len(part.values)
    if len(widths) > 1:
        return None
    whole = all(part.whole for part in parts)
    values = np.concatenate([part.values for part in parts]) if whole else np.empty(0)
    return Series(values, empty, first, uneven, whole)


def _plain(chunk: pa.Array) -> pa.Array:
    import pyarrow as pa

    return chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk


def _of(chunk: pa.Array) -> Series:

    if chunk.null_count:
        return Series(np.empty(0), chunk.null_count, chunk.is_null().index(True).as_py(), whole=False)
    width: int | None = None
    while _is_nested(chunk.type):
        inner, lengths = _flattened(chunk)
        if lengths is not None:
            usual = int(np.bincount(lengths).argmax()) if len(lengths) else 0
            wrong = np.flatnonzero(lengths != usual)
            if len(wrong):
                uneven = (int(wrong[0]), int(lengths[wrong[0]]), usual)
                return Series(np.empty(0), uneven=uneven, whole=False)
            size = usual
        else:
            size = chunk.type.list_size
        width = size if width is None else width * size
        chunk = inner
    if chunk.null_count:
        row = chunk.is_null().index(True).as_py() // max(width or 1, 1)
        return Series(np.empty(0), chunk.null_count, row, whole=False)
    if not _is_number(chunk.type):
        return Series(np.empty(0), whole=False)
    kind = np.dtype(_NAMES.get(str(chunk.type), str(chunk.type)))
    values = np.frombuffer(chunk.buffers()[1], kind, len(chunk), chunk.offset * kind.itemsize)
    return Series(values if width is None else values.reshape(-1, width) if width else np.empty((0, 0)))


def _flattened(chunk: pa.Array) -> tuple[pa.Array, NDArray[np.int64] | None]:
    """The entries of a list array, and the lengths of its lists where the type leaves them open."""
    import pyarrow as pa

    inner = chunk.flatten()
    if pa.types.is_fixed_size_list(chunk.type):
        return inner, None
    kind = np.int64 if pa.types.is_large_list(chunk.type) else np.int32
    offsets = np.frombuffer(chunk.buffers()[1], kind, len(chunk) + 1, chunk.offset * np.dtype(kind).itemsize)
    return inner, np.diff(offsets).astype(np.int64)


def _is_nested(of: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of))


def _is_number(of: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(of) or pa.types.is_floating(of))


def is_numeric(of: pa.DataType) -> bool:
    """Whether cells are numbers or vectors of numbers."""
    return _is_number(_form(of)[0])


def _form(of: pa.DataType) -> tuple[pa.DataType, list[int | None]]:
    """The type of the innermost values, and the size of each level of lists (None where it is open)."""
    import pyarrow as pa

    sizes: list[int | None] = []
    if isinstance(of, pa.BaseExtensionType):
        of = of.storage_type
    while _is_nested(of):
        sizes.append(of.list_size if pa.types.is_fixed_size_list(of) else None)
        of = of.value_type
    return of, sizes


def type_findings(facts: Facts, path: str, schema: pa.Schema) -> Iterator[Finding]:
    """LER009 to LER011: the columns of one frame table against the declared features."""
    declared = {
        name: feature for name, feature in facts.root.features.items() if feature.get("dtype") != "video"
    }
    for name in declared:
        if name not in schema.names:
            yield found("LER009", path, f"there is no column {name}, which is declared", place=name)
    for name in schema.names:
        # A standard column that is not declared is LER008's.
        if name not in facts.root.features and name not in (
            "timestamp",
            "frame_index",
            "episode_index",
            "index",
            "task_index",
        ):
            message = f"the column {name} is not among the declared features"
            yield found("LER009", path, message, place=name, severity=facts.strict())
        elif name in declared:
            yield from _check_type(facts, path, name, declared[name], schema.field(name).type)


def _check_type(
    facts: Facts, path: str, name: str, feature: Mapping[str, Any], stored: pa.DataType
) -> Iterator[Finding]:
    dtype, shape = feature.get("dtype"), feature.get("shape")
    if not isinstance(dtype, str) or dtype == "image":
        return
    inner, sizes = _form(stored)
    actual = _NAMES.get(str(inner), str(inner)).removeprefix("large_")
    if _kind(actual) != _kind(dtype):
        yield found("LER011", path, f"{name} is declared as {dtype} and stored as {stored}", place=name)
    elif actual != dtype:
        message = f"{name} is declared as {dtype} and stored as {actual}"
        yield found("LER010", path, message, place=name)
    if not positive(shape):
        return  # LER005 and LER006 say so
    wanted = [] if shape == [1] else shape
    fits = len(sizes) == len(wanted) and all(
        size is None or size == expected for size, expected in zip(sizes, wanted, strict=True)
    )
    if not fits:
        form = f"lists of {sizes}" if sizes else "single values"
        message = f"{name} is declared with the shape {shape} and stored as {form.replace('None', 'any')}"
        yield found("LER011", path, message, place=name, severity=_severity(facts, sizes, wanted))


def _severity(facts: Facts, sizes: list[int | None], wanted: list[int]) -> Any:
    # A single value as a list of one: upstream's own reader takes either.
    single = not wanted and len(sizes) == 1 and sizes[0] in (None, 1)
    return facts.strict() if single else "error"


@functools.cache
def _kind(name: str) -> str:
    name = name.removeprefix("u")
    return next((kind for kind in ("int", "float", "bool", "string") if name.startswith(kind)), name)
