"""prep.signatures: each kind is named, and its nearest relative is not."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from prep.signatures import HEAD_BYTES, is_text, lfs_oid, looks_like

OID = "4665a5ea423c2713d436b5ee50593a9640e0018c1550b5a0002f74190d6caea8"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize 12345\n".encode()


def zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a.csv"), "a,b\n")  # with a date of its own, not today's
    return target.getvalue()


def tarred() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.csv"), io.BytesIO(b""))
    return target.getvalue()


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (POINTER, "a Git-LFS pointer"),
        (b"<!DOCTYPE html>\n<html>", "an HTML page"),
        (b"\xef\xbb\xbf \r\n<!-- x > y -->\n<HTML lang='en'>", "an HTML page"),
        (b'<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml">', "an HTML page"),
        (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>', "XML text"),
        (b"<Error><Code>NoSuchKey</Code></Error>", "XML text"),
        (b'{"error": "not found"}', "JSON text"),
        (b'[\n  {"id": 1}\n]', "JSON text"),
        (b"[1, 2]", "JSON text"),
        (b"{}", "JSON text"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "gzip data"),
        (b"\x28\xb5\x2f\xfd\x04\x00", "zstd data"),
        (zipped(), "a zip archive"),
        (tarred()[:HEAD_BYTES], "a tar archive"),
        (b"PAR1\x15\x04\x15\x10", "a parquet file"),
        ("a,b".encode("utf-16"), "UTF-16 text"),
    ],
    ids=lambda value: "head" if isinstance(value, bytes) else None,
)
def test_it_names_what_the_bytes_are(head: bytes, name: str) -> None:
    assert looks_like(head) == name


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"a,b\n1,2\n",
        b"version,https://git-lfs.github.com/spec/v1\n",
        b"<b>bold</b>,caption\n",
        b"<htmlish>,caption\n",
        b"{name},caption\n",
        b"[id],caption\n",
        b"[\xc3\xa9],caption\n",
        b"PK,name\n",
        b"PAR1_rows,columns\n",
        b"BZhang,said\n",
        b"\x1f,a\n",
        b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00",
    ],
)
def test_it_passes_near_misses(head: bytes) -> None:
    assert looks_like(head) is None


def test_real_videos_are_nothing_else_and_no_text(real_data: Path) -> None:
    videos = sorted(real_data.rglob("*.mp4"))
    assert videos
    for video in videos:
        head = video.read_bytes()[:HEAD_BYTES]
        assert looks_like(head) is None, video
        assert not is_text(head), video


def test_the_oid_of_a_pointer() -> None:
    assert lfs_oid(POINTER) == OID
    assert lfs_oid(POINTER.replace(b"version ", b"Version ")) is None
    assert lfs_oid(POINTER.replace(b"sha256:", b"sha1:")) is None


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"Access denied", True),
        ("caf\u00e9".encode()[:-1], True),
        ("caf\u00e9".encode("latin-1") + b" closed", False),
        (b"one\x00two", False),
        (b"", False),
    ],
)
def test_plain_text(head: bytes, text: bool) -> None:
    assert is_text(head) is text
