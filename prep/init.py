"""A first recipe for data of one's own: look at a folder or table, guess, and say why."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from prep.errors import UsageError
from prep.init_drafts import Draft, Place
from prep.init_files import of_table
from prep.init_folders import is_annotation_file, of_annotations, of_folder
from prep.recipe import recipe_from

__all__ = ["Made", "init"]

_OUT = "data"
"""Where `prep prepare` makes datasets if nothing else is said."""


@dataclass(slots=True)
class Made:
    """A recipe and the tables beside it, and the command that runs it; in a dry run none is written."""

    recipe: Path
    kind: str
    text: str
    command: str
    tables: list[Path] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def init(
    source: str | Path, *, output: Path | None = None, update: bool = False, dry_run: bool = False
) -> Made:
    """Look at `source`, and write a recipe for it, at `output` or in the current folder.

    Raises UsageError for something that no kind of dataset is made of, and where a file that would be
    written is there and `update` is not given. The source's own folder is only read.
    """
    path = Path(os.path.abspath(source))  # noqa: PTH100 - links are kept: they may be where the media are
    if not path.exists():
        raise UsageError(f"There is nothing at {source}.", remedy="Give a folder of media, or a table.")
    if not (path.is_dir() or path.is_file()):
        raise UsageError(f"{source} is neither a folder nor a file.", remedy="Give one of them.")
    place = _place(path, output)
    draft = _drafted(path, place)
    toml = draft.text.toml()
    recipe_from(tomllib.loads(toml), folder=place.folder, named=str(place.recipe))
    tables = [] if dry_run else draft.write(place, path, update=update)
    return Made(place.recipe, draft.text.kind, toml, _command(path, place), tables, draft.text.remarks)


def _drafted(path: Path, place: Place) -> Draft:
    if path.is_dir():
        return of_folder(path, place)
    return of_annotations([path], place) if is_annotation_file(path) else of_table(path, place)


def _place(path: Path, output: Path | None) -> Place:
    """Where the recipe goes; raises UsageError where that would be in the folder that is looked at."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", path.stem if path.is_file() else path.name).strip("_-") or "mine"
    if output is not None:
        given = output.absolute()
        return Place(name, given / f"{name}.toml" if given.is_dir() else given)
    here = Path.cwd()
    if path.is_dir() and here.resolve().is_relative_to(path.resolve()):
        raise UsageError(
            f"The recipe would be written into {path}, the folder that it is about.",
            remedy="Run this from another folder, or say where with --output.",
        )
    return Place(name, here / f"{name}.toml")


def _command(path: Path, place: Place) -> str:
    """The command that runs the recipe from here; with another out-root where the source is the usual one."""
    command = f"prep prepare {shlex.quote(os.path.relpath(place.recipe))}"
    source = path if path.is_dir() else path.parent
    is_taken = (Path.cwd() / _OUT).resolve().is_relative_to(source.resolve()) and path.is_dir()
    return f"{command} --out-root prepared" if is_taken else command
