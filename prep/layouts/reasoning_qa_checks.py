"""The checks of annotation files: each is read once, and each video of an exposed item is looked at once."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prep import schemas
from prep.documents import BrokenDocumentError, parse
from prep.findings import Finding, found
from prep.layouts.reasoning_qa import FORMATS, MediaRoot, Sampling, media_root
from prep.layouts.reasoning_qa_items import Seen, item_findings, repeated_indices, repeated_questions
from prep.progress import counted
from prep.rules import guarded
from prep.signatures import HEAD_BYTES, lfs_oid

__all__ = ["Annotation", "Scan", "format_of", "items_of", "read_annotation"]

ANNOTATION: Final = "reasoning-annotation"
Emit = Callable[[Finding], None]

_KEYS: Final = frozenset(("format", "metadata", "media_root", "items"))
_SIBLINGS: Final = ("metropolis-v", "cosmos-reason-v")
_OTHER: Final = ("version", "metadata", "samples", "conversations")
_FORMAT: Final = re.compile(rb'"format"\s*:\s*"([^"]*)"')
_HEAD: Final = 4096
_ENDLESS: Final = 1 << 60
_WHOLE: Final = 1 << 24
_REMEDY: Final = "Name the right --media-root, or correct the item's video_id."


@dataclass(slots=True)
class Annotation:
    """One annotation file: where it stands, the name that findings call it by, and what it holds.

    `size` is in bytes. `items` counts raw items, and `plain` those whose think form is exposed and that
    have no reasoning. `videos` are the media ids of its exposed items, in order, each once, with the item
    that names it first, from 0.
    """

    path: Path
    name: str
    root: MediaRoot
    size: int = 0
    sha256: str = ""
    license: str = ""
    items: int = 0
    plain: int = 0
    videos: dict[str, int] = field(default_factory=dict)


def format_of(path: Path) -> str | None:
    """The format that a JSON file states, "" for bare items, None for a file that is neither.

    Reads the head of the file; the whole only where the head does not say and the file is small.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            stated = _FORMAT.search(head)
            if stated and stated[1].decode("utf-8", "replace") in FORMATS:
                return stated[1].decode("utf-8")
            if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") or path.stat().st_size > _WHOLE:
                return None
            document = parse(head + file.read(), path.name)
    except (OSError, BrokenDocumentError):
        return None
    if not isinstance(document, dict):
        return None
    items = document.get("items")
    bare = isinstance(items, list) and bool(items) and isinstance(items[0], dict) and "question" in items[0]
    stated_here = _stated_format(document)
    return str(stated_here) if stated_here is not None else "" if bare else None


def read_annotation(
    path: Path, name: str, given: Path | None, emit: Emit
) -> tuple[Annotation, list[Any]] | None:
    """The file and its items; None, with findings, for one that cannot be used."""
    try:
        data = path.read_bytes()
        document = parse(data, name)
    except OSError as error:
        emit(found("FIL014", name, f"{error.strerror or error}"))
        return None
    except BrokenDocumentError as error:
        for finding in error.findings:
            emit(finding)
        return None
    if not isinstance(document, dict):
        emit(found("REA001", name, f"{_kind(document)}; expected an object with items"))
        return None
    if not _is_ours(document, name, emit):
        return None
    _document_findings(document, data, name, emit)
    embedded = document.get("media_root")
    root = media_root(path, embedded if isinstance(embedded, str) else None, given)
    facts = Annotation(path, name, root, len(data), hashlib.sha256(data).hexdigest(), _license(document))
    items: list[Any] = document["items"]
    facts.items = len(items)
    return facts, items


def items_of(path: Path) -> list[dict[str, Any]]:
    """The items of a file that was found good; raises BrokenDocumentError, KeyError and OSError."""
    items: list[dict[str, Any]] = parse(path.read_bytes(), path.name)["items"]
    return items


def _stated_format(document: Mapping[str, Any]) -> Any:
    """What a file calls its format; the sibling formats call it their version, and have items too."""
    if "format" in document:
        return document["format"]
    version = document.get("version")
    return version if isinstance(version, str) and version.startswith(_SIBLINGS) else None


def _is_ours(document: Mapping[str, Any], name: str, emit: Emit) -> bool:
    stated = _stated_format(document)
    if stated is not None and stated not in FORMATS:
        emit(
            found(
                "REA001",
                name,
                f"its format is {stated!r}; expected {' or '.join(FORMATS)}",
                place="/format" if "format" in document else "/version",
            )
        )
        return False
    if isinstance(document.get("items"), list):
        return True
    others = [key for key in _OTHER if key in document]
    told = f"it has {', '.join(others) or 'other keys'} and no list of items"
    emit(found("REA001" if stated is None else "TXT005", name, told, place="/items"))
    return False


def _document_findings(document: Mapping[str, Any], data: bytes, name: str, emit: Emit) -> None:
    """The file around its items: schema, keys, letters that upstream reads in the locale's encoding."""
    around = {**document, "items": []}
    for finding in schemas.broken(ANNOTATION, around, name):
        emit(finding)
    if "format" not in document:
        for key in sorted(document.keys() - _KEYS):
            emit(found("TXT007", name, "a key that the format does not have", place=f"/{key}"))
    if not data.isascii():
        count = sum(byte > 127 for byte in data)
        emit(found("TXT008", name, f"{count} bytes beyond ASCII; expected JSON with ASCII escapes"))


def _license(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    stated = metadata.get("license") if isinstance(metadata, dict) else None
    return stated if isinstance(stated, str) else ""


def _kind(document: Any) -> str:
    return "a list" if isinstance(document, list) else f"the value {str(document)[:40]!r}"


class Scan:
    """One pass over the annotation files of a split, in the order in which training concatenates them.

    `sampling` tells which items training sees; None takes all. `moved` tells that the media
    stand in the dataset's own folder, so that what the file embeds is no longer of any weight.
    """

    def __init__(self, emit: Emit, sampling: Sampling | None = None, *, moved: bool = False) -> None:
        self.emit, self.sampling, self.moved = emit, sampling, moved
        self.annotations: list[Annotation] = []
        self.seen = Seen()
        self.complete = True
        self._looked_at: set[int] = set()

    def run(self, files: Sequence[tuple[Path, str, Path | None]]) -> list[Annotation]:
        """Check the files: each a path, the name for findings, and the media root given for it."""
        # Whether an item is shown does not depend on how many follow it: one file at a time is in memory.
        touched = self.sampling.touched(_ENDLESS) if self.sampling is not None else range(_ENDLESS)
        thinks = self.sampling.thinks(_ENDLESS) if self.sampling is not None else range(0)
        total = 0
        for path, name, given in files:
            read = read_annotation(path, name, given, self.emit)
            if read is None:
                self.complete = False
                continue
            annotation, items = read
            self._root(annotation)
            self._items(annotation, items, touched, thinks, total)
            self._media(annotation)
            total += annotation.items
            self.annotations.append(annotation)
        self._whole(total)
        return self.annotations

    def _items(
        self, annotation: Annotation, items: Iterable[Any], touched: range, thinks: range, start: int
    ) -> None:
        self.seen.begin(annotation.name)
        for index, item in enumerate(items):
            exposed = start + index in touched
            for finding in item_findings(item, annotation.name, f"/items/{index}", exposed=exposed):
                self.emit(finding)
            video = _text(item, "video_id")
            self.seen.take(item, os.path.join(annotation.root.path, video) if video else "")  # noqa: PTH118 - as upstream
            if exposed and video:
                annotation.videos.setdefault(video, index)
            if video and start + index in thinks and not _text(item, "reasoning"):
                annotation.plain += 1
        if annotation.plain:
            hybrid = self.sampling is not None and self.sampling.mode == "hybrid"
            twice = "; hybrid shows the answer alone twice" if hybrid else ""
            message = f"{counted(annotation.plain, 'exposed item')} without reasoning{twice}"
            self.emit(found("REA005", annotation.name, message))

    def _root(self, annotation: Annotation) -> None:
        root = annotation.root
        if self.moved:
            return
        if root.stated == "embedded" and Path(root.embedded or "").is_absolute():
            self.emit(found("FIL012", annotation.name, f"media_root {root.embedded!r}", place="/media_root"))
        if root.differs:
            message = f"Cosmos Framework takes {root.path}; nvidia-tao-daft's reader takes {root.beside}"
            self.emit(found("REA006", annotation.name, message, place="/media_root"))
        if root.climbs and root.path.is_dir():
            message = f"media_root {root.embedded!r} is {os.path.realpath(root.path)}"
            self.emit(found("REA007", annotation.name, message, place="/media_root"))

    def _media(self, annotation: Annotation) -> None:
        for video, item in annotation.videos.items():
            path = hash(os.path.join(annotation.root.path, video))  # noqa: PTH118 - as upstream
            if path in self._looked_at:
                continue  # one fault, one finding, whichever files name it
            self._looked_at.add(path)
            for finding in media_findings(annotation, video, f"/items/{item}/video_id", alone=self.moved):
                self.emit(finding)

    def _whole(self, total: int) -> None:
        for name, rule in (("questions", repeated_questions), ("indices", repeated_indices)):
            for finding in guarded(name, "", lambda rule=rule: rule(self.seen)):  # type: ignore[misc]
                self.emit(finding)
        exposed = self.sampling.exposed(total) if self.sampling is not None else total
        if not exposed and self.complete:
            offset = f", offset {self.sampling.offset}" if self.sampling is not None else ""
            name = self.annotations[0].name if self.annotations else ""
            self.emit(found("REA008", name, f"0 samples of {total} items{offset}"))


def _text(item: Any, key: str) -> str:
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def media_findings(annotation: Annotation, video: str, place: str, *, alone: bool) -> Iterator[Finding]:
    """What is wrong with one video by its name and its state; nothing is opened but a tiny file.

    `alone` tells that no other root is of any weight, so that none is tried.
    """
    name, root = annotation.name, annotation.root
    if video.startswith("/"):
        yield found("FIL012", name, f"{video!r}; expected a path below the media root", place=place)
    if ".." in video.split("/") or "\0" in video:
        yield found("FIL011", name, f"{video!r} is not below the media root", place=place)
        return
    path = root.path / video
    try:
        state = os.stat(path)  # noqa: PTH116 - one call a file, of many
    except OSError as error:
        if path.is_symlink():
            yield found("FIL010", name, f"{path} leads to {os.readlink(path)!r}", place=place)  # noqa: PTH115
        else:
            yield found("FIL005", name, _tried(root, video, error, alone), place=place, remedy=_REMEDY)
        return
    if not stat.S_ISREG(state.st_mode) or not os.access(path, os.R_OK):
        yield found("FIL014", name, f"{path} is no file that can be read", place=place)
    elif not state.st_size:
        yield found(
            "FIL002", name, f"{path} has 0 bytes; expected media", place=place, remedy="Fetch the file again."
        )
    elif state.st_size < HEAD_BYTES and (oid := lfs_oid(path.read_bytes())):
        yield found("FIL001", name, f"{path} names the object sha256:{oid}", place=place)


def _tried(root: MediaRoot, video: str, error: OSError, alone: bool) -> str:
    """A video that is not there: each place that some reader would look at, and what is there."""
    tried = {str(root.path / video): f"{error.strerror}"}
    others = {"the file's own media_root": root.own, "the file's folder, as nvidia-tao-daft": root.beside}
    for who, other in () if alone else others.items():
        path = other / video
        tried.setdefault(str(path), f"{who}: {'it is there' if path.exists() else 'not there either'}")
    return "tried " + "; ".join(f"{path} ({told})" for path, told in tried.items())
