"""prep.table: what a source CSV may bear, what it may not, and where each fault stands."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
from pathlib import Path

import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prep import table as table_module
from prep.errors import IncompleteError, PrepError
from prep.table import Row, TableNotes, open_table

PER_TEST_FOLDER = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source.csv"


def read(path: Path, data: bytes, used: list[str], **options: str) -> tuple[list[Row], TableNotes]:
    path.write_bytes(data)
    table = open_table(path, used, **options)  # type: ignore[arg-type]
    return list(table.rows()), table.notes


def values(rows: list[Row], name: str) -> list[str]:
    return [row.values[name] for row in rows]


# Real files against pandas.


@pytest.mark.parametrize(
    "name",
    [
        "videophy2_test_excerpt.csv",
        "examples/output_pc.csv",
        "examples/output_rule.csv",
        "examples/output_sa.csv",
        "examples/rule.csv",
        "examples/sa_pc.csv",
        "examples_v1/example.csv",
        "examples_v1/train_example.csv",
        "examples_v1/videocon_format_train.csv",
    ],
)
def test_real_files_read_as_pandas_reads_them(real_data: Path, name: str) -> None:
    path = real_data / "videophy2" / name
    expected = pandas.read_csv(path, dtype=str, keep_default_na=False)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        header = next(csv.reader(stream))
    table = open_table(path, [column for column in header if column])
    rows = list(table.rows())
    assert table.header == header
    assert len(rows) == len(expected) > 0
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert not any(row.problems for row in rows)
    for column in filter(None, header):
        assert values(rows, column) == expected[column].tolist()


def test_the_excerpt_has_an_unnamed_column(real_data: Path) -> None:
    table = open_table(real_data / "videophy2" / "videophy2_test_excerpt.csv", ["video_url", "pc"])
    first = next(table.rows())
    assert len(table.header) == 16
    assert table.header[13] == ""
    assert list(first.values) == ["video_url", "pc"]
    assert first.line == 2


# What is borne.


def test_bom_and_crlf_and_blank_lines_are_counted(source: Path) -> None:
    rows, notes = read(source, b"\xef\xbb\xbfa,b\r\n\r\n1,2\r\n\n3,4", ["a"])
    assert values(rows, "a") == ["1", "3"]
    assert [(row.number, row.line) for row in rows] == [(1, 3), (2, 5)]
    assert (notes.bom, notes.crlf_lines, notes.blank_lines, notes.first_blank_line) == (True, 3, 2, 2)


def test_a_plain_file_has_nothing_to_note(source: Path) -> None:
    rows, notes = read(source, b"a,b\n1,2\n", ["a"])
    assert len(rows) == 1
    assert notes == TableNotes()


def test_a_file_of_carriage_returns_and_no_last_newline(source: Path) -> None:
    rows, _ = read(source, b"a,b\r1,2\r3,4", ["b"])
    assert values(rows, "b") == ["2", "4"]


def test_nul_bytes_and_long_fields_are_kept(source: Path) -> None:
    long = "x" * 300_000
    rows, _ = read(source, f'a,b\n"p\0q",{long}\n'.encode(), ["a", "b"])
    assert rows[0].values == {"a": "p\0q", "b": long}


def test_other_line_separators_stay_inside_a_field(source: Path) -> None:
    text = "one\u2028two\x0bthree\x1cfour\u0085five"
    rows, _ = read(source, f"a,b\n{text},2\n".encode(), ["a"])
    assert values(rows, "a") == [text]


def test_quoted_fields_span_lines(source: Path) -> None:
    rows, _ = read(source, b'a,b\n"one\ntwo\r\n""three""",2\n3,4\n', ["a"])
    assert values(rows, "a") == ['one\ntwo\r\n"three"', "3"]
    assert [row.line for row in rows] == [2, 5]


def test_a_header_alone_is_no_error(source: Path) -> None:
    assert read(source, b"a,b\n", ["a"])[0] == []
    assert read(source, b"a,b", ["a"])[0] == []


def test_rows_may_be_read_twice(source: Path) -> None:
    source.write_bytes(b"a,b\n\n1,2\n")
    table = open_table(source, ["a"])
    assert list(table.rows()) == list(table.rows())
    assert table.notes.blank_lines == 1


def test_rows_stream(source: Path, tmp_path: Path) -> None:
    source.write_bytes(b"a,b\n1,2\n" + b"3,4\n" * 50_000 + b'"open,5\n')
    first = next(open_table(source, ["a"]).rows())
    assert first.values == {"a": "1"}


# Bad bytes.


def test_bad_bytes_in_a_used_column_are_placed(source: Path) -> None:
    data = "a,b\n\u00e9t\u00e9,fine\n".encode() + b'x,"\xc3\xa9 \xff\n\xfe"\ny,good\n'
    rows, notes = read(source, data, ["b"])
    (problem,) = rows[1].problems
    assert (problem.reason, problem.column) == ("bad_bytes", "b")
    offset = data.index(b"\xff")
    assert f"byte 0xff at offset {offset} (line 3, column 6)" in problem.message
    assert "first of 2" in problem.message
    assert str(source) in problem.message
    assert rows[2].problems == ()
    assert values(rows, "b")[2] == "good"
    assert notes.unused_bad_rows == 0


def test_bad_bytes_on_a_later_line_of_a_field_and_after_a_bom(source: Path) -> None:
    data = b'\xef\xbb\xbfa,b\n"one\ntwo \x80",2\n'
    rows, _ = read(source, data, ["a"])
    assert f"offset {data.index(0x80)} (line 3, column 5)" in rows[0].problems[0].message


def test_bad_bytes_in_an_unused_column_are_noted_only(source: Path) -> None:
    rows, notes = read(source, b"a,b\n1,caf\xe9\n2,\xe9\n", ["a"])
    assert values(rows, "a") == ["1", "2"]
    assert not any(row.problems for row in rows)
    assert notes.unused_bad_rows == 2
    assert notes.unused_bad_column == "b"
    assert notes.unused_bad_first is not None
    assert (notes.unused_bad_first.line, notes.unused_bad_first.offset) == (2, 9)


def test_a_place_is_told_apart_between_used_and_unused(source: Path) -> None:
    data = b"a,b,c\n\xff,\xfe\xfe,\xfd\n"
    rows, notes = read(source, data, ["b"])
    assert "byte 0xfe at offset 8" in rows[0].problems[0].message
    assert notes.unused_bad_first is not None
    assert notes.unused_bad_first.byte == 0xFF


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xe2\x82 \xac"]
)
def test_replace_is_what_python_makes_of_it(source: Path, bad: bytes) -> None:
    data = b'a,b\n"p ' + bad + b'",' + bad + b"\n"
    rows, notes = read(source, data, ["a", "b"], on_bad_bytes="replace")
    expected = list(csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline="")))[1]
    assert list(rows[0].values.values()) == expected
    assert rows[0].problems == ()
    assert notes.replaced_rows == 1


def test_replace_decodes_before_quotes_are_taken_off(source: Path) -> None:
    data = b'a,b\n"\xe2"\x82\xac,2\n'
    rows, _ = read(source, data, ["a"], on_bad_bytes="replace")
    assert values(rows, "a") == ["\ufffd\ufffd\ufffd"]


def test_utf8_whatever_the_locale(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    rows, _ = read(source, "a,b\n\u65e5\u672c,\U0001f600\n".encode(), ["a", "b"])
    assert rows[0].values == {"a": "\u65e5\u672c", "b": "\U0001f600"}


# Wrong shapes.


@pytest.mark.parametrize(("line", "found"), [(b"1", 1), (b"1,2,3", 3)])
def test_wrong_number_of_fields(source: Path, line: bytes, found: int) -> None:
    rows, _ = read(source, b"a,b\n" + line + b"\n5,6\n", ["b"])
    (problem,) = rows[0].problems
    assert problem.reason == "wrong_columns"
    assert f"line 2: the row has {found} fields, and the header has 2" in problem.message
    assert rows[1].problems == ()


@pytest.mark.parametrize("tail", [b'3,"open', b'3,"open\n4,5\n', b'"', b'3,"a ""b""\n'])
def test_an_unclosed_quote_is_an_error(source: Path, tail: bytes) -> None:
    with pytest.raises(PrepError, match=r"line 3: a quote .* still open"):
        read(source, b"a,b\n1,2\n" + tail, ["a"])


def test_a_quote_closed_at_the_very_end_or_inside_a_bare_field_passes(source: Path) -> None:
    assert values(read(source, b'a,b\n1,"2"', ["b"])[0], "b") == ["2"]
    assert values(read(source, b'a,b\n1,2"', ["b"])[0], "b") == ['2"']


def test_an_unclosed_quote_in_the_header(source: Path) -> None:
    with pytest.raises(PrepError, match="line 1"):
        read(source, b'a,"b\n1,2\n', ["a"])


def test_a_field_over_the_limit(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = csv.field_size_limit(1000)
    monkeypatch.setattr(table_module, "FIELD_LIMIT", 1000)
    try:
        assert len(read(source, b"a\n" + b"x" * 999 + b"\n", ["a"])[0]) == 1
        with pytest.raises(PrepError, match="line 2"):
            read(source, b"a\n" + b"x" * 1001 + b"\n", ["a"])
    finally:
        csv.field_size_limit(before)


def test_a_missing_column_names_the_closest(source: Path) -> None:
    with pytest.raises(PrepError) as caught:
        read(source, b"video_ur,caption\n1,2\n", ["video_url"])
    assert "'video_url' is missing" in caught.value.message
    assert "'video_ur', 'caption'" in caught.value.message
    assert "'video_ur'" in caught.value.remedy


def test_many_bad_bytes_in_one_long_field(source: Path) -> None:
    data = b"a,b\n" + b"caf\xe9 " * 40_000 + b",2\n"
    assert values(read(source, data, ["b"])[0], "b") == ["2"]
    rows, _ = read(source, data, ["a"])
    assert "first of 40000" in rows[0].problems[0].message


def test_a_header_of_garbage_is_not_shown_whole(source: Path) -> None:
    with pytest.raises(PrepError, match="is missing") as caught:
        read(source, b"\xa0\x01" * 5000, ["a"])
    assert len(caught.value.message) < 1500


def test_duplicate_names(source: Path) -> None:
    rows, notes = read(source, b"a,b,b\n1,2,3\n", ["a"])
    assert values(rows, "a") == ["1"]
    assert notes.duplicate_names == ("b",)
    with pytest.raises(PrepError, match="stands 2 times"):
        open_table(source, ["b"])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "is empty"),
        (b"\n\r\n", "only blank lines"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "gzip data"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "zstd data"),
        (b"PK\x03\x04\x14\x00", "a zip archive"),
        (b"<!doctype html><html>", "an HTML page"),
        (b'[{"a": 1}]', "JSON text"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n",
            "oid sha256:000",
        ),
    ],
    ids=lambda value: "data" if isinstance(value, bytes) else None,
)
def test_other_content_is_named(source: Path, data: bytes, found: str) -> None:
    with pytest.raises(PrepError) as caught:
        read(source, data, ["a"])
    assert found in caught.value.message
    assert str(source) in caught.value.message
    assert caught.value.exit_status == 1


def test_messages_may_name_the_file_otherwise(source: Path) -> None:
    source.write_bytes(b"a,b\n1\n")
    table = open_table(source, ["a"], name="owner/name: source.csv")
    message = next(table.rows()).problems[0].message
    assert table.name == "owner/name: source.csv"
    assert message.startswith("owner/name: source.csv, line 2")
    assert open_table(source, ["a"]).name == str(source)


def test_a_file_that_is_not_there(source: Path) -> None:
    with pytest.raises(IncompleteError, match="cannot be read"):
        open_table(source, ["a"])


# Properties.

FIELDS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from(list(',"\r\n\0 \ufeff')), max_size=12
)


def tables(width: int) -> st.SearchStrategy[list[list[str]]]:
    return st.lists(st.lists(FIELDS, min_size=width, max_size=width), max_size=6)


@PER_TEST_FOLDER
@given(body=st.integers(1, 4).flatmap(tables), end=st.sampled_from(["\n", "\r\n"]))
def test_what_csv_writes_reads_back(tmp_path: Path, body: list[list[str]], end: str) -> None:
    header = [f"c{at}" for at in range(len(body[0]) if body else 2)]
    target = io.StringIO(newline="")
    # The writer of Python 3.11 leaves a lone CR bare unless its own line end holds one.
    quoting = csv.QUOTE_MINIMAL if "\r" in end else csv.QUOTE_ALL
    csv.writer(target, lineterminator=end, quoting=quoting).writerows([header, *body])
    rows, notes = read(tmp_path / "t.csv", target.getvalue().encode(), header)
    assert [list(row.values.values()) for row in rows] == body
    assert not any(row.problems for row in rows)
    assert notes.blank_lines == 0


@PER_TEST_FOLDER
@given(
    body=tables(3).filter(bool),
    hits=st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=3))),
)
def test_bad_bytes_leave_the_other_rows_alone(
    tmp_path: Path, body: list[list[str]], hits: dict[int, tuple[int, bytes]]
) -> None:
    lines = [b"a,b,c\n"]
    for number, fields in enumerate(body):
        quoted = [b'"' + field.replace('"', '""').encode() + b'"' for field in fields]
        if number in hits:
            at, extra = hits[number]
            quoted[at] = quoted[at][:-1] + bytes(each | 0x80 for each in extra) + b'\xff"'
        lines.append(b",".join(quoted) + b"\n")
    starts = list(itertools.accumulate(map(len, lines)))
    rows, _ = read(tmp_path / "t.csv", b"".join(lines), ["a", "b", "c"])
    assert len(rows) == len(body)
    for number, (row, fields) in enumerate(zip(rows, body, strict=True)):
        if number not in hits:
            assert list(row.values.values()) == fields
            assert row.problems == ()
            continue
        (problem,) = row.problems
        assert problem.column == "abc"[hits[number][0]]
        offset = int(problem.message.split("at offset ")[1].split()[0])
        assert starts[number] <= offset < starts[number + 1]


@pytest.mark.parametrize("blank", [b"   ", b"\t", b" \t "])
def test_a_line_of_spaces_is_blank(tmp_path: Path, blank: bytes) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(blank + b"\na,b\n" + blank + b'\n1,2\n" ",3\n')
    table = open_table(path, ["a", "b"])
    assert [(row.number, row.line, row.values["b"]) for row in table.rows()] == [(1, 4, "2"), (2, 5, "3")]
    assert table.notes.blank_lines == 2


def test_a_row_with_several_bad_unused_fields_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b,c\n1,\xff,\xfe\n2,\xff,ok\n")
    table = open_table(path, ["a"])
    assert [row.problems for row in table.rows()] == [(), ()]
    assert table.notes.unused_bad_rows == 2
