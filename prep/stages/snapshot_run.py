"""One snapshot being prepared: where it stands, what is asked, and what its shards add up to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prep.findings import found
from prep.layouts.arrow_snapshot import safe_name
from prep.manifest import Manifest
from prep.recipe import Recipe, Split
from prep.stages.finished import differences
from prep.stages.options import FAILURES_SHOWN, Result
from prep.stages.snapshot_options import SnapshotOptions
from prep.stages.snapshot_rows import FILTERED
from prep.stages.snapshot_shards import Sealed
from prep.stages.snapshot_source import (
    Source,
    asked_source,
    chosen_subset,
    completed,
    lacking,
    open_source,
    subsets_of,
)
from prep.stages.snapshot_table import ImageTable

__all__ = ["SnapshotRun"]


@dataclass(frozen=True, slots=True)
class SnapshotRun:
    """One subset's split on its way to `root`.

    `folder` holds the subsets; `hidden`, beside the root, is where the run works, and `whole` in it is
    what will be renamed to the root.
    """

    recipe: Recipe
    part: Split
    subset: str
    out_root: Path
    folder: Path
    root: Path
    options: SnapshotOptions
    _digests: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(
        cls, recipe: Recipe, part: Split, subset: str, out_root: Path, options: SnapshotOptions
    ) -> SnapshotRun:
        """The run, its folders named by what is asked."""
        directory = part.directory
        if options.form == "hub":
            asked = asked_source(part, options)
            directory = (part.repo or part.directory) if asked == "local" else asked.partition("@")[0]
        folder = out_root / directory
        root = folder / safe_name(subset) / part.name
        return cls(recipe, part, subset, out_root, folder, root, options)

    @property
    def hidden(self) -> Path:
        """The folder that the run works in."""
        return self.root.parent / f".{self.root.name}.building"

    @property
    def whole(self) -> Path:
        """What will be the dataset's directory."""
        return self.hidden / "whole"

    @property
    def former(self) -> Path:
        """The snapshot that is replaced, on its way out."""
        return self.hidden / "former"

    @property
    def name(self) -> str:
        """The dataset's name: its directory below the out-root."""
        return self.root.relative_to(self.out_root).as_posix()

    def request(self) -> dict[str, Any]:
        """The options that shape the dataset, free of anything of this machine."""
        return {
            "source": asked_source(self.part, self.options),
            "subset": self.subset,
            "form": self.options.form,
            "limit": self.options.limit,
            "max_samples": self.options.max_samples,
            "shard_bytes": self.options.shard_bytes,
            **self._table(),
        }

    def _table(self) -> dict[str, str]:
        """The digests of a table that names image files, and of those; taken once, so a change is seen."""
        if self.options.source is None and not self._digests:
            table = ImageTable.of(self.recipe, self.part)
            self._digests.update({} if table is None else table.digests())
        return dict(self._digests)

    def changes(self, manifest: Manifest) -> list[str]:
        """What this run would change of a finished dataset, each as `what: old → new`.

        Reads a local source to the end; a Hub source is not asked. Raises UsageError for a local source
        without the subset.
        """
        changed = differences(manifest, self.request(), self.recipe, None)
        before = manifest.document["sources"]
        if self.is_remote() or before[0]["kind"] != "local":
            return changed
        source = open_source(self.recipe, self.part, self.options, None)
        if source.table is None:  # its digests are in the request
            changed.extend(self._source_changes(source, manifest))
        return changed

    def _source_changes(self, source: Source, manifest: Manifest) -> Iterator[str]:
        """The files of a local source that are not as a dataset was made from them, as far as it read."""
        before, counts = manifest.document["sources"], manifest.document["counts"]
        names = self.file_names(source)
        for stated, name in zip(before, names, strict=False):
            digest = source.sha256(name, source.folder / name)
            if digest != stated["sha256"]:
                was = "sha256" if name == stated["file"] else f"{stated['file']}, sha256"
                yield f"source {name}: {was} {stated['sha256'][:12]} → {digest[:12]}"
        met = counts["rows"] == self.options.limit or counts["kept"] == self.options.max_samples
        if len(names) < len(before) or (len(names) > len(before) and not met):
            yield f"source files: {len(before)} → {len(names)}"

    def binding(self) -> dict[str, Any]:
        """What an unfinished run is bound to: the request and the recipe."""
        local = {"at": str(self.options.source)} if not self.is_remote() else {}
        return {**self.request(), "recipe": self.recipe.sha256, **local}

    def is_remote(self) -> bool:
        """Whether the source is on the Hub."""
        return asked_source(self.part, self.options) != "local"

    def commit(self, manifest: Manifest | None, pins: Mapping[str, Mapping[str, Any]]) -> str | None:
        """The commit that an unfinished run began with, or a finished one was made from."""
        if "source" in pins:
            return pins["source"].get("commit")
        if manifest is None or self.options.refresh:
            return None
        before = manifest.document["request"].get("source")
        return self.commit_of(manifest) if before == self.request()["source"] else None

    def commit_of(self, manifest: Manifest) -> str | None:
        """The commit that a finished dataset was made from; None for a local source."""
        commit = manifest.document["sources"][0].get("commit")
        return None if commit is None else str(commit)

    def same_source(self, manifest: Manifest, source: Source) -> bool:
        """Whether a source that was opened is the one that a finished dataset was made from."""
        return self.commit_of(manifest) == source.facts.get("commit")

    def file_names(self, source: Source) -> list[str]:
        """The parquet files of the subset's split; raises UsageError if there is no such subset.

        Where only the Hub's cache was asked, with those that their own names tell to be lacking; raises
        EnvironmentLacksError if it holds none.
        """
        subsets, split = subsets_of(source), self.part.name
        where = str(source.facts.get("repo", "The source"))
        if source.is_verified:
            return chosen_subset(subsets, self.subset, split, where)
        if self.subset in subsets and not subsets[self.subset].files.get(split, True):
            raise lacking(where, [f"the subset {self.subset!r}"])
        return completed(chosen_subset(subsets, self.subset, split, where))

    def result_of(self, shards: Sequence[Sealed]) -> Result:
        """What shards add up to, with the warnings that their images gave."""
        drops: Counter[str] = Counter()
        warnings: Counter[str] = Counter()
        modes: Counter[str] = Counter()
        for sealed in shards:
            drops.update(sealed.drops)
            warnings.update(sealed.warnings)
            modes.update(sealed.modes)
        kept = sum(sealed.rows for sealed in shards)
        told = ", ".join(f"{mode} {count}" for mode, count in sorted(modes.items()))
        findings = [
            found(code, self.name, f"{count} of {kept} images" + (f" ({told})" if code == "IMG006" else ""))
            for code, count in sorted(warnings.items())
        ]
        return Result(
            self.name,
            self.root,
            "complete",
            rows=sum(sealed.records for sealed in shards),
            kept=kept,
            failed=lost_rows(drops),
            consumption=consumption(kept, drops),
            findings=findings,
            notes=self._notes(drops),
            files_unit="parquet files",
        )

    def _notes(self, drops: Mapping[str, int]) -> list[str]:
        """The subset's own name, and what upstream's filter leaves out: those rows are no loss."""
        left_out = [f"{drops[reason]} {reason}" for reason in FILTERED if drops.get(reason)]
        told = [f"left out as upstream's own filter does: {', '.join(left_out)}"] if left_out else []
        return [f"subset {self.subset!r}", *told]

    def fail_empty(self, result: Result) -> None:
        """Say that nothing was kept, which is an error."""
        result.outcome = "failed"
        result.findings.append(found("TAB008", self.name, f"0 of {result.rows} rows kept"))
        result.message = f"No row of {result.rows} could be kept."
        result.remedy = "Look at the reasons above; another --subset, or a larger --limit, may have some."

    def settled(self, manifest: Manifest) -> Result:
        """The result of a dataset that is finished as asked."""
        document = manifest.document
        counts, drops = document["counts"], document["drops"]
        result = Result(
            self.name,
            self.root,
            "unchanged",
            rows=counts["rows"],
            kept=counts["kept"],
            failed=lost_rows(drops),
            consumption=dict(document["consumption"]),
            dataset_id=manifest.dataset_id,
            notes=self._notes(drops),
            files_unit="parquet files",
        )
        lost = sum(result.failed.values())
        if lost and self.options.on_bad_image == "fail":
            failed = (row for row in manifest.records() if row.reason and row.reason not in FILTERED)
            result.failures = [row for row, _ in zip(failed, range(FAILURES_SHOWN), strict=False)]
            result.outcome = "failed"
            result.message = f"Finished without {lost} of {counts['rows']} rows, which cannot be trained on."
            result.remedy = "Give the --on-bad-image drop by which that was accepted."
        return result


def lost_rows(drops: Mapping[str, int]) -> dict[str, int]:
    """The rows, by reason, that upstream would have trained on and cannot."""
    return {reason: count for reason, count in sorted(drops.items()) if reason not in FILTERED}


def consumption(kept: int, drops: Mapping[str, int]) -> dict[str, Any]:
    """What training reads, and what upstream's own filter leaves out of the source."""
    return {"samples": kept, "dropped": {reason: drops[reason] for reason in FILTERED if drops.get(reason)}}
