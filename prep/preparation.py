"""Prepare and adopt: from a recipe's name to the run of its kind; and the failures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prep.conversations import KIND, checked_options
from prep.dispatch import run
from prep.errors import UsageError
from prep.layouts.conversations import META
from prep.manifest import MANIFEST, STATE, Manifest, RecordRow, read_rows
from prep.progress import counted
from prep.recipe import Recipe, Split, built_in, load_recipe, recipe_from
from prep.recognise import find_datasets, other_layout
from prep.stages.adopted import Adoption
from prep.stages.conversations import prepare_split
from prep.stages.finished import sound_manifest
from prep.stages.options import FAILURES_SHOWN, Options, Result
from prep.validation_robot import find_roots
from prep.workspace import attempt_path, ledger_path

__all__ = ["Options", "Result", "adopt", "failures", "prepare"]


def prepare(
    recipe: str | Path | Recipe,
    out_root: str | Path = "data",
    *,
    split: str = "both",
    options: Options | None = None,
) -> list[Result]:
    """Prepare the splits of a recipe below `out_root`, one result each.

    `recipe` is a built-in name, the path of a TOML file, or a loaded recipe, of any kind; `options` may
    be those of its kind. Raises UsageError, also for an option that the kind has not, WouldChangeError,
    HeldError, IncompleteError or EnvironmentLacksError; failures of single rows are in the results.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    return run(chosen, Path(out_root), split, options or Options())


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
    manifest = sound_manifest(root) if recipe is None else None
    if manifest is not None:
        chosen = recipe_from(manifest.document["recipe"], folder=root, named=str(root / MANIFEST))
        asked = checked_options(asked, chosen)
        wanted = _one_split(chosen, manifest.document["split"])
        asked = _as_before(asked, manifest, wanted)
    else:
        chosen, wanted = _recipe_for(root, recipe, split)
        asked = checked_options(asked, chosen)
    adoption = Adoption()
    result = prepare_split(chosen, wanted, root, asked, adopt=adoption)
    _report(adoption, result, asked)
    return result, adoption


def _report(adoption: Adoption, result: Result, options: Options) -> None:
    """Tell in the result what was found; remove leftovers if that is asked and all is done."""
    result.findings.extend(adoption.broken[:FAILURES_SHOWN])
    if adoption.broken:
        result.notes.append(f"{counted(len({item.path for item in adoption.broken}), 'broken clip')} found")
    if adoption.unverified:
        result.notes.append(
            f"{counted(adoption.unverified, 'kept clip')} could not be compared with the server"
        )
    if adoption.changed:
        done = "would be rewritten (needs --update)" if options.dry_run else "held another text"
        files = counted(len(adoption.changed), "conversation file")
        result.notes.append(f"{files} {done}, first {adoption.changed[0]}")
    if adoption.unnamed:
        done = "would be taken out (needs --update)" if options.dry_run else "taken out"
        result.notes.append(f"{counted(len(adoption.unnamed), 'file')} of no row {done}")
    if adoption.leftovers:
        prune = options.prune and result.outcome == "complete"
        if prune:
            adoption.remove_leftovers(result.root)
        done = "removed" if prune else "left alone (--prune deletes)"
        result.notes.append(f"{counted(len(adoption.leftovers), 'leftover')} of another tool {done}")


def _as_before(options: Options, manifest: Manifest, split: Split) -> Options:
    """The options that the finished dataset was made with, where the user gave none.

    The loss that was accepted with it stays accepted.
    """
    request: dict[str, Any] = manifest.document["request"]
    sources = dict(options.sources)
    if request["source"] == "local" and split.name not in sources:
        kept = manifest.root / STATE / "source" / manifest.document["sources"][0]["file"]
        sources[split.name] = str(kept)
    elif split.name not in sources:
        sources[split.name] = request["source"]
    captions, counts = request["captions"], manifest.document["counts"]
    before: dict[str, Any] = {
        "score_field": request["score_field"],
        "include_caption": bool(captions),
        "caption_field": captions[0] if captions else None,
        "limit": request["limit"],
        "on_bad_bytes": request["on_bad_bytes"],
        "min_coverage": min(1.0, counts["kept"] / max(counts["rows"], 1)),
        "prompt": "builtin" if manifest.document["details"]["prompt"]["origin"] == "builtin" else "auto",
    }
    default = Options()
    kept_back = {
        name: value for name, value in before.items() if getattr(options, name) == getattr(default, name)
    }
    return replace(options, sources=sources, **kept_back)


def _one_split(recipe: Recipe, name: str) -> Split:
    splits = recipe.chosen(name)
    if len(splits) != 1:
        raise UsageError(f"{name!r} is several splits; a tree is one of them.", remedy="Name one split.")
    return splits[0]


def _recipe_for(root: Path, name: str | Path | None, split: str | None) -> tuple[Recipe, Split]:
    """The recipe and split of a tree: those given, else by the directory's name."""
    recipes = {str(each): load_recipe(each) for each in ([name] if name is not None else built_in())}
    if name is None:
        recipes = {given: recipe for given, recipe in recipes.items() if recipe.kind == KIND}
    _refuse_download(root, recipes)
    _refuse_other_tree(root)
    for recipe in recipes.values():
        if name is not None and (split is not None or len(recipe.splits) == 1):
            return recipe, _one_split(recipe, split or recipe.splits[0].name)
        for item in recipe.splits:
            if item.directory == root.resolve().name and split in (None, item.name, *item.aliases):
                return recipe, item
    if name is not None and split is None:
        splits = ", ".join(item.name for item in recipes[str(name)].splits)
        raise UsageError(
            f"{root} can be any split of the recipe {name}.", remedy=f"Name it with --split: {splits}."
        )
    raise UsageError(
        f"{root}: no recipe makes a directory of this name" + (f" as split {split!r}." if split else "."),
        remedy=f"Say what it is, as in `prep adopt {root} --recipe videophy2 --split val`.",
    )


def _refuse_download(root: Path, recipes: Mapping[str, Recipe]) -> None:
    """Refuse a folder that holds a source's table instead of a prepared tree."""
    if (root / META).exists():
        return
    for given, recipe in recipes.items():
        command = given if given in built_in() else f"prepare {given}"
        for split in recipe.splits:
            if split.file is not None and (root / split.file).is_file():
                raise UsageError(
                    f"{root} is a download of the source ({split.file}), not a prepared tree.",
                    remedy=f"Prepare from it: `prep {command} --split {split.name} "
                    f"--source {split.name}={root}`.",
                )


def _refuse_other_tree(root: Path) -> None:
    """Refuse what is no tree of conversations, by the name of what it is or with those below it."""
    if any((root / name).exists() for name in (META, "media", "text")):
        return
    message, remedy = f"{root} holds neither meta.json nor media/ nor text/", ""
    below, robots, other = find_datasets(root), find_roots(root), other_layout(root)
    if below:
        remedy = f"Give one tree, such as {root / below[0]}."
    elif robots:
        tree = root / robots[0]
        message, remedy = f"{tree} is a LeRobot tree", f"Use `prep lerobot --root {tree}`."
    elif other.code == "LAY001":
        message, remedy = f"{root} is no prepared tree; it holds {other.message}", other.remedy
    raise UsageError(f"{message}.", remedy=remedy or "Give the directory of a conversations tree.")


def failures(directory: str | Path) -> tuple[str, Sequence[RecordRow]]:
    """The failed records of a dataset, and in words which run they are of.

    Raises UsageError if the directory is neither a finished dataset nor an unfinished run.
    """
    root = Path(directory)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is not a directory.", remedy="Give the directory of a dataset.")
    attempt = attempt_path(root)
    if attempt.is_file():
        rows, of = read_rows(attempt, RecordRow), "the unfinished run"
    else:
        rows, of = _finished(root).records(), "the finished dataset"
    return of, [row for row in rows if row.status == "failed"]


def _finished(root: Path) -> Manifest:
    manifest = Manifest.load(root)
    if manifest is not None:
        return manifest
    if ledger_path(root).exists():
        raise UsageError(
            f"The run in {root} has not come to its end, and has noted no failures yet.",
            remedy="Run the prepare command again; it goes on where it stopped.",
        )
    below = [root / path for path in find_datasets(root)]
    raise UsageError(
        f"{root} has no manifest and no unfinished run.",
        remedy=f"Give the directory of one dataset, such as {below[0] if below else 'data/videophy2_val'}.",
    )
