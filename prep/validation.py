"""`validate`: find the datasets at a path, check them, and report; nothing is written.

quick      manifest, tables and counts; every record's schema and rules; references and sizes
standard   quick, and every media file opened with one frame decoded
deep       standard, and every frame decoded, every sha256 computed
"""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from prep.content import Digests, Work, check_content, check_leakage, check_same_content
from prep.errors import UsageError
from prep.findings import Finding, Report, catalogue, found
from prep.kinds import PREPARE, check_class, foreign_trees, kind_of
from prep.layouts import envelope as envelopes
from prep.layouts.conversations import META
from prep.layouts.conversations_checks import Scanned, Tree, check_conversation_file, media_files, scan
from prep.layouts.conversations_turns import IMAGES, Wanted
from prep.layouts.disk import check_disk
from prep.layouts.repeats import THRESHOLDS
from prep.manifest import MANIFEST, STATE
from prep.progress import counted
from prep.proof import Proof, check_sizes, holds_content_twice, leaves, load_proof
from prep.recognise import find_datasets, other_layout
from prep.rules import guarded
from prep.validation_reasoning import (
    check_annotation_file,
    is_annotation,
    shared_videos,
)
from prep.validation_sft import check_sft_file
from prep.workspace import held_by, ledger_path

__all__ = ["Level", "validate"]

Level = Literal["quick", "standard", "deep"]

_MOST_JOBS: Final = 8


@dataclass(frozen=True, slots=True)
class _Options:
    level: Level
    sample: int | None
    seed: int
    jobs: int
    enveloped: bool
    quiet: bool


def validate(
    path: str | os.PathLike[str],
    *,
    level: Level = "standard",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    sample: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    envelope: str | None = None,
    quiet: bool = True,
) -> Report:
    """Check a dataset, a directory with several, a bare tree, one `meta.json` or one conversation.

    `sample` takes so many media files of each dataset for decoding and hashing, chosen by `seed`.
    `envelope` names the form that both kinds of file are wrapped in. Findings' paths are relative
    to `path`, or to its folder where it is a file. Raises UsageError for a path that is not there
    and for options that mean nothing.
    """
    start = Path(path)
    _check_arguments(start, level, (*select, *ignore), sample, envelope)
    report = Report(
        subject=str(path),
        level=level,
        select=tuple(select),
        ignore=tuple(ignore),
        thresholds=THRESHOLDS,
    )
    jobs = jobs or min(_MOST_JOBS, os.cpu_count() or 1)
    options = _Options(level, sample, seed, jobs, envelope is not None, quiet)
    if start.is_file() and not _stands_for_its_folder(start):
        _check_one_file(start, report, options)
        return report
    root = start.parent if start.is_file() else start
    datasets = [*find_datasets(root)] if start.is_dir() else [""]
    if "" not in datasets:
        datasets += foreign_trees(root, datasets)
    _check_all(root, datasets, report, options)
    return report


def _stands_for_its_folder(path: Path) -> bool:
    return path.name == META or (path.name == MANIFEST and (path.parent / STATE).is_dir())


def _check_arguments(
    start: Path, level: str, codes: Sequence[str], sample: int | None, envelope: str | None
) -> None:
    if not start.exists():
        raise UsageError(f"There is nothing at {start}.", remedy="Give the directory of a dataset.")
    if level not in get_args(Level):
        raise UsageError(
            f"There is no level {level!r}.", remedy=f"It is one of {', '.join(get_args(Level))}."
        )
    if sample is not None and sample < 1:
        raise UsageError(
            f"The sample is {sample}; expected 1 or more.", remedy="Leave --sample out for all media."
        )
    if envelope not in (None, envelopes.VERSION):
        raise UsageError(f"There is no envelope {envelope!r}.", remedy=f"There is {envelopes.VERSION}.")
    for prefix in codes:
        # A misspelt code would select nothing and call the dataset clean.
        if not any(code.startswith(prefix) for code in catalogue()):
            raise UsageError(
                f"No finding's code begins with {prefix!r}.", remedy="`prep explain` lists all codes."
            )


def _check_one_file(path: Path, report: Report, options: _Options) -> None:
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        check_sft_file(path, report, level=options.level, jobs=options.jobs)
        return
    if path.suffix != ".json":
        report.add(found("LAY002", path.name, "neither a directory nor a JSON file"))
        return
    if is_annotation(path):
        check_annotation_file(path, report)
        return
    findings = guarded(
        "conversation",
        path.name,
        lambda: check_conversation_file(path, Wanted(), enveloped=options.enveloped),
    )
    report.extend(findings)
    report.count("conversations")
    report.skip("media, ids and references", f"one conversation file was given, without its {META}")


def _check_all(root: Path, datasets: Sequence[str], report: Report, options: _Options) -> None:
    if not datasets:
        report.add(other_layout(root))
        return
    reasons: dict[str, str] = {}
    proofs: list[tuple[str, Proof]] = []
    for below in datasets:
        proof = _Dataset(root, below, report, options).check()
        reasons |= report.accepted
        report.accepted = {}
        if proof is not None and "records" in proof.usable:
            proofs.append((below, proof))
    report.extend(guarded("check_leakage", "", lambda: check_leakage(proofs)))
    report.extend(guarded("shared_videos", "", lambda: shared_videos(proofs)))
    if len(datasets) > max(len(proofs), 1):
        report.skip(
            "the same media in two datasets", f"without a usable manifest: {len(datasets) - len(proofs)}"
        )
    report.accepted = reasons


class _Dataset:
    """The check of one dataset, `below` the path that was given."""

    def __init__(self, root: Path, below: str, report: Report, options: _Options) -> None:
        self.root, self.below, self.report, self.options = root / below, below, report, options

    def emit(self, finding: Finding) -> None:
        """Put a finding into the report, its path relative to what was given."""
        if self.below:
            finding = replace(finding, path=f"{self.below}/{finding.path}".rstrip("/"))
        self.report.add(finding)

    def check(self) -> Proof | None:
        """Do all that the level asks for; the manifest, if there is one."""
        self.run_state()
        proof = self.proof()
        kind = kind_of(self.root, proof.document.get("kind") if proof else None)
        records = self.conversations(proof) if kind == "conversations" else self.other(kind, proof)
        self.report.datasets.append(
            {
                "path": self.below or ".",
                "kind": kind,
                "dataset_id": proof.dataset_id if proof else None,
                "records": records,
            }
        )
        return proof

    def conversations(self, proof: Proof | None) -> int:
        """Check a conversations tree; the number of its records."""
        scanned = Scanned(complete=False)
        if (self.root / META).exists() or proof is not None:
            scanned = self.records(proof)
            self.costly(proof, scanned)
        return scanned.records

    def other(self, kind: str, proof: Proof | None) -> int:
        """Check a dataset of another kind by the check of its own; the number of its records."""
        options = self.options
        check = check_class(kind)(
            self.root,
            proof,
            options.level,
            options.jobs,
            self.report,
            self.emit,
            sample=options.sample,
            seed=options.seed,
        )
        records: int = check.run()
        return records

    def run_state(self) -> None:
        """LAY003 and LAY004: is a run unfinished, or going on?"""
        holder = held_by(self.root)
        if holder:
            self.emit(found("LAY004", STATE, f"held by {holder}"))
        has_manifest = (self.root / MANIFEST).exists()
        if ledger_path(self.root).exists():
            self.emit(found("LAY003", STATE, "the ledger of a run is there, which a finished run removes"))
        elif (self.root / STATE).is_dir() and not has_manifest:
            self.emit(found("LAY003", STATE, f"a run's notes are there, and no {MANIFEST}"))

    def proof(self) -> Proof | None:
        """The manifest, checked; MAN004 where there is none."""
        proofs: list[Proof | None] = []
        findings: list[Finding] = []

        def load() -> list[Finding]:
            proofs.append(load_proof(self.root, findings.append))
            return findings

        crashed = guarded("manifest", MANIFEST, load)
        proof = proofs[0] if proofs else None
        accepted = proof.part("recipe").get("accepted") if proof else None
        self.report.accepted = accepted if isinstance(accepted, dict) else {}
        for finding in findings if proofs else [*findings, *crashed]:
            self.emit(finding)
        if proofs and proof is None and not (self.root / STATE).is_dir():
            message = "the tree is checked by itself: no sizes, hashes or sources are known"
            self.emit(found("MAN004", "", message, remedy=PREPARE.get(kind_of(self.root, None), "")))
            self.report.skip("sizes, hashes and sources", f"no manifest in {self.below or '.'}")
        return proof

    def tree(self, proof: Proof | None) -> Tree:
        """What the layout's checks need to know."""
        wanted = Wanted()
        if proof is not None:
            made: list[Wanted] = []

            def of() -> list[Finding]:
                made.append(Wanted.of(proof.part("recipe"), proof.part("request")))
                return []

            for finding in guarded("recipe", MANIFEST, of):
                self.emit(finding)
            wanted = made[0] if made else wanted
        return Tree(self.root, wanted, self.options.enveloped, names_content=self.options.level != "quick")

    def records(self, proof: Proof | None) -> Scanned:
        """Check the records, the sizes of their files, and the directory around them."""
        tree = self.tree(proof)
        scanned = scan(tree, self.emit)
        self.report.count("records", scanned.records)
        named = [scanned.media, scanned.conversations]
        external: set[str] = set()
        if proof is not None:
            self.guarded("check_sizes", lambda: self.sizes(proof, scanned, named, external))
        if not scanned.complete:
            self.report.skip("files that no record names", f"{self.below or '.'}: {META} cannot be read")
        self.guarded("check_disk", lambda: self.disk(tree, named, external, strays=scanned.complete))
        return scanned

    def guarded(self, name: str, rule: Any) -> None:
        """Run a rule that reports for itself; a crash is a finding."""
        for finding in guarded(name, META, rule):
            self.emit(finding)

    def sizes(
        self, proof: Proof, scanned: Scanned, named: list[array[int]], external: set[str]
    ) -> Iterator[Finding]:
        """FIL003, FIL005 and MAN003: the tree against the manifest; adds to what is named and outside."""
        listed, outside = check_sizes(
            proof,
            scanned.media + scanned.conversations,
            scanned.media_sizes + scanned.conversation_sizes,
            self.emit,
        )
        named.append(listed)
        external |= outside
        kept = proof.part("counts").get("kept")
        if scanned.complete and isinstance(kept, int) and kept != scanned.records:
            message = f"{scanned.records} entries in {META}; the manifest states {kept} kept"
            yield found("MAN003", MANIFEST, message, place="/counts/kept")

    def disk(
        self, tree: Tree, named: list[array[int]], external: set[str], *, strays: bool
    ) -> Iterator[Finding]:
        """The walk over the directory; an envelope's validator reads unnamed conversations too."""
        for path in check_disk(self.root, named, self.emit, external=external, strays=strays):
            if tree.enveloped and path.startswith("text/") and path.endswith(".json"):
                for finding in check_conversation_file(self.root / path, tree.wanted, enveloped=True):
                    yield replace(finding, path=path)

    def costly(self, proof: Proof | None, scanned: Scanned) -> None:
        """Decode and hash what the level asks for; say what it leaves out."""
        level, tree = self.options.level, self.tree(None)
        computed: list[str] = []
        if level == "quick":
            self.report.skip("pixels", "level quick")
        else:
            media = self.sampled(list(media_files(tree)))
            self.said_of_media(media)
            files = self.other_files(proof, scanned) if level == "deep" else []
            work = Work(self.root, level, self.options.jobs, self.digests(proof), self.options.quiet)
            computed = check_content(work, media, files, self.emit)
            self.report.count("files hashed", len(computed) // 2 + len(files) if level == "deep" else 0)
        if level != "deep":
            self.report.skip("sha256", f"level {level}")

        def pairs() -> Iterator[tuple[str, str]]:
            if proof is not None and "files" in proof.usable:
                if not holds_content_twice(proof):
                    return
                for paths, digests, roles in proof.columns("files", "path", "sha256", "role"):
                    for path, digest, role in zip(paths, digests, roles, strict=True):
                        if digest and role == "payload":
                            yield path, digest
                return
            yield from zip(computed[::2], computed[1::2], strict=True)

        self.guarded("check_same_content", lambda: check_same_content(pairs))

    def digests(self, proof: Proof | None) -> Digests:
        """The stated digests, where they will be compared."""
        return Digests.of(proof if self.options.level == "deep" else None)

    def other_files(self, proof: Proof | None, scanned: Scanned) -> list[str]:
        """The files of the manifest that are no record's media and have a stated digest."""
        media = set(scanned.media)
        columns = proof.columns("files", "path", "sha256") if proof else iter(())
        return [
            path
            for paths, digests in columns
            for path, digest in zip(paths, digests, strict=True)
            if digest and hash(path) not in media and not leaves(path)
        ]

    def sampled(self, media: list[str]) -> list[str]:
        """The media that are decoded, in the records' order; says which are not."""
        sample = self.options.sample
        if sample is None or sample >= len(media):
            return media
        chosen = sorted(random.Random(self.options.seed).sample(range(len(media)), sample))
        left = f"{len(media) - sample} of {len(media)} media files in {self.below or '.'}"
        self.report.skip(left, f"sampled {sample} of {len(media)}, seed {self.options.seed}")
        return [media[at] for at in chosen]

    def said_of_media(self, media: list[str]) -> None:
        """Count what is decoded, name the decoder, and say what is not looked at."""
        images = sum(path.lower().endswith(IMAGES) for path in media)
        if images:
            self.report.skip(
                f"pixels of {counted(images, 'image')} in {self.below or '.'}", "only videos are decoded"
            )
        if len(media) > images:
            from prep.media import decoder_name

            self.report.count("videos", len(media) - images)
            self.report.environment["decoder"] = decoder_name()
        if self.options.level == "standard":
            self.report.skip("every frame", "level standard: one frame of each video is decoded")
