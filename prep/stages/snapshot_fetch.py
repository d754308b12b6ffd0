"""`--download-only`: the parquet that a snapshot needs comes into the Hub's cache; nothing is made of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prep import hub
from prep.errors import IncompleteError
from prep.progress import bytes_text, counted, progress
from prep.stages.options import Result
from prep.stages.payload import check_space
from prep.stages.snapshot_rows import RowRule, judged_rows, schema_of
from prep.stages.snapshot_run import SnapshotRun
from prep.stages.snapshot_source import Source

__all__ = ["fetch_only"]


def fetch_only(run: SnapshotRun, source: Source) -> Result:
    """Fetch the files that the run would read, in order, up to the one in which its bounds are met.

    Raises IncompleteError when told to stop or where the cache has no room, and as the Hub does.
    """
    names, listing = run.file_names(source), source.listing
    result = Result(run.name, run.root, "downloaded", files_unit="parquet files", unit="rows")
    result.remedy = "Run the same command without --download-only (and with --offline) to finish."
    if listing is None:
        result.reused = len(names)
        result.notes.append("the source is on this machine: there is nothing to fetch")
        return result
    sizes = source.sizes()
    there = hub.listing(listing.repo, listing.commit, offline=True).files  # the card is in the cache
    if not _is_bounded(run):
        missing = [name for name in names if name not in there]
        check_space(_existing(hub.cache_folder()), sum(sizes[name] for name in missing), len(missing) + 8)
    with progress(run.subset, len(names), quiet=run.options.quiet) as bar:
        for name in _needed(run, listing, names):
            bar.advance()
            if name in there:
                result.reused += 1
            else:
                bar.received(sizes[name])
                result.fetched, result.bytes = result.fetched + 1, result.bytes + sizes[name]
    left = len(names) - result.fetched - result.reused
    much = counted(result.fetched + result.reused, "parquet file")
    result.notes.append(f"{much} in the Hub's cache; {bytes_text(result.bytes)} came now")
    if left:
        result.notes.append(f"{counted(left, 'parquet file')} not needed: the bounds are met before")
    return result


def _is_bounded(run: SnapshotRun) -> bool:
    return run.options.limit is not None or run.options.max_samples is not None


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def _needed(run: SnapshotRun, listing: hub.Listing, names: Sequence[str]) -> Iterator[str]:
    """Each file, once it is in the cache, as long as the bounds are not met."""
    met = _Bounds.of(run)
    for name in names:
        if run.options.cancel.is_set():
            raise IncompleteError("Stopped as asked.", remedy="Run the same command again to go on.")
        path = hub.download(listing, name)
        yield name
        if _is_bounded(run) and met.after(path):
            return


@dataclass(slots=True)
class _Bounds:
    """How much of what is asked for the files so far hold."""

    run: SnapshotRun
    rule: RowRule
    records: int = 0
    kept: int = 0

    @classmethod
    def of(cls, run: SnapshotRun) -> _Bounds:
        return cls(run, RowRule.of(run.recipe.document))

    def after(self, path: Path) -> bool:
        """Whether the bounds are met with this file. Samples are counted as the stage keeps them."""
        import pyarrow.parquet as pq

        limit, most = self.run.options.limit, self.run.options.max_samples
        if most is not None:
            schema = schema_of(path, self.rule)
            with ThreadPoolExecutor(min(self.run.options.jobs, os.cpu_count() or 1)) as threads:
                for _, judged in judged_rows(path, 0, schema, self.rule, threads):
                    self.kept += not judged.reason
                    if self.kept >= most:
                        return True
        with pq.ParquetFile(path) as file:
            self.records += file.metadata.num_rows
        return limit is not None and self.records >= limit
