"""A snapshot is published: shards get their names, state and manifest are written, the folder is renamed."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prep import __version__
from prep.files import disk_errors, sync_folder, write_whole
from prep.layouts.arrow_snapshot import (
    INFO,
    STATE_FILE,
    fingerprint_of,
    info_json,
    shard_name,
    state_json,
)
from prep.manifest import STATE, FileRow, Manifest, RecordRow, read_rows
from prep.progress import bytes_text, counted
from prep.recipe import canonical_json
from prep.stages.snapshot_files import SourceFiles
from prep.stages.snapshot_run import SnapshotRun, consumption
from prep.stages.snapshot_shards import Sealed, records_part
from prep.stages.snapshot_source import Source
from prep.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Publication", "finish", "unused_note"]

_METADATA = b"huggingface"


@dataclass(slots=True)
class Publication:
    """Completes the hidden folder; may be stopped at any point and done again."""

    run: SnapshotRun
    workspace: Workspace
    source: Source
    files: SourceFiles
    schema: pa.Schema
    shards: Sequence[Sealed]

    def publish(self) -> Manifest:
        """Name the shards, and write state, features, tables and last the manifest into the hidden folder."""
        whole = self.run.whole
        with self.workspace.held():
            rows = [*self._named_shards(), *self._views()]
            sync_folder(whole)
            facts = self._facts()
            files = sorted(rows, key=lambda row: row.path)
            manifest = Manifest.write_parts(whole, facts, files, self._records())
            sync_folder(whole)
        return manifest

    def _named_shards(self) -> Iterator[FileRow]:
        for sealed, name in zip(self.shards, self._names(), strict=False):  # the last may have no rows
            (self.run.whole / sealed.name).replace(self.run.whole / name)
            yield FileRow(name, sealed.size, sealed.sha256, "computed", "payload")

    def _names(self) -> list[str]:
        count = sum(sealed.rows > 0 for sealed in self.shards)
        return [shard_name(self.run.options.form, self.run.part.name, at, count) for at in range(count)]

    def _views(self) -> Iterator[FileRow]:
        """The two documents of a saved dataset; parquet carries its features itself."""
        run = self.run
        if run.options.form == "hub":
            return
        features = json.loads(self.schema.metadata[_METADATA])["info"]["features"]
        documents = {
            STATE_FILE: state_json(self._fingerprint(), run.part.name, self._names()),
            INFO: info_json(features),
        }
        for name, data in documents.items():
            write_whole(run.whole / name, data)
            yield FileRow(name, len(data), hashlib.sha256(data).hexdigest(), "computed", "view")

    def _fingerprint(self) -> str:
        """Over the rows themselves, so that equal snapshots share their caches on every machine."""
        shards = [sealed.sha256 for sealed in self.shards if sealed.rows]
        return fingerprint_of({"subset": self.run.subset, "split": self.run.part.name, "shards": shards})

    def _records(self) -> Iterator[list[RecordRow]]:
        for sealed in self.shards:
            if sealed.records:
                yield read_rows(records_part(self.workspace, sealed.number), RecordRow)

    def _facts(self) -> dict[str, Any]:
        run, recipe = self.run, self.run.recipe
        rows = sum(sealed.records for sealed in self.shards)
        kept = sum(sealed.rows for sealed in self.shards)
        drops, modes, warnings = (
            _total(each) for each in zip(*((s.drops, s.modes, s.warnings) for s in self.shards), strict=True)
        )
        last = self.shards[-1].next.file
        sources = [{**self.source.facts, **self.files.facts(number)} for number in range(last + 1)]
        inputs = {
            "recipe": recipe.sha256,
            "request": run.request(),
            "sources": [source["sha256"] for source in sources],
        }
        return {
            "prep_version": __version__,
            "name": run.name,
            "split": run.part.name,
            "kind": recipe.kind,
            "recipe": dict(recipe.document),
            "recipe_sha256": recipe.sha256,
            "request": run.request(),
            "sources": sources,
            "counts": {"rows": rows, "kept": kept, "failed": rows - kept},
            "drops": drops,
            "consumption": consumption(kept, drops),
            "details": {
                "subset": run.subset,
                "form": run.options.form,
                "fingerprint": self._fingerprint(),
                "images": {"modes": modes, "warnings": warnings},
                "shards": [_shard_facts(sealed) for sealed in self.shards],
            },
            "fingerprint": hashlib.sha256(canonical_json(inputs)).hexdigest(),
        }


def _total(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part)
    return dict(sorted(counts.items()))


def _shard_facts(sealed: Sealed) -> dict[str, Any]:
    """What is needed to make one shard again without the others."""
    return {
        "rows": sealed.rows,
        "records": sealed.records,
        "start": list(sealed.start),
        "next": list(sealed.next),
        "modes": sealed.modes,
        "warnings": sealed.warnings,
    }


def finish(run: SnapshotRun, workspace: Workspace) -> None:
    """Put a hidden folder that has its manifest in the dataset's place; end what a killed run began."""
    with workspace.held(), disk_errors(run.root):
        if run.former.exists() and run.root.exists():
            _put_away(run)
        if Manifest.load(run.whole) is not None:
            if run.root.exists():
                run.root.rename(run.former)
            run.whole.rename(run.root)
            sync_folder(run.root.parent)
        if run.former.exists():
            _put_away(run)


def _put_away(run: SnapshotRun) -> None:
    """Keep the shards of the snapshot that was replaced: payload is deleted only by --prune."""
    manifest = Manifest.load(run.former)
    new = Manifest.load(run.root)
    kept = {row.sha256 for row in new.files()} if new is not None else set()
    unused = run.root / STATE / "unused"
    for row in manifest.files() if manifest is not None else ():
        path = run.former / row.path
        if row.role == "payload" and row.sha256 not in kept and path.is_file():
            unused.mkdir(parents=True, exist_ok=True)
            path.replace(unused / str(row.sha256))
    before = run.former / STATE / "unused"
    for path in before.iterdir() if before.is_dir() else ():
        unused.mkdir(parents=True, exist_ok=True)
        path.replace(unused / path.name)
    shutil.rmtree(run.former)


def unused_note(run: SnapshotRun, *, prune: bool) -> Iterator[str]:
    """Say what of former snapshots is kept, or delete it; the bytes are said before anything is deleted."""
    unused = run.root / STATE / "unused"
    files = list(unused.iterdir()) if unused.is_dir() else []
    what = f"{counted(len(files), 'unused shard')}, {bytes_text(sum(path.stat().st_size for path in files))}"
    if not prune:
        yield from (f"{what}, of former snapshots kept; --prune deletes them" for _ in files[:1])
        return
    if files and not run.options.quiet:
        sys.stderr.write(f"Deleting {what}, of {run.root}\n")
    with disk_errors(unused):
        for path in files:
            path.unlink()
        if unused.is_dir():
            unused.rmdir()
    yield f"pruned {what}"
