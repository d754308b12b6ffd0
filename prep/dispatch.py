"""From a recipe of any kind to the run of its kind, with the options that the kind has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from prep.errors import UsageError
from prep.recipe import COMMANDS, Recipe, Split
from prep.stages.options import Options, Result

__all__ = ["run", "with_kind_options"]

Chosen = TypeVar("Chosen", bound=Options)
Run = Callable[[Recipe, Path, str, Options], list[Result]]

_ALWAYS: Final = frozenset(("jobs", "dry_run", "offline", "update", "wait", "attempts", "quiet", "cancel"))
"""What every kind has: one that never opens a connection is offline anyway."""

_FETCHED: Final = _ALWAYS | {"sources", "limit", "download_only", "refresh", "prune", "reuse"}
_HAS: Final[Mapping[str, frozenset[str]]] = {
    "conversations": frozenset(field.name for field in fields(Options)),
    "sft_jsonl": _FETCHED | {"min_coverage", "give_up"},
    "arrow_snapshot": _FETCHED,
    "lerobot": _ALWAYS | {"sources"},
    "reasoning_qa": _ALWAYS,
}
"""The shared options that each kind honours, by the names of their fields."""

_FLAGS: Final = {"sources": "--source", "mirrors": "--mirror"}


def run(recipe: Recipe, out_root: Path, split: str, options: Options) -> list[Result]:
    """Prepare the parts of `recipe` that `split` names below `out_root`, one result each.

    Raises UsageError for an option that the recipe's kind has not, and what the kind's own run raises.
    """
    for field in fields(Options):
        if field.name not in _HAS[recipe.kind] and _is_given(options, field.name):
            raise _has_not(recipe, field.name)
    return _RUNS[recipe.kind](recipe, out_root, split, options)


def _has_not(recipe: Recipe, name: str) -> UsageError:
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    return UsageError(
        f"{flag} is no option for the kind {recipe.kind}, of which the recipe {recipe.name} is.",
        remedy=f"Leave it out; `{COMMANDS[recipe.kind]} --help` lists the options of this kind.",
    )


def with_kind_options(recipe: Recipe, options: Options, given: Mapping[str, Any]) -> Options:
    """The options as those of the recipe's kind, with `given` ones that only some kinds have.

    An empty value stands for one that is not given. Raises UsageError for one that the kind has not.
    """
    more = {name: value for name, value in given.items() if value}
    kind = _options_of(recipe.kind)
    unknown = next((name for name in more if name not in {field.name for field in fields(kind)}), None)
    if unknown is not None:
        raise _has_not(recipe, unknown)
    if not more:
        return options
    return kind(**{field.name: getattr(options, field.name) for field in fields(Options)}, **more)


def _options_of(kind: str) -> type[Options]:
    from prep.stages.options import RobotOptions
    from prep.stages.reasoning_options import ReasoningOptions
    from prep.stages.sft_options import SftOptions
    from prep.stages.snapshot_options import SnapshotOptions

    known: Mapping[str, type[Options]] = {
        "sft_jsonl": SftOptions,
        "arrow_snapshot": SnapshotOptions,
        "lerobot": RobotOptions,
        "reasoning_qa": ReasoningOptions,
    }
    return known.get(kind, Options)


_DEFAULT: Final = Options()


def _is_given(options: Options, name: str) -> bool:
    return bool(getattr(options, name) != getattr(_DEFAULT, name))


def _as(kind: type[Chosen], options: Options, **more: Any) -> Chosen:
    """The options as those of a kind; raises UsageError for those of another kind."""
    if isinstance(options, kind):
        return replace(options, **{name: value for name, value in more.items() if value is not None})
    if type(options) is not Options:
        raise UsageError(
            f"The options are {type(options).__name__}; this recipe's kind takes {kind.__name__}.",
            remedy="Give Options, or those of the recipe's kind.",
        )
    plain = {field.name: getattr(options, field.name) for field in fields(Options)}
    return kind(**{**plain, "sources": {}}, **more)


def _conversations(recipe: Recipe, out_root: Path, split: str, options: Options) -> list[Result]:
    from prep.conversations import prepare_conversations

    return prepare_conversations(recipe, out_root, split=split, options=options)


def _sft(recipe: Recipe, out_root: Path, split: str, options: Options) -> list[Result]:
    from prep.sft import SftOptions, prepare_sft

    (part,) = recipe.chosen(split)  # the schema lets a recipe have one
    source = recipe.by_split(options.sources).get(part.name)
    asked = _as(SftOptions, options, source=source)
    named = (asked.source, asked.captions, asked.curator, part.repo, recipe.document.get("source"))
    if not any(named):
        raise _sourceless(recipe, "[source] with captions and videos, curator or tree")
    return prepare_sft(recipe, out_root, options=asked)


def _sourceless(recipe: Recipe, lacks: str) -> UsageError:
    return UsageError(
        f"The recipe {recipe.name} names no source.",
        remedy=f"Add {lacks} to it (docs/recipes.md), or use `{COMMANDS[recipe.kind]}`.",
    )


def _snapshots(recipe: Recipe, out_root: Path, split: str, options: Options) -> list[Result]:
    from prep.snapshots import SnapshotOptions, prepare_snapshots

    sources, results = recipe.by_split(options.sources), []
    for part in recipe.chosen(split):
        asked = _as(SnapshotOptions, options, source=sources.get(part.name))
        subsets = _subsets(recipe, part, asked)
        results += prepare_snapshots(recipe, out_root, subsets=subsets, split=part.name, options=asked)
    return results


def _subsets(recipe: Recipe, part: Split, options: Any) -> Sequence[str]:
    """The subsets that the recipe names; else all those of a source on this machine."""
    from prep.snapshots import list_subsets
    from prep.stages.snapshot_source import asked_source

    if part.subsets:
        return part.subsets
    if part.repo is None and part.table is None and options.source is None:
        raise _sourceless(recipe, "`table` or `repo` under [splits]")
    asked = asked_source(part, options)
    if asked != "local" and not asked.startswith((".", "/", "~")):  # a path that is not there is told below
        raise UsageError(
            f"The recipe {recipe.name} names no subset of {asked}.",
            remedy=f'Add subsets = ["NAME"] to [splits.{part.name}], or use `prep llava-ov --subset NAME`.',
        )
    found = list_subsets(recipe, split=part.name, options=options)
    return [subset.name for subset in found if part.name in subset.splits]


def _robots(recipe: Recipe, out_root: Path, split: str, options: Options) -> list[Result]:
    from prep.robots import RobotOptions, prepare_robots

    trees, results = recipe.by_split(options.sources), []
    for part in recipe.chosen(split):
        root = _tree(part, trees[part.name]) if part.name in trees else None
        asked = _as(RobotOptions, options, root=root)
        elsewhere = recipe.document["roots"].get("variables") or (out_root / part.directory).is_dir()
        if not (asked.root or part.tree or part.repo or elsewhere):
            raise _sourceless(recipe, "`tree` or `repo` under [datasets]")
        results += prepare_robots(recipe, out_root, datasets=part.name, options=asked)
    return results


def _tree(part: Split, where: str) -> Path:
    path = Path(where).expanduser()
    if not path.is_dir():
        raise UsageError(
            f"The source {where!r} of {part.name} is no folder of this machine.",
            remedy="Give the folder of a LeRobot tree; a repository is named in the recipe.",
        )
    return path


def _reasoning(recipe: Recipe, out_root: Path, split: str, options: Options) -> list[Result]:
    from prep.reasoning import ReasoningOptions, prepare_video_reasoning

    asked = _as(ReasoningOptions, options)
    if not recipe.document.get("inputs") and not any(each.annotations for each in asked.asked.values()):
        raise _sourceless(recipe, "[inputs.train] with annotations")
    return prepare_video_reasoning(recipe, out_root, split=split, options=asked)


_RUNS: Final[Mapping[str, Run]] = {
    "conversations": _conversations,
    "sft_jsonl": _sft,
    "arrow_snapshot": _snapshots,
    "lerobot": _robots,
    "reasoning_qa": _reasoning,
}
