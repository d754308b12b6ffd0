"""Read a source CSV row by row, as tolerantly as a source deserves and as exactly as a report needs.

Always UTF-8, whatever the locale; a BOM, CRLF, lone CR, NUL and long fields are fine. Lines
are decoded with `surrogateescape`, so every bad byte survives parsing and can be placed: the
n-th bad byte among a row's fields is the n-th among its lines. Blank lines are skipped and
counted (contracts section 2: they don't count as data rows).

Lines are counted from 1 and end at LF, CRLF or CR; byte offsets count from 0 at the file's start.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from prep.errors import IncompleteError, PrepError
from prep.signatures import HEAD_BYTES, lfs_oid, looks_like

__all__ = ["FIELD_LIMIT", "Place", "Row", "RowProblem", "Table", "TableNotes", "open_table"]

FIELD_LIMIT: Final = 64 * 1024 * 1024
"""Longest field, in characters; a stray quote must not swallow a file into memory."""

_SHOWN: Final = 600
_BAD = re.compile("[\udc80-\udcff]")
_BOM = "\ufeff"

OnBadBytes = Literal["fail", "replace"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one bad byte stands: `line` and `column` (in characters) from 1, `offset` in bytes from 0."""

    line: int
    column: int
    offset: int
    byte: int

    def __str__(self) -> str:
        return f"byte 0x{self.byte:02x} at offset {self.offset} (line {self.line}, column {self.column})"


@dataclass(frozen=True, slots=True)
class RowProblem:
    """Why a row cannot be used. `column` is None where the whole row is meant."""

    reason: Literal["bad_bytes", "wrong_columns"]
    column: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """One data row: `number` counts data rows from 1, `line` is where it starts, from 1.

    `values` holds the used columns only; a row with the wrong number of fields holds those that it
    reaches, and is not to be used.
    """

    number: int
    line: int
    values: Mapping[str, str]
    problems: tuple[RowProblem, ...] = ()


@dataclass(slots=True)
class TableNotes:
    """What was met and borne while reading; complete once `Table.rows` has come to its end."""

    blank_lines: int = 0
    first_blank_line: int | None = None
    bom: bool = False
    crlf_lines: int = 0
    unused_bad_rows: int = 0
    unused_bad_first: Place | None = None
    unused_bad_column: str | None = None
    replaced_rows: int = 0
    replaced_first: Place | None = None
    duplicate_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str


@dataclass(slots=True)
class _Lines:
    """The file's lines, remembering those of the row in hand as (line number, offset, text)."""

    stream: io.TextIOBase
    notes: TableNotes
    row: list[tuple[int, int, str]] = field(default_factory=list)
    ended: bool = False

    def __iter__(self) -> Iterator[str]:
        offset = 0
        for number, text in enumerate(self.stream, start=1):
            size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
            start, offset = offset, offset + size
            if number == 1 and text.startswith(_BOM):
                self.notes.bom = True
                text, start = text[1:], 3
            self.notes.crlf_lines += text.endswith("\r\n")
            self.row.append((number, start, text))
            yield text
        self.ended = True
        # A row that takes this extra line as its own has a quote still open.
        yield "\n"


class Table:
    """A CSV file opened by `open_table`; `rows` may be called again and starts anew."""

    def __init__(self, file: _File, header: list[str], used: Sequence[str], on_bad_bytes: OnBadBytes) -> None:
        self._file = file
        self.header = header
        self.notes = TableNotes()
        self._used = {name: header.index(name) for name in used}
        self._on_bad_bytes = on_bad_bytes

    @property
    def name(self) -> str:
        """What messages call the file."""
        return self._file.name

    def rows(self) -> Iterator[Row]:
        """Every data row in order.

        Raises `PrepError` for a quote that is never closed or a field over `FIELD_LIMIT`, and
        `IncompleteError` where the file cannot be read.
        """
        self.notes = TableNotes(duplicate_names=_duplicates(self.header))
        records = _records(self._file, self.notes)
        self._bad_bytes(*next(records))
        for number, (lines, fields) in enumerate(records, start=1):
            yield self._row(number, lines, fields)

    def _row(self, number: int, lines: list[tuple[int, int, str]], fields: list[str]) -> Row:
        problems: list[RowProblem] = []
        if any(not text.isascii() and _BAD.search(text) for _, _, text in lines):
            fields, problems = self._bad_bytes(lines, fields)
        if len(fields) != len(self.header):
            problems.append(self._wrong_columns(lines[0][0], len(fields)))
        values = {name: fields[at] for name, at in self._used.items() if at < len(fields)}
        return Row(number, lines[0][0], values, tuple(problems))

    def _wrong_columns(self, line: int, found: int) -> RowProblem:
        expected = len(self.header)
        message = f"{self.name}, line {line}: the row has {found} fields, and the header has {expected}."
        return RowProblem("wrong_columns", None, message)

    def _bad_bytes(
        self, lines: list[tuple[int, int, str]], fields: list[str]
    ) -> tuple[list[str], list[RowProblem]]:
        """The fields to use instead, and the problems; notes what is borne."""
        places = _places(lines)
        problems: list[RowProblem] = []
        names = {at: name for name, at in self._used.items()}
        unused: tuple[int, Place] | None = None
        for at, value in enumerate(fields):
            count = len(_BAD.findall(value))
            if count and at in names:
                problems.append(self._bad_field(names[at], count, places[0]))
            elif count and unused is None:
                unused = at, places[0]
            places = places[count:]
        if unused is not None:
            self._note_unused(*unused)
        replaced = next(csv.reader(_replaced(text) for _, _, text in lines))
        if self._on_bad_bytes == "fail" or not problems:
            return replaced, problems
        self.notes.replaced_rows += 1
        self.notes.replaced_first = self.notes.replaced_first or _places(lines)[0]
        return replaced, []

    def _bad_field(self, name: str, count: int, first: Place) -> RowProblem:
        more = f", the first of {count}" if count > 1 else ""
        return RowProblem("bad_bytes", name, f"{self.name}: column {name!r} is not UTF-8: {first}{more}.")

    def _note_unused(self, at: int, first: Place) -> None:
        notes = self.notes
        notes.unused_bad_rows += 1
        if notes.unused_bad_first is None:
            notes.unused_bad_first = first
            notes.unused_bad_column = self.header[at] if at < len(self.header) else None


def open_table(
    path: Path, used_columns: Sequence[str], *, on_bad_bytes: OnBadBytes = "fail", name: str | None = None
) -> Table:
    """Open `path` and read its header; `rows` then streams the rest.

    `on_bad_bytes` is what becomes of a used field that is not UTF-8: "fail" gives the row a
    problem, "replace" puts U+FFFD exactly where `bytes.decode(errors="replace")` would. `name` is
    what messages call the file, where the path is of no use to others; the path if None.

    Raises `PrepError` for a file that is empty or no CSV, a used column that is missing or there
    twice, and an unclosed quote; `IncompleteError` where the file cannot be read.
    """
    file = _File(path, name or str(path))
    _refuse_other_content(file)
    record = next(_records(file, TableNotes()), None)
    if record is None:
        raise PrepError(f"{file.name} holds only blank lines; expected a header line.", remedy=_AGAIN)
    header = [_replaced(name) for name in record[1]]
    _check_header(file.name, record[0][0][0], header, used_columns)
    return Table(file, header, used_columns, on_bad_bytes)


_AGAIN = "Fetch it again, or check which file the recipe names."


def _refuse_other_content(file: _File) -> None:
    try:
        with file.path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        raise _unreadable(file.path, error) from error
    if not head:
        raise PrepError(
            f"{file.name} is empty (0 bytes); expected CSV text with a header line.", remedy=_AGAIN
        )
    found = looks_like(head)
    if found is not None:
        oid = lfs_oid(head)
        found += f" (oid sha256:{oid})" if oid else ""
        raise PrepError(f"{file.name} holds {found}; expected CSV text with a header line.", remedy=_AGAIN)


def _check_header(file: str, line: int, header: list[str], used: Sequence[str]) -> None:
    for name in used:
        if header.count(name) == 1:
            continue
        shown = _shortened(", ".join(repr(each) for each in header))
        if name in header:
            raise PrepError(
                f"{file}, line {line}: the column {name!r} stands {header.count(name)} times in the header"
                f" ({shown}); expected it once.",
                remedy="Rename all but one of them.",
            )
        close = difflib.get_close_matches(name, [each for each in header if each], n=1)
        raise PrepError(
            f"{file}, line {line}: the column {name!r} is missing; the header has {shown}.",
            remedy=f"Did you mean {close[0]!r}?" if close else "Name the columns in the recipe.",
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _records(file: _File, notes: TableNotes) -> Iterator[tuple[list[tuple[int, int, str]], list[str]]]:
    """Each non-blank record, header first, with the lines that it came from."""
    # The limit is the csv module's, for the whole process; it is only ever raised here.
    csv.field_size_limit(max(csv.field_size_limit(), FIELD_LIMIT))
    try:
        with file.path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
            yield from _parsed(file.name, _Lines(stream, notes), notes)
    except OSError as error:
        raise _unreadable(file.path, error) from error


def _parsed(
    name: str, lines: _Lines, notes: TableNotes
) -> Iterator[tuple[list[tuple[int, int, str]], list[str]]]:
    reader = csv.reader(lines)
    while True:
        lines.row = []
        try:
            fields = next(reader)
        except csv.Error as error:
            raise _too_long(name, lines.row[0][0], error) from error
        if lines.ended and not lines.row:
            return
        if lines.ended:
            raise _unclosed(name, lines.row)
        if fields and not _is_blank(lines.row):
            yield lines.row, fields
            continue
        notes.blank_lines += 1
        notes.first_blank_line = notes.first_blank_line or lines.row[0][0]


def _is_blank(lines: list[tuple[int, int, str]]) -> bool:
    """Whether a record is one line of nothing but spaces and tabs; in quotes they would be a value."""
    return len(lines) == 1 and not lines[0][2].strip(" \t\r\n")


def _too_long(name: str, line: int, error: csv.Error) -> PrepError:
    return PrepError(
        f"{name}, line {line}: the row that starts here cannot be read as CSV ({error});"
        f" expected fields of at most {FIELD_LIMIT} characters.",
        remedy="A quote that is not closed on this line is the usual cause: correct it.",
    )


def _unclosed(name: str, lines: list[tuple[int, int, str]]) -> PrepError:
    first, last = lines[0][0], lines[-1][0]
    return PrepError(
        f'{name}, line {first}: a quote (") opened in the row that starts here is still open at the end of'
        f" the file (line {last}); expected it closed.",
        remedy="The file may be cut: fetch it again, or close the quote.",
    )


def _places(lines: list[tuple[int, int, str]]) -> list[Place]:
    """Every bad byte of a row's lines, in order."""
    places: list[Place] = []
    for number, offset, text in lines:
        seen = 0
        for match in _BAD.finditer(text):
            offset += len(text[seen : match.start()].encode("utf-8", "surrogateescape"))
            seen = match.start()
            places.append(Place(number, seen + 1, offset, ord(match.group()) - 0xDC00))
    return places


def _replaced(text: str) -> str:
    """What `bytes.decode("utf-8", "replace")` makes of the bytes that `text` stands for."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _duplicates(header: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in header if header.count(name) > 1))


def _unreadable(path: Path, error: OSError) -> PrepError:
    remedy = "Check the path and its permissions, then run again."
    return IncompleteError(f"{path} cannot be read: {error.strerror or error}.", remedy=remedy)
