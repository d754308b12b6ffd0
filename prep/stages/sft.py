"""The SFT stage: videos and captions become JSONL files with their clips beside them.

One run: is it finished already? — read the source — find or fetch each clip — is enough kept? —
move the clips to their names, write each split's JSONL, and last the manifest. Up to the last
step a finished dataset stays as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.findings import found
from prep.manifest import MANIFEST, STATE, Manifest, RecordRow, write_table
from prep.recipe import Recipe, Split
from prep.stages import payload
from prep.stages.finished import refuse_change
from prep.stages.options import FAILURES_SHOWN, Result
from prep.stages.sft_gather import gather
from prep.stages.sft_options import SftOptions
from prep.stages.sft_plan import FILTERS, Plan
from prep.stages.sft_prompts import align, is_prompt
from prep.stages.sft_publish import Publication, record_rows, told
from prep.stages.sft_reuse import Shared, other_dataset
from prep.stages.sft_run import Run
from prep.stages.sft_tokens import token_counter
from prep.workspace import Workspace, attempt_path, is_unfinished, ledger_path

__all__ = ["prepare_dataset"]

# One digest is over both: which of them it was cannot be told.
_CHANGED: Final = {"captions": "the captions or videos of the source have changed"}


def prepare_dataset(recipe: Recipe, part: Split, out_root: Path, options: SftOptions) -> Result:
    """Prepare one SFT dataset below `out_root`.

    Raises UsageError, WouldChangeError, HeldError, IncompleteError and EnvironmentLacksError.
    """
    began = time.monotonic()
    run = Run.of(recipe, part, out_root, options)
    _refuse_foreign(run)
    result = None if is_unfinished(run.root) or options.prune else _settled(run)
    if result is None:
        result = _planned(run) if options.dry_run else _work(run)
    result.seconds = time.monotonic() - began
    return result


def _refuse_foreign(run: Run) -> None:
    root = run.root
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file; a directory is made there.", remedy="Give another --out-root.")
    ours = (root / STATE).exists() or (root / MANIFEST).exists()
    if root.is_dir() and not ours and any(root.iterdir()) and not run.is_in_place:
        raise UsageError(
            f"{root} holds files that no run of prep made.",
            remedy=f"Take it over as it is with --source {root}, or give another --out-root.",
        )


def _commit(run: Run, manifest: Manifest | None, workspace: Workspace | None = None) -> str | None:
    """The commit that an unfinished or earlier run took of the same source."""
    if run.form != "hub" or run.options.refresh:
        return None
    if workspace is not None and run.asked() in workspace.ledger.pins:
        return str(workspace.ledger.pins[run.asked()]["commit"])
    if manifest is not None and manifest.document["request"].get("source") == run.asked():
        return str(manifest.document["sources"][0]["commit"])
    return None


def _settled(run: Run, plan: Plan | None = None) -> Result | None:
    """The result if the dataset is finished as asked; raises WouldChangeError if it would change.

    A finished dataset from the Hub is confirmed without a plan, so that no socket is opened.
    """
    manifest = Manifest.load(run.root)
    if manifest is None or (run.options.refresh and plan is None):
        return None
    if plan is None and run.form != "hub":
        plan = run.plan(facts_only=True)
    changed = _differences(run, manifest, plan)
    if changed:
        if not (run.options.update or run.options.dry_run):
            refuse_change(run.root, changed)
        return None
    retry = run.options.update and _faults(manifest)
    if retry or manifest.damaged_files(manifest.files()):
        return None
    return _confirmed(run, manifest)


def _differences(run: Run, manifest: Manifest, plan: Plan | None) -> list[str]:
    document, request = manifest.document, run.request(manifest)
    before = document["request"]
    changed = [
        f"{key}: {before.get(key)} → {request.get(key)}"
        for key in sorted(before.keys() | request.keys())
        if before.get(key) != request.get(key)
    ]
    if document["recipe_sha256"] != run.recipe.sha256:
        changed.append(f"recipe: {document['recipe_sha256'][:12]} → {run.recipe.sha256[:12]}")
    if plan is not None and not run.is_in_place:
        old = {source["file"]: source["sha256"] for source in document["sources"]}
        new = {source["file"]: source["sha256"] for source in plan.facts}
        names = (name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))
        changed += [_CHANGED.get(name, f"source {name} has changed") for name in names]
    return changed


def _faults(manifest: Manifest) -> int:
    return sum(count for reason, count in manifest.document["drops"].items() if reason not in FILTERS)


def _confirmed(run: Run, manifest: Manifest) -> Result:
    document = manifest.document
    counts = document["counts"]
    result = Result(
        name=run.root.name,
        root=run.root,
        outcome="unchanged",
        rows=counts["rows"],
        kept=counts["kept"],
        reused=counts["kept"],
        failed=dict(document["drops"]),
        consumption=dict(document["consumption"]),
        dataset_id=manifest.dataset_id,
        unit="records",
        notes=told(document["consumption"]),
    )
    if counts["failed"]:
        failed = (row for row in manifest.records() if row.status == "failed")
        result.failures = list(islice(failed, FAILURES_SHOWN))
    _judge(run, result, _faults(manifest))
    return result


def _planned(run: Run) -> Result:
    """What a run would do; nothing is written below the out-root."""
    manifest, other = Manifest.load(run.root), _other(run)
    plan = run.plan(_commit(run, manifest))
    result = _result(run, plan)
    result.outcome = "planned"
    videos = {clip.source for clip in plan.kept() if clip.media}
    if plan.is_far:
        far = videos - Shared.of(other, plan).digests.keys()
        result.fetched, result.bytes = len(far), sum(plan.sizes.get(name, 0) for name in far)
    result.reused = len(videos) - result.fetched
    if manifest is not None:
        result.notes += [
            f"would change {item} (needs --update)" for item in _differences(run, manifest, plan)
        ]
    if run.options.align_prompts:
        prompts = [path for path in plan.extras if is_prompt(path)]
        result.notes += align(prompts, plan.extras, plan.locate).notes(dry_run=True)
    return result


def _result(run: Run, plan: Plan) -> Result:
    failures = (row for row in record_rows(plan, {}) if row.status == "failed")
    return Result(
        name=run.root.name,
        root=run.root,
        outcome="complete",
        rows=len(plan.clips),
        kept=len(plan.kept()),
        failed=plan.drops(),
        failures=list(islice(failures, FAILURES_SHOWN)),
        findings=list(plan.findings[:FAILURES_SHOWN]),
        notes=list(plan.notes),
        unit="records",
    )


@contextmanager
def _workspace(run: Run) -> Iterator[Workspace]:
    """The run's workspace; a run that is refused before it got anything leaves no trace."""
    begun = ledger_path(run.root).exists()
    absent = [folder for folder in (run.root, *run.root.parents) if not folder.exists()]
    try:
        with Workspace(run.root, wait=run.options.wait, cancel=run.options.cancel) as workspace:
            try:
                yield workspace
            except PrepError:
                if not (begun or workspace.ledger.sources):
                    workspace.clear()
                raise
    except PrepError:
        for folder in (run.root / STATE, *absent):
            with suppress(OSError):
                folder.rmdir()  # only if it is empty
        raise


def _other(run: Run) -> Manifest | None:
    """The dataset that `--reuse` names; raises UsageError where there is none."""
    return other_dataset(run.options.reuse, run.options.name or run.part.directory, run.recipe.kind)


def _work(run: Run) -> Result:
    folder, other = run.options.tokenizer, _other(run)
    tokens = token_counter(folder) if folder is not None else None  # before anything is begun
    with _workspace(run) as workspace:
        manifest = Manifest.load(run.root)
        plan = run.plan(_commit(run, manifest, workspace))
        # Another run may have finished while we waited, or one was killed while it cleaned up.
        settled = _settled(run, plan)
        publication = Publication(run, plan, workspace, manifest, tokens)
        result = settled or _gather_and_publish(publication, other)
        if result.dataset_id is not None:
            if run.options.prune:
                result.notes.append(payload.prune(workspace, quiet=run.options.quiet))
            workspace.clear()
    return result


def _gather_and_publish(publication: Publication, other: Manifest | None) -> Result:
    run, plan, workspace = publication.run, publication.plan, publication.workspace
    unsure = _pin(run, plan, workspace) if plan.form == "hub" else []
    if publication.before is not None:
        payload.seed(workspace, publication.before)
    gathered = gather(run, plan, workspace, Shared.of(other, plan))
    result = _result(run, plan)
    files = {clip.source for clip in plan.kept() if clip.media} | {*plan.extras.values()}
    if plan.is_far:
        result.fetched, result.bytes = gathered.files, gathered.bytes
    result.reused, result.files_unit = max(len(files) - result.fetched, 0), "files"
    if transient := gathered.transient:
        result.outcome, result.dataset_id = "incomplete", None
        result.message = f"{len(transient)} files could not be had this time; {transient[0].message}"
        result.remedy = transient[0].remedy or "Run the same command again to go on."
    elif _judge(run, result, plan.faults()) and run.options.download_only:
        result.outcome = "downloaded"
        result.remedy = "Run the same command without --download-only (and with --offline) to finish."
    if result.outcome != "complete":
        with workspace.held():
            write_table(attempt_path(run.root), list(record_rows(plan, {})), RecordRow)
        return result
    if run.is_in_place and publication.changes():
        raise UsageError(
            f"{run.root} is taken over as it is, and {', '.join(publication.changes())} would be rewritten.",
            remedy="Give another --out-root, so that the source stays as it is.",
        )
    written, notes = publication.publish()
    result.dataset_id, result.consumption = written.dataset_id, dict(written.document["consumption"])
    result.notes += [*told(result.consumption), *notes, *unsure]
    return result


def _pin(run: Run, plan: Plan, workspace: Workspace) -> list[str]:
    """Keep the commit for the run that goes on after a kill, and how many files belong to it.

    Raises EnvironmentLacksError where the Hub cannot be asked and the cache holds fewer than an
    earlier run counted. Returns what is to be said where nobody counted them.
    """
    pins, files = workspace.ledger.pins, len(plan.extras)
    if plan.is_verified:
        workspace.ledger.pin(run.asked(), {"commit": plan.facts[0]["commit"], "files": files})
        return []
    if run.asked() not in pins:
        return ["the Hub was not asked which files the revision has; those in its cache were taken"]
    counted = pins[run.asked()]["files"]
    if files < counted:
        raise EnvironmentLacksError(
            f"The Hub's cache holds {files} of {counted} files beside the clips.",
            remedy="Run with --download-only on a connected machine first.",
        )
    return []


def _judge(run: Run, result: Result, faults: int) -> bool:
    """Whether enough is kept; else the result says why not. Rules of the loader are no faults."""
    if not result.kept:
        result.outcome = "failed"
        result.findings.append(found("TAB008", run.root.name, f"0 of {result.rows} records kept"))
        result.message = f"No record of {result.rows} could be kept."
        result.remedy = "The reasons and their counts stand above; mend the most frequent one first."
        return False
    coverage = 1 - faults / result.rows
    if coverage < run.options.min_coverage:
        result.outcome = "failed"
        result.message = (
            f"{faults} of {result.rows} records failed ({coverage:.4f} good), below --min-coverage "
            f"{run.options.min_coverage:g}."
        )
        result.remedy = f"`prep failures {run.root}` lists them; a lower --min-coverage accepts the loss."
        return False
    return True
