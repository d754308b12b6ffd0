"""Prepare snapshots: from a recipe's name and subsets to the stage, and what subsets there are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prep.errors import PrepError, UsageError
from prep.recipe import Recipe, Split, load_recipe
from prep.stages.options import Outcome, Result
from prep.stages.snapshot import prepare_snapshot
from prep.stages.snapshot_options import SnapshotOptions
from prep.stages.snapshot_run import SnapshotRun
from prep.stages.snapshot_source import open_source, subsets_of
from prep.stages.sources import check_out_root

__all__ = ["ListedSubset", "SnapshotOptions", "list_subsets", "prepare_snapshots"]


@dataclass(frozen=True, slots=True)
class ListedSubset:
    """A subset of a source: its splits, parquet files and bytes, and rows where the card states them."""

    name: str
    splits: tuple[str, ...]
    files: int
    bytes: int
    rows: int | None


def prepare_snapshots(
    recipe: str | Path | Recipe,
    out_root: str | Path = "data",
    *,
    subsets: Sequence[str],
    split: str = "all",
    options: SnapshotOptions | None = None,
) -> list[Result]:
    """Prepare subsets of a recipe below `out_root`, one result for each subset and split.

    No subset will do for a source that is given, or is on this disk, and has exactly one.

    Raises UsageError, WouldChangeError, HeldError, IncompleteError, EnvironmentLacksError and PrepError;
    of several subsets one that cannot be done does not keep the others from being done.
    """
    chosen, asked = _checked(recipe, options)
    check_out_root(Path(out_root))
    taken = {} if subsets else {part.name: _only_subset(chosen, part, asked) for part in chosen.chosen(split)}
    parts = [(part, subset) for subset in dict.fromkeys(subsets) for part in chosen.chosen(split)]
    parts += [(part, taken[part.name]) for part in chosen.chosen(split) if taken]
    results = []
    for part, subset in parts:
        began = time.monotonic()
        try:
            results.append(prepare_snapshot(chosen, part, subset, Path(out_root), asked))
        except PrepError as error:
            if len(parts) == 1 or isinstance(error, UsageError) or error.exit_status == 2:
                raise
            run = SnapshotRun.of(chosen, part, subset, Path(out_root), asked)
            outcome: Outcome = "failed" if error.exit_status == 1 else "incomplete"
            results.append(
                Result(
                    run.name,
                    run.root,
                    outcome,
                    message=error.message,
                    remedy=error.remedy,
                    seconds=time.monotonic() - began,
                )
            )
        if taken:
            results[-1].notes.append(f"no --subset given: {subset!r} is the only one that the source has")
    return results


def _only_subset(recipe: Recipe, part: Split, options: SnapshotOptions) -> str:
    """The one subset of a source; the Hub is asked only for a source that was given."""
    remedy = "`--subset list` shows what there is."
    if options.source is None and part.table is None:
        raise UsageError("No subset is named.", remedy=remedy)
    subsets = list(subsets_of(open_source(recipe, part, options, None)))
    if len(subsets) != 1:
        raise UsageError(f"No subset is named, and the source has {len(subsets)}.", remedy=remedy)
    return subsets[0]


def list_subsets(
    recipe: str | Path | Recipe, *, split: str = "all", options: SnapshotOptions | None = None
) -> Iterator[ListedSubset]:
    """The subsets that the recipe's source has, by name; raises as the Hub does."""
    chosen, asked = _checked(recipe, options)
    source = open_source(chosen, chosen.chosen(split)[0], asked, None)
    sizes = source.sizes()
    for name, subset in sorted(subsets_of(source).items()):
        files = [path for paths in subset.files.values() for path in paths]
        yield ListedSubset(
            name,
            tuple(subset.files),
            len(files),
            sum(sizes[path] for path in files),
            sum(subset.rows.values()) or None,
        )


def _checked(recipe: str | Path | Recipe, options: SnapshotOptions | None) -> tuple[Recipe, SnapshotOptions]:
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    if chosen.kind != "arrow_snapshot":
        raise UsageError(f"The recipe {chosen.name} is of the kind {chosen.kind}, not arrow_snapshot.")
    asked = options or SnapshotOptions()
    if asked.offline and (asked.download_only or asked.refresh):
        other = "--download-only" if asked.download_only else "--refresh"
        raise UsageError(f"--offline and {other} contradict one another.", remedy="Leave out one of them.")
    return chosen, asked
