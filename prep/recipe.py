"""Recipes: what is particular to one dataset, as a TOML file that is checked when loaded."""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from prep import schemas
from prep.errors import UsageError
from prep.resources import data_folder

__all__ = ["Recipe", "Split", "built_in", "canonical_json", "load_recipe", "recipe_from"]


KINDS = ("conversations", "lerobot", "sft_jsonl", "arrow_snapshot", "reasoning_qa")


def canonical_json(document: object) -> bytes:
    """The one spelling of a document that digests are taken of: sorted keys, no spaces, UTF-8."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True, slots=True)
class Split:
    """One dataset that a recipe makes: its directory, and where its content comes from.

    Either `repo` and `file` (a table in a Hub dataset, at `revision` or the newest)
    or `table` (a local file, relative to the recipe's own folder); for robot data `repo`
    and `folder` in it.
    """

    name: str
    directory: str
    aliases: tuple[str, ...] = ()
    repo: str | None = None
    revision: str | None = None
    file: str | None = None
    table: str | None = None
    expected_rows: int | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A checked recipe. `document` is the whole of it, for the kind's own stage and layout."""

    name: str
    kind: str
    document: Mapping[str, Any]
    folder: Path
    splits: tuple[Split, ...]
    title: str = ""
    license: str = ""
    consumers: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    not_provided: Mapping[str, str] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The digest of the recipe's content; comments and order don't count."""
        return hashlib.sha256(canonical_json(self.document)).hexdigest()

    def chosen(self, wanted: str) -> tuple[Split, ...]:
        """The splits that `--split` names: one, an alias, several with commas, or both/all."""
        if wanted in ("all", "both"):
            return self.splits
        return tuple(dict.fromkeys(self._split(name.strip()) for name in wanted.split(",")))

    def _split(self, name: str) -> Split:
        for split in self.splits:
            if name == split.name or name in split.aliases:
                return split
        known = ", ".join(split.name for split in self.splits)
        raise UsageError(f"The recipe {self.name} has no split {name!r}.", remedy=f"It has: {known}, both.")


def built_in() -> dict[str, Path]:
    """The recipes that come with the project, by name."""
    return {path.stem: path for path in sorted(data_folder("recipes").glob("*.toml"))}


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Load a recipe by its name or from a TOML file; raises UsageError that says what is wrong."""
    known = built_in()
    path = known.get(str(name_or_path), Path(name_or_path))
    if not path.is_file():
        close = difflib.get_close_matches(str(name_or_path), known, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"There is no recipe {str(name_or_path)!r}.",
            remedy=f"{hint}Built in: {', '.join(known)}; or give the path of a TOML file.",
        )
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not valid TOML: {error}.", remedy="Correct the recipe.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}.", remedy="Save it as UTF-8.") from error
    return recipe_from(document, folder=path.parent.resolve(), named=str(path))


def recipe_from(document: Mapping[str, Any], *, folder: Path, named: str) -> Recipe:
    """A recipe from its document, such as the one that a manifest keeps; raises UsageError."""
    kind = document.get("kind")
    if kind not in KINDS:
        raise UsageError(f"{named}: the kind {kind!r} is not known.", remedy=f"Kinds: {', '.join(KINDS)}.")
    for pointer, message in schemas.errors(f"recipe-{kind}", document):
        raise UsageError(
            f"{named}: {pointer}: {message}.",
            remedy="Correct the recipe; its keys are described in docs/own-table.md.",
        )
    directories = [entry["directory"] for entry in _parts(document).values()]
    folded = [name.casefold() for name in directories]  # some file systems take no notice of case
    twice = next((name for name in directories if folded.count(name.casefold()) > 1), None)
    if twice is not None:
        raise UsageError(
            f"{named}: two splits make the directory {twice!r}.", remedy="Give each a directory of its own."
        )
    environment = dict(document.get("environment", {}))
    not_provided = environment.pop("not_provided", {})
    return Recipe(
        name=document["name"],
        kind=document["kind"],
        document=document,
        folder=folder,
        splits=tuple(_split_from(name, entry) for name, entry in _parts(document).items()),
        title=document.get("title", ""),
        license=document.get("license", ""),
        consumers=tuple(document.get("consumers", ())),
        environment=environment,
        not_provided=not_provided,
        accepted=document.get("accepted", {}),
    )


def _parts(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The datasets that a recipe makes: its splits, or the datasets of robot data, split by episode."""
    parts: Mapping[str, Any] = document["splits"] if "splits" in document else document["datasets"]
    return parts


def _split_from(name: str, entry: Mapping[str, Any]) -> Split:
    return Split(name=name, **{**entry, "aliases": tuple(entry.get("aliases", ()))})
