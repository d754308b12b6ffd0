"""What a user may ask of a reasoning dataset, by split, and what a recipe says where nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from prep.errors import UsageError
from prep.layouts.reasoning_qa import Mode, Sampling, variable
from prep.recipe import Recipe
from prep.stages.options import Options

__all__ = ["Asked", "MediaWay", "ReasoningOptions", "Source", "sources_of"]

MediaWay = Literal["link", "copy", "reference"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of one split; None or empty where the recipe's own word holds.

    `annotations` are concatenated in this order. `media_roots` is none, one for all files, or one each.
    """

    annotations: Sequence[Path] = ()
    media_roots: Sequence[Path] = ()
    mode: str | None = None
    stride: int | None = None
    offset: int | None = None
    limit: int | None = None
    system_prompt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningOptions(Options):
    """The options of a reasoning dataset.

    `asked` is by split; `media_roots` hold for a split that has none of its own. `media` links the
    media's folders, copies the files, or leaves both where they
    are. `global_batch` is in samples, for the count of steps. `ignore` are codes of findings to accept.
    """

    asked: Mapping[str, Asked] = field(default_factory=dict)
    media_roots: Sequence[Path] = ()
    media: MediaWay | None = None
    global_batch: int | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """One split as it is to be made: its files, the root given for each, and the sampling."""

    split: str
    annotations: tuple[Path, ...]
    roots: tuple[Path | None, ...]
    sampling: Sampling


def sources_of(recipe: Recipe, options: ReasoningOptions) -> list[Source]:
    """The splits that have annotation files, in the recipe's order.

    Raises UsageError, naming upstream's variables, where nothing is given, a file or root is not
    there, the roots are of another number, or a number is out of range.
    """
    shared = tuple(options.media_roots)
    sources = [
        _source(recipe, split.name, options.asked.get(split.name, Asked()), shared) for split in recipe.splits
    ]
    found = [source for source in sources if source is not None]
    if not found:
        names = " and ".join(variable(split.name, "ANNOTATIONS") for split in recipe.splits)
        raise UsageError(
            f"There are no annotation files, which would become {names}.",
            remedy="Give --train A.json and --val B.json, or name them under [inputs] in a recipe.",
        )
    prompts = {source.sampling.system_prompt for source in found}
    if len(prompts) > 1:
        raise UsageError(
            "COSMOS_VIDEO_SYSTEM_PROMPT is one text for train and val; two are given.",
            remedy="Give one --system-prompt, or prepare the splits in two runs and two out-roots.",
        )
    return found


def _source(recipe: Recipe, split: str, asked: Asked, shared: tuple[Path, ...]) -> Source | None:
    stated: Mapping[str, Any] = recipe.document.get("inputs", {}).get(split, {})
    own = _paths(recipe, stated.get("annotations", ()))
    annotations = tuple(asked.annotations) or own
    sampling = _sampling(recipe, split, asked)
    sampling.check(split)
    if not annotations:
        numbers = (asked.stride, asked.offset, asked.limit)
        if asked.media_roots or asked.mode or any(value is not None for value in numbers):
            raise UsageError(
                f"{variable(split, 'ANNOTATIONS')} would be empty: {split} has settings, and no file.",
                remedy=f"Give --{split} FILE.json.",
            )
        return None
    roots = tuple(asked.media_roots) or shared or _paths(recipe, stated.get("media_roots", ()))
    _check_paths(split, annotations, roots)
    each: tuple[Path | None, ...] = roots if len(roots) == len(annotations) else roots * len(annotations)
    return Source(split, annotations, each or (None,) * len(annotations), sampling)


def _sampling(recipe: Recipe, split: str, asked: Asked) -> Sampling:
    own: Mapping[str, Any] = recipe.document.get("sampling", {}).get(split, {})
    default: Mode = "hybrid" if split == "train" else "answer"
    mode: Any = asked.mode or own.get("response_mode", default)
    base = Sampling(
        mode,
        own.get("sample_stride", 1),
        own.get("sample_offset", 0),
        own.get("limit"),
        own.get("system_prompt", ""),
        recipe.document.get("vision", {}),
    )
    given = {name: getattr(asked, name) for name in _ASKED if getattr(asked, name) is not None}
    return replace(base, **given)


_ASKED: Final = ("stride", "offset", "limit", "system_prompt")


def _paths(recipe: Recipe, stated: str | Sequence[str]) -> tuple[Path, ...]:
    return tuple(recipe.folder / path for path in ([stated] if isinstance(stated, str) else stated))


def _check_paths(split: str, annotations: Sequence[Path], roots: Sequence[Path]) -> None:
    for path in annotations:
        if not path.is_file():
            what = "is a directory" if path.is_dir() else "is not there"
            raise UsageError(
                f"{variable(split, 'ANNOTATIONS')}: {path} {what}.",
                remedy=f"Give --{split} the path of a JSON file; several with --{split} once each.",
            )
    if len(roots) not in (0, 1, len(annotations)):
        raise UsageError(
            f"{variable(split, 'MEDIA_ROOTS')} has {len(roots)} roots for {len(annotations)} files.",
            remedy="Give one root for all files, or one for each, in their order.",
        )
    for root in roots:
        if not root.is_dir():
            raise UsageError(
                f"{variable(split, 'MEDIA_ROOTS')}: {root} is no directory.",
                remedy="Give the folder that the items' video_id are relative to.",
            )
