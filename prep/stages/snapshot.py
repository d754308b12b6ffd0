"""The snapshot stage: rows stream from parquet, images are decoded, and shards of bounded size are written.

All is built in a hidden folder beside the dataset's own and renamed whole: after a kill the dataset is
there, or it is not. A run goes on behind the last sealed shard.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prep.errors import UsageError
from prep.files import disk_errors
from prep.manifest import STATE, Manifest, RecordRow, read_rows, write_table
from prep.progress import bytes_text, progress
from prep.recipe import Recipe, Split
from prep.stages import payload
from prep.stages.finished import refuse_change
from prep.stages.options import FAILURES_SHOWN, Result
from prep.stages.snapshot_card import write_card
from prep.stages.snapshot_fetch import fetch_only
from prep.stages.snapshot_files import SourceFiles
from prep.stages.snapshot_options import SnapshotOptions
from prep.stages.snapshot_publish import Publication, finish, unused_note
from prep.stages.snapshot_reuse import other_snapshot, reuse, seed
from prep.stages.snapshot_rows import FILTERED, RowRule
from prep.stages.snapshot_run import SnapshotRun
from prep.stages.snapshot_shards import Bounds, Builder, Sealed, begin_again, records_part
from prep.stages.snapshot_source import Source, lacking, open_source
from prep.workspace import Ledger, Workspace, attempt_path, ledger_path

__all__ = ["prepare_snapshot"]


def prepare_snapshot(
    recipe: Recipe, part: Split, subset: str, out_root: Path, options: SnapshotOptions
) -> Result:
    """Prepare one subset's split below `out_root`.

    Raises UsageError, WouldChangeError, HeldError, IncompleteError, EnvironmentLacksError, and PrepError
    for a source that cannot be read.
    """
    began = time.monotonic()
    run = SnapshotRun.of(recipe, part, subset, out_root, options)
    _refuse_foreign(run)
    result = None if run.hidden.exists() or options.prune else _settled(run)
    if result is None:
        result = _planned(run) if options.dry_run else _work(run)
    if options.form == "hub" and result.dataset_id is not None and not options.dry_run:
        write_card(run.folder, run.out_root)
    result.seconds = time.monotonic() - began
    return result


def _refuse_foreign(run: SnapshotRun) -> None:
    root = run.root
    if root.exists() and Manifest.load(root) is None and (not root.is_dir() or any(root.iterdir())):
        raise UsageError(
            f"{root} holds files that no run of prep made.",
            remedy="Move it away, or give another --out-root.",
        )


def _settled(run: SnapshotRun) -> Result | None:
    """The result of a dataset that is finished as asked; None if there is work to do.

    Reads the manifest and a local source, and asks the file system for sizes; opens no socket. Raises
    WouldChangeError, and UsageError for a local source without the subset.
    """
    manifest = Manifest.load(run.root)
    if manifest is None:
        return None
    changed = run.changes(manifest)
    if changed and not run.options.update:
        if run.options.dry_run:
            return None
        refuse_change(run.root, changed)
    if changed or manifest.damaged_files(manifest.files()) or (run.options.refresh and run.is_remote()):
        return None
    return run.settled(manifest)


def _planned(run: SnapshotRun) -> Result:
    """What a run would do; writes nothing below the out-root."""
    manifest, other = Manifest.load(run.root), other_snapshot(run)
    source = open_source(run.recipe, run.part, run.options, run.commit(manifest, {}))
    names = run.file_names(source)
    sizes = {name: source.sizes().get(name, 0) for name in names}
    result = Result(run.name, run.root, "planned", files_unit="files", unit="rows")
    if run.is_remote():
        result.fetched, result.bytes = len(names), sum(sizes[name] for name in names)
    result.notes.append(f"{len(names)} parquet files of {bytes_text(sum(sizes[name] for name in names))}")
    if manifest is not None:
        changed = run.changes(manifest)
        result.notes.extend(f"would change {item} (needs --update)" for item in changed)
    if other is not None:
        result.notes.append(f"whole shards would be taken from {other.root}")
    return result


def _work(run: SnapshotRun) -> Result:
    other = other_snapshot(run)
    made = [folder for folder in (run.hidden, *run.hidden.parents) if not folder.exists()]
    try:
        with Workspace(run.hidden, wait=run.options.wait, cancel=run.options.cancel) as workspace:
            try:
                result = _held(run, workspace, other)
            finally:
                with suppress(OSError):  # not empty, or not there; only the holder may look
                    run.whole.rmdir()
            if result.dataset_id is not None:
                result.notes.extend(unused_note(run, prune=run.options.prune))
                workspace.clear()
    finally:
        _leave_no_trace(run, made)
    return result


def _leave_no_trace(run: SnapshotRun, made: list[Path]) -> None:
    """Remove the hidden folder when nothing is in it to go on from, and what was made for it."""
    for folder in (run.hidden / STATE, run.hidden, *made):
        with suppress(OSError):  # not empty: the next run goes on from there, or another one holds it
            folder.rmdir()


def _held(run: SnapshotRun, workspace: Workspace, other: Manifest | None) -> Result:
    finish(run, workspace)
    settled = _settled(run)
    if settled is not None:
        return settled
    manifest, mends = Manifest.load(run.root), False
    _bind(run, workspace)
    pins = workspace.ledger.pins
    source = open_source(run.recipe, run.part, run.options, run.commit(manifest, pins))
    if manifest is not None and run.same_source(manifest, source):
        changed = run.changes(manifest)
        if not changed and not manifest.damaged_files(manifest.files()):
            return run.settled(manifest)
        mends = not changed
    elif manifest is not None and not run.options.update:
        refuse_change(run.root, [f"source: commit {run.commit_of(manifest)} → {source.facts.get('commit')}"])
    if run.options.download_only:
        return fetch_only(run, source)
    notes = []
    if manifest is not None and mends:
        seed(run, workspace, manifest)
    elif other is not None:
        notes = [reuse(run, workspace, source, other)]
    result = _build(run, workspace, source, mends=mends)
    result.notes += notes
    return result


def _bind(run: SnapshotRun, workspace: Workspace) -> None:
    """Bind the run's notes to what is asked; another request's are refused, or dropped with --update."""
    asked = run.binding()
    before = workspace.ledger.pins.get("request", asked)
    if before != asked:
        keys = [key for key in asked if before.get(key) != asked[key]]
        what = "; ".join(f"{key}: {before.get(key)} → {asked[key]}" for key in keys)
        if not run.options.update:
            raise UsageError(
                f"{run.hidden} holds an unfinished run that was asked otherwise ({what}).",
                remedy="Run that command again to go on, or add --update to drop what it has made.",
            )
        workspace.ledger.close()
        with disk_errors(run.hidden):
            for folder in (run.whole, workspace.incoming):
                shutil.rmtree(folder, ignore_errors=True)
            workspace.incoming.mkdir()
            ledger_path(run.hidden).unlink()
        workspace.ledger = Ledger(ledger_path(run.hidden))


def _build(run: SnapshotRun, workspace: Workspace, source: Source, *, mends: bool) -> Result:
    """Make the shards and publish them; a run that `mends` a dataset needs only some of the files."""
    options, names = run.options, run.file_names(source)
    bounded = mends or options.limit is not None or options.max_samples is not None
    sizes = source.sizes()
    if not bounded:
        lost = [name for name in names if name not in sizes]
        if lost:
            raise lacking(str(source.facts.get("repo")), lost)
        _check_space(run, sizes, names)
    for key, facts in (("request", run.binding()), ("source", dict(source.facts))):
        if key not in workspace.ledger.pins:
            workspace.ledger.pin(key, facts)
    with disk_errors(run.whole):
        run.whole.mkdir(exist_ok=True)
        begin_again(run.whole, options.form)
    with (
        SourceFiles(source, names, workspace, look_ahead=not bounded) as files,
        progress(run.subset, len(names), quiet=options.quiet) as shown,
    ):
        builder = Builder(
            workspace,
            run.whole,
            files,
            RowRule.of(run.recipe.document, source.table.media_root if source.table else None),
            form=options.form,
            split=run.part.name,
            bounds=Bounds(options.limit, options.max_samples, options.shard_bytes),
            jobs=options.jobs,
            cancel=options.cancel,
            shown=shown,
        )
        shards = list(builder.build())
        result = _result(run, workspace, shards)
        result.fetched, result.bytes = len(files.fetched), sum(sizes[names[at]] for at in files.fetched)
        if result.outcome != "failed":
            manifest = Publication(run, workspace, source, files, builder.schema(), shards).publish()
            finish(run, workspace)
            result.dataset_id = manifest.dataset_id
    return result


def _check_space(run: SnapshotRun, sizes: Mapping[str, int], names: list[str]) -> None:
    """A snapshot is about as large as its parquet; a few files of that are there beside it."""
    waiting = 3 * max((sizes[name] for name in names), default=0) if run.is_remote() else 0
    built = sum(path.stat().st_size for path in run.whole.iterdir()) if run.whole.is_dir() else 0
    need = max(sum(sizes[name] for name in names) + waiting - built, 0)
    payload.check_space(run.hidden, need, len(names) + 16)


def _result(run: SnapshotRun, workspace: Workspace, shards: list[Sealed]) -> Result:
    """What the shards add up to, and whether it may be published."""
    result = run.result_of(shards)
    lost = sum(result.failed.values())
    if lost or not result.kept:
        failed = _write_attempt(workspace, shards)
        result.failures = failed[:FAILURES_SHOWN]
    if not result.kept:
        run.fail_empty(result)
    elif lost and run.options.on_bad_image == "fail":
        result.outcome = "failed"
        result.message = f"{lost} of {result.rows} rows cannot be trained on; nothing published."
        result.remedy = (
            f"`prep failures {run.hidden}` lists them; --on-bad-image drop leaves them out, and takes "
            "over all that is made."
        )
    return result


def _write_attempt(workspace: Workspace, shards: list[Sealed]) -> list[RecordRow]:
    """Keep the failed rows where `prep failures` looks for them."""
    failed = [
        row
        for sealed in shards
        if set(sealed.drops) - set(FILTERED)
        for row in read_rows(records_part(workspace, sealed.number), RecordRow)
        if row.reason and row.reason not in FILTERED
    ]
    with workspace.held():
        write_table(attempt_path(workspace.root), failed, RecordRow)
    return failed
