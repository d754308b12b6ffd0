"""Robot data from the Hub: metadata first, then exactly the files that the episode tables name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prep import hub
from prep.errors import IncompleteError, UsageError
from prep.files import disk_errors, link_or_copy
from prep.layouts.lerobot import INFO, version_of
from prep.pool import map_threads
from prep.progress import bytes_text, progress
from prep.recipe import Split
from prep.stages.options import RobotOptions
from prep.stages.payload import check_space
from prep.stages.robot_tree import find_tree

__all__ = ["HubTree", "fetch_tree"]


@dataclass(slots=True)
class HubTree:
    """What was fetched into a folder: the listing's facts, and the bytes and files that came."""

    facts: dict[str, Any]
    files: int = 0
    bytes: int = 0
    hashes: dict[str, str] = field(default_factory=dict)


def fetch_tree(part: Split, folder: Path, options: RobotOptions) -> HubTree:
    """Fetch a dataset of the Hub into `folder`, metadata alone if `options.metadata_only`.

    Raises UsageError, with the exact bytes, if more than `options.max_download` is needed.
    """
    if part.repo is None:
        raise UsageError(
            "This recipe names no Hub repository.",
            remedy="Give the tree with --root, as in --root /data/my_robot.",
        )
    listing = hub.listing(part.repo, part.revision, offline=options.offline)
    start = f"{part.folder}/" if part.folder else ""
    names = [name for name in listing.files if name.startswith(start)]
    metadata = list(_metadata(names, start, options.include))
    if not metadata:
        groups = sorted({name[len(start) :].split("/")[0] for name in names})
        raise UsageError(
            f"{part.repo} has no metadata for {options.include or 'this dataset'}.",
            remedy=f"It holds: {', '.join(groups[:20])}.",
        )
    facts = {"repo": part.repo, "asked": part.revision, "commit": listing.commit, "verified": listing.verified,
             "license": listing.license}  # fmt: skip
    result = HubTree({"kind": "hub", **facts})
    _download(listing, metadata, start, folder, options, result, "metadata")
    if options.metadata_only:
        return result
    needed = [f"{start}{name}" for name in _needed(folder)]
    total = sum(_size(listing, name) for name in needed)
    if total > options.max_download:
        raise UsageError(
            f"{part.repo}: {total} bytes ({bytes_text(total)}) are needed, more than --max-download "
            f"{options.max_download} ({bytes_text(options.max_download)}).",
            remedy="Allow them with --max-download, take less with --include, or index with --metadata-only.",
        )
    check_space(folder, total, 2 * len(needed))
    _download(listing, needed, start, folder, options, result, "data and videos")
    return result


def _metadata(names: Sequence[str], start: str, include: str | None) -> Iterator[str]:
    """The meta/ files of the roots that are wanted: all, a group, or an institution."""
    for name in names:
        parts = name[len(start) :].split("/")
        if "meta" in parts and (include is None or include in parts[: parts.index("meta")]):
            yield name


def _needed(folder: Path) -> Iterator[str]:
    for _, root in find_tree(folder).roots:
        below = root.path.relative_to(folder).as_posix()
        for _, relative, _ in root.needed_files():
            yield relative if below == "." else f"{below}/{relative}"


def _size(listing: hub.Listing, name: str) -> int:
    entry = listing.files.get(name)
    if entry is None:
        raise IncompleteError(
            f"{listing.repo} has no {name}, which its episode table needs.", remedy="Try another revision."
        )
    return entry.size or 0


def _download(
    listing: hub.Listing,
    names: Sequence[str],
    start: str,
    folder: Path,
    options: RobotOptions,
    result: HubTree,
    label: str,
) -> None:
    def one(name: str) -> int:
        target = folder / name[len(start) :]
        size = listing.files[name].size
        if not (target.is_file() and target.stat().st_size == size):
            with disk_errors(target):
                link_or_copy(hub.download(listing, name, offline=options.offline), target)
        return target.stat().st_size

    with progress(label, len(names), quiet=options.quiet) as bar:
        for name, size in map_threads(one, names, jobs=options.jobs, cancel=options.cancel):
            bar.received(size)
            bar.advance()
            result.files += 1
            result.bytes += size
            sha256 = listing.files[name].sha256
            if sha256 is not None:
                result.hashes[name[len(start) :]] = sha256


def holds_root(folder: Path) -> bool:
    """Whether a folder already holds a tree, at its top or in its groups."""
    return any(
        version_of(path) is not None for path in (folder, folder / "success", folder / "failure")
    ) or any(
        (folder / group).is_dir() and any((folder / group).glob(f"*/{INFO}"))
        for group in ("success", "failure")
    )
