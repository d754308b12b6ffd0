"""Where a snapshot's rows come from: parquet of a Hub dataset or a local copy, by subset and split."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from prep import hub
from prep.errors import FetchError, PrepError, UsageError
from prep.files import sha256_of, size_of
from prep.recipe import Split
from prep.stages.snapshot_options import SnapshotOptions

__all__ = ["Source", "Subset", "asked_source", "chosen_subset", "open_source", "subsets_of"]

CARD = "README.md"
_SPLIT_FILE = re.compile(
    r"(?:(?P<folder>.*)/)?(?P<split>[A-Za-z0-9_]+)(?:-\d+-of-\d+(?:-[0-9a-f]+)?|/[^/]+)\.parquet"
)
_SHOWN = 20


@dataclass(slots=True)
class Subset:
    """A subset ("config" on the Hub): the files of each split in order, and their rows by the card."""

    name: str
    files: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


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
            "verified": listing.verified,
            "license": listing.license,
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
    """The subsets that a source has: by its card, else by its folders.

    Raises PrepError for a card that cannot be read.
    """
    names = list(source.sizes())
    card = source.card()
    metadata = _metadata(card) if card is not None else {}
    found = {subset.name: subset for subset in _by_card(metadata, names)}
    if not found:
        found = _by_folder(names)
    for info in _listed(metadata.get("dataset_info")):
        named = found.get(str(info.get("config_name", "default")))
        if named is not None:
            splits = _listed(info.get("splits"))
            named.rows.update({str(split.get("name")): split.get("num_examples", 0) for split in splits})
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
