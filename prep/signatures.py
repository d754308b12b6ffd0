"""What the first bytes of a file say it is, when it is not what its name promises.

`looks_like` names content that stands in for media or tables by accident: a web page, a
Git-LFS pointer, an archive. It says nothing about whether media is sound; decoding does.
"""

from __future__ import annotations

import codecs
import re
from typing import Final

__all__ = ["HEAD_BYTES", "is_text", "lfs_oid", "looks_like"]

HEAD_BYTES: Final = 1024
"""How many first bytes are enough for every function here."""

_LFS = b"version https://git-lfs.github.com/spec/v1"
_LFS_OID = re.compile(rb"^oid sha256:([0-9a-f]{64})\s*$", re.MULTILINE)

_BINARY: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"PAR1", "a parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"%PDF-", "a PDF document"),
    (b"\xff\xfe\x00\x00", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
# A comment or a doctype may stand before the root element.
_MARKUP = re.IGNORECASE | re.DOTALL
_HTML = re.compile(rb"(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body|title|meta|script)[\s>/]", _MARKUP)
_XML = re.compile(rb"(?:<!--.*?-->\s*)*<(?:\?xml\s|!doctype\s|svg[\s>]|error>)", _MARKUP)
_JSON = re.compile(
    rb"\{\s*(?:\"|\}|$)|\[\s*(?:[{\[\"\]]|-?\d+(?:\.\d+)?\s*[,\]]|(?:true|false|null)\s*[,\]]|$)"
)
_CONTROL = frozenset(range(0x20)) - frozenset(b"\t\n\f\r") | {0x7F}


def looks_like(head: bytes) -> str | None:
    """Name the content that `head`, the first bytes of a file, gives away; None when it is nothing known.

    Plain text without markup is None too: see `is_text`. `HEAD_BYTES` bytes are enough.
    """
    for signature, name in _BINARY:
        # "BZh" and "PAR1" could begin a line of text; the formats go on with bytes that no text holds.
        if head.startswith(signature) and not (signature.isalnum() and len(head) > 8 and is_text(head)):
            return name
    if head[257:262] == b"ustar":
        return "a tar archive"
    return _markup(head.removeprefix(codecs.BOM_UTF8).lstrip())


def _markup(text: bytes) -> str | None:
    if text.startswith(_LFS):
        return "a Git-LFS pointer"
    if _HTML.match(text):
        return "an HTML page"
    if _XML.match(text):
        # An XHTML page declares itself XML first.
        return "an HTML page" if b"<html" in text.lower() else "XML text"
    if _JSON.match(text):
        return "JSON text"
    return None


def lfs_oid(head: bytes) -> str | None:
    """The sha256 (64 lower-case hex digits) that a Git-LFS pointer names; None when `head` is none.

    Format: git-lfs' pointer specification v1 (key/value lines, `version` first).
    """
    if not head.startswith(_LFS):
        return None
    found = _LFS_OID.search(head)
    return found.group(1).decode("ascii") if found else None


def is_text(head: bytes) -> bool:
    """Whether `head` is UTF-8 without control characters, as no video, image or table file begins.

    A character that the end of `head` cuts is accepted. No bytes are no text.
    """
    if not head or not _CONTROL.isdisjoint(head):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=False)
    except UnicodeDecodeError:
        return False
    return True
