"""Where a snapshot's rows come from: parquet of a Hub dataset or a local copy, by subset and split."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prep import hub
from prep.errors import EnvironmentLacksError, FetchError, UsageError
from prep.files import sha256_of, size_of
from prep.layouts.hub_card import CARD, Subset, subsets_in
from prep.recipe import Recipe, Split
from prep.stages.snapshot_options import SnapshotOptions
from prep.stages.snapshot_table import ImageTable
from prep.stages.sources import given_source, taken_for_hub

__all__ = [
    "Source",
    "asked_source",
    "chosen_subset",
    "completed",
    "lacking",
    "open_source",
    "subsets_of",
]

_COUNTED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?\.parquet")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Source:
    """Parquet files with a card: of a Hub dataset at one commit, or below a local folder.

    `local` are the paths below `folder`, which is only read; `split` is the one that they are of, where
    the recipe names one file. A `table` that names image files is made into parquet when it is opened.
    """

    listing: hub.Listing | None = None
    folder: Path = Path()
    local: tuple[str, ...] = ()
    offline: bool = False
    split: str = ""
    table: ImageTable | None = None

    @property
    def is_verified(self) -> bool:
        """Whether the files are all that the source has, not only those that the Hub's cache holds."""
        return self.listing is None or self.listing.verified

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
        if self.table is not None:
            return {self.table.name: self.table.size()}
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
        """A file on this machine: where it is, in the Hub's cache, or fetched or made in `folder`.

        Raises EnvironmentLacksError for one that is not in the cache while the Hub may not be asked.
        """
        if self.table is not None:
            return self.table.embed(folder)
        if self.listing is None:
            return self.folder / path
        if not self.is_verified and path not in self.listing.files:
            raise lacking(self.listing.repo, [path])
        return hub.download_into(self.listing, path, folder, offline=self.offline)

    def sha256(self, path: str, opened: Path) -> str:
        """The digest of an opened file: the listing's, against which the bytes were checked, or computed."""
        stated = self.listing.files[path].sha256 if self.listing is not None else None
        return stated or sha256_of(opened)


def asked_source(split: Split, options: SnapshotOptions) -> str:
    """The source as a manifest may keep it: `owner/name[@revision]`, or `local`.

    Raises UsageError for a local path that is not there.
    """
    if options.source is not None:
        return given_source(options.source)
    if split.table is not None:
        return "local"
    return f"{split.repo}@{split.revision}" if split.revision else str(split.repo)


def open_source(recipe: Recipe, split: Split, options: SnapshotOptions, commit: str | None) -> Source:
    """The source that is asked for; a Hub source at `commit` if an earlier run resolved it to that.

    Raises UsageError for a path that is not there, and as the Hub does.
    """
    asked = asked_source(split, options)
    if asked == "local":
        return _local(Path(options.source).expanduser()) if options.source else _named(recipe, split)
    if options.source is None and split.repo is None:
        raise UsageError(
            f"The recipe {recipe.name} names no source.",
            remedy="Name one in it as `table` or `repo`, or give --source.",
        )
    if asked.startswith((".", "/", "~")) or asked.count("/") != 1:
        raise UsageError(
            f"The source {asked!r} is neither on this disk nor owner/name.",
            remedy="Give a folder or parquet file that exists, or owner/name, or owner/name@revision.",
        )
    repo, revision = hub.parse_source(asked)
    with taken_for_hub(options.source):
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


def _named(recipe: Recipe, split: Split) -> Source:
    """The table or folder that a recipe names; a file is all of the split, whatever its name is."""
    table = ImageTable.of(recipe, split)
    if table is not None:
        table.check()
        return Source(split=split.name, table=table)
    path = recipe.folder / str(split.table)
    return replace(_local(path), split=split.name if path.is_file() else "")


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
    if source.split:
        return {"default": Subset("default", {source.split: list(source.sizes())})}
    return subsets_in(source.card(), list(source.sizes()))


def completed(names: Sequence[str]) -> list[str]:
    """Every file of the splits whose names count them, `train-00001-of-00003.parquet`, cached or not.

    For a listing of the Hub's cache alone: a split of which a part is there must not pass for whole.
    """
    found: dict[tuple[str, int], dict[int, str]] = {}
    plain = []
    for name in names:
        match = _COUNTED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            found.setdefault((match[1], int(match[3])), {})[int(match[2])] = name
    return plain + [
        there.get(at, f"{start}-{at:05d}-of-{count:05d}.parquet")
        for (start, count), there in found.items()
        for at in range(count)
    ]


def lacking(repo: str, names: Sequence[str]) -> EnvironmentLacksError:
    """What is said of files that are not in the Hub's cache, while the Hub may not be asked."""
    more = f", nor are {len(names) - 1} files more" if len(names) > 1 else ""
    return EnvironmentLacksError(
        f"{repo}: {names[0]} is not in the cache {hub.cache_folder()}{more}, and the Hub may not be asked.",
        remedy="Run the same command with --download-only on a machine that reaches the Hub, "
        "with the same HF_HOME.",
    )


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
