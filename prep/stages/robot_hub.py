"""Robot data from the Hub: metadata first, into its cache; then exactly the files that the tables name.

A plan is made from the metadata alone, before anything is written below the out-root: which roots,
which files, how many bytes. Only then are the files placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prep import hub
from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.files import disk_errors, link_or_copy
from prep.layouts.lerobot import INFO
from prep.pool import map_threads
from prep.progress import bytes_text, progress
from prep.recipe import Recipe, Split
from prep.stages.options import RobotOptions
from prep.stages.payload import check_space
from prep.stages.robot_tree import Tree, tree_of

__all__ = ["HubPlan", "plan_fetch"]

_SHOWN = 20


@dataclass(slots=True)
class HubPlan:
    """What is to come from the Hub: `tree` stands in the Hub's cache, its metadata alone.

    `metadata` and `needed` are paths in the dataset; `start` is what precedes them in the
    repository. `left_out` are the data and video files that are not fetched: all with metadata only.
    `files` and `bytes` count what was placed, or will be.
    """

    listing: hub.Listing
    start: str
    tree: Tree
    metadata: list[str]
    needed: list[str]
    left_out: list[str]
    files: int = 0
    bytes: int = 0
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """The source as the manifest states it."""
        listing = self.listing
        return {
            "kind": "hub",
            "repo": listing.repo,
            "asked": listing.asked,
            "commit": listing.commit,
        }

    def size(self, name: str) -> int:
        """The bytes of a file; raises if the repository does not hold what its tables need."""
        listing = self.listing
        entry = listing.files.get(f"{self.start}{name}")
        if entry is not None:
            return entry.size or 0
        if not listing.verified:
            raise EnvironmentLacksError(
                f"{listing.repo}: {name} is not in the Hub's cache, and the Hub may not be asked.",
                remedy="Run the same command without --offline on a machine that reaches the Hub.",
            )
        raise PrepError(
            f"{listing.repo}@{listing.commit} has no {name}, which its episode table needs.",
            remedy="Name another revision in a recipe of your own, or index with --metadata-only.",
        )

    def bytes_left_out(self) -> int | None:
        """The bytes of what is not fetched; None if the listing does not tell, as offline."""
        entries = [self.listing.files.get(f"{self.start}{name}") for name in self.left_out]
        sizes = [entry.size for entry in entries if entry is not None and entry.size is not None]
        return sum(sizes) if len(sizes) == len(self.left_out) else None

    def weigh(self, root: Path, options: RobotOptions) -> None:
        """Count what is not yet in `root`; raises UsageError with the exact bytes beyond the limit."""
        wanted = [name for name in (*self.metadata, *self.needed) if not self._is_there(root, name)]
        self.files, self.bytes = len(wanted), sum(self.size(name) for name in wanted)
        costly = set(self.needed)
        total = sum(self.size(name) for name in wanted if name in costly)
        if total > options.max_download:
            raise UsageError(
                f"{self.listing.repo}: {total} bytes ({bytes_text(total)}) are needed, more than "
                f"--max-download {options.max_download} ({bytes_text(options.max_download)}).",
                remedy="Allow them with --max-download, take less with --include, or index with "
                "--metadata-only.",
            )

    def fetch(self, root: Path, options: RobotOptions) -> None:
        """Place every file below `root`; what is there already is not asked for again."""
        wanted = [name for name in self.needed if not self._is_there(root, name)]
        check_space(root, sum(self.size(name) for name in wanted), 2 * len(wanted))
        for label, names in (("metadata", self.metadata), ("data and videos", self.needed)):
            with progress(label, len(names), quiet=options.quiet) as bar:
                for _, size in map_threads(
                    lambda name: self._place(root, name, options),
                    names,
                    jobs=options.jobs,
                    cancel=options.cancel,
                ):
                    bar.received(size)
                    bar.advance()
        entries = {name: self.listing.files[f"{self.start}{name}"] for name in self.needed}
        self.hashes = {name: entry.sha256 for name, entry in entries.items() if entry.sha256}

    def _place(self, root: Path, name: str, options: RobotOptions) -> int:
        target = root / name
        if not self._is_there(root, name):
            source = hub.download(self.listing, f"{self.start}{name}", offline=options.offline)
            with disk_errors(target):
                link_or_copy(source, target)
        return self.size(name)

    def _is_there(self, root: Path, name: str) -> bool:
        target = root / name
        return target.is_file() and target.stat().st_size == self.size(name)


def plan_fetch(recipe: Recipe, part: Split, options: RobotOptions, revision: str | None = None) -> HubPlan:
    """List the repository, read the metadata of the roots that are wanted, and name their files.

    Raises UsageError if the recipe has no repository, or nothing in it is what is asked for.
    """
    if part.repo is None:
        raise UsageError(
            "This recipe names no Hub repository.",
            remedy="Give the tree with --root, as in --root /data/my_robot.",
        )
    listing = hub.listing(part.repo, revision or part.revision, offline=options.offline)
    start = f"{part.folder}/" if part.folder else ""
    names = [name[len(start) :] for name in listing.files if name.startswith(start)]
    there = [name.removesuffix(INFO).rstrip("/") for name in names if f"/{name}".endswith(f"/{INFO}")]
    roots = [name for name in there if _is_wanted(name, recipe, options.include)]
    if not roots:
        raise _nothing_wanted(part.repo, there, recipe, options.include)
    metadata = [name for root in roots for name in names if name.startswith(f"{root}/meta/".lstrip("/"))]
    folder = _cached(listing, start, metadata, options)
    tree = tree_of(folder, roots)
    payload = list(_needed(tree))
    needed, left_out = ([], payload) if options.metadata_only else (payload, [])
    return HubPlan(listing, start, tree, metadata, needed, left_out)


def _is_wanted(root: str, recipe: Recipe, include: str | None) -> bool:
    """Whether a root is of the recipe's groups, and of the group or institution asked for."""
    groups = recipe.document["roots"].get("groups")
    parts = root.split("/")
    return (not root or groups is None or parts[0] in groups) and (include is None or include in parts)


def _nothing_wanted(repo: str, there: Sequence[str], recipe: Recipe, include: str | None) -> UsageError:
    shown = ", ".join(there[:_SHOWN]) or "no LeRobot tree"
    groups = recipe.document["roots"].get("groups")
    if include is not None and any(include in name.split("/") for name in there):
        return UsageError(
            f"The recipe {recipe.name} reads {' and '.join(groups)}; {include} is none of it.",
            remedy="Take another --recipe, or another --include.",
        )
    return UsageError(
        f"{repo} has no metadata for {include or 'this dataset'}.", remedy=f"It holds: {shown}."
    )


def _cached(listing: hub.Listing, start: str, metadata: Sequence[str], options: RobotOptions) -> Path:
    """The folder in the Hub's cache that the metadata of all wanted roots stands in."""

    def one(name: str) -> Path:
        return hub.download(listing, f"{start}{name}", offline=options.offline)

    folder = Path()
    with progress("metadata", len(metadata), quiet=options.quiet) as bar:
        for name, path in map_threads(one, metadata, jobs=options.jobs, cancel=options.cancel):
            folder = path.parents[name.count("/")]
            bar.advance()
    return folder


def _needed(tree: Tree) -> Iterator[str]:
    for name, root in tree.roots:
        start = "" if tree.form == "flat" else f"{name}/"
        for _, relative, _ in root.needed_files():
            yield f"{start}{relative}"
