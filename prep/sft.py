"""Prepare SFT datasets: videos with captions, from a recipe's repository or from folders of one's own."""

from __future__ import annotations

from pathlib import Path

from prep.errors import UsageError
from prep.recipe import Recipe, load_recipe
from prep.stages.options import Result
from prep.stages.sft import prepare_dataset
from prep.stages.sft_options import SftOptions
from prep.stages.sources import check_out_root

__all__ = ["SftOptions", "prepare_sft"]


def prepare_sft(
    recipe: str | Path | Recipe = "sft", out_root: str | Path = "data", *, options: SftOptions | None = None
) -> list[Result]:
    """Prepare the dataset of an SFT recipe below `out_root`; one result.

    Raises UsageError, WouldChangeError, HeldError, IncompleteError and EnvironmentLacksError.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if chosen.kind != "sft_jsonl":
        raise UsageError(
            f"The recipe {chosen.name} is of the kind {chosen.kind}.", remedy="Use `prep prepare`."
        )
    asked = options or SftOptions()
    if asked.offline and (asked.download_only or asked.refresh):
        other = "--download-only" if asked.download_only else "--refresh"
        raise UsageError(f"--offline and {other} contradict one another.", remedy="Leave out one of them.")
    check_out_root(Path(out_root))
    return [prepare_dataset(chosen, part, Path(out_root), asked) for part in chosen.splits]
