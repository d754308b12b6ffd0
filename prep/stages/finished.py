"""A finished dataset met by a new run: is it what is asked, and what would change if not?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prep.errors import PrepError, WouldChangeError
from prep.files import sha256_of
from prep.manifest import Manifest
from prep.recipe import Recipe, Split
from prep.stages.options import FAILURES_SHOWN, Options, Result
from prep.stages.sources import local_table

__all__ = ["accepted_losses", "confirm", "differences", "refuse_change", "settled_result", "sound_manifest"]


def sound_manifest(root: Path) -> Manifest | None:
    """The manifest of a directory that is to be adopted; None if it has none that can be read."""
    try:
        return Manifest.load(root)
    except PrepError:
        return None  # adopting is the remedy for a broken manifest


def differences(
    manifest: Manifest, request: Mapping[str, Any], recipe: Recipe, source: Mapping[str, Any] | None
) -> list[str]:
    """What a run with this request would change, each as `what: old → new`.

    `source` are the facts of the table that the run would read, or None if they are not looked at.
    """
    document = manifest.document
    before = document["request"]
    changed = [
        f"{key}: {_shown(before.get(key))} → {_shown(request.get(key))}" for key in _unequal(before, request)
    ]
    if document["recipe_sha256"] != recipe.sha256:
        parts = ", ".join(_unequal(document["recipe"], recipe.document))
        changed.append(f"recipe ({parts}): {document['recipe_sha256'][:12]} → {recipe.sha256[:12]}")
    if source is not None:
        changed.extend(_source_changes(document["sources"][0], source))
    return changed


def _unequal(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]


def _source_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if before["sha256"] == now["sha256"]:
        return []
    what = "commit" if "commit" in before and "commit" in now else "sha256"
    return [f"source table {now['file']}: {what} {before[what][:12]} → {now[what][:12]}"]


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def accepted_losses(manifest: Manifest) -> dict[str, tuple[str, str]]:
    """The sources that a finished dataset was published without, each with its reason.

    A run that only mends the dataset leaves them so; `--update` tries them again.
    """
    if not manifest.document["counts"]["failed"]:
        return {}
    try:
        records = manifest.records()
    except PrepError:
        return {}  # met only when adopting, which is the remedy: those rows are tried again
    kept = {row.source for row in records if row.status == "kept"}
    return {row.source: (row.reason, "") for row in records if row.source not in kept}


def refuse_change(root: Path, changed: list[str]) -> None:
    """Raise WouldChangeError for these changes."""
    raise WouldChangeError(
        f"{root} is finished, and this run would change it: {'; '.join(changed)}.",
        remedy="Add --update to change it, or give another --out-root (--reuse links the media).",
    )


def confirm(
    root: Path, request: Mapping[str, Any], recipe: Recipe, split: Split, options: Options
) -> Result | None:
    """The result of a dataset that is finished as asked, or None if there is work to do.

    Reads the manifest and its tables and asks the file system for the size of each file; opens no
    socket. Raises WouldChangeError if the request is another one and `options.update` is not given.
    """
    manifest = Manifest.load(root)
    if manifest is None:
        return None
    local = local_table(recipe, split, options)
    facts = None if local is None else {"file": local.name, "sha256": sha256_of(local)}
    changed = differences(manifest, request, recipe, facts)
    if changed and not options.update:
        refuse_change(root, changed)
    retry = options.update and manifest.document["counts"]["failed"]
    ask_hub = options.refresh and local is None
    if changed or retry or ask_hub or manifest.damaged_files(manifest.files()):
        return None
    return settled_result(manifest, options)


def settled_result(manifest: Manifest, options: Options) -> Result:
    """The result of a dataset that is finished as asked."""
    document = manifest.document
    counts = document["counts"]
    result = Result(
        name=document["name"],
        root=manifest.root,
        outcome="unchanged",
        rows=counts["rows"],
        kept=counts["kept"],
        reused=counts["kept"],
        failed=dict(document["drops"]),
        consumption=dict(document["consumption"]),
        dataset_id=manifest.dataset_id,
    )
    if counts["failed"]:
        failed = (row for row in manifest.records() if row.status == "failed")
        result.failures = [row for row, _ in zip(failed, range(FAILURES_SHOWN), strict=False)]
    coverage = counts["kept"] / counts["rows"]
    if coverage < options.min_coverage:
        result.outcome = "failed"
        result.message = (
            f"Finished with {counts['kept']} of {counts['rows']} rows ({coverage:.4f}), "
            f"below --min-coverage {options.min_coverage:g}."
        )
        result.remedy = (
            "Give the --min-coverage that was accepted, or try the failed rows again with --update."
        )
    return result
