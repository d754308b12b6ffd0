"""Where a snapshot's rows come from: parquet files of a Hub dataset or of a local copy, by subset and split."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from prep import hub
from prep.errors import FetchError, PrepError, UsageError
from prep.files import sha256_of, size_of
from prep.recipe import Split
from prep.stages.snapshot_options import SnapshotOptions

__all__ = ["HubSource", "LocalSource", "Source", "Subset", "asked_source", "chosen_subset", "open_source"]

CARD = "README.md"
_SPLIT_FILE = re.compile(
    r"(?:(?P<folder>.*)/)?(?P<split>[A-Za-z0-9_]+)(?:-\d+-of-\d+(?:-[0-9a-f]+)?|/[^/]+)\.parquet"
)
_SHOWN = 20


@dataclass(slots=True)
class Subset:
    """A subset ("config" on the Hub): the parquet files of each split in order, and what the card says of rows."""

    name: str
    files: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


class Source(Protocol):
    """A set of parquet files with a card."""

    facts: Mapping[str, Any]

    def sizes(self) -> Mapping[str, int]:
        """Each file's path and bytes."""

    def card(self, *, offline: bool) -> Path | None:
        """The card, if there is one."""

    def open(self, path: str, folder: Path, *, offline: bool) -> Path:
        """The file on this machine; one that had to be fetched stands below `folder`."""

    def sha256(self, path: str, opened: Path) -> str:
        """The digest of a file that was opened."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """A Hub dataset at one commit."""

    listing: hub.Listing

    @property
    def facts(self) -> dict[str, Any]:
        """The source as the manifest states it, without the file."""
        listing = self.listing
        return {
            "kind": "hub",
            "repo": listing.repo,
            "asked": listing.asked,
            "commit": listing.commit,
            "verified": listing.verified,
            "license": listing.license,
        }

    def sizes(self) -> Mapping[str, int]:
        """Each file's path and bytes, by the listing."""
        return {path: entry.size or 0 for path, entry in self.listing.files.items()}

    def card(self, *, offline: bool) -> Path | None:
        """The card, in the Hub's cache."""
        return hub.download(self.listing, CARD, offline=offline) if CARD in self.listing.files else None

    def open(self, path: str, folder: Path, *, offline: bool) -> Path:
        """The file, from the cache or fetched into `folder`; its bytes are those of the listing."""
        return hub.download_into(self.listing, path, folder, offline=offline)

    def sha256(self, path: str, opened: Path) -> str:
        """The digest that the listing states, against which the bytes were checked; else computed."""
        return self.listing.files[path].sha256 or sha256_of(opened)


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A folder with parquet files and maybe a card, or one parquet file; only read."""

    folder: Path
    names: tuple[str, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """The source as the manifest states it: nothing of this machine."""
        return {"kind": "local"}

    def sizes(self) -> Mapping[str, int]:
        """Each file's path and bytes."""
        return {name: size_of(self.folder / name) or 0 for name in self.names}

    def card(self, *, offline: bool) -> Path | None:
        """The folder's README.md."""
        return self.folder / CARD if (self.folder / CARD).is_file() else None

    def open(self, path: str, folder: Path, *, offline: bool) -> Path:
        """The file where it is."""
        return self.folder / path

    def sha256(self, path: str, opened: Path) -> str:
        """The digest of the file's bytes."""
        return sha256_of(opened)


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
    return HubSource(listing)


def _local(path: Path) -> LocalSource:
    if path.is_file():
        return LocalSource(path.parent, (path.name,))
    if not path.is_dir():
        raise UsageError(f"There is no source at {path}.", remedy="Give a folder or a parquet file.")
    names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*.parquet") if file.is_file())
    visible = tuple(name for name in names if not any(part.startswith(".") for part in name.split("/")))
    if not visible:
        raise UsageError(f"{path} holds no parquet file.", remedy="Give the folder of a downloaded dataset.")
    return LocalSource(path, visible)


def subsets_of(source: Source, *, offline: bool) -> dict[str, Subset]:
    """The subsets that a source has: by its card, else by its folders.

    Raises PrepError for a card that cannot be read.
    """
    names = [name for name in source.sizes() if name.endswith(".parquet")]
    card = source.card(offline=offline)
    metadata = _metadata(card) if card is not None else {}
    found = {subset.name: subset for subset in _by_card(metadata, names)}
    if not found:
        found = _by_folder(names)
    for info in _listed(metadata.get("dataset_info")):
        subset = found.get(str(info.get("config_name", "default")))
        for split in _listed(info.get("splits")) if subset is not None else ():
            if subset is not None and isinstance(split.get("num_examples"), int):
                subset.rows[str(split.get("name"))] = split["num_examples"]
    return found


def _metadata(card: Path) -> Mapping[str, Any]:
    """The YAML block at a card's head."""
    import yaml  # type: ignore[import-untyped]
    from huggingface_hub import metadata_load

    try:
        loaded = metadata_load(card)
    except (ValueError, yaml.YAMLError) as error:
        raise PrepError(
            f"{card}: the card's head cannot be read: {str(error).splitlines()[0]}.",
            remedy="Name another revision with --source owner/name@revision.",
        ) from error
    return loaded or {}


def _listed(value: Any) -> list[dict[str, Any]]:
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def _by_card(metadata: Mapping[str, Any], names: Sequence[str]) -> Iterator[Subset]:
    for config in _listed(metadata.get("configs")):
        subset = Subset(str(config.get("config_name", "default")))
        for split, patterns in _data_files(config.get("data_files")):
            files = [name for pattern in patterns for name in _matching(pattern, names)]
            subset.files[split] = list(dict.fromkeys(files))
        yield subset


def _data_files(value: Any) -> Iterator[tuple[str, list[str]]]:
    """The patterns of each split; a card may give one pattern, a list, or one entry a split."""
    if isinstance(value, dict):
        yield from ((str(split), _patterns(paths)) for split, paths in value.items())
        return
    entries = _listed(value)
    if entries:
        yield from ((str(entry.get("split", "train")), _patterns(entry.get("path"))) for entry in entries)
    elif value:
        yield "train", _patterns(value)


def _patterns(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list) else [value]) if item]


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The names that a pattern of a card stands for: `*` within a folder, `**` across them."""
    if pattern in names:
        return [pattern]
    pieces = re.split(r"(\*\*/?|\*|\?)", pattern.removeprefix("./"))
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    expression = re.compile("".join(signs.get(piece, re.escape(piece)) for piece in pieces))
    return sorted(name for name in names if expression.fullmatch(name))


def _by_folder(names: Sequence[str]) -> dict[str, Subset]:
    """Without a card: FOLDER/SPLIT-*.parquet; files that are named otherwise are the split `train`."""
    found: dict[str, Subset] = {}
    for name in sorted(names):
        match = _SPLIT_FILE.fullmatch(name)
        folder = (match["folder"] if match else str(PurePosixPath(name).parent)) or "."
        split = match["split"] if match else "train"
        subset = "default" if folder in (".", "data") else folder
        found.setdefault(subset, Subset(subset)).files.setdefault(split, []).append(name)
    return found


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
