"""The manifest and its two tables: written, read back, compared, refused where broken."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prep.errors import PrepError
from prep.manifest import (
    FILES_TABLE,
    RECORDS_TABLE,
    FileRow,
    Manifest,
    RecordRow,
    read_rows,
    rows_digest,
    short_id,
    write_table,
)
from tests.trees import edit_json, make_tree

FILES = [
    FileRow("media/ü “a”.mp4", 2**40, "a" * 64, "computed", "payload"),
    FileRow("meta.json", 0, None, "size_only", "view"),
]
DIGEST = "ec7b6c406e55b69fba093d800da6c43e18bb91b3d2461928ae8600aef48675bd"
RECORD = RecordRow(
    1, "one", "val", "kept", "", "", "https://example.org/1", "media/a.mp4", "a" * 64, "b" * 64
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "videophy2_val", 3, manifest=True)


def loaded(root: Path) -> Manifest:
    manifest = Manifest.load(root)
    assert manifest is not None
    return manifest


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    write_table(tmp_path / "t" / "files.parquet", FILES, FileRow)
    assert read_rows(tmp_path / "t" / "files.parquet", FileRow) == FILES
    failed = replace(RECORD, status="failed", reason="http_404", media=None, media_sha256=None, sha256=None)
    write_table(tmp_path / "records.parquet", [RECORD, failed], RecordRow)
    assert read_rows(tmp_path / "records.parquet", RecordRow) == [RECORD, failed]


def test_an_empty_table_keeps_its_columns(tmp_path: Path) -> None:
    write_table(tmp_path / "files.parquet", [], FileRow)
    assert read_rows(tmp_path / "files.parquet", FileRow) == []
    assert pq.read_schema(tmp_path / "files.parquet").names == ["path", "size", "sha256", "known", "role"]


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_table(tmp_path / name, FILES, FileRow)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_digest_of_rows_is_a_fact() -> None:
    assert rows_digest(FILES[1:], FileRow) == DIGEST
    assert rows_digest(FILES, FileRow) != rows_digest(FILES[::-1], FileRow)
    assert rows_digest([replace(FILES[0], size=1)], FileRow) != rows_digest(FILES[:1], FileRow)


def test_the_dataset_id_depends_on_the_content_and_on_nothing_else(tmp_path: Path) -> None:
    first = loaded(make_tree(tmp_path / "a" / "videophy2_val", 3, manifest=True))
    second = loaded(make_tree(tmp_path / "b" / "videophy2_val", 3, manifest=True))
    other = loaded(make_tree(tmp_path / "c" / "videophy2_val", 3, first_clip=2, manifest=True))
    assert first.dataset_id == second.dataset_id != other.dataset_id
    for name in ("manifest.json", FILES_TABLE, RECORDS_TABLE):
        assert (first.root / name).read_bytes() == (second.root / name).read_bytes()
    assert str(tmp_path) not in (first.root / "manifest.json").read_text()


def test_a_manifest_is_read_back_with_its_tables(tree: Path) -> None:
    manifest = loaded(tree)
    assert manifest.document["schema"] == "prep-manifest/1"
    assert [row.path for row in manifest.files()] == sorted(row.path for row in manifest.files())
    assert [row.row for row in manifest.records()] == [1, 2, 3]
    tables = manifest.document["tables"]
    assert tables["files"]["sha256"] == rows_digest(manifest.files(), FileRow)
    assert tables["records"] == {
        "path": RECORDS_TABLE,
        "rows": 3,
        "sha256": rows_digest(manifest.records(), RecordRow),
    }


def test_no_manifest_is_none(tmp_path: Path) -> None:
    assert Manifest.load(tmp_path) is None
    assert Manifest.load(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b'{"schema": "prep-manifest/1"}']
)
def test_a_broken_manifest_is_told_with_the_remedy(data: bytes, tree: Path) -> None:
    (tree / "manifest.json").write_bytes(data)
    with pytest.raises(PrepError, match=r"manifest\.json") as error:
        Manifest.load(tree)
    assert "prep adopt" in error.value.remedy


def test_a_breach_of_the_schema_is_told_by_its_place(tree: Path) -> None:
    edit_json(tree / "manifest.json", "counts", "kept", value="three")
    with pytest.raises(PrepError, match="/counts/kept"):
        Manifest.load(tree)


@pytest.mark.parametrize("damage", ["absent", "cut", "empty", "fewer columns", "other types", "no parquet"])
def test_a_table_of_another_form_is_refused(damage: str, tree: Path) -> None:
    path = tree / RECORDS_TABLE
    table = pq.read_table(path)
    if damage == "absent":
        path.unlink()
    elif damage in ("cut", "empty"):
        path.write_bytes(path.read_bytes()[: 200 if damage == "cut" else 0])
    elif damage == "fewer columns":
        pq.write_table(table.drop_columns(["reason"]), path)
    elif damage == "other types":
        pq.write_table(table.set_column(0, "row", pa.array(["one", "two", "three"])), path)
    else:
        path.write_text("row,id\n1,one\n")
    with pytest.raises(PrepError, match=r"records\.parquet") as error:
        loaded(tree).records()
    assert "prep adopt" in error.value.remedy


def test_missing_and_changed_files_are_found_by_their_size(tree: Path) -> None:
    manifest = loaded(tree)
    assert manifest.damaged_files(manifest.files()) == []
    (tree / "media" / "video_0001.mp4").unlink()
    with (tree / "text" / "conversation_0002.json").open("ab") as file:
        file.write(b" ")
    damaged = manifest.damaged_files(manifest.files())
    assert [row.path for row in damaged] == ["media/video_0001.mp4", "text/conversation_0002.json"]


def test_the_document_is_sorted_and_ends_with_a_line_break(tree: Path) -> None:
    text = (tree / "manifest.json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_the_id_that_people_see_is_short() -> None:
    assert short_id(f"videophy2_val@{'0123456789abcdef' * 4}") == "videophy2_val@0123456789ab"
    assert short_id(f"a@b@{'f' * 64}") == "a@b@ffffffffffff"
