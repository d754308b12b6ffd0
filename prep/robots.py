"""Prepare robot datasets: from a recipe's name to its trees, and to the indices of its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prep.errors import UsageError
from prep.recipe import Recipe, Split, load_recipe
from prep.stages.options import Result, RobotOptions
from prep.stages.robot import prepare_robot

__all__ = ["RobotOptions", "prepare_robots"]


def prepare_robots(
    recipe: str | Path | Recipe,
    out_root: str | Path = "data",
    *,
    datasets: str = "all",
    options: RobotOptions | None = None,
) -> list[Result]:
    """Prepare the datasets of a robot recipe below `out_root`, one result each.

    `datasets` is one of the recipe's, several with commas, or `all`. Raises UsageError,
    WouldChangeError, HeldError, IncompleteError, EnvironmentLacksError, and PrepError for a filter
    that would select the wrong windows.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if chosen.kind != "lerobot":
        raise UsageError(
            f"The recipe {chosen.name} is of the kind {chosen.kind}.", remedy="Use `prep prepare`."
        )
    asked = options or RobotOptions()
    parts = chosen.chosen(datasets)
    return [prepare_robot(chosen, part, Path(out_root), _for_part(part, parts, asked)) for part in parts]


def _for_part(part: Split, parts: Sequence[Split], options: RobotOptions) -> RobotOptions:
    """With several suites `--root` is the folder above them; for one it may be either."""
    if options.root is None or part.folder is None:
        return options
    below = options.root / part.folder
    if below.is_dir():
        return replace(options, root=below)
    if len(parts) > 1:
        raise UsageError(
            f"{options.root} has no {part.folder}.", remedy="Give the folder above the suites to --root."
        )
    return options
