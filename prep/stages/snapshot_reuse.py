"""Shards of another prepared snapshot: linked where this run would make the same bytes.

A shard follows from the source's rows alone, counted from its own first row. So those of a snapshot of
the same source serve one with another `--limit` or `--max-samples`, up to the first that would end elsewhere.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prep.errors import PrepError, UsageError
from prep.files import disk_errors, link_or_copy, sha256_of
from prep.layouts.arrow_snapshot import Form, shard_name
from prep.manifest import FileRow, Manifest, RecordRow, write_table
from prep.progress import counted
from prep.stages.finished import differences
from prep.stages.payload import reused_manifest
from prep.stages.snapshot_rows import Position
from prep.stages.snapshot_run import SnapshotRun
from prep.stages.snapshot_shards import Sealed, built_name, records_part
from prep.stages.snapshot_source import Source
from prep.workspace import Workspace

__all__ = ["other_snapshot", "reuse", "seed"]

_BOUNDS = ("limit", "max_samples")


def other_snapshot(run: SnapshotRun) -> Manifest | None:
    """The snapshot that `--reuse` names: DIR itself, or the same directory below it; None for none.

    Raises UsageError where there is none, or one whose shards are cut or read otherwise.
    """
    folder = run.options.reuse
    if folder is None:
        return None
    manifest = Manifest.load(folder) or reused_manifest(folder / run.root.relative_to(run.out_root))
    request = {**run.request(), **{key: manifest.document["request"].get(key) for key in _BOUNDS}}
    changed = differences(manifest, request, run.recipe, None)
    if changed:
        raise UsageError(
            f"{manifest.root} has other shards than this run would make: {'; '.join(changed)}.",
            remedy="Give the options that it was made with, or leave --reuse out.",
        )
    return manifest


def reuse(run: SnapshotRun, workspace: Workspace, source: Source, other: Manifest) -> str:
    """Link what serves, once a run; raises UsageError where the source is not that of the other snapshot."""
    if "reused" in workspace.ledger.pins:
        return str(workspace.ledger.pins["reused"]["told"])
    _check_source(run, source, other)
    shards = other.document["details"]["shards"]
    serving = list(_serving(run, other.document["request"], shards))
    taken = _take_shards(run, workspace, other, serving)
    told = f"{counted(taken, 'shard')} of {len(shards)} taken from {other.root}"
    workspace.ledger.pin("reused", {"told": told})
    workspace.ledger.sync()
    return told


def _check_source(run: SnapshotRun, source: Source, other: Manifest) -> None:
    commits = [run.commit_of(other), source.facts.get("commit")]
    if commits[0] != commits[1]:
        raise UsageError(
            f"{other.root} was made from commit {commits[0]}, not {commits[1]}.",
            remedy=f"Name it with --source {source.facts.get('repo')}@{commits[0]}, or leave --reuse out.",
        )
    names = run.file_names(source)
    for stated, name in zip(other.document["sources"], names, strict=False):
        same = stated["file"] == name
        if same and commits[0] is None:
            same = sha256_of(source.folder / name) == stated["sha256"]
        if not same:
            raise UsageError(
                f"{other.root} was made from another {stated['file']} than {source.folder / name}.",
                remedy="Name the source that it was made from, or leave --reuse out.",
            )


def _serving(
    run: SnapshotRun, before: Mapping[str, Any], shards: Sequence[Mapping[str, Any]]
) -> Iterator[int]:
    """The numbers of the shards that this run would make just so, in order."""
    ours = (run.options.limit, run.options.max_samples)
    theirs = (before.get("limit"), before.get("max_samples"))
    records = rows = 0
    for number, facts in enumerate(shards):
        records, rows = records + facts["records"], rows + facts["rows"]
        if not _reaches(ours, records, rows):
            return
        # The last one ended with the source, or where its own bounds were met.
        with_source = _goes_on(ours, records, rows) and _goes_on(theirs, records, rows)
        if number == len(shards) - 1 and ours != theirs and not with_source:
            return
        yield number


def _reaches(bounds: tuple[int | None, int | None], records: int, rows: int) -> bool:
    limit, most = bounds
    return (limit is None or records <= limit) and (most is None or rows <= most)


def _goes_on(bounds: tuple[int | None, int | None], records: int, rows: int) -> bool:
    """Whether a run with these bounds would ask for a row more."""
    limit, most = bounds
    return (limit is None or records < limit) and (most is None or rows < most)


def _take_shards(run: SnapshotRun, workspace: Workspace, manifest: Manifest, numbers: Sequence[int]) -> int:
    """Make those shards of a finished snapshot sealed ones of this run; how many were whole.

    One that is damaged is left out, and so made anew.
    """
    ledger, stated = workspace.ledger, {row.path: row for row in manifest.files()}
    with disk_errors(run.whole):
        run.whole.mkdir(exist_ok=True)
    for number, source in enumerate(manifest.document["sources"]):
        if f"source {number}" not in ledger.pins:
            ledger.pin(f"source {number}", {key: source[key] for key in ("file", "size", "sha256")})
    records, shards = manifest.records(), manifest.document["details"]["shards"]
    count, first, taken = sum(facts["rows"] > 0 for facts in shards), 0, 0
    for number, facts in enumerate(shards):
        own = records[first : first + facts["records"]]
        sealed = _sealed_again(number, facts, own, first)
        sealed.is_last = number == len(shards) - 1
        name = shard_name(run.options.form, run.part.name, number, count)
        if number in numbers and _take(run, workspace, sealed, manifest.root / name, stated.get(name)):
            write_table(records_part(workspace, number), own, RecordRow)
            ledger.pin(f"shard {number}", asdict(sealed))
            taken += 1
        first += sealed.records
    ledger.sync()
    return taken


def _sealed_again(number: int, facts: dict[str, Any], records: Sequence[RecordRow], first: int) -> Sealed:
    """A shard of the finished dataset as one that this run has sealed, its file yet to be named."""
    drops = Counter(record.reason for record in records if record.reason)
    own = {key: facts[key] for key in ("rows", "records", "modes", "warnings")}
    return Sealed(
        number,
        "",
        Position(*facts["start"]),
        first,
        Position(*facts["next"]),
        drops=dict(sorted(drops.items())),
        **own,
    )


def _take(run: SnapshotRun, workspace: Workspace, sealed: Sealed, path: Path, row: FileRow | None) -> bool:
    """Link a shard into the hidden folder if its bytes are those that its manifest states."""
    if not sealed.rows:
        return True
    if row is None or not path.is_file() or path.stat().st_size != row.size:
        return False
    if sha256_of(path) != row.sha256:
        return False
    sealed.name = built_name(run.options.form, sealed.number)
    sealed.size, sealed.sha256 = row.size, str(row.sha256)
    with disk_errors(run.whole):
        link_or_copy(path, run.whole / sealed.name)
    if "schema" not in workspace.ledger.pins:
        workspace.ledger.pin("schema", {"arrow": _schema(path, run.options.form)})
    return True


def _schema(path: Path, form: Form) -> str:
    """The columns of a shard as the builder keeps them, so that no source file is fetched for them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if form == "hub":
            schema = pq.read_schema(path)
        else:
            with pa.memory_map(str(path)) as file:
                schema = pa.ipc.open_stream(file).schema
    except (OSError, pa.ArrowException) as error:
        raise PrepError(f"{path} cannot be read: {error}.", remedy="Validate the snapshot first.") from error
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def seed(run: SnapshotRun, workspace: Workspace, manifest: Manifest) -> None:
    """Tell a run that mends a damaged dataset which shards are whole: only the others are made anew."""
    if not any(pin.startswith("source ") for pin in workspace.ledger.pins):  # else it was begun before
        _take_shards(run, workspace, manifest, range(len(manifest.document["details"]["shards"])))
