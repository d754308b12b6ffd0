"""JSON documents as bytes: parsed fast when they are sound, and told apart when they are not.

orjson does the work on sound files. It refuses what Python's own parser accepts (NaN, half of a
surrogate pair), so a refusal is only a suspicion: the training loader reads with `json`, and what
`json` accepts is accepted here.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from prep.findings import Finding, found
from prep.signatures import HEAD_BYTES, lfs_oid, looks_like

__all__ = ["BrokenDocumentError", "array_elements", "diagnosed", "parse", "place_of"]

BLOCK: Final = 1 << 20
"""Bytes of an array that are parsed at a time."""

_COMPRESSED: Final = ("gzip", "zstd", "zip", "bzip2", "xz", "7-Zip")


class BrokenDocumentError(Exception):
    """The document cannot be used; `findings` say why."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__(findings[0].message)
        self.findings = findings


def parse(data: bytes, path: str) -> Any:
    """The document in `data`; raises BrokenDocumentError with what is wrong."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return diagnosed(data, path)


def array_elements(file_path: Path, path: str) -> Iterator[list[Any]]:
    """The elements of a JSON array, some thousands at a time, in bounded memory.

    A block is cut behind its last `},`. If the text before the cut is a whole array when it is put
    in brackets, the cut stands between two elements; if not, the document is read as one piece.
    Raises BrokenDocumentError for what is no JSON array, also after some elements, and OSError.
    """
    given = 0
    with file_path.open("rb") as file:
        for piece in _pieces(file.read, file_path.stat().st_size):
            if piece is None:
                break
            given += len(piece)
            yield piece
        else:
            return
    document = parse(file_path.read_bytes(), path)
    if not isinstance(document, list):
        raise BrokenDocumentError([_not_an_array(document, path)])
    if given < len(document) or not document:
        yield document[given:]


def _pieces(read: Any, size: int) -> Iterator[list[Any] | None]:
    """Pieces of the array; None where it must be read as a whole."""
    buffer = read(BLOCK).lstrip(b" \t\r\n")
    if not buffer.startswith(b"["):
        yield None
        return
    buffer, first = buffer[1:], True
    while True:
        more = read(BLOCK) if size > BLOCK else b""
        cut = buffer.rfind(b"},") if more else len(buffer)
        text = b"[" + (buffer[: cut + 1] + b"]" if more else buffer)
        try:
            piece = orjson.loads(text)
        except orjson.JSONDecodeError:
            yield None
            return
        if not isinstance(piece, list) or (not piece and not first):
            yield None  # `},]`: the rest is no array of its own though its brackets match
            return
        yield piece
        if not more:
            return
        buffer, first = buffer[cut + 2 :] + more, False


def _not_an_array(document: Any, path: str) -> Finding:
    if isinstance(document, dict) and str(document.get("version", "")).startswith("cosmos-reason"):
        return found(
            "TXT004",
            path,
            f"an object (the envelope {document['version']}); expected an array",
            remedy=f"Check it with `--envelope {document['version']}`; training reads the bare array.",
        )
    kind = "an object" if isinstance(document, dict) else f"the value {str(document)[:40]!r}"
    return found("TXT004", path, f"{kind}; expected an array")


def diagnosed(data: bytes, path: str) -> Any:
    """What `json` makes of bytes that orjson refused; raises BrokenDocumentError."""
    content = _not_text(data, path)
    if content is not None:
        raise BrokenDocumentError([content])
    findings = []
    if data.startswith(codecs.BOM_UTF8):
        findings.append(found("TXT002", path, "the file begins with the bytes EF BB BF", place="line 1"))
        data = data.removeprefix(codecs.BOM_UTF8)
    document = None
    try:
        text = data.decode("utf-8")
        document = json.loads(text)
        _refuse_half_pairs(document)
    except UnicodeDecodeError as error:
        findings.append(_not_utf8(error, path))
    except json.JSONDecodeError as error:
        findings.append(_not_json(error, path))
    except (RecursionError, ValueError) as error:  # nested too deep, half of a pair, too long a number
        findings.append(found("TXT003", path, f"Python's parser refuses it: {error}"))
    if findings:
        raise BrokenDocumentError(findings)
    return document


def _refuse_half_pairs(document: Any) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise ValueError(f"a text holds U+{half:04X}, half of a surrogate pair") from error


def _not_text(data: bytes, path: str) -> Finding | None:
    head = data[:HEAD_BYTES]
    if not data:
        return found("FIL002", path, "0 bytes; expected a JSON document")
    kind = looks_like(head)
    if kind == "a Git-LFS pointer":
        return found("FIL001", path, f"the pointer names the object sha256:{lfs_oid(head) or 'unknown'}")
    if kind is None or kind == "JSON text":
        return None
    if any(name in kind for name in _COMPRESSED):
        return found("FIL018", path, f"{kind}; expected JSON text")
    if kind.startswith("UTF-"):
        return found("TXT001", path, f"{kind}; expected UTF-8", place="line 1")
    return found("FIL013", path, f"{kind}; expected JSON text")


def _not_utf8(error: UnicodeDecodeError, path: str) -> Finding:
    data, start = error.object, error.start
    line = data.count(b"\n", 0, start) + 1
    column = start - (data.rfind(b"\n", 0, start) + 1) + 1
    message = f"byte 0x{data[start]:02x} at offset {start} begins no character ({error.reason})"
    return found("TXT001", path, message, place=f"line {line}, column {column}")


def place_of(error: json.JSONDecodeError) -> str:
    """The line and column, both from 1, at which the parser stopped."""
    return f"line {error.lineno}, column {error.colno}"


def _not_json(error: json.JSONDecodeError, path: str) -> Finding:
    lines = _json_lines(error.doc) if error.msg == "Extra data" else 0
    if lines > 1:
        message = f"one JSON value a line ({lines} of the first lines are); expected one document"
        return found("TXT004", path, message, place=place_of(error))
    around = error.doc[error.pos : error.pos + 20]
    at = f"the text goes on {around!r}" if around else "the file ends there"
    return found("TXT003", path, f"{error.msg.removesuffix(' starting at')}; {at}", place=place_of(error))


def _json_lines(text: str) -> int:
    """How many of the first lines are a JSON object or array each; 0 if one of them is not."""
    lines = [line for line in text[: 64 * 1024].splitlines(keepends=True) if line.strip()][:5]
    if len(lines) > 1 and not lines[-1].endswith("\n") and len(text) > 64 * 1024:
        lines.pop()
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            return 0
        if not isinstance(value, dict | list):
            return 0
    return len(lines)
