"""The digest over rows, against its definition written out cell by cell."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from prep.table_digest import TableDigest

texts = st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=6), max_size=40)
numbers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)


def literal(columns: dict[str, Sequence[str | int | None]]) -> str:
    whole = hashlib.sha256()
    for name, cells in columns.items():
        encoded = [b"" if cell is None else str(cell).encode() for cell in cells]
        is_text = any(isinstance(cell, str) for cell in cells) or name == "text"
        content = b"".join(encoded) if is_text else b"".join(
            int(cell or 0).to_bytes(8, "little", signed=True) for cell in cells
        )  # fmt: skip
        lengths = b"".join(len(cell).to_bytes(8, "little") for cell in encoded) if is_text else b""
        nulls = bytes(cell is None for cell in cells)
        parts = b"".join(hashlib.sha256(part).digest() for part in (nulls, lengths, content))
        whole.update(f"{name}\n".encode() + parts)
    return whole.hexdigest()


@given(texts, st.lists(st.integers(0, 40), max_size=4))
def test_text_however_it_is_cut(cells: list[str | None], cuts: list[int]) -> None:
    array = pa.array(cells, pa.string())
    digest = TableDigest(["text"])
    edges = sorted({0, len(cells), *(min(cut, len(cells)) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        digest.update([array.slice(start, end - start)])
    assert (digest.rows, digest.hexdigest()) == (len(cells), literal({"text": cells}))


@given(numbers)
def test_numbers(cells: list[int]) -> None:
    digest = TableDigest(["number"])
    digest.update([pa.array(cells, pa.int64()).slice(len(cells) // 2)])
    assert digest.hexdigest() == literal({"number": cells[len(cells) // 2 :]})


def test_cells_cannot_run_into_one_another() -> None:
    def of(*cells: str | None) -> str:
        digest = TableDigest(["text"])
        digest.update([pa.array(cells, pa.string())])
        return digest.hexdigest()

    assert len({of("ab", "c"), of("a", "bc"), of("abc", ""), of("abc", None), of(None, "abc")}) == 5
