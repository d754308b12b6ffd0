"""Prepare and adopt: from a recipe's name to the stage of its kind, for each split."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prep.errors import PrepError, UsageError
from prep.manifest import MANIFEST, STATE, Manifest, RecordRow, read_rows
from prep.recipe import Recipe, Split, built_in, load_recipe, recipe_from
from prep.stages.adopted import Adoption
from prep.stages.conversations import prepare_split
from prep.stages.options import Options, Outcome, Result
from prep.workspace import attempt_path

__all__ = ["Options", "Result", "adopt", "failures", "prepare"]


def prepare(
    recipe: str | Path | Recipe,
    out_root: str | Path = "data",
    *,
    split: str = "both",
    options: Options | None = None,
) -> list[Result]:
    """Prepare the splits of a recipe below `out_root`, one result each.

    `recipe` is a built-in name, the path of a TOML file, or a loaded recipe. Raises UsageError,
    WouldChangeError, HeldError, IncompleteError or EnvironmentLacksError; failures of single rows
    are in the results. A split that cannot be done does not keep the others from being done.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    asked = options or Options()
    splits = chosen.chosen(split)
    unknown = set(asked.sources) - {item.name for item in chosen.splits}
    if unknown:
        raise UsageError(
            f"--source names the split {sorted(unknown)[0]!r}, which the recipe {chosen.name} has not.",
            remedy=f"It has: {', '.join(item.name for item in chosen.splits)}.",
        )
    return [_prepare_one(chosen, item, Path(out_root), asked, several=len(splits) > 1) for item in splits]


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


def adopt(
    directory: str | Path,
    *,
    recipe: str | Path | None = None,
    split: str | None = None,
    options: Options | None = None,
) -> tuple[Result, Adoption]:
    """Check a tree that another tool made, keep what passes, fetch the rest, write the manifest.

    The recipe and split are those of the tree's manifest, else the ones whose directory has this
    name, unless given. Raises as `prepare` does.
    """
    root = Path(directory)
    if not root.is_dir():
        raise UsageError(f"{root} is not a directory.", remedy="Give the directory that holds meta.json.")
    asked = options or Options()
    manifest = _sound_manifest(root) if recipe is None else None
    if manifest is not None:
        chosen = recipe_from(manifest.document["recipe"], folder=root, named=str(root / MANIFEST))
        wanted = _split_named(chosen, manifest.document["split"])
        asked = _as_before(asked, manifest, wanted)
    else:
        chosen, wanted = _recipe_for(root, recipe, split)
        _refuse_other_tree(root, wanted)
    adoption = Adoption()
    result = prepare_split(chosen, wanted, root, asked, adopt=adoption)
    result.findings.extend(adoption.broken)
    if adoption.unverified:
        result.notes.append(f"{adoption.unverified} kept clips could not be compared with their server")
    if adoption.leftovers:
        done = "removed" if asked.prune else "left alone; --prune removes them"
        result.notes.append(f"{len(adoption.leftovers)} leftovers of another tool {done}")
    return result, adoption


def _sound_manifest(root: Path) -> Manifest | None:
    try:
        return Manifest.load(root)
    except PrepError:
        return None  # adopting is the remedy for a broken manifest


def _as_before(options: Options, manifest: Manifest, split: Split) -> Options:
    """The options that the finished dataset was made with, so that adopting it changes nothing."""
    request: dict[str, Any] = manifest.document["request"]
    sources = dict(options.sources)
    if request["source"] == "local" and split.name not in sources:
        kept = manifest.root / STATE / "source" / manifest.document["sources"][0]["file"]
        sources[split.name] = str(kept)
    elif split.name not in sources:
        sources[split.name] = request["source"]
    captions = request["captions"]
    return replace(
        options,
        score_field=request["score_field"],
        include_caption=bool(captions),
        caption_field=captions[0] if captions else None,
        limit=request["limit"],
        on_bad_bytes=request["on_bad_bytes"],
        sources=sources,
    )


def _split_named(recipe: Recipe, name: str) -> Split:
    return recipe.chosen(name)[0]


def _recipe_for(root: Path, name: str | Path | None, split: str | None) -> tuple[Recipe, Split]:
    candidates = [load_recipe(name)] if name is not None else [load_recipe(each) for each in built_in()]
    for recipe in candidates:
        if split is not None and name is not None:
            return recipe, _split_named(recipe, split)
        for item in recipe.splits:
            if item.directory == root.resolve().name:
                return recipe, item
    raise UsageError(
        f"{root}: no recipe makes a directory of this name.",
        remedy="Say what it is, as in `prep adopt DIR --recipe videophy2 --split val`.",
    )


def _refuse_other_tree(root: Path, split: Split) -> None:
    if split.file is not None and (root / split.file).is_file() and not (root / "meta.json").exists():
        raise UsageError(
            f"{root} is a download of the source ({split.file}), not a prepared tree.",
            remedy=f"Prepare from it: `--split {split.name} --source {split.name}={root}`.",
        )
    if not any((root / name).exists() for name in ("meta.json", "media", "text")):
        raise UsageError(
            f"{root} holds neither meta.json nor media/ nor text/.",
            remedy="Give the directory of a conversations tree.",
        )


def failures(directory: str | Path) -> tuple[str, Sequence[RecordRow]]:
    """The failed records of a dataset, and in words which run they are of.

    Raises UsageError if the directory is neither a finished dataset nor an unfinished run.
    """
    root = Path(directory)
    attempt = attempt_path(root)
    if attempt.is_file():
        rows, of = read_rows(attempt, RecordRow), "the unfinished run"
    else:
        manifest = Manifest.load(root)
        if manifest is None:
            raise UsageError(
                f"{root} has no manifest and no unfinished run.",
                remedy="Give the directory of a dataset, such as data/videophy2_val.",
            )
        rows, of = manifest.records(), "the finished dataset"
    return of, [row for row in rows if row.status == "failed"]
