"""Payload: found again by source and content, fetched where it is missing, moved to its names.

Payload is costly, so it is never rewritten and never deleted without `--prune`. Fetched
content waits in the run's own folder under its sha256; only when all is there do files
move to their names, so that a run that fails leaves a finished dataset as it was.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prep.container import check_structure
from prep.errors import FetchError, IncompleteError, UsageError
from prep.fetch import UrlFetcher
from prep.files import disk_errors, free_space, is_partial, link_or_copy, move, sync_folder
from prep.manifest import STATE, Manifest
from prep.pool import map_threads
from prep.progress import bytes_text, counted, progress
from prep.stages.options import Options
from prep.workspace import Content, Workspace

__all__ = [
    "Gathered",
    "Store",
    "bring",
    "check_space",
    "estimate_bytes",
    "fetcher_for",
    "gather",
    "link_from",
    "place",
    "prune",
    "seed",
    "walk_files",
]

HEADS = 32
"""How many sizes are asked for to estimate the space of files whose size no listing states."""

Mirrors = Sequence[tuple[str, str]]

_RESUMABLE = 1 << 20  # bytes; a shorter body is sooner fetched anew than resumed in a later run
_SPARE_BYTES = 64 << 20
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_SYNC_SECONDS = 5.0  # the most work that a power cut, unlike a kill, makes to be done again


def walk_files(root: Path) -> Iterator[str]:
    """Each file below `root`, as a relative path, without the folder of our own notes."""
    for folder, names, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative == ".":
            names[:] = sorted(name for name in names if name != STATE)
        names.sort()
        yield from (name if relative == "." else f"{relative}/{name}" for name in sorted(files))


@dataclass(slots=True)
class Store:
    """Where each content stands now: by sha256 in the run's folders, by path in the dataset."""

    waiting: dict[str, Path] = field(default_factory=dict)
    placed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def look(cls, workspace: Workspace, is_payload: Callable[[str], bool]) -> Store:
        """Look at the disk; a file that the ledger does not know is hashed."""
        store = cls()
        for folder in (workspace.unused, workspace.incoming):
            if folder.is_dir():
                store.waiting.update((path.name, path) for path in folder.iterdir() if len(path.name) == 64)
        for relative in walk_files(workspace.root):
            path = workspace.root / relative
            if is_payload(relative) and path.is_file():
                store.placed[relative] = workspace.ledger.content_of(path)
        return store

    def contents(self) -> set[str]:
        """The sha256 of everything that is there."""
        return self.waiting.keys() | set(self.placed.values())


def bring(source: Path, target: Path) -> None:
    """Link or copy a file into place; raises IncompleteError, which names the file that is at fault."""
    with disk_errors(target):
        try:
            link_or_copy(source, target)
        except OSError as error:
            if error.errno in _FULL:  # the standard library's copy names the source for these too
                raise OSError(error.errno, error.strerror, str(target)) from error
            raise


def seed(workspace: Workspace, manifest: Manifest) -> None:
    """Tell the ledger what a finished dataset holds, so that its manifest is no longer needed for that."""
    sizes = {row.path: row.size for row in manifest.files()}
    for record in manifest.records():
        if record.media is None or record.media_sha256 is None:
            continue
        path = workspace.root / record.media
        size = sizes[record.media]
        if path.is_file() and path.stat().st_size == size:
            workspace.ledger.fetched(record.source, Content(record.media_sha256, size), path)
    workspace.ledger.sync()


def reused_manifest(other: Path) -> Manifest:
    """The manifest of the dataset whose clips --reuse shares; UsageError where there is none."""
    manifest = Manifest.load(other)
    if manifest is None:
        raise UsageError(
            f"{other} has no manifest to reuse.",
            remedy="Give an out-root to --reuse that holds the finished dataset of each split.",
        )
    return manifest


def link_from(workspace: Workspace, other: Path, wanted: set[str]) -> int:
    """Link the payload of another prepared dataset that `wanted` sources name; returns how many."""
    manifest = reused_manifest(other)
    linked = 0
    sizes = {row.path: row.size for row in manifest.files()}
    for record in manifest.records():
        if record.media is None or record.media_sha256 is None or record.source not in wanted:
            continue
        path = other / record.media
        size = sizes[record.media]
        if record.source in workspace.ledger.sources or not path.is_file() or path.stat().st_size != size:
            continue
        target = workspace.stored(record.media_sha256)
        bring(path, target)
        workspace.ledger.fetched(record.source, Content(record.media_sha256, size), target)
        linked += 1
    return linked


@dataclass(slots=True)
class Gathered:
    """What fetching gave: the files and bytes that came, and why the others did not."""

    files: int = 0
    bytes: int = 0
    failures: dict[str, FetchError] = field(default_factory=dict)


def fetcher_for(options: Options, *, local: Mirrors = (), attempts: int | None = None) -> UrlFetcher:
    """A fetcher as the options want it.

    `local` are the folders of local media that may be read, as mirrors to themselves; `attempts`
    may be fewer where an answer is only nice to have.
    """
    return UrlFetcher(
        timeout=options.timeout,
        attempts=attempts or options.attempts,
        mirrors=(*options.mirrors, *local),
        cancel=options.cancel,
    )


def gather(
    workspace: Workspace,
    sources: Sequence[str],
    address: Callable[[str], str],
    options: Options,
    label: str,
    local: Mirrors = (),
) -> Gathered:
    """Fetch each source into the run's folder; a failure is kept with its source, not raised.

    Raises IncompleteError when the run is told to stop, loses its lock, or cannot write.
    """
    gathered = Gathered()
    synced = time.monotonic()
    with (
        fetcher_for(options, local=local) as fetcher,
        progress(label, len(sources), quiet=options.quiet) as bar,
    ):

        def fetch_one(source: str) -> Content | FetchError:
            _stop_if_lost(workspace)
            try:
                return _fetch(workspace, fetcher, source, address(source), bar.received)
            except FetchError as error:
                return error

        for source, outcome in map_threads(fetch_one, sources, jobs=options.jobs, cancel=options.cancel):
            bar.advance()
            if time.monotonic() - synced > _SYNC_SECONDS:
                workspace.ledger.sync()
                synced = time.monotonic()
            if isinstance(outcome, FetchError):
                gathered.failures[source] = outcome
            else:
                gathered.files += 1
                gathered.bytes += outcome.size
    with disk_errors(workspace.incoming):
        sync_folder(workspace.incoming)
        workspace.ledger.sync()
    return gathered


def _fetch(
    workspace: Workspace, fetcher: UrlFetcher, source: str, url: str, received: Callable[[int], None]
) -> Content:
    part = workspace.part(source)

    def started(etag: str | None, size: int | None) -> None:
        if etag and size is not None and size >= _RESUMABLE:
            workspace.ledger.start(source, etag)

    etag = workspace.ledger.started.get(source) if part.exists() else None
    fetched = fetcher.fetch(url, part, resume_etag=etag, on_start=started, on_bytes=received)
    for finding in check_structure(part):
        if finding.severity == "error":
            with disk_errors(part):
                part.unlink()
            raise FetchError("broken_media", f"{url}: {finding.message}.", transient=False)
    content = Content(fetched.sha256, fetched.size)
    target = workspace.stored(content.sha256)
    with disk_errors(target):
        part.replace(target)
        workspace.ledger.fetched(source, content, target)
    return content


def estimate_bytes(urls: Sequence[str], options: Options, local: Mirrors = ()) -> int | None:
    """The bytes of all `urls`, estimated from at most HEADS of them; None if no server tells."""
    step = max(1, len(urls) // HEADS)
    sampled = urls[::step][:HEADS]
    with fetcher_for(options, local=local, attempts=1) as fetcher:

        def size_of(url: str) -> int | None:
            try:
                return fetcher.size(url)
            except FetchError:
                return None

        sizes = [size for _, size in map_threads(size_of, sampled, jobs=options.jobs, cancel=options.cancel)]
    stated = [size for size in sizes if size is not None]
    return round(sum(stated) / len(stated) * len(urls)) if stated else None


def check_space(root: Path, need_bytes: int, need_files: int) -> None:
    """Raise IncompleteError if the file system at `root` has not the bytes or inodes that are needed."""
    free = free_space(root)
    if free.bytes < need_bytes + _SPARE_BYTES:
        raise IncompleteError(
            f"{root}: {bytes_text(free.bytes)} free, about {bytes_text(need_bytes + _SPARE_BYTES)} needed "
            f"({bytes_text(need_bytes)} of files, {bytes_text(_SPARE_BYTES)} to spare).",
            remedy="Free some space or give another --out-root, then run the same command again.",
        )
    if free.files is not None and free.files < need_files:
        raise IncompleteError(
            f"{root}: {free.files} files can still be made, {need_files} are needed.",
            remedy="Free some inodes or give another --out-root, then run the same command again.",
        )


def place(workspace: Workspace, wanted: Mapping[str, str], store: Store) -> None:
    """Move content to its names: `wanted` maps each path of the dataset to a sha256.

    A file whose content belongs elsewhere waits in the run's folder first, so that names may be
    exchanged; one that nobody wants any more goes to `unused/`. May be stopped at any point and
    done again.
    """
    needed = set(wanted.values())
    _remove_partials(workspace)
    for relative, sha256 in list(store.placed.items()):
        if wanted.get(relative) != sha256:
            _stop_if_lost(workspace)
            folder = workspace.incoming if sha256 in needed else workspace.unused
            move(workspace.root / relative, folder / sha256)
            store.waiting[sha256] = folder / sha256
            del store.placed[relative]
    missing = {relative: sha256 for relative, sha256 in wanted.items() if relative not in store.placed}
    folders = {(workspace.root / relative).parent for relative in missing}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    uses = Counter(missing.values())
    twins = {sha256: relative for relative, sha256 in store.placed.items()}
    for relative, sha256 in missing.items():
        _stop_if_lost(workspace)
        _give(workspace.root, store, twins, relative, sha256, last=uses[sha256] == 1)
        uses[sha256] -= 1
        store.placed[relative] = sha256
        twins[sha256] = relative
    for sha256, path in store.waiting.items():
        if path.parent != workspace.incoming or not path.exists():
            continue
        if sha256 in needed:
            path.unlink()  # a second copy of what has its name
        else:
            move(path, workspace.unused / sha256)
    for folder in folders:
        sync_folder(folder)


def _remove_partials(workspace: Workspace) -> None:
    """Remove what runs that were killed were writing; what this run writes may have other names."""
    for relative in walk_files(workspace.root):
        if is_partial(relative.rpartition("/")[2]):
            (workspace.root / relative).unlink()


def _stop_if_lost(workspace: Workspace) -> None:
    if workspace.lock.lost.is_set():
        workspace.lock.check()


def _give(
    root: Path, store: Store, twins: Mapping[str, str], target: str, sha256: str, *, last: bool
) -> None:
    """Put content under the name `target`: moved if nobody else waits for it, else linked."""
    waiting = store.waiting.get(sha256)
    if waiting is not None and last:
        waiting.replace(root / target)
        del store.waiting[sha256]
    else:
        link_or_copy(waiting or root / twins[sha256], root / target)


def prune(workspace: Workspace, *, quiet: bool) -> str:
    """Delete the payload that the dataset no longer names; says how much it is before and after."""
    unused = list(workspace.unused.iterdir()) if workspace.unused.is_dir() else []
    size = sum(path.stat().st_size for path in unused)
    much = f"{counted(len(unused), 'unused file')}, {bytes_text(size)}"
    if unused and not quiet:
        sys.stderr.write(f"Deleting {much}, of {workspace.root}\n")
    with disk_errors(workspace.unused):
        for path in unused:
            path.unlink()
    return f"pruned {much}"
