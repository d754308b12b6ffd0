"""The reasoning stage: annotation files are checked, kept byte for byte, and their media linked or copied.

Nothing of the source is written to. A response mode, stride, offset or limit changes no file, only
what training exposes; the manifest keeps them, and the reader and `prep env` follow it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prep.errors import UsageError
from prep.findings import Finding, Report, catalogue, found
from prep.layouts.reasoning_qa import stored_names
from prep.layouts.reasoning_qa_checks import Annotation, Scan
from prep.layouts.reasoning_qa_tree import media_paths
from prep.manifest import Manifest
from prep.progress import counted
from prep.recipe import Recipe, Split
from prep.stages.options import Result
from prep.stages.reasoning_options import MediaWay, ReasoningOptions, Source, sources_of
from prep.stages.reasoning_publish import publish

__all__ = ["Prepared", "prepare_reasoning"]

Identity = tuple[int, int]

_NEVER_ACCEPTED: Final = ("TXT001", "TXT002", "TXT003", "TXT004", "TXT005", "REA001", "REA002", "REA008")


@dataclass(slots=True)
class Prepared:
    """A split on its way: what it is made from, what its files hold, and what was found in them.

    `names` are the annotation files' names in the dataset; `roots` the different media roots, and
    `root_of` the number, from 0, of each file's root.
    """

    recipe: Recipe
    part: Split
    root: Path
    source: Source
    options: ReasoningOptions
    annotations: list[Annotation]
    names: list[str]
    roots: list[Path]
    root_of: list[int]
    report: Report

    @property
    def way(self) -> MediaWay:
        """How the media come to the dataset."""
        way: MediaWay = self.options.media or self.recipe.document.get("media", "link")
        return way

    @property
    def items(self) -> int:
        """Raw items of all files."""
        return sum(annotation.items for annotation in self.annotations)


def prepare_reasoning(
    recipe: Recipe, out_root: Path, options: ReasoningOptions, split: str = "all"
) -> list[Result]:
    """Prepare each split that is asked for and has annotation files below `out_root`.

    Raises UsageError, WouldChangeError, HeldError and IncompleteError. A split with findings of
    severity error is not written; its result says why, and the other split is still done.
    """
    _check_ignored(options)
    results = []
    held: dict[Identity, tuple[str, Path]] = {}
    wanted = {part.name for part in recipe.chosen(split)}
    sources = [source for source in sources_of(recipe, options) if source.split in wanted]
    if not sources:
        raise UsageError(
            f"The recipe {recipe.name} names no annotation files for {split}.",
            remedy=f"Name them under [inputs.{split}] in the recipe.",
        )
    for source in sources:
        began = time.monotonic()
        part = next(split for split in recipe.splits if split.name == source.split)
        prepared = _scanned(recipe, part, out_root / part.directory, source, options)
        _leakage(prepared, held, out_root, {each.split for each in sources})
        result = _result(prepared)
        if not result.exit_status:
            publish(prepared, result)
        result.seconds = time.monotonic() - began
        results.append(result)
    return results


def _check_ignored(options: ReasoningOptions) -> None:
    for code in options.ignore:
        if code not in catalogue():
            raise UsageError(f"There is no code {code!r}.", remedy="`prep explain` lists all codes.")
        if code in _NEVER_ACCEPTED:
            raise UsageError(
                f"{code} cannot be accepted: training would fail on it.",
                remedy="Take the item or file out of the annotations.",
            )


def _scanned(recipe: Recipe, part: Split, root: Path, source: Source, options: ReasoningOptions) -> Prepared:
    for path in source.annotations:
        if root.resolve() in path.resolve().parents:
            raise UsageError(
                f"{path} stands in {root}, the dataset that is to be made.",
                remedy="Name the file that it was made from, or give another --out-root.",
            )
    report = Report(str(root), ignore=options.ignore, accepted=recipe.accepted)
    names = stored_names([path.name for path in source.annotations])
    scan = Scan(report.add, source.sampling)
    annotations = scan.run(list(zip(source.annotations, names, source.roots, strict=True)))
    roots: dict[str, Path] = {}
    for annotation in annotations:
        roots.setdefault(os.path.realpath(annotation.root.path), annotation.root.path)
    numbers = {real: number for number, real in enumerate(roots)}
    root_of = [numbers[os.path.realpath(annotation.root.path)] for annotation in annotations]
    return Prepared(
        recipe, part, root, source, options, annotations, names, list(roots.values()), root_of, report
    )  # fmt: skip


def _leakage(
    prepared: Prepared, held: dict[Identity, tuple[str, Path]], out_root: Path, now: set[str]
) -> None:
    """FIL009: one for each video of this split that another split also shows; adds to `held`."""
    for split in prepared.recipe.splits:
        if split.name not in now:
            held |= _held_by(out_root / split.directory, split.name)
    for annotation in prepared.annotations:
        for video, item in annotation.videos.items():
            path = annotation.root.path / video
            identity = _identity(path)
            if identity is None:
                continue
            other = held.setdefault(identity, (prepared.part.name, path))
            if other[0] != prepared.part.name:
                message = f"{path} is also in {other[0]}, as {other[1]}"
                prepared.report.add(
                    found("FIL009", annotation.name, message, place=f"/items/{item}/video_id")
                )


def _held_by(root: Path, split: str) -> dict[Identity, tuple[str, Path]]:
    """The videos of a dataset that an earlier run made."""
    manifest = Manifest.load(root)
    if manifest is None:
        return {}
    paths = ((path, _identity(path)) for path in media_paths(manifest.root, manifest.document))
    return {identity: (split, path) for path, identity in paths if identity is not None}


def _identity(path: Path) -> Identity | None:
    try:
        state = path.stat()
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino


def _result(prepared: Prepared) -> Result:
    """The result with its figures and findings; `failed` if an error is among them."""
    result = Result(
        name=prepared.part.directory,
        root=prepared.root,
        outcome="planned" if prepared.options.dry_run else "complete",
        rows=prepared.items,
        kept=prepared.items,
        reused=len({path for each in prepared.annotations for path in each.videos}),
        consumption=consumption(prepared),
        findings=list(_shown(prepared.report)),
        unit="items",
        files_unit="videos",
    )
    result.notes += _notes(prepared)
    if prepared.report.errors:
        result.outcome = "failed"
        result.message = f"{counted(prepared.report.errors, 'error')} found; nothing was written."
        result.remedy = "Mend them, or accept a code with --ignore CODE. `prep explain CODE` tells more."
    return result


def _shown(report: Report) -> Iterator[Finding]:
    for group in report.ordered():
        yield from group.findings


def consumption(prepared: Prepared) -> dict[str, Any]:
    """What training exposes in a pass, and what it leaves out, by reason."""
    sampling, items = prepared.source.sampling, prepared.items
    exposed, thinks = sampling.exposed(items), len(sampling.thinks(items))
    plain = sum(annotation.plain for annotation in prepared.annotations)
    selected = sampling.selected(items)
    each = 2 if sampling.mode == "hybrid" else 1
    counts = {
        "answer": exposed - thinks,
        "think": thinks - plain,
        "answer for want of reasoning": plain,
    }
    return {
        "items": items,
        "selected": selected,
        "samples": exposed,
        "answers": {name: count for name, count in counts.items() if count},
        "left_out": {
            "items before the offset": min(sampling.offset, items),
            "items between strides": items - min(sampling.offset, items) - selected,
            "samples beyond the limit": selected * each - exposed,
        },
    }


def _notes(prepared: Prepared) -> Iterator[str]:
    sampling, items, batch = prepared.source.sampling, prepared.items, prepared.options.global_batch
    exposed = sampling.exposed(items)
    left_out: Mapping[str, int] = consumption(prepared)["left_out"]
    yield from (f"left out: {count} {what}" for what, count in left_out.items() if count)
    if batch is not None:
        steps = -(-exposed // batch)
        yield f"a pass takes {steps} step{'s' * (steps != 1)} of {batch} samples"
        if sampling.mode == "hybrid":
            yield "hybrid doubles the samples, not the recipe's max_iter: raise it for a whole pass"
    if sampling.limit is not None and sampling.mode == "hybrid" and exposed % 2:
        yield "the limit is odd: the last item is shown with its answer alone"
    for group in prepared.report.ordered():
        more = group.count - len(group.findings)
        if more:
            yield f"{more} more {group.code}: `prep explain {group.code}`"
