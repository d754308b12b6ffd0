"""Whether a video file's container is whole, told from its boxes' sizes without a decoder.

A few hundred bytes are read by seeking, however large the file, so the check is cheap
enough to follow every download. It sees a file that was cut, never finalised or is no
video at all; damage inside the media data is seen by decoding (`prep.media`).

Sources: ISO/IEC 14496-12 section 4.2 (boxes), RFC 8794 (EBML), RFC 9559 (Matroska), and
the RIFF chunk layout that AVI and its OpenDML extension share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from prep.findings import Finding, found
from prep.signatures import HEAD_BYTES, is_text, lfs_oid, looks_like

__all__ = ["check_structure", "container_of", "unreadable"]

# A later addition to the standard cannot break this: an unknown type is only held against a
# file when its size does not fit as well.
_FIRST_BOXES: Final = frozenset(
    (
        b"ftyp",
        b"styp",
        b"moov",
        b"moof",
        b"mdat",
        b"free",
        b"skip",
        b"wide",
        b"uuid",
        b"sidx",
        b"pnot",
        b"pdin",
    )
)
_KNOWN_BOXES: Final = _FIRST_BOXES | frozenset(
    (b"mfra", b"udta", b"meta", b"ssix", b"prft", b"emsg", b"idat", b"imda")
)
_IMAGE_BRANDS: Final = frozenset((b"heic", b"heix", b"heim", b"heis", b"mif1", b"avif"))

_EBML: Final = 0x1A45DFA3
_SEGMENT: Final = 0x18538067
_DOCTYPE: Final = b"\x42\x82"
# EBML header, Segment, Void, CRC-32, and what a muxer may append behind a closed Segment.
_TOP_ELEMENTS: Final = frozenset((_EBML, _SEGMENT, 0xEC, 0xBF, 0x1254C367, 0x1C53BB6B, 0x1F43B675))

_PREFIXES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x1aE\xdf\xa3", "matroska"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"OggS", "ogg"),
    (b"FLV\x01", "flv"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    (b"\x00\x00\x01\xba", "mpegps"),
)
_IMAGES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
)
_SOUNDS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"ID3", "MP3 sound"),
    (b"\xff\xfb", "MP3 sound"),
    (b"fLaC", "FLAC sound"),
)
_RIFF: Final = {b"WEBP": "a WebP image", b"WAVE": "WAV sound"}

_ISO: Final = frozenset(("mp4", "mov"))
_MATROSKA: Final = frozenset(("matroska", "webm"))
_ENDINGS: Final = {
    **dict.fromkeys((".mp4", ".m4v", ".mov", ".qt", ".3gp", ".3g2"), _ISO),
    **dict.fromkeys((".mkv", ".webm"), _MATROSKA),
    **dict.fromkeys((".ts", ".mts", ".m2ts"), frozenset(("mpegts",))),
    **dict.fromkeys((".mpg", ".mpeg", ".vob"), frozenset(("mpegps",))),
    **dict.fromkeys((".ogg", ".ogv"), frozenset(("ogg",))),
    **dict.fromkeys((".wmv", ".asf"), frozenset(("asf",))),
    ".avi": frozenset(("avi",)),
    ".flv": frozenset(("flv",)),
    ".gif": frozenset(("gif",)),
}
_PADDING_READ: Final = 1 << 16
_TRAILING_CODE: Final = "VID013"


@dataclass(frozen=True, slots=True)
class _Source:
    """An open file with its name, its length in bytes and its first bytes."""

    file: BinaryIO
    name: str
    length: int
    head: bytes

    def at(self, offset: int, count: int) -> bytes:
        """Up to `count` bytes at `offset`."""
        self.file.seek(offset)
        return self.file.read(count)

    def zeros_from(self, offset: int) -> bool:
        """Whether the rest is padding; only its beginning is read."""
        return not self.at(offset, min(_PADDING_READ, self.length - offset)).strip(b"\0")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A box, element or chunk at the top level: where it is and where it says it ends.

    `end` is None where the header itself is cut or invalid.
    """

    kind: str
    offset: int
    end: int | None


def check_structure(path: Path) -> list[Finding]:
    """What the container's own sizes and the first bytes say is wrong; empty for a whole file.

    Codes: FIL001, FIL002, FIL005, FIL010, FIL013, FIL014, FIL016, VID001, VID002, VID010,
    VID012, VID013. The findings' path is the file's name. A cut that falls between two boxes, both of
    which a player can do without (a last `free`), leaves a whole file and is not found.
    """
    try:
        with path.open("rb") as file:
            source = _source(file, path.name)
            return _check(source)
    except OSError as error:
        return [unreadable(path, error)]


def container_of(path: Path) -> str | None:
    """The container that the first bytes show; None for anything that is no video container.

    One of mp4, mov, webm, matroska, avi, gif, ogg, flv, asf, mpegts, mpegps. Raises OSError.
    """
    with path.open("rb") as file:
        return _container(file.read(HEAD_BYTES))


def unreadable(path: Path, error: OSError) -> Finding:
    """The finding for a file that the system does not let us read."""
    if isinstance(error, FileNotFoundError):
        code = "FIL010" if path.is_symlink() else "FIL005"
        return found(code, path.name, "there is no such file")
    return found("FIL014", path.name, f"cannot be read: {error.strerror or error}")


def _source(file: BinaryIO, name: str) -> _Source:
    return _Source(file, name, os.fstat(file.fileno()).st_size, file.read(HEAD_BYTES))


def _check(source: _Source) -> list[Finding]:
    container = _container(source.head)
    if container is None:
        return [_not_video(source)]
    if container in _ISO:
        findings = _check_boxes(source)
    elif container in _MATROSKA:
        findings = _check_pieces(source, _elements(source), "the Segment", str(_SEGMENT))
    elif container == "avi":
        findings = _check_pieces(source, _chunks(source), "the RIFF chunk", "RIFF")
    else:
        findings = []
    return findings + _check_ending(source.name, container)


def _check_ending(name: str, container: str) -> list[Finding]:
    ending = Path(name).suffix
    if container in _ENDINGS.get(ending.lower(), (container,)):
        return []
    return [found("VID012", name, f"the name ends in {ending} and the content is {container}")]


# --- what it is --------------------------------------------------------------------------


def _container(head: bytes) -> str | None:
    if head[4:8] in _FIRST_BOXES and int.from_bytes(head[:4], "big") not in range(2, 8):
        return "mov" if head[4:8] != b"ftyp" or head[8:12] == b"qt  " else "mp4"
    if head.startswith(b"RIFF"):
        return "avi" if head[8:12] == b"AVI " else None
    for prefix, container in _PREFIXES:
        if head.startswith(prefix):
            return "webm" if container == "matroska" and _doctype(head) == b"webm" else container
    return "mpegts" if _is_transport_stream(head) else None


def _doctype(head: bytes) -> bytes:
    """The EBML DocType; its size is one byte in every file that is of use."""
    at = head.find(_DOCTYPE, 4, 64)
    return head[at + 3 : at + 3 + (head[at + 2] & 0x7F)] if 0 <= at < len(head) - 2 else b""


def _is_transport_stream(head: bytes) -> bool:
    """Sync bytes at the packets' starts: 188 bytes each, or 192 with a time code before each."""
    return any(
        len(head) > start + step and all(byte == 0x47 for byte in head[start::step])
        for start, step in ((0, 188), (4, 192))
    )


def _not_video(source: _Source) -> Finding:
    head, name = source.head, source.name
    if not head:
        return found("FIL002", name, "0 bytes; expected media")
    if (oid := lfs_oid(head)) is not None:
        return found("FIL001", name, f"a Git-LFS pointer to sha256 {oid}; expected media")
    if (sound := _named(head, _SOUNDS)) is not None:
        return found("VID001", name, f"{sound}; expected a video")
    if (other := looks_like(head) or _named(head, _IMAGES) or _plain(head)) is not None:
        return found("FIL013", name, f"{other}, {source.length} bytes; expected a video")
    start = head[:8].hex(" ")
    return found("VID010", name, f"{source.length} bytes that begin with {start}: no video container")


def _named(head: bytes, signatures: tuple[tuple[bytes, str], ...]) -> str | None:
    if head.startswith(b"RIFF"):
        label = _RIFF.get(head[8:12])
        return label if label is not None and ("sound" in label) == (signatures is _SOUNDS) else None
    return next((label for prefix, label in signatures if head.startswith(prefix)), None)


def _plain(head: bytes) -> str | None:
    if not head.strip(b"\0"):
        return "nothing but zero bytes at its start"
    return "plain text" if is_text(head) else None


# --- ISO base media (MP4, MOV) -----------------------------------------------------------


def _boxes(source: _Source) -> Iterator[_Piece]:
    offset = 0
    while offset < source.length:
        piece = _box(source, offset)
        yield piece
        if piece.end is None:
            return
        offset = piece.end


def _box(source: _Source, offset: int) -> _Piece:
    header = source.at(offset, 16)
    kind = header[4:8].decode("latin-1")
    size = int.from_bytes(header[:4], "big")
    smallest = 8
    if size == 0 and kind.isprintable():
        size = source.length - offset
    elif size == 1:
        smallest = 16
        size = int.from_bytes(header[8:16], "big")
    whole = len(header) >= smallest and size >= smallest and kind.isprintable()
    return _Piece(kind, offset, offset + size if whole else None)


def _check_boxes(source: _Source) -> list[Finding]:
    kinds: list[str] = []
    for piece in _boxes(source):
        if piece.end is None or piece.end > source.length:
            return _misfit(source, piece, kinds)
        kinds.append(piece.kind)
    return _incomplete(source, kinds)


def _incomplete(source: _Source, kinds: list[str]) -> list[Finding]:
    """What lacks among boxes that all fit."""
    name = source.name
    if "moov" not in kinds:
        if source.head[8:12] in _IMAGE_BRANDS and "meta" in kinds:
            return [found("FIL013", name, "a HEIF image; expected a video")]
        held = ", ".join(dict.fromkeys(kinds)) or "no box"
        return [found("VID002", name, f"{source.length} bytes with {held} and no moov box")]
    media = [kind for kind in kinds if kind in ("mdat", "moof", "imda")]
    if not media or media[-1] == "moof":
        lacking = "media data" if not media else "media data for its last fragment"
        return [found("FIL016", name, f"ends after {source.length} bytes without {lacking}")]
    return []


def _misfit(source: _Source, piece: _Piece, before: list[str]) -> list[Finding]:
    """A box that does not fit: the file was cut, or other bytes follow the last box."""
    left = source.length - piece.offset
    whole = not _incomplete(source, before)
    if whole and source.zeros_from(piece.offset):
        return []
    if whole and left >= 8 and piece.kind.encode("latin-1") not in _KNOWN_BOXES:
        return [_trailing(source, piece.offset)]
    if piece.end is not None:
        return [_cut(source, f"the {piece.kind} box", piece)]
    if left < 16:
        message = f"ends after {left} bytes of a box's header, at {source.length} bytes"
        return [found("FIL016", source.name, message)]
    message = f"no valid box at byte {piece.offset} of {source.length}"
    return [found("VID010", source.name, message)]


# --- Matroska, WebM and AVI --------------------------------------------------------------


def _check_pieces(source: _Source, pieces: Iterator[_Piece], label: str, needed: str) -> list[Finding]:
    seen = False
    for piece in pieces:
        if piece.end is None and seen:
            return [] if source.zeros_from(piece.offset) else [_trailing(source, piece.offset)]
        if piece.end is None:
            break
        if piece.end > source.length:
            return [_cut(source, label, piece)]
        seen = seen or piece.kind == needed
    if seen:
        return []
    return [found("FIL016", source.name, f"ends after {source.length} bytes, before {label}")]


def _elements(source: _Source) -> Iterator[_Piece]:
    offset = 0
    while offset < source.length:
        header = source.at(offset, 12)
        identifier, used = _number(header, keep_marker=True)
        size, more = _number(header[used:], keep_marker=False)
        if identifier not in _TOP_ELEMENTS or not more:
            yield _Piece("", offset, None)
            return
        unknown = size == (1 << (7 * more)) - 1
        end = source.length if unknown else offset + used + more + size
        yield _Piece(str(identifier), offset, end)
        offset = end


def _number(data: bytes, *, keep_marker: bool) -> tuple[int, int]:
    """An EBML variable-length number and its length in bytes; length 0 when it is cut or invalid."""
    if not data or not data[0]:
        return 0, 0
    length = 9 - data[0].bit_length()
    if len(data) < length:
        return 0, 0
    value = int.from_bytes(data[:length], "big")
    return (value if keep_marker else value & ~(1 << (7 * length))), length


def _chunks(source: _Source) -> Iterator[_Piece]:
    offset = 0
    while offset < source.length:
        header = source.at(offset, 12)
        if len(header) < 12 or header[:4] not in (b"RIFF", b"JUNK", b"idx1"):
            yield _Piece("", offset, None)
            return
        size = int.from_bytes(header[4:8], "little")
        # A recorder that streams writes 0 and fills it in at the end, or never.
        end = offset + 8 + size if size else source.length
        yield _Piece(header[:4].decode("ascii"), offset, end)
        offset = end + end % 2


# --- findings ----------------------------------------------------------------------------


def _cut(source: _Source, label: str, piece: _Piece) -> Finding:
    message = (
        f"{label} at byte {piece.offset} ends at byte {piece.end}"
        f" by its own size, and the file has {source.length} bytes"
    )
    return found("FIL016", source.name, message)


def _trailing(source: _Source, offset: int) -> Finding:
    message = f"the container ends at byte {offset} and {source.length - offset} other bytes follow"
    remedy = "Fetch the file again, or rewrite the container; decoders ignore the bytes."
    return found(_TRAILING_CODE, source.name, message, severity="warning", remedy=remedy)
