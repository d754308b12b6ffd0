"""Where a snapshot's rows come from: parquet of a Hub dataset or a local copy, by subset and split."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep import hub
from prep.errors import FetchError, UsageError
from prep.files import sha256_of, size_of
from prep.layouts.hub_card import CARD, Subset, subsets_in
from prep.recipe import Split
from prep.stages.snapshot_options import SnapshotOptions

__all__ = ["Source", "asked_source", "chosen_subset", "open_source", "subsets_of"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Source:
    """Parquet files with a card: of a Hub dataset at one commit, or below a local folder.

    `local` are the paths below `folder`, which is only read.
    """

    listing: hub.Listing | None = None
    folder: Path = Path()
    local: tuple[str, ...] = ()
    offline: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """The source as the manifest states it, without the file, and with nothing of this machine."""
        if self.listing is None:
            return {"kind": "local"}
        listing = self.listing
        return {
            "kind": "hub",
            "repo": listing.repo,
            "asked": listing.asked,
            "commit": listing.commit,
        }

    def sizes(self) -> Mapping[str, int]:
        """Each parquet file's path and bytes."""
        if self.listing is None:
            return {name: size_of(self.folder / name) or 0 for name in self.local}
        entries = self.listing.files.items()
        return {path: entry.size or 0 for path, entry in entries if path.endswith(".parquet")}

    def card(self) -> Path | None:
        """The card, if there is one; the Hub's comes into its cache."""
        if self.listing is None:
            return self.folder / CARD if (self.folder / CARD).is_file() else None
        return hub.download(self.listing, CARD, offline=self.offline) if CARD in self.listing.files else None

    def open(self, path: str, folder: Path) -> Path:
        """A file on this machine: where it is, in the Hub's cache, or fetched into `folder`."""
        if self.listing is None:
            return self.folder / path
        return hub.download_into(self.listing, path, folder, offline=self.offline)

    def sha256(self, path: str, opened: Path) -> str:
        """The digest of an opened file: the listing's, against which the bytes were checked, or computed."""
        stated = self.listing.files[path].sha256 if self.listing is not None else None
        return stated or sha256_of(opened)


def asked_source(split: Split, options: SnapshotOptions) -> str:
    """The source as a manifest may keep it: `owner/name[@revision]`, or `local`."""
    if options.source is not None:
        return "local" if Path(options.source).expanduser().exists() else options.source
    if split.table is not None:
        return "local"
    return f"{split.repo}@{split.revision}" if split.revision else str(split.repo)


def open_source(split: Split, options: SnapshotOptions, folder: Path, commit: str | None) -> Source:
    """The source that is asked for; a Hub source at `commit` if an earlier run resolved it to that.

    `folder` is the recipe's own. Raises UsageError for a path that is not there, and as the Hub does.
    """
    asked = asked_source(split, options)
    if asked == "local":
        path = Path(options.source).expanduser() if options.source else folder / str(split.table)
        return _local(path)
    if asked.startswith((".", "/", "~")) or asked.count("/") != 1:
        raise UsageError(
            f"The source {asked!r} is neither on this disk nor owner/name.",
            remedy="Give a folder or parquet file that exists, or owner/name, or owner/name@revision.",
        )
    repo, revision = hub.parse_source(asked)
    listing = hub.listing(repo, commit or revision, offline=options.offline)
    if commit is not None and listing.asked != revision:
        listing = hub.Listing(
            repo,
            listing.repo_type,
            revision,
            listing.commit,
            listing.files,
            listing.license,
            listing.verified,
        )
    return Source(listing, offline=options.offline)


def _local(path: Path) -> Source:
    if path.is_file():
        return Source(folder=path.parent, local=(path.name,))
    if not path.is_dir():
        raise UsageError(f"There is no source at {path}.", remedy="Give a folder or a parquet file.")
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.parquet") if file.is_file())
    visible = tuple(name for name in names if not any(part.startswith(".") for part in name.split("/")))
    if not visible:
        raise UsageError(f"{path} holds no parquet file.", remedy="Give the folder of a downloaded dataset.")
    return Source(folder=path, local=visible)


def subsets_of(source: Source) -> dict[str, Subset]:
    """The subsets that a source has; raises PrepError for a card that cannot be read."""
    return subsets_in(source.card(), list(source.sizes()))


def chosen_subset(subsets: Mapping[str, Subset], name: str, split: str, where: str) -> list[str]:
    """The files of a subset's split; raises UsageError with the nearest names, FetchError if it has none."""
    if name not in subsets:
        close = difflib.get_close_matches(name, subsets, n=3) or list(subsets)[:_SHOWN]
        close += [each for each in subsets if each.casefold() == name.casefold() and each not in close]
        raise UsageError(
            f"{where} has no subset {name!r} among its {len(subsets)}.",
            remedy=f"Near it: {', '.join(close)}. `--subset list` shows all.",
        )
    files = subsets[name].files
    if split not in files:
        raise UsageError(
            f"The subset {name!r} has no split {split!r}.", remedy=f"It has: {', '.join(files) or 'none'}."
        )
    if not files[split]:
        raise FetchError(
            "missing_file",
            f"{where}: the card names no parquet file that is there for the subset {name!r}.",
            transient=False,
            remedy="Name another revision with --source owner/name@revision.",
        )
    return files[split]
