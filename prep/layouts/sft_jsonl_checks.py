"""The checks of an SFT JSONL: one pass over its lines feeds all rules.

What must be compared across records is kept as 64-bit hashes in flat arrays (some 50 bytes a
record); where two are equal, the few lines meant are read again to say which they are.
"""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from prep import schemas
from prep.documents import BrokenDocumentError, diagnosed
from prep.findings import PLACES_KEPT, Finding, found
from prep.layouts.sft_consumption import Consumption
from prep.layouts.sft_jsonl import DAMAGED_GZIP, Line, read_lines
from prep.layouts.sft_repeats import Scanned, repeats
from prep.layouts.sft_rules import RULES, Record, usual_caption
from prep.layouts.sft_sources import source_of
from prep.layouts.sft_windows import CAPTION_KEYS, Loader, UnusableCaptionError, caption_key, caption_text
from prep.rules import applied
from prep.signatures import HEAD_BYTES, lfs_oid, looks_like

__all__ = ["SCHEMA", "media_path", "records", "scan_lines"]

SCHEMA: Final = "sft-record"
Emit = Callable[[Finding], None]
_RECORD_KEYS: Final = frozenset(
    (
        *("uuid", "duration", "width", "height", "vision_path", "t2w_windows", "nb_frames", "framerate"),
        *("control_type", "control_path"),
    )
)
_WINDOW_KEYS: Final = frozenset((*CAPTION_KEYS, "start_frame", "end_frame", "temporal_interval"))
_UNKNOWN: Final = -1


def media_path(folder: str, vision_path: str) -> str | None:
    """The path below the dataset's directory that a record's media has; None where it leaves it.

    `folder` is that of the JSONL. Judged on the text alone; a URI has none either.
    """
    if "://" in vision_path or vision_path.startswith("/") or "\0" in vision_path:
        return None
    joined = f"{folder}/{vision_path}" if folder else vision_path
    if "/." in joined or "//" in joined or joined.startswith("."):
        joined = os.path.normpath(joined)
    return None if joined == ".." or joined.startswith("../") else joined


def records(file: Path, path: str, loader: Loader) -> Iterator[Record]:
    """The records that obey their schema, without a word on the others: a scan reported them."""
    try:
        for line in read_lines(file):
            try:
                data = orjson.loads(line.data)
            except orjson.JSONDecodeError:
                continue
            if schemas.is_valid(SCHEMA, data):
                yield Record(data, path, line.number, loader)
    except (OSError, *DAMAGED_GZIP):
        return


def scan_lines(
    root: Path,
    path: str,
    counts: Consumption,
    emit: Emit,
    *,
    names_content: bool = False,
    names_sources: bool = False,
) -> Scanned:
    """Check every line of the JSONL at `path` below `root`; findings' paths are relative to the root.

    `counts` takes the records that obey their schema. `names_content`: some later step reads the
    media, so that it need not be looked at for a Git-LFS pointer here. `names_sources`: keep what
    the clips were cut from, for a comparison with another split.
    """
    scan = _Scan(root, path, counts, emit, names_content)
    scan.names_sources = names_sources
    return scan.run()


class _Scan:
    """One pass over a JSONL."""

    def __init__(self, root: Path, path: str, counts: Consumption, emit: Emit, names_content: bool) -> None:
        self.root, self.path, self.counts, self.emit = root, path, counts, emit
        self.names_content, self.names_sources = names_content, False
        self.folder = path.rpartition("/")[0]
        self.seen = Scanned(path)
        self.reported: set[int] = set()
        self.unknown: dict[str, list[Any]] = {}
        self.shapes: dict[type, list[Any]] = {}

    def run(self) -> Scanned:
        """Check each line, then what only shows when they are compared."""
        try:
            self.lines()
        except (OSError, *DAMAGED_GZIP) as error:
            self.seen.complete = False
            self.emit(found("FIL014", self.path, f"{getattr(error, 'strerror', None) or error}"))
        else:
            if not self.seen.records and self.seen.complete:
                self.emit(found("TAB008", self.path, "0 records; expected 1 or more"))
        self.census()
        for finding in repeats(self.root, self.seen):
            self.emit(finding)
        return self.seen

    def lines(self) -> None:
        """Go through the file, unless its first bytes say that it is none."""
        head = _head(self.root / self.path)
        fault = None if self.path.endswith(".gz") else _no_lines(head, self.path)
        if fault is not None:
            self.seen.complete = False
            self.emit(fault)
            return
        for line in read_lines(self.root / self.path):
            checked = self.first(line) if line.number == 1 else line
            if checked is None:
                return
            self.line(checked)

    def first(self, line: Line) -> Line | None:
        """The first line without a byte order mark; None where the file is one JSON array."""
        data = line.data
        if data.startswith(codecs.BOM_UTF8):
            message = "the file begins with the bytes EF BB BF, at which upstream's parser stops"
            self.emit(found("TXT002", self.path, message, place="line 1"))
            data = data.removeprefix(codecs.BOM_UTF8)
        if data.lstrip().startswith(b"["):
            self.seen.complete = False
            message, remedy = (
                "a JSON array; expected JSON Lines",
                "Write one object a line, without brackets.",
            )
            self.emit(found("TXT004", self.path, message, place="line 1", remedy=remedy))
            return None
        return Line(1, line.offset, data)

    def line(self, line: Line) -> None:
        """Check one line."""
        try:
            data = orjson.loads(line.data)
        except orjson.JSONDecodeError:
            data = self.suspect(line)
            if data is None:
                return
        self.seen.records += 1
        if schemas.is_valid(SCHEMA, data):
            self.record(line.number, data)
        else:
            for finding in schemas.broken(SCHEMA, data, self.path, place=f"line {line.number} "):
                self.emit(finding)
            self.note(line.number, data if isinstance(data, dict) else {})

    def suspect(self, line: Line) -> Any:
        """A line that orjson refuses, as Python's parser reads it; None where that refuses it too."""
        if not line.data.strip():
            message = "a blank line, at which upstream's parser stops"
            self.emit(found("TXT003", self.path, message, place=f"line {line.number}", remedy="Remove it."))
            return None
        try:
            data = diagnosed(line.data, self.path)
        except BrokenDocumentError as error:
            for finding in error.findings:
                place = finding.place.replace("line 1", f"line {line.number}") or f"line {line.number}"
                self.emit(replace(finding, place=place, remedy="Write one JSON object a line."))
            self.seen.records += 1
            self.note(line.number, {})
            return None
        if _has_nan(data):
            message = "NaN or Infinity; expected numbers (JSON has no others)"
            self.emit(found("TXT005", self.path, message, place=f"line {line.number}"))
            self.seen.records += 1
            self.note(line.number, data if isinstance(data, dict) else {})
            return None
        return data

    def record(self, number: int, data: Mapping[str, Any]) -> None:
        """Apply every rule to a record that obeys its schema, and look for its media."""
        usual = usual_caption(data, self.counts.loader)
        if usual is not None and _has_known_keys(data):
            self.counts.take_usual(data, usual)
            self.note(number, data)
            return
        self.counts.take(data)
        record = Record(data, self.path, number, self.counts.loader)
        for finding in applied(RULES, record, self.path):
            self.emit(finding)
        if not data.keys() <= _RECORD_KEYS:
            self.strange(data.keys() - _RECORD_KEYS, record.place())
        for place, window in enumerate(record.windows):
            if not window.keys() <= _WINDOW_KEYS:
                self.strange(window.keys() - _WINDOW_KEYS, record.place(place))
        self.note(number, data)

    def strange(self, keys: Iterable[str], place: str) -> None:
        """Count keys that the loader does not know, with the first place of each."""
        for key in keys:
            if key not in self.unknown and len(self.unknown) > PLACES_KEPT:
                key = "others"
            self.unknown.setdefault(key, [0, place])[0] += 1

    def note(self, number: int, data: Mapping[str, Any]) -> None:
        """Keep what is compared across records."""
        seen, uuid, media = self.seen, data.get("uuid"), data.get("vision_path")
        seen.lines.append(number)
        known = isinstance(uuid, str) and uuid
        seen.uuids.append(hash(uuid) if known else 0)
        if self.names_sources:
            seen.sources.append(hash(source_of(str(uuid))) if known else 0)
        path = self.media(number, media) if isinstance(media, str) and media else None
        seen.media.append(hash(path) if path else 0)
        seen.sizes.append(self.size(number, path) if path else _UNKNOWN)
        windows = data.get("t2w_windows")
        first = windows[0] if isinstance(windows, list) and windows else {}
        seen.captions.append(self.caption(number, first) if isinstance(first, dict) else 0)

    def caption(self, number: int, window: Mapping[str, Any]) -> int:
        """The hash of a record's first text, as it is trained on; counts the forms of structured captions."""
        try:
            key = caption_key(window)
            if key is None:
                return 0
            value = window[key]
            if key == "caption_json":
                self.shapes.setdefault(value.__class__, [0, f"line {number}"])[0] += 1
            # The whole object's text would cost more than all the rest; its dense text says as much.
            spoken = value.get("temporal_caption", value) if isinstance(value, dict) else value
            return hash(spoken if isinstance(spoken, str) else caption_text(key, value))
        except UnusableCaptionError:
            return 0

    def media(self, number: int, name: str) -> str | None:
        """The path of a record's media below the root; reports one that is elsewhere."""
        place = f"line {number} /vision_path"
        path = media_path(self.folder, name)
        if path is not None:
            return path
        if "://" in name:
            self.seen.far += 1
        elif name.startswith("/"):
            message = f"{name!r}; expected a path relative to the JSONL's folder"
            self.emit(found("FIL012", self.path, message, place=place))
            if not Path(name).is_file():
                self.emit(found("FIL005", self.path, f"{name!r} is not there", place=place))
        else:
            self.emit(
                found("FIL011", self.path, f"{name!r} is not below the dataset's directory", place=place)
            )
        return None

    def size(self, number: int, path: str) -> int:
        """Look at a record's media; its size in bytes."""
        try:
            state = os.stat(f"{self.root}/{path}")  # noqa: PTH116 - one call a record, of a million
        except OSError as error:
            if self.is_first(path) and not (self.root / path).is_symlink():  # FIL010 says so
                what = (
                    "there is no such file" if isinstance(error, FileNotFoundError) else f"{error.strerror}"
                )
                self.emit(found("FIL005", path, f"{what}; line {number} of {self.path} names it"))
            return _UNKNOWN
        if state.st_size < HEAD_BYTES and self.is_first(path):
            self.small(path, state)
        return state.st_size

    def small(self, path: str, state: os.stat_result) -> None:
        """Report media that is no file, is empty, or is a Git-LFS pointer."""
        if not stat.S_ISREG(state.st_mode):
            self.emit(found("FIL014", path, "no regular file; expected media"))
        elif not state.st_size:
            self.emit(found("FIL002", path, "0 bytes; expected media"))
        elif not self.names_content and (oid := lfs_oid(_head(self.root / path))):
            self.emit(found("FIL001", path, f"the pointer names the object sha256:{oid}"))

    def is_first(self, path: str) -> bool:
        """Whether this faulty file is met for the first time: one fault, one finding."""
        before = len(self.reported)
        self.reported.add(hash(path))
        return len(self.reported) > before

    def census(self) -> None:
        """TXT007 for each unknown key, TXT006 where structured captions have several forms."""
        for key, (count, place) in sorted(self.unknown.items()):
            self.emit(found("TXT007", self.path, f"{key!r} in {count} records or windows", place=place))
        if len(self.shapes) > 1:
            told = ", ".join(
                f"{kind.__name__} in {count} (first {place})" for kind, (count, place) in self.shapes.items()
            )
            self.emit(found("TXT006", self.path, f"the field 'caption_json' is {told}"))


def _has_known_keys(data: Mapping[str, Any]) -> bool:
    return data.keys() <= _RECORD_KEYS and all(item.keys() <= _WINDOW_KEYS for item in data["t2w_windows"])


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _no_lines(head: bytes, path: str) -> Finding | None:
    """What a file is that holds no lines of JSON at all."""
    if not head:
        return found("FIL002", path, "0 bytes; expected one JSON object a line")
    oid = lfs_oid(head)
    if oid:
        return found("FIL001", path, f"the pointer names the object sha256:{oid}")
    kind = looks_like(head)
    if kind is None or kind == "JSON text":
        return None
    code = (
        "FIL018"
        if any(name in kind for name in ("gzip", "zstd", "zip", "bzip2", "xz", "7-Zip"))
        else "FIL013"
    )
    code = "TXT001" if kind.startswith("UTF-") else code
    return found(code, path, f"{kind}; expected JSON Lines")


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf"))
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return isinstance(value, list) and any(map(_has_nan, value))
