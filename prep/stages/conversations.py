"""The conversations stage: a table of media, questions and answers becomes the conversations layout.

One run of a split: is it finished already? — read the table — find or fetch each clip —
is enough kept? — move the clips to their names, write the conversations, `meta.json` and
last the manifest. Up to the last step a finished dataset stays as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prep.errors import FetchError, UsageError
from prep.files import free_space
from prep.findings import found
from prep.manifest import MANIFEST, STATE, Manifest, RecordRow, write_table
from prep.progress import bytes_text
from prep.recipe import Recipe, Split
from prep.stages import payload
from prep.stages.conversations_run import Job, Run, attempted
from prep.stages.conversations_views import Publication
from prep.stages.finished import confirm, differences, refuse_change, settled_result
from prep.stages.options import FAILURES_SHOWN, Options, Result
from prep.stages.rows import Plan, plan_rows
from prep.stages.sources import SourceTable, open_source
from prep.workspace import Workspace, attempt_path, ledger_path

__all__ = ["prepare_split"]

Adopt = Callable[[Job], None]


def prepare_split(
    recipe: Recipe,
    split: Split,
    root: Path,
    options: Options,
    *,
    adopt: Adopt | None = None,
) -> Result:
    """Prepare one split into `root`.

    `adopt`, when given, looks at a tree of another tool and tells the ledger what of it is good;
    without it such a tree is refused. Raises UsageError, WouldChangeError, HeldError,
    EnvironmentLacksError and IncompleteError.
    """
    began = time.monotonic()
    run = Run.of(recipe, split, root, options)
    result = None
    if adopt is None:
        _refuse_foreign(root)
        result = _settled(run)
    if result is None:
        result = _planned(run) if options.dry_run else _work(run, adopt)
    result.seconds = time.monotonic() - began
    return result


def _refuse_foreign(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file; a directory is made there.", remedy="Give another --out-root.")
    ours = (root / STATE).exists() or (root / MANIFEST).exists()
    if root.is_dir() and not ours and any(root.iterdir()):
        raise UsageError(
            f"{root} holds files that no run of prep made.",
            remedy=f"Run `prep adopt {root}` to check and keep them, or give another --out-root.",
        )


def _settled(run: Run) -> Result | None:
    """The result if the dataset is finished as asked and nothing needs the lock."""
    to_prune = run.options.prune and (run.root / STATE / "unused").exists()
    if to_prune or ledger_path(run.root).exists():
        return None
    return confirm(run.root, run.request(), run.recipe, run.split, run.options)


def _work(run: Run, adopt: Adopt | None) -> Result:
    with Workspace(run.root, wait=run.options.wait) as workspace:
        result = _held(run, workspace, adopt)
        if result.exit_status == 0 and run.options.prune:
            result.notes.append(payload.prune(workspace))
        if result.outcome in ("complete", "unchanged"):
            workspace.clear()
    return result


def _held(run: Run, workspace: Workspace, adopt: Adopt | None) -> Result:
    if adopt is None:
        # Another run may have finished while we waited, or one was killed while it cleaned up.
        settled = confirm(run.root, run.request(), run.recipe, run.split, run.options)
        if settled is not None:
            return settled
    manifest = Manifest.load(run.root) if adopt is None else None
    source = open_source(run.recipe, run.split, run.options, manifest, workspace)
    if manifest is not None:
        changed = differences(manifest, run.request(), run.recipe, source.facts)
        if changed and not run.options.update:
            refuse_change(run.root, changed)
        if not changed and not run.options.update and not manifest.damaged_files(manifest.files()):
            return settled_result(manifest, run.options)
        payload.seed(workspace, manifest)
    prompt = run.prompt()
    table = run.open_table(source)
    job = Job(run, workspace, source, table, plan_rows(table, run.rule, run.split, run.options), prompt)
    if adopt is not None:
        adopt(job)
    return _gather_and_publish(job)


def _gather_and_publish(job: Job) -> Result:
    run, workspace, options = job.run, job.workspace, job.run.options
    wanted = job.plan.sources()
    if options.reuse is not None:
        payload.link_from(workspace, options.reuse / run.split.directory, set(wanted))
    missing = _missing(wanted, workspace, payload.Store.look(workspace, run.layout.is_media))
    gathered = _gather(job, missing)
    job.plan.fail({item: (error.reason, error.message) for item, error in gathered.failures.items()})
    result = _result(run, job.plan)
    result.fetched, result.bytes = gathered.files, gathered.bytes
    result.reused = len(wanted) - len(missing)
    if not _is_enough(run, gathered, result):
        write_table(attempt_path(run.root), job.attempt(), RecordRow)
        return result
    if options.download_only:
        result.outcome = "downloaded"
        result.remedy = "Run the same command without --download-only (and with --offline) to finish."
        return result
    manifest = Publication(job).publish(payload.Store.look(workspace, run.layout.is_media))
    result.dataset_id = manifest.dataset_id
    result.consumption = dict(manifest.document["consumption"])
    return result


def _gather(job: Job, missing: Sequence[str]) -> payload.Gathered:
    run = job.run
    if not missing:
        return payload.Gathered()
    if run.options.offline:
        return payload.Gathered(failures={item: _offline(item) for item in missing})
    _check_space(run, job.source, missing)
    return payload.gather(
        job.workspace,
        missing,
        run.address(job.source),
        run.options,
        run.split.directory,
        job.source.local_media(),
    )


def _missing(wanted: Sequence[str], workspace: Workspace, store: payload.Store) -> list[str]:
    there = store.contents()
    known = workspace.ledger.sources
    return [item for item in wanted if item not in known or known[item].sha256 not in there]


def _offline(source: str) -> FetchError:
    return FetchError(
        "offline",
        f"{source}: not on this machine, and the run is offline.",
        transient=True,
        remedy="Run with --download-only on a connected machine first.",
    )


def _check_space(run: Run, source: SourceTable, missing: Sequence[str]) -> None:
    need = 0
    if len(missing) > payload.HEADS:
        need = payload.estimate_bytes(_urls(run, source, missing), run.options, source.local_media()) or 0
    payload.check_space(run.root, need, 2 * len(missing) + 8)


def _urls(run: Run, source: SourceTable, sources: Sequence[str]) -> list[str]:
    address = run.address(source)
    urls = []
    for item in sources:
        try:
            urls.append(address(item))
        except FetchError:
            continue  # counted as a failure when its turn to be fetched comes
    return urls


def _result(run: Run, plan: Plan) -> Result:
    kept = len(plan.kept())
    failures = [row for row in attempted(run, plan) if row.status == "failed"]
    return Result(
        name=run.split.directory,
        root=run.root,
        outcome="complete",
        rows=len(plan.rows),
        kept=kept,
        failed=plan.drops(),
        failures=failures[:FAILURES_SHOWN],
        findings=list(plan.findings),
    )


def _is_enough(run: Run, gathered: payload.Gathered, result: Result) -> bool:
    """Whether the split may be published; else `result` says why not."""
    transient = [error for error in gathered.failures.values() if error.transient]
    if transient and not run.options.give_up:
        result.outcome = "incomplete"
        result.message = f"{len(transient)} clips could not be had this time; {transient[0].message}"
        result.remedy = (
            transient[0].remedy or "Run the same command again to go on, or give up on them with --give-up."
        )
        return False
    if not result.kept:
        result.outcome = "failed"
        result.findings.append(found("TAB008", run.split.directory, f"0 of {result.rows} rows kept"))
        result.message = f"No row of {result.rows} could be kept."
        result.remedy = f"`prep failures {run.root}` lists each with its reason."
        return False
    coverage = result.kept / result.rows
    if coverage < run.options.min_coverage:
        result.outcome = "failed"
        result.message = (
            f"{result.kept} of {result.rows} rows kept ({coverage:.4f}), below --min-coverage "
            f"{run.options.min_coverage:g}; nothing was published, and what was fetched is kept."
        )
        result.remedy = f"`prep failures {run.root}` lists them; a lower --min-coverage accepts the loss."
        return False
    return True


def _planned(run: Run) -> Result:
    """What a run would do, without writing below the out-root."""
    manifest = Manifest.load(run.root)
    source = open_source(run.recipe, run.split, run.options, manifest, None)
    plan = plan_rows(run.open_table(source), run.rule, run.split, run.options)
    had: Mapping[str, Any] = {}
    if manifest is not None:
        had = {record.source: record for record in manifest.records() if record.media_sha256}
    missing = [item for item in plan.sources() if item not in had]
    result = _result(run, plan)
    result.outcome = "planned"
    result.reused = len(plan.sources()) - len(missing)
    result.fetched = len(missing)
    result.notes.extend(_space_notes(run, source, missing, result))
    if manifest is not None:
        changed = differences(manifest, run.request(), run.recipe, source.facts)
        result.notes.extend(f"would change {item} (needs --update)" for item in changed)
    return result


def _space_notes(run: Run, source: SourceTable, missing: Sequence[str], result: Result) -> list[str]:
    free = bytes_text(free_space(run.root).bytes)
    if not missing:
        return [f"nothing to fetch; {free} free"]
    if run.options.offline:
        return [f"sizes unknown: offline; {free} free"]
    size = payload.estimate_bytes(_urls(run, source, missing), run.options, source.local_media())
    if size is None:
        return [f"sizes unknown: no server states them; {free} free"]
    result.bytes = size
    asked = min(payload.HEADS, len(missing))
    return [f"about {bytes_text(size)} to fetch (estimated from the sizes of {asked} clips); {free} free"]
