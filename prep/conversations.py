"""Prepare conversations: tables of media, questions and answers, one dataset a split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prep.errors import PrepError, UsageError
from prep.manifest import MANIFEST, STATE
from prep.recipe import COMMANDS, Recipe, Split, load_recipe
from prep.stages.conversations import prepare_split
from prep.stages.options import Options, Outcome, Result
from prep.stages.payload import reused_manifest
from prep.stages.sources import check_out_root, local_table

__all__ = ["KIND", "checked_options", "prepare_conversations"]

KIND = "conversations"


def prepare_conversations(
    recipe: str | Path | Recipe,
    out_root: str | Path = "data",
    *,
    split: str = "both",
    options: Options | None = None,
) -> list[Result]:
    """Prepare the splits of a recipe below `out_root`, one result each.

    Raises UsageError, WouldChangeError, HeldError, IncompleteError or EnvironmentLacksError; failures of
    single rows are in the results. A split that cannot be done does not keep the others from being done.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    asked = checked_options(options or Options(), chosen)
    splits = chosen.chosen(split)
    _refuse_early(chosen, splits, Path(out_root), asked)
    return [_prepare_one(chosen, item, Path(out_root), asked, several=len(splits) > 1) for item in splits]


def checked_options(options: Options, recipe: Recipe) -> Options:
    """The options with the splits of `sources` by their own names.

    Raises UsageError for options that contradict one another, and for a recipe of another kind.
    """
    if recipe.kind != KIND:
        raise UsageError(
            f"The recipe {recipe.name} is of the kind {recipe.kind!r}; here tables become {KIND}.",
            remedy=f"Use `{COMMANDS[recipe.kind]}`.",
        )
    for other, given in (("--download-only", options.download_only), ("--refresh", options.refresh)):
        if options.offline and given:
            raise UsageError(
                f"--offline and {other} contradict one another.", remedy="Leave out one of them."
            )
    return replace(options, sources=recipe.by_split(options.sources))


def _refuse_early(recipe: Recipe, splits: Sequence[Split], out_root: Path, options: Options) -> None:
    """Raise UsageError for a wrong place, and for what would show only after the first split is fetched."""
    check_out_root(out_root)
    if (out_root / MANIFEST).is_file() and (out_root / STATE).is_dir():
        raise UsageError(
            f"--out-root {out_root} is itself a prepared dataset.",
            remedy=f"Give the folder above it: `--out-root {out_root.parent}`.",
        )
    for split in splits[1:]:
        local_table(recipe, split, options)
        if options.reuse is not None:
            reused_manifest(options.reuse / split.directory)


def _prepare_one(recipe: Recipe, split: Split, out_root: Path, options: Options, *, several: bool) -> Result:
    root = out_root / split.directory
    began = time.monotonic()
    try:
        return prepare_split(recipe, split, root, options)
    except PrepError as error:
        # The other splits are still done; wrong usage would be wrong for them too.
        if not several or error.exit_status not in (1, 3) or options.cancel.is_set():
            raise
        outcome: Outcome = "failed" if error.exit_status == 1 else "incomplete"
        return Result(
            split.directory,
            root,
            outcome,
            message=error.message,
            remedy=error.remedy,
            seconds=time.monotonic() - began,
        )
