"""Prepare robot datasets: from a recipe's name to its trees, and to the indices of its windows."""

from __future__ import annotations

from pathlib import Path

from prep.errors import UsageError
from prep.recipe import Recipe, load_recipe
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
    return [prepare_robot(chosen, part, Path(out_root), asked) for part in chosen.chosen(datasets)]
