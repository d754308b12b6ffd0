"""A recipe on its way: its text, the tables that will stand beside it, and where all that goes."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prep.errors import UsageError
from prep.files import disk_errors, write_whole
from prep.init_recipes import Text

__all__ = ["SPLIT_NAMES", "Draft", "NewTable", "Place"]

SPLIT_NAMES: Final = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "eval": "val",
    "dev": "val",
}
"""What people call splits, and what these are called here."""


@dataclass(frozen=True, slots=True)
class Place:
    """The name of what is made, and the path of its recipe."""

    name: str
    recipe: Path

    @property
    def folder(self) -> Path:
        """The recipe's folder, without links: `..` in a recipe leaves the folder that it really is in."""
        return self.recipe.parent.resolve()

    def relative(self, path: Path) -> str:
        """A path as the recipe names it."""
        return os.path.relpath(path, self.folder)


@dataclass(frozen=True, slots=True)
class NewTable:
    """A CSV that is to be written beside the recipe."""

    name: str
    header: Sequence[str]
    rows: Callable[[], Iterator[Mapping[str, Any]]]

    def lines(self) -> Iterator[bytes]:
        """The file's bytes, a row at a time; lists are written as JSON."""
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, self.header, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in self.rows():
            writer.writerow({name: _cell(row.get(name)) for name in self.header})
            yield buffer.getvalue().encode("utf-8", "surrogateescape")
            buffer.seek(0)
            buffer.truncate()
        yield buffer.getvalue().encode("utf-8", "surrogateescape")


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


@dataclass(slots=True)
class Draft:
    """A recipe's text, and the tables that it names and that are not there yet."""

    text: Text
    tables: list[NewTable] = field(default_factory=list)

    def write(self, place: Place, source: Path, *, update: bool) -> list[Path]:
        """Write the tables and then the recipe; the tables' paths.

        Raises UsageError, before anything is written, where a file is there and `update` is not given.
        """
        paths = [place.folder / table.name for table in self.tables]
        for path in (*paths, place.recipe):
            if path.exists() and path.samefile(source):
                raise UsageError(f"{path} is the source itself.", remedy="Give another --output.")
            if path.exists() and not update:
                raise UsageError(
                    f"{path} is there.", remedy="Add --update to replace it, or give another --output."
                )
        if not place.recipe.parent.is_dir():
            raise UsageError(f"There is no folder {place.recipe.parent}.", remedy="Make it first.")
        for table, path in zip(self.tables, paths, strict=True):
            with disk_errors(path):
                write_whole(path, table.lines())
        with disk_errors(place.recipe):
            write_whole(place.recipe, self.text.toml().encode("utf-8"))
        return paths
