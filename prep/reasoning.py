"""Prepare video reasoning datasets: from a recipe's name and annotation files to the stage."""

from __future__ import annotations

from pathlib import Path

from prep.errors import UsageError
from prep.recipe import Recipe, load_recipe
from prep.stages.options import Result
from prep.stages.reasoning import prepare_reasoning
from prep.stages.reasoning_options import Asked, ReasoningOptions
from prep.stages.sources import check_out_root

__all__ = ["Asked", "ReasoningOptions", "prepare_video_reasoning"]


def prepare_video_reasoning(
    recipe: str | Path | Recipe = "video_reasoning",
    out_root: str | Path = "data",
    *,
    split: str = "all",
    options: ReasoningOptions | None = None,
) -> list[Result]:
    """Prepare the splits that have annotation files below `out_root`, one result each.

    `split` is one of the recipe's, several with commas, or `all`.

    Raises UsageError, WouldChangeError, HeldError and IncompleteError.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if chosen.kind != "reasoning_qa":
        raise UsageError(
            f"The recipe {chosen.name} is of the kind {chosen.kind}.", remedy="Use `prep prepare`."
        )
    check_out_root(Path(out_root))
    return prepare_reasoning(chosen, Path(out_root), options or ReasoningOptions(), split)
