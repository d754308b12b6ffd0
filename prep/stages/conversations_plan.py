"""The dry run of the conversations stage: what a run would fetch and change, without writing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from prep.files import free_space
from prep.manifest import STATE, Manifest
from prep.progress import bytes_text, counted
from prep.stages import payload
from prep.stages.conversations_run import Reading, Run, result_of
from prep.stages.finished import accepted_losses, differences, sound_manifest
from prep.stages.options import Result
from prep.stages.sources import SourceTable, open_source
from prep.workspace import Ledger

__all__ = ["Adopt", "planned"]

Adopt = Callable[[Reading, Ledger | None], AbstractSet[str]]
"""Looks at a tree of another tool: the sources whose clips in it are good, told to the ledger if given."""


def planned(run: Run, adopt: Adopt | None) -> Result:
    """What a run would do; writes nothing below the out-root. Raises as the run would."""
    manifest = Manifest.load(run.root) if adopt is None else sound_manifest(run.root)
    source = open_source(run.recipe, run.split, run.options, manifest, None)
    reading = Reading.of(run, source)
    changed = [] if manifest is None else differences(manifest, run.request(), run.recipe, source.facts)
    if manifest is not None and not (changed or run.options.update):
        reading.plan.fail(accepted_losses(manifest))
    had = _reusable(run)
    if adopt is not None:
        had |= adopt(reading, None)
    elif manifest is not None:
        had |= _sound_sources(manifest)
    wanted = reading.plan.sources()
    missing = [item for item in wanted if item not in had]
    result = result_of(run, reading.plan)
    result.outcome = "planned"
    result.reused, result.fetched = len(wanted) - len(missing), len(missing)
    result.notes.extend([*_space_notes(run, source, missing, result), *reading.notes()])
    if adopt is None:
        result.notes.extend(f"would change {item} (needs --update)" for item in changed)
    if manifest is not None and adopt is None:
        result.notes.extend(_damage_notes(manifest, set(wanted)))
    if run.options.prune:
        result.notes.extend(_prune_notes(run.root))
    return result


def _reusable(run: Run) -> set[str]:
    """The sources whose clips the out-root of --reuse holds."""
    if run.options.reuse is None:
        return set()
    return _sound_sources(payload.reused_manifest(run.options.reuse / run.split.directory))


def _sound_sources(manifest: Manifest) -> set[str]:
    """The sources whose clips a finished dataset still holds in their full size."""
    damaged = {row.path for row in manifest.damaged_files(manifest.files())}
    return {row.source for row in manifest.records() if row.media is not None and row.media not in damaged}


def _space_notes(run: Run, source: SourceTable, missing: Sequence[str], result: Result) -> list[str]:
    free = bytes_text(free_space(run.root).bytes)
    if not missing:
        return [f"nothing to fetch; {free} free"]
    if run.options.offline:
        return [f"sizes unknown: offline; {free} free"]
    size = payload.estimate_bytes(run.urls(source, missing), run.options, source.local_media())
    if size is None:
        return [f"sizes unknown: no server states them; {free} free"]
    result.bytes = size
    asked = min(payload.HEADS, len(missing))
    return [f"about {bytes_text(size)} to fetch (estimated from {counted(asked, 'clip')}); {free} free"]


def _damage_notes(manifest: Manifest, wanted: set[str]) -> Iterator[str]:
    damaged = manifest.damaged_files(manifest.files())
    if damaged:
        files = counted(len(damaged), "file")
        yield f"would mend {files} missing or of another size, first {damaged[0].path}"
    unnamed = {row.source for row in manifest.records() if row.media is not None} - wanted
    if unnamed:
        clips = counted(len(unnamed), "clip")
        yield f"{clips} would no longer be named and wait in {STATE}/unused for --prune"


def _prune_notes(root: Path) -> Iterator[str]:
    unused = root / STATE / "unused"
    files = list(unused.iterdir()) if unused.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    yield f"--prune would delete {counted(len(files), 'unused file')}, {bytes_text(size)}"
