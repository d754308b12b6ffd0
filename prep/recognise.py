"""What a directory is: prepared datasets, bare trees, an unfinished run, or another layout by name."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from prep.findings import Finding, found
from prep.layouts.conversations import META
from prep.manifest import MANIFEST, STATE
from prep.recipe import built_in

__all__ = ["find_datasets", "other_layout"]

_SKIPPED: Final = frozenset((STATE, ".git", ".cache", "__pycache__"))
_CACHE_FOLDER: Final = re.compile(r"(models|datasets|spaces)--(.+)")


def find_datasets(root: Path) -> list[str]:
    """The datasets at `root` and below it, as relative paths; the root itself is the empty one.

    Those with a manifest or a run's notes at any depth, and trees with a `meta.json` at the root or
    as its direct children. A dataset's own folders are not searched. A link to a dataset counts as one,
    each dataset once; no other link is followed.
    """
    places = {os.path.realpath(root / below): below for below in sorted(_found_below(root, "", 0))}
    return sorted(places.values())


def _found_below(root: Path, below: str, depth: int, *, linked: bool = False) -> Iterator[str]:
    folder = root / below
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:
        return  # the walk over the disk reports what cannot be listed, if it is part of a dataset
    names = {entry.name: _is_folder(entry) for entry in listed}
    is_here = _is_manifest(folder, names) or STATE in names or (META in names and depth <= 1)
    if is_here:
        yield below
    # A tree at the root may stand above others; a dataset with a manifest holds all that is below it.
    if linked or (is_here and below):
        return
    for entry in listed:
        name = entry.name
        if names[name] and name not in _SKIPPED and not (is_here and name in ("media", "text")):
            inside = f"{below}/{name}".lstrip("/")
            yield from _found_below(root, inside, depth + 1, linked=entry.is_symlink())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that leads in a circle, or to where this user may not look


def _is_manifest(folder: Path, names: dict[str, bool]) -> bool:
    if MANIFEST not in names or names[MANIFEST]:
        return False
    if META in names or STATE in names:
        return True
    document = _json(folder / MANIFEST)
    return isinstance(document, dict) and str(document.get("schema", "")).startswith("prep-manifest")


def other_layout(root: Path) -> Finding:
    """LAY001 with the layout's name and what to do, or LAY002; the root's children are looked at too."""
    for folder in (root, *_children(root)):
        for recognise in _LAYOUTS:
            told = recognise(folder)
            if told is not None:
                message, remedy = told
                path = "" if folder == root else folder.name
                return found("LAY001", path, message, remedy=remedy)
    return found("LAY002", "", f"no {MANIFEST}, no {META}, and no layout that is known")


def _children(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name not in _SKIPPED)


Told = tuple[str, str] | None


def _hub_cache(folder: Path) -> Told:
    named = _CACHE_FOLDER.fullmatch(folder.name)
    if not named or not (folder / "snapshots").is_dir():
        return None
    repo = named[2].replace("--", "/", 1)
    return f"a folder of the Hub's cache: {named[1][:-1]} {repo}", _prepare_from(repo)


def _prepare_from(repo: str) -> str:
    for name, split, source in _table_sources():
        if source.get("repo") == repo:
            return f"Run `prep {name} --split {split}`: it takes what the cache already holds."
    return (
        f"Write a recipe with the repository {repo} and run `prep prepare RECIPE.toml` (docs/own-table.md)."
    )


def _table_sources() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The built-in recipes made from tables: recipe, split, and what the split states of its source."""
    for name, path in built_in().items():
        # Not `load_recipe`: only two keys are of interest, and those of other kinds have no splits.
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        for split, source in document.get("splits", {}).items():
            yield name, split, source


def _saved_dataset(folder: Path) -> Told:
    if not ((folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()):
        return None
    return "a Dataset saved by `datasets` (state.json)", (
        "Open it with datasets.load_from_disk, write its table as CSV, and run `prep prepare RECIPE.toml`."
    )


def _saved_datasets(folder: Path) -> Told:
    if not (folder / "dataset_dict.json").is_file():
        return None
    splits = (_json(folder / "dataset_dict.json") or {}).get("splits", [])
    return f"a DatasetDict saved by `datasets` with the splits {', '.join(map(str, splits)) or 'none'}", (
        "Open it with datasets.load_from_disk, write each split as CSV, and run `prep prepare RECIPE.toml`."
    )


def _parquet(folder: Path) -> Told:
    for place in (folder, folder / "data"):
        files = _named(place, ".parquet")
        if files:
            return f"a repository of parquet files ({len(files)}, the first {files[0]})", (
                "Write its table as CSV and run `prep prepare RECIPE.toml` (docs/own-table.md)."
            )
    return None


def _sft_lines(folder: Path) -> Told:
    for place in (folder, folder / "train", folder / "val"):
        for name in _named(place, ".jsonl"):
            with (place / name).open("rb") as file:
                record = _json_of(file.readline(1 << 20))
            if isinstance(record, dict) and ({"vision_path", "t2w_windows"} & record.keys()):
                return f"an SFT dataset ({name} with windows)", (
                    "The generator's recipes read it as it is; `prep sft --source DIR` takes it over."
                )
    return None


def _table(folder: Path) -> Told:
    files = _named(folder, ".csv")
    if not files:
        return None
    for name, split, source in _table_sources():
        if source.get("file") in files:
            return f"a download of the source table {source['file']}", f"Run `prep {name} --split {split}`."
    return f"a source table, {files[0]}", (
        "Write a recipe that names the table and run `prep prepare RECIPE.toml` (docs/own-table.md)."
    )


_LAYOUTS: Final[tuple[Callable[[Path], Told], ...]] = (
    _hub_cache,
    _saved_datasets,
    _saved_dataset,
    _sft_lines,
    _parquet,
    _table,
)


def _named(folder: Path, ending: str) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        entry.name for entry in os.scandir(folder) if entry.name.endswith(ending) and entry.is_file()
    )


def _json(path: Path) -> Any:
    try:
        return _json_of(path.read_bytes())
    except OSError:
        return None


def _json_of(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
