"""The card of a Hub dataset (README.md): which parquet files are which subset and split."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from prep.errors import PrepError

__all__ = ["CARD", "Subset", "subsets_in"]

CARD = "README.md"
_SPLIT_FILE = re.compile(
    r"(?:(?P<folder>.*)/)?(?P<split>[A-Za-z0-9_]+)(?:-\d+-of-\d+(?:-[0-9a-f]+)?|/[^/]+)\.parquet"
)


@dataclass(slots=True)
class Subset:
    """A subset ("config" on the Hub): the files of each split in order, and their rows by the card."""

    name: str
    files: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


def subsets_in(card: Path | None, names: Sequence[str]) -> dict[str, Subset]:
    """The subsets of the parquet files `names`: by the card, else by their folders.

    Raises PrepError for a card that cannot be read.
    """
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
