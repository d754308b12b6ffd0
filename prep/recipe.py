"""Recipes: what is particular to one dataset, as a TOML file that is checked when loaded."""

from __future__ import annotations

import difflib
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import orjson

from prep import schemas
from prep.errors import UsageError
from prep.recipe_keys import UnknownKey, unknown_keys
from prep.records import TABLES
from prep.resources import data_folder

__all__ = ["COMMANDS", "KINDS", "Recipe", "Split", "built_in", "canonical_json", "load_recipe", "recipe_from"]


COMMANDS: Final = {
    "conversations": "prep videophy2",
    "lerobot": "prep lerobot",
    "sft_jsonl": "prep sft",
    "arrow_snapshot": "prep llava-ov",
    "reasoning_qa": "prep video-reasoning",
}
"""The kinds of recipes, each with its own command, which has the options that only this kind knows."""

KINDS: Final = tuple(COMMANDS)


def canonical_json(document: object) -> bytes:
    """The one spelling of a document that digests are taken of: sorted keys, no spaces, UTF-8."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True, slots=True)
class Split:
    """One dataset that a recipe makes: its directory, and where its content comes from.

    Either `repo` and `file` (a table in a Hub dataset, at `revision` or the newest)
    or `table` (a local file or folder); for robot data `repo` and `folder` in it, or `tree`, a local
    LeRobot tree. `media_root` is the folder that a table's paths are below, its own if not given.
    Local paths are relative to the recipe's own folder. `subsets` are those of a source of images.
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
    tree: str | None = None
    media_root: str | None = None
    subsets: tuple[str, ...] = ()


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

    def by_split(self, sources: Mapping[str, str]) -> dict[str, str]:
        """What --source gives, by the splits' own names; raises UsageError for a split that is not there."""
        names = {alias: item.name for item in self.splits for alias in (item.name, *item.aliases)}
        unknown = sorted(sources.keys() - names)
        if unknown:
            raise UsageError(
                f"--source names the split {unknown[0]!r}, which the recipe {self.name} has not.",
                remedy=f"It has: {', '.join(item.name for item in self.splits)}.",
            )
        return {names[name]: where for name, where in sources.items()}

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
        raise _no_recipe(str(name_or_path), path, known)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        is_table = path.suffix.lower() in TABLES
        remedy = f"It is a table: `prep init {path}` writes a recipe for it." if is_table else "Correct it."
        raise UsageError(f"{path}: not valid TOML: {error}.", remedy=remedy) from error
    except UnicodeDecodeError as error:
        remedy = "A recipe is TOML; save it as UTF-8."
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}.", remedy=remedy) from error
    return recipe_from(document, folder=path.parent.resolve(), named=str(path))


def _no_recipe(given: str, path: Path, known: Iterable[str]) -> UsageError:
    """What to say of a recipe that is not there; recipes beside the place are looked at for a near name."""
    if path.is_dir():
        return UsageError(
            f"{path} is a folder, not a recipe.", remedy=f"`prep init {path}` writes one for what is in it."
        )
    beside = [str(path.parent / file.name) for file in path.parent.glob("*.toml")] if path.name else []
    hint = _did_you_mean(given, [*known, *beside])
    return UsageError(
        f"There is no recipe {given!r}.",
        remedy=f"{hint}Built in: {', '.join(known)}; or give the path of a TOML file.",
    )


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"Did you mean {close[0]}? " if close else ""


def recipe_from(document: Mapping[str, Any], *, folder: Path, named: str) -> Recipe:
    """A recipe from its document, such as the one that a manifest keeps; raises UsageError."""
    kind = document.get("kind")
    if kind not in KINDS:
        told = f"the kind {kind!r} is not known" if "kind" in document else "it states no kind"
        hint = _did_you_mean(str(kind), KINDS)
        raise UsageError(f"{named}: {told}.", remedy=f"{hint}Kinds: {', '.join(KINDS)}.")
    for unknown in unknown_keys(schemas.schema(f"recipe-{kind}"), document):
        _refuse_key(unknown, named)
    for pointer, message in schemas.errors(f"recipe-{kind}", document):
        raise UsageError(
            f"{named}: {pointer}: {message}.",
            remedy="Correct the recipe; docs/recipes.md describes its keys.",
        )
    directories = [entry["directory"] for entry in _parts(document).values()]
    folded = [name.casefold() for name in directories]  # some file systems take no notice of case
    twice = next((name for name in directories if folded.count(name.casefold()) > 1), None)
    if twice is not None and kind != "arrow_snapshot":  # there each split has a folder in the directory
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


def _refuse_key(unknown: UnknownKey, named: str) -> NoReturn:
    hint = f"; did you mean {unknown.near!r}?" if unknown.near else "."
    raise UsageError(
        f"{named}: {unknown.pointer}: the key {unknown.key!r} is not known{hint}",
        remedy=f"Keys here: {', '.join(unknown.known)} (docs/recipes.md).",
    )


def _parts(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The datasets that a recipe makes: its splits, or the datasets of robot data, split by episode."""
    parts: Mapping[str, Any] = document["splits"] if "splits" in document else document["datasets"]
    return parts


def _split_from(name: str, entry: Mapping[str, Any]) -> Split:
    lists = {key: tuple(entry.get(key, ())) for key in ("aliases", "subsets")}
    return Split(name=name, **{**entry, **lists})
