"""The checks of the conversations layout over a directory: one scan feeds all rules.

`meta.json` is read piece by piece; each entry's media is looked at with one `stat`, and each
conversation is opened and parsed once. What must be compared across records is kept as 64-bit
hashes in flat arrays (some 40 bytes a record); where two are equal, the few records meant are read
again to say which they are.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from prep import schemas
from prep.documents import BrokenDocumentError, array_elements, diagnosed, parse
from prep.findings import Finding, found
from prep.layouts import envelope
from prep.layouts.census import Census
from prep.layouts.conversation_shape import shape_findings
from prep.layouts.conversations import META
from prep.layouts.conversations_turns import CONVERSATION, RULES, Turns, Wanted, plain_question, read_turns
from prep.layouts.repeats import common_texts, repeated_ids, repeated_media
from prep.rules import applied, guarded
from prep.signatures import lfs_oid

__all__ = ["Scanned", "Tree", "check_conversation_file", "media_files", "scan"]

ENTRY: Final = "conversations-meta-entry"
Emit = Callable[[Finding], None]

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe under the name must not hang the check
_READ: Final = 1 << 16
_POINTER_SIZE: Final = 512
_KEYS: Final = ("id", "media", "conversation")
_PLAIN_FILE: Final = stat.S_IFREG | stat.S_IROTH
_KIND_AND_READABLE: Final = 0o170000 | stat.S_IROTH
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Tree:
    """A directory to check, and what is known of it.

    `enveloped`: both kinds of file are wrapped as cosmos-reason-v1.0. `names_content`: some later
    step reads the media, so that a Git-LFS pointer need not be looked for here.
    """

    root: Path
    wanted: Wanted = field(default_factory=Wanted)
    enveloped: bool = False
    names_content: bool = False


@dataclass(slots=True)
class Scanned:
    """What a scan leaves behind: for each record, in order, hashes of its texts and sizes of its files.

    A size is in bytes, -1 where there is no file; a hash is 0 where there is no text. `complete` is
    false where `meta.json` could not be read to its end.
    """

    records: int = 0
    complete: bool = True
    ids: array[int] = field(default_factory=lambda: array("q"))
    media: array[int] = field(default_factory=lambda: array("q"))
    media_sizes: array[int] = field(default_factory=lambda: array("q"))
    conversations: array[int] = field(default_factory=lambda: array("q"))
    conversation_sizes: array[int] = field(default_factory=lambda: array("q"))
    questions: array[int] = field(default_factory=lambda: array("q"))


def scan(tree: Tree, emit: Emit) -> Scanned:
    """Check every record of the tree; findings go to `emit`, their paths relative to its root."""
    folder = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return _Scan(tree, folder, emit).run()
    finally:
        os.close(folder)


def media_files(tree: Tree) -> Iterator[str]:
    """The relative path of each media file that is there and not empty, once, in the records' order."""
    seen: set[int] = set()
    for entry in _entries(tree):
        name = entry.get("media") if isinstance(entry, dict) else None
        if isinstance(name, str) and hash(name) not in seen:
            seen.add(hash(name))
            safe = _below(tree.root, name)
            if safe is not None and _has_bytes(tree.root / safe):
                yield safe


def check_conversation_file(path: Path, wanted: Wanted, *, enveloped: bool = False) -> list[Finding]:
    """Check one conversation file by itself; nothing is known of its media."""
    findings: list[Finding] = []
    tree = Tree(path.parent, wanted, enveloped)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _Scan(tree, folder, findings.append).conversation(path.name, "")
    finally:
        os.close(folder)
    return findings


class _Scan:
    """One pass over a tree."""

    def __init__(self, tree: Tree, folder: int, emit: Emit) -> None:
        self.tree, self.folder, self.emit = tree, folder, emit
        self.seen = Scanned()
        self.reported: set[int] = set()
        self.prefix = "/samples" if tree.enveloped else ""
        self.census = Census()

    def run(self) -> Scanned:
        """Check each record, then what only shows when they are compared."""
        self.records()
        self.census.report(self.emit)
        seen, entries = self.seen, self.entries
        for findings in (
            guarded("repeated_ids", META, lambda: repeated_ids(seen, entries)),
            guarded("repeated_media", META, lambda: repeated_media(seen, entries)),
            guarded("common_texts", META, lambda: common_texts(seen, entries, self.question)),
        ):
            _emit_all(self.emit, findings)
        return seen

    def records(self) -> None:
        """Go through `meta.json` and every file that it names."""
        try:
            for piece in _pieces(self.tree, self.emit):
                for entry in piece:
                    self.entry(entry)
        except BrokenDocumentError as error:
            self.seen.complete = False
            _emit_all(self.emit, error.findings)
        except OSError as error:
            self.seen.complete = False
            self.emit(_unreadable(META, error))
        else:
            if not self.seen.records:
                self.emit(found("TAB008", META, "0 entries; expected 1 or more"))

    def entries(self, indices: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The entries at some positions, read again."""
        wanted = set(indices)
        if not wanted:
            return {}
        chosen = ((at, entry) for at, entry in enumerate(_entries(self.tree)) if at in wanted)
        return {at: entry for at, entry in chosen if isinstance(entry, dict)}

    def question(self, entry: Mapping[str, Any]) -> str:
        """The text of the user's turns of a record, read again."""
        document = parse(_read(entry["conversation"], self.folder), entry["conversation"])
        turns = document["conversations"] if isinstance(document, dict) else document
        return _question(read_turns(turns, "", "", self.tree.wanted))

    def entry(self, entry: Any) -> None:
        """Check one entry of `meta.json` and its files."""
        seen = self.seen
        index = seen.records
        seen.records = index + 1
        if not schemas.is_valid(ENTRY, entry):
            entry = self.broken_entry(index, entry)
        elif len(entry) != 3 or self.tree.enveloped:
            self.unusual_entry(index, entry)
        else:
            self.census.take_usual(index)
        name, media, path = entry["id"], entry["media"], entry["conversation"]
        if _is_odd(media):
            media = self.safe(index, "media", media)
        if _is_odd(path):
            path = self.safe(index, "conversation", path)
        seen.ids.append(hash(name) if name else 0)
        seen.media.append(hash(media) if media else 0)
        seen.media_sizes.append(self.media(index, media) if media else _UNKNOWN)
        size, question = self.conversation(path, media, index) if path else (_UNKNOWN, 0)
        seen.conversations.append(hash(path) if path else 0)
        seen.conversation_sizes.append(size)
        seen.questions.append(question)

    def broken_entry(self, index: int, entry: Any) -> dict[str, str]:
        """Report an entry that breaks its schema; what of it is text goes on."""
        _emit_all(self.emit, schemas.broken(ENTRY, entry, META, place=f"{self.prefix}/{index}"))
        self.census.take_odd(entry, index)
        given = entry if isinstance(entry, dict) else {}
        return {key: given[key] if isinstance(given.get(key), str) else "" for key in _KEYS}

    def unusual_entry(self, index: int, entry: dict[str, Any]) -> None:
        """Report keys that the layout does not have."""
        if self.tree.enveloped:
            for pointer, message in envelope.breaches_of_entry(entry):
                self.emit(found("TXT005", META, message, place=f"{self.prefix}/{index}{pointer}"))
        self.census.take_odd(entry, index)
        if self.tree.enveloped:
            return
        for key in sorted(entry.keys() - set(_KEYS)):
            self.emit(found("TXT007", META, "a key that the layout does not have", place=f"/{index}/{key}"))

    def safe(self, index: int, key: str, name: str) -> str:
        """The path below the root that a record's odd path names; reports one that leaves the root."""
        if not name:
            return ""
        place = f"{self.prefix}/{index}/{key}"
        if name.startswith("/"):
            self.emit(found("FIL012", META, f"{name!r}; expected a relative path", place=place))
        safe = _below(self.tree.root, name)
        if safe is None:
            self.emit(found("FIL011", META, f"{name!r} is not below the dataset's directory", place=place))
        return safe or ""

    def media(self, index: int, name: str) -> int:
        """Look at a record's media; its size in bytes."""
        try:
            state = os.stat(name, dir_fd=self.folder)
        except OSError as error:
            self.absent(index, "media", name, error)
            return _UNKNOWN
        size = state.st_size
        usual = size >= _POINTER_SIZE and state.st_mode & _KIND_AND_READABLE == _PLAIN_FILE
        if not usual and self.is_first(name):
            self.unusual_media(name, state)
        return size

    def unusual_media(self, name: str, state: os.stat_result) -> None:
        """Report media that is no file, is not readable, is empty, or is a Git-LFS pointer."""
        if not stat.S_ISREG(state.st_mode):
            self.emit(found("FIL014", name, "no regular file; expected media"))
        elif not state.st_mode & 0o444 or not os.access(name, os.R_OK, dir_fd=self.folder):
            mode = stat.filemode(state.st_mode)
            self.emit(found("FIL014", name, f"its mode is {mode}; expected read permission"))
        elif state.st_size == 0:
            self.emit(found("FIL002", name, "0 bytes; expected media"))
        elif not self.tree.names_content and (oid := lfs_oid(_read(name, self.folder))):
            self.emit(found("FIL001", name, f"the pointer names the object sha256:{oid}"))

    def is_first(self, name: str) -> bool:
        """Whether this faulty file is met for the first time: one fault, one finding."""
        before = len(self.reported)
        self.reported.add(hash(name))
        return len(self.reported) > before

    def absent(self, index: int, key: str, name: str, error: OSError) -> None:
        """Report a file that a record names and that is not to be had."""
        if not self.is_first(name) or (self.tree.root / name).is_symlink():
            return  # FIL010: the walk over the disk reports it
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            message = f"there is no such file; record {index + 1} of {META} names it as its {key}"
            self.emit(found("FIL005", name, message))
        else:
            self.emit(_unreadable(name, error))

    def conversation(self, path: str, media: str, index: int = 0) -> tuple[int, int]:
        """Check a conversation file: its size in bytes, and the hash of its question."""
        try:
            data = _read(path, self.folder)
        except OSError as error:
            self.absent(index, "conversation", path, error)
            return _UNKNOWN, 0
        try:
            document = orjson.loads(data)
        except orjson.JSONDecodeError:
            try:
                document = diagnosed(data, path)
            except BrokenDocumentError as error:
                _emit_all(self.emit, error.findings)
                return len(data), 0
        if not data.isascii():
            count = sum(byte > 127 for byte in data)
            self.emit(found("TXT008", path, f"{count} bytes beyond ASCII; expected JSON with ASCII escapes"))
        if self.tree.enveloped:
            document = self.unwrapped(document, path)
        question = plain_question(document, media, self.tree.wanted)
        if question is not None:
            self.census.take_plain(path)
            return len(data), hash(question)
        findings = shape_findings(document, path)
        if findings:
            _emit_all(self.emit, findings)
            return len(data), 0
        return len(data), self.turns(document, path, media)

    def turns(self, document: Any, path: str, media: str) -> int:
        """Apply every rule to a conversation that obeys its schema; the hash of its question."""
        turns = document["conversations"] if document.__class__ is dict else document
        facts = read_turns(turns, path, media, self.tree.wanted)
        for finding in applied(RULES, facts, path):
            self.emit(finding)
        self.census.take_turns(document, facts)
        return hash(_question(facts))

    def unwrapped(self, document: Any, path: str) -> Any:
        """The bare form of an enveloped conversation."""
        turns, breaches = envelope.unwrap(document, "conversation")
        bare = {"conversations": turns}
        if turns is not None and schemas.is_valid(CONVERSATION, bare):
            breaches = [*breaches, *envelope.breaches_of_turns(turns)]
        for pointer, message in breaches:
            self.emit(found("TXT005", path, message, place=pointer))
        return bare


def _emit_all(emit: Emit, findings: Iterable[Finding]) -> None:
    for finding in findings:
        emit(finding)


def _question(turns: Turns) -> str:
    if len(turns.questions) == 1:
        return turns.questions[0][1]
    return "\n".join(text for _, text in turns.questions)


def _pieces(tree: Tree, emit: Emit | None = None) -> Iterator[list[Any]]:
    if not tree.enveloped:
        yield from array_elements(tree.root / META, META)
        return
    items, breaches = envelope.unwrap(parse((tree.root / META).read_bytes(), META), "meta")
    findings = [found("TXT005", META, message, place=pointer) for pointer, message in breaches]
    if items is None:
        raise BrokenDocumentError(findings)
    if emit is not None:
        _emit_all(emit, findings)
    yield items


def _entries(tree: Tree) -> Iterator[Any]:
    """The entries that can be read, without a word on the others: the scan reported them."""
    try:
        for piece in _pieces(tree):
            yield from piece
    except (BrokenDocumentError, OSError):
        return


def _read(path: str, folder: int) -> bytes:
    descriptor = os.open(path, _FLAGS, dir_fd=folder)
    try:
        data = os.read(descriptor, _READ)
        if len(data) == _READ:
            with open(descriptor, "rb", closefd=False) as file:
                data += file.read()
    finally:
        os.close(descriptor)
    return data


def _is_odd(path: str) -> bool:
    """Whether a path is not plainly one below the root; most are, so this must cost little."""
    return path[:1] in "/." or "/." in path or "//" in path or "\0" in path or not path.isascii()


def _below(root: Path, name: str) -> str | None:
    """The path relative to the root, normal, or None where it leaves the root; judged on the text."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return None
    if "\0" in name:
        return None
    plain = os.path.normpath(os.path.relpath(name, root) if name.startswith("/") else name)
    return None if plain in (".", "..") or plain.startswith("../") else plain


def _has_bytes(path: Path) -> bool:
    try:
        state = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_size > 0


def _unreadable(path: str, error: OSError) -> Finding:
    if isinstance(error, FileNotFoundError):
        return found("FIL005", path, "there is no such file")
    return found("FIL014", path, f"{error.strerror or error}")
