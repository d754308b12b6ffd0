"""The conversations stage: a table of media, questions and answers becomes the conversations layout.

One run of a split: is it finished already? — read the table — find or fetch each clip —
is enough kept? — move the clips to their names, write the conversations, `meta.json` and
last the manifest. Up to the last step a finished dataset stays as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from prep.errors import FetchError, PrepError, UsageError, WouldChangeError
from prep.findings import found
from prep.manifest import MANIFEST, STATE, Manifest, RecordRow, write_table
from prep.progress import counted
from prep.recipe import Recipe, Split
from prep.stages import payload
from prep.stages.conversations_plan import Adopt, planned
from prep.stages.conversations_run import Job, Reading, Run, result_of
from prep.stages.conversations_views import Publication
from prep.stages.finished import (
    accepted_losses,
    confirm,
    differences,
    refuse_change,
    settled_result,
    sound_manifest,
)
from prep.stages.options import Options, Result
from prep.stages.sources import SourceTable, open_source
from prep.workspace import Workspace, attempt_path, is_unfinished, ledger_path

__all__ = ["prepare_split"]

_ADOPTING = "adopting"  # no source is called so: a repository's name has a slash


def prepare_split(
    recipe: Recipe,
    split: Split,
    root: Path,
    options: Options,
    *,
    adopt: Adopt | None = None,
) -> Result:
    """Prepare one split into `root`.

    Without `adopt` a tree of another tool is refused. Raises UsageError, WouldChangeError, HeldError,
    EnvironmentLacksError and IncompleteError.
    """
    began = time.monotonic()
    run = Run.of(recipe, split, root, options)
    result = None
    if adopt is None:
        _refuse_foreign(root)
        result = _settled(run)
    if result is None:
        result = planned(run, adopt) if options.dry_run else _work(run, adopt)
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
    if to_prune or is_unfinished(run.root):
        return None
    try:
        return confirm(run.root, run.request(), run.recipe, run.split, run.options)
    except WouldChangeError:
        if run.options.dry_run:
            return None  # a dry run says what would change
        raise


def _work(run: Run, adopt: Adopt | None) -> Result:
    with _workspace(run) as workspace:
        result = _held(run, workspace, adopt)
        # A dataset with an id is finished, by this run or by an earlier one.
        if result.dataset_id is not None and not _keep_for_update(workspace, result, run.options):
            if run.options.prune:
                result.notes.append(payload.prune(workspace, quiet=run.options.quiet))
            workspace.clear()
    return result


@contextmanager
def _workspace(run: Run) -> Iterator[Workspace]:
    """The run's workspace; a run that is refused before it got anything leaves no trace."""
    begun, was_there = ledger_path(run.root).exists(), run.root.exists()
    try:
        with Workspace(run.root, wait=run.options.wait, cancel=run.options.cancel) as workspace:
            try:
                yield workspace
            except PrepError:
                if not (begun or workspace.ledger.sources or workspace.ledger.started):
                    workspace.clear()
                raise
    except PrepError:
        for folder in (run.root / STATE, *(() if was_there else (run.root,))):
            with suppress(OSError):
                folder.rmdir()  # only if it is empty
        raise


def _keep_for_update(workspace: Workspace, result: Result, options: Options) -> bool:
    """Whether an unfinished update of the dataset waits here, which this run did not ask for."""
    waiting = sum(len(path.name) == 64 for path in workspace.incoming.iterdir())
    if result.outcome != "unchanged" or options.prune or not waiting:
        return False
    result.notes.append(
        f"{counted(waiting, 'clip')} of an unfinished update kept; --update goes on, --prune deletes"
    )
    return True


def _held(run: Run, workspace: Workspace, adopt: Adopt | None) -> Result:
    if adopt is None:
        # Another run may have finished while we waited, or one was killed while it cleaned up.
        settled = confirm(run.root, run.request(), run.recipe, run.split, run.options)
        if settled is not None:
            return settled
    manifest = Manifest.load(run.root) if adopt is None else sound_manifest(run.root)
    _mark_adoption(run, workspace, begins=adopt is not None, finished=manifest is not None)
    source = open_source(run.recipe, run.split, run.options, manifest, workspace)
    if manifest is not None and adopt is None:
        settled = _settled_after_all(run, manifest, source)
        if settled is not None:
            return settled
        payload.seed(workspace, manifest)
    job = Job.holding(Reading.of(run, source), workspace)
    if manifest is not None and not run.options.update:
        job.plan.fail(accepted_losses(manifest))
    if adopt is not None:
        adopt(job, workspace.ledger)
    return _gather_and_publish(job)


def _mark_adoption(run: Run, workspace: Workspace, *, begins: bool, finished: bool) -> None:
    """Keep in the ledger that a tree is being adopted: until that is done it is not ours to rewrite."""
    if begins:
        workspace.ledger.pin(_ADOPTING, {})
    elif _ADOPTING in workspace.ledger.pins and not finished:
        raise UsageError(
            f"{run.root} is a tree of another tool whose adoption has not come to its end.",
            remedy=f"Run `prep adopt {run.root}` again, with the options that it was begun with.",
        )


def _settled_after_all(run: Run, manifest: Manifest, source: SourceTable) -> Result | None:
    """The result if the table that was looked up asks for no change; raises WouldChangeError."""
    changed = differences(manifest, run.request(), run.recipe, source.facts)
    if changed and not run.options.update:
        refuse_change(run.root, changed)
    retry = run.options.update and manifest.document["counts"]["failed"]
    if changed or retry or manifest.damaged_files(manifest.files()):
        return None
    return settled_result(manifest, run.options)


def _gather_and_publish(job: Job) -> Result:
    run, workspace, options = job.run, job.workspace, job.run.options
    wanted = job.plan.sources()
    if options.reuse is not None:
        payload.link_from(workspace, options.reuse / run.split.directory, set(wanted))
    missing = _missing(wanted, workspace, payload.Store.look(workspace, run.layout.is_media))
    gathered = _gather(job, missing)
    job.plan.fail({item: (error.reason, error.message) for item, error in gathered.failures.items()})
    result = result_of(run, job.plan)
    result.notes.extend(job.notes())
    result.fetched, result.bytes = gathered.files, gathered.bytes
    result.reused = len(wanted) - len(missing)
    enough = _is_enough(job, gathered, result)
    if not enough or options.download_only:
        with workspace.held():
            write_table(attempt_path(run.root), job.attempt(), RecordRow)
    if not enough:
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
    far = set(filter(run.needs_network(job.source), missing)) if run.options.offline else set()
    near = [item for item in missing if item not in far]
    gathered = payload.Gathered()
    if near:
        _check_space(run, job.source, near)
        url, label, local = run.address(job.source), run.split.directory, job.source.local_media()
        gathered = payload.gather(job.workspace, near, url, run.options, label, local)
    gathered.failures.update((item, _offline(item)) for item in sorted(far))
    return gathered


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
        need = payload.estimate_bytes(run.urls(source, missing), run.options, source.local_media()) or 0
    payload.check_space(run.root, need, 2 * len(missing) + 8)


def _is_enough(job: Job, gathered: payload.Gathered, result: Result) -> bool:
    """Whether the split may be published; else `result` says why not."""
    run = job.run
    # In the order of the table, not of arrival, so that the same failures are told in the same words.
    failed = dict.fromkeys(row.source for row in job.plan.rows if row.source in gathered.failures)
    transient = [gathered.failures[source] for source in failed if gathered.failures[source].transient]
    if transient and not run.options.give_up:
        result.outcome = "incomplete"
        result.message = (
            f"{counted(len(transient), 'clip')} could not be had this time, such as {transient[0].message}"
        )
        remedy = transient[0].remedy or "Run the same command again to go on."
        result.remedy = f"{remedy} --give-up counts them as final."
        return False
    if not result.kept:
        result.outcome = "failed"
        result.findings.append(found("TAB008", run.split.directory, f"0 of {result.rows} rows kept"))
        result.message, result.remedy = "The table has no rows.", "Mend the table."
        if result.rows:
            result.message = f"None of {counted(result.rows, 'row')} could be kept."
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
