"""The hashes that an HTTP answer states about its file, so that they can be checked.

Sources: Content-MD5 (RFC 1864), Digest (RFC 3230), Repr-Digest and Content-Digest (RFC 9530),
Google Cloud Storage's x-goog-hash, Amazon S3's x-amz-checksum-sha256 and its ETag, which is the
MD5 of an object that went up in one part and is not encrypted by KMS or with a customer's key.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["StatedDigest", "stated_digests"]

_SHA256 = re.compile(r"(?:^|[\s,])sha-256=:?([A-Za-z0-9+/]{43}=)", re.IGNORECASE)
_GOOG_MD5 = re.compile(r"(?:^|[\s,])md5=([A-Za-z0-9+/]{22}==)", re.IGNORECASE)
_MD5_ETAG = re.compile(r'"([0-9a-fA-F]{32})"')


@dataclass(frozen=True, slots=True)
class StatedDigest:
    """One hash: the header that states it, the algorithm, and the value in lower-case hex."""

    header: str
    algorithm: Literal["md5", "sha256"]
    value: str


def stated_digests(headers: Mapping[str, str], *, partial: bool) -> list[StatedDigest]:
    """The hashes of the whole stored file; `headers` must look names up without regard to case.

    `partial` is for an answer 206: headers that then speak of the part alone are left out.
    """
    found = list(_of_the_file(headers))
    return found if partial else [*found, *_of_the_answer(headers)]


def _of_the_file(headers: Mapping[str, str]) -> Iterator[StatedDigest]:
    for name in ("Repr-Digest", "Digest"):
        for value in _SHA256.findall(headers.get(name, "")):
            yield from _decoded(name, "sha256", value)
    # Google unpacks an object stored as gzip on the way, and the hash stays that of the packed one.
    packed = headers.get("x-goog-stored-content-encoding", "identity")
    if packed in ("identity", headers.get("Content-Encoding", "identity")):
        for value in _GOOG_MD5.findall(headers.get("x-goog-hash", "")):
            yield from _decoded("x-goog-hash", "md5", value)
    etag = _MD5_ETAG.fullmatch(headers.get("ETag", ""))
    if etag and "x-amz-request-id" in headers and not _encrypted(headers):
        yield StatedDigest("ETag", "md5", etag.group(1).lower())


def _of_the_answer(headers: Mapping[str, str]) -> Iterator[StatedDigest]:
    yield from _decoded("Content-MD5", "md5", headers.get("Content-MD5", ""))
    for value in _SHA256.findall(headers.get("Content-Digest", "")):
        yield from _decoded("Content-Digest", "sha256", value)
    if headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT":
        yield from _decoded("x-amz-checksum-sha256", "sha256", headers.get("x-amz-checksum-sha256", ""))


def _encrypted(headers: Mapping[str, str]) -> bool:
    by_service = headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    return by_service or "x-amz-server-side-encryption-customer-algorithm" in headers


def _decoded(header: str, algorithm: Literal["md5", "sha256"], value: str) -> Iterator[StatedDigest]:
    """Nothing for a value that is no hash, such as a multi-part checksum ("...=-3")."""
    try:
        raw = base64.b64decode(value, validate=True)
    except binascii.Error:
        return
    if len(raw) == {"md5": 16, "sha256": 32}[algorithm]:
        yield StatedDigest(header, algorithm, raw.hex())
