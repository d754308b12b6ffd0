"""The check of SFT datasets: each split's JSONL, the clips that it names, and what stands beside them."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal

from prep.clip_header import ClipHeader, read_header
from prep.content import Digests, Work, check_content, check_same_content
from prep.errors import PrepError
from prep.findings import Finding, Report, found
from prep.folders import folders_below
from prep.layouts.disk import check_disk
from prep.layouts.repeats import THRESHOLDS as REPEATS
from prep.layouts.sft_consumption import Consumption
from prep.layouts.sft_jsonl import (
    DAMAGED_GZIP,
    EXTRA_FOLDERS,
    LINES,
    SPLITS,
    SUMMARY,
    find_lines,
    read_lines,
)
from prep.layouts.sft_jsonl_checks import media_path, records, scan_lines
from prep.layouts.sft_repeats import Scanned
from prep.layouts.sft_rules import THRESHOLDS, Record, against_file
from prep.layouts.sft_sources import source_of
from prep.layouts.sft_windows import Loader
from prep.manifest import MANIFEST
from prep.pool import interruptible, map_threads
from prep.proof import DatasetCheck, check_sizes, leaves
from prep.rules import guarded

__all__ = ["SftCheck", "check_sft_file", "find_sft_trees", "is_sft_tree", "sft_files"]

Emit = Callable[[Finding], None]
Level = Literal["quick", "standard", "deep"]
_PART: Final = 4096
"""Records whose files are looked at together."""


def sft_files(path: Path) -> list[str]:
    """The JSONL files of a directory, as paths below it: those of its splits, else its own with records.

    A file without one line that has `vision_path` or `t2w_windows` is none of them.
    """
    split = find_lines(path)
    if split:
        return [file.relative_to(path).as_posix() for file in split.values()]
    if not path.is_dir():
        return []
    files = sorted(file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz")))
    return [file.name for file in files if file.is_file() and _has_records(file)]


def _has_records(path: Path) -> bool:
    try:
        first = next(iter(read_lines(path)), None)
    except (OSError, *DAMAGED_GZIP):
        return False
    return first is not None and (b'"vision_path"' in first.data or b'"t2w_windows"' in first.data)


def is_sft_tree(path: Path) -> bool:
    """Whether a directory without a manifest is of this kind."""
    return bool(sft_files(path))


def find_sft_trees(path: Path) -> list[str]:
    """Directories of this kind, at `path` and up to two below it, as relative paths, sorted."""
    return folders_below(path, is_sft_tree)


def check_sft_file(path: Path, report: Report, *, level: Level = "quick", jobs: int = 1) -> int:
    """Check one JSONL by itself, with the clips beside it; the number of its records."""
    check = SftCheck(path.parent, None, level, jobs, report, report.add, files=[path.name])
    return check.run()


@dataclass(slots=True)
class SftCheck(DatasetCheck):
    """The check of one SFT dataset at `root`, with its manifest if it has one.

    `files` names the JSONL files in place of those that are found. `sample` takes so many clips for
    decoding and hashing, chosen by `seed`.
    """

    files: list[str] = field(default_factory=list)
    quiet: bool = True

    def run(self) -> int:
        """Check records, clips, files against the manifest and the directory; the number of records."""
        self.report.thresholds = {**self.report.thresholds, **THRESHOLDS, **REPEATS}
        loader = self._loader()
        names = self.files or sft_files(self.root)
        if not names:
            self.emit(found("FIL005", f"{SPLITS[0]}/{LINES}", "there is no JSONL in this dataset"))
        elif not self.files and {name.split("/")[0] for name in names} == {SPLITS[1]}:
            self.emit(found("FIL005", f"{SPLITS[0]}/{LINES}", "all records are held out: none to train on"))
        scans = [self._scan(name, loader, names_sources=len(names) > 1) for name in names]
        self._guarded("between splits", names[0] if names else "", lambda: self._between(scans, loader))
        named = [part for scan in scans for part in (scan.media,)]
        external: set[str] = set()
        if self.proof is not None:
            self._guarded("sizes", MANIFEST, lambda: self._sizes(scans, named, external))
        if not self.files:
            self._guarded("disk", "", lambda: self._disk(scans, named, external))
        self._content(scans, loader)
        self._said(scans)
        return sum(scan.records for scan in scans)

    def _guarded(self, name: str, path: str, rule: Callable[[], Iterable[Finding]]) -> None:
        for finding in guarded(name, path, rule):
            self.emit(finding)

    def _loader(self) -> Loader:
        if self.proof is not None:
            return Loader.of(self.proof.part("recipe"), self.proof.part("request"))
        from prep.recipe import load_recipe

        return Loader.of(load_recipe("sft").document)

    def _scan(self, name: str, loader: Loader, *, names_sources: bool) -> Scanned:
        """Check a JSONL; SFT014 where the loader keeps nothing of it, by what the records say."""
        counts = Consumption(loader)
        scan = scan_lines(
            self.root,
            name,
            counts,
            self.emit,
            names_content=self.level != "quick",
            names_sources=names_sources,
        )
        self.report.count("records", scan.records)
        self.report.count("windows", counts.windows)
        self.report.count("windows that training keeps", counts.kept_windows)
        if counts.records and not counts.kept:
            told = counts.as_dict()
            reasons = {**told["records_dropped"], **told["windows_dropped"]}
            why = ", ".join(f"{name} {count}" for name, count in reasons.items())
            self.emit(found("SFT014", scan.path, f"0 of {counts.records} records kept: {why}"))
        return scan

    def _between(self, scans: list[Scanned], loader: Loader) -> Iterator[Finding]:
        """SFT017 and FIL009: what stands on both sides of the split."""
        sides = {scan.path.split("/")[0]: scan for scan in scans}
        if set(sides) != set(SPLITS):
            return
        shared = set(sides["train"].sources) & set(sides["val"].sources) - {0}
        if shared:
            one, two = (self._sources(sides[split], loader, shared) for split in SPLITS)
            for source in sorted(one.keys() & two.keys()):
                message = (
                    f"clips of {source!r} are in train (line {one[source]}) and val (line {two[source]})"
                )
                yield found("SFT017", sides["val"].path, message, place=f"line {two[source]}")
        yield from self._shared_media(sides)

    def _sources(self, scan: Scanned, loader: Loader, shared: set[int]) -> dict[str, int]:
        lines: dict[str, int] = {}
        for record in records(self.root / scan.path, scan.path, loader):
            source = source_of(record.data["uuid"])
            if hash(source) in shared:
                lines.setdefault(source, record.line)
        return lines

    def _shared_media(self, sides: dict[str, Scanned]) -> Iterator[Finding]:
        """The same bytes in train and val: by the manifest's digests, else by those of equal sizes."""
        digests: dict[str, dict[str, str]] = {split: {} for split in SPLITS}
        if self.proof is not None and "records" in self.proof.usable:
            for rows in self.proof.columns("records", "split", "media", "media_sha256"):
                for split, media, digest in zip(*rows, strict=True):
                    if digest and split in digests:
                        digests[split].setdefault(digest, media)
        elif self.level == "deep":
            sizes = [set(sides[split].sizes) for split in SPLITS]
            shared = (sizes[0] & sizes[1]) - {-1, 0}
            for split in SPLITS:
                digests[split] = self._hashed(sides[split], shared)
        for digest in sorted(digests["train"].keys() & digests["val"].keys()):
            path, other = digests["val"][digest], digests["train"][digest]
            yield found("FIL009", path, f"the same bytes as {other}: in val and train")

    def _hashed(self, scan: Scanned, sizes: set[int]) -> dict[str, str]:
        found_here: dict[str, str] = {}
        if sizes:
            for record in records(self.root / scan.path, scan.path, self._loader()):
                path = media_path(scan.path.rpartition("/")[0], record.data["vision_path"])
                if path is not None and _size(self.root / path) in sizes:
                    found_here.setdefault(_sha256(self.root / path), path)
        return found_here

    def _sizes(self, scans: list[Scanned], named: list[array[int]], external: set[str]) -> Iterator[Finding]:
        """FIL003, FIL005 and MAN003: the tree against the manifest; adds to what is named."""
        assert self.proof is not None
        media, sizes = array("q"), array("q")
        for scan in scans:
            media += scan.media
            sizes += scan.sizes
        listed, outside = check_sizes(self.proof, media, sizes, self.emit)
        named.append(listed)
        external |= outside
        kept, seen = self.proof.part("counts").get("kept"), sum(scan.records for scan in scans)
        if all(scan.complete for scan in scans) and isinstance(kept, int) and kept != seen:
            message = f"{seen} records in the JSONL files; the manifest states {kept} kept"
            yield found("MAN003", MANIFEST, message, place="/counts/kept")

    def _disk(self, scans: list[Scanned], named: list[array[int]], external: set[str]) -> Iterator[Finding]:
        """The walk over the directory; a split's other folders are part of the layout."""
        own = array("q", map(hash, (name for scan in scans for name in self._beside(scan))))
        complete = all(scan.complete for scan in scans)
        for _ in check_disk(self.root, [*named, own], self.emit, external=external, strays=complete):
            pass
        return iter(())

    def _beside(self, scan: Scanned) -> Iterator[str]:
        """The JSONL, its summary, and every file of the folders that the layout may have beside it."""
        folder = scan.path.rpartition("/")[0]
        start = f"{folder}/" if folder else ""
        yield from (scan.path, f"{scan.path}.summary.json", f"{start}{SUMMARY}")
        base = self.root / folder
        for entry in sorted(path.name for path in base.iterdir()):
            if entry in EXTRA_FOLDERS or entry.startswith("inference_prompt"):
                for path in (base / entry).rglob("*"):
                    yield path.relative_to(self.root).as_posix()

    # --- clips -----------------------------------------------------------------------------

    def _content(self, scans: list[Scanned], loader: Loader) -> None:
        """Decode and hash what the level asks for; hold each record against its file."""
        if self.level == "quick":
            self.report.skip("pixels, and the records against their files", "level quick")
        else:
            chosen = self._sampled(
                list(dict.fromkeys(path for scan in scans for path in self._media(scan, loader)))
            )
            self._decode(chosen)
            for scan in scans:
                self._against_files(scan, loader, set(chosen))
        if self.level != "deep":
            self.report.skip("sha256", f"level {self.level}")

    def _media(self, scan: Scanned, loader: Loader) -> Iterator[str]:
        folder = scan.path.rpartition("/")[0]
        for record in records(self.root / scan.path, scan.path, loader):
            path = media_path(folder, record.data["vision_path"])
            if path is not None and _size(self.root / path) > 0:
                yield path

    def _sampled(self, media: list[str]) -> list[str]:
        if self.sample is None or self.sample >= len(media):
            return media
        chosen = sorted(random.Random(self.seed).sample(range(len(media)), self.sample))
        left = f"{len(media) - self.sample} of {len(media)} clips"
        self.report.skip(left, f"sampled {self.sample} of {len(media)}, seed {self.seed}")
        return [media[at] for at in chosen]

    def _decode(self, media: list[str]) -> None:
        from prep.media import decoder_name

        if media:
            self.report.count("videos", len(media))
            self.report.environment["decoder"] = decoder_name()
        if self.level == "standard":
            self.report.skip("every frame", "level standard: one frame of each video is decoded")
        deep = self.level == "deep"
        files = self._other_files(set(media)) if deep and self.proof is not None else []
        work = Work(
            self.root,
            "deep" if deep else "standard",
            self.jobs,
            Digests.of(self.proof if deep else None),
            self.quiet,
        )
        computed = check_content(work, media, files, self.emit)
        self.report.count("files hashed", len(computed) // 2 + len(files) if deep else 0)
        pairs = list(zip(computed[::2], computed[1::2], strict=True))
        # Between train and val the same bytes are FIL009's.
        for split in dict.fromkeys(path.split("/")[0] for path, _ in pairs):
            inside = [pair for pair in pairs if pair[0].split("/")[0] == split]
            self._guarded("check_same_content", split, partial(check_same_content, partial(iter, inside)))

    def _other_files(self, media: set[str]) -> list[str]:
        assert self.proof is not None
        return [
            path
            for paths, digests in self.proof.columns("files", "path", "sha256")
            for path, digest in zip(paths, digests, strict=True)
            if digest and path not in media and not leaves(path)
        ]

    def _against_files(self, scan: Scanned, loader: Loader, chosen: set[str]) -> None:
        """Hold each record against its file's header, some thousand at a time, in the records' order."""
        folder, part = scan.path.rpartition("/")[0], []
        for record in records(self.root / scan.path, scan.path, loader):
            path = media_path(folder, record.data["vision_path"])
            if path in chosen:
                part.append((record, path))
            if len(part) == _PART:
                self._headers(part)
                part = []
        self._headers(part)

    def _headers(self, part: list[tuple[Record, str]]) -> None:
        headers: dict[int, tuple[ClipHeader, int] | None] = {}
        with interruptible() as cancel:
            looked = map_threads(
                lambda at: _header(self.root / part[at][1]), range(len(part)), jobs=self.jobs, cancel=cancel
            )
            headers.update(looked)
        for at, (record, path) in enumerate(part):
            header = headers[at]
            if header is not None:
                self._guarded("against_file", path, partial(against_file, record, path, *header))

    def _said(self, scans: list[Scanned]) -> None:
        """What was not looked at, and captions that were counted when the dataset was made."""
        far = sum(scan.far for scan in scans)
        if far:
            self.report.skip(f"{far} clips that are named by a URI", "they are not on this machine")
        consumption = self.proof.part("consumption") if self.proof is not None else {}
        splits = consumption.get("splits")
        told = False
        for split, counts in splits.items() if isinstance(splits, dict) else ():
            over = counts.get("captions_over_limit") if isinstance(counts, dict) else None
            told = told or over is not None
            if over:
                message = f"{over} captions over {counts.get('max_caption_tokens')} tokens"
                self.emit(found("SFT013", f"{split}/{LINES}", message))
        if not told:
            self.report.skip("captions over the token limit", "no tokenizer: prepare with --tokenizer DIR")


def _header(path: Path) -> tuple[ClipHeader, int] | None:
    """A clip's header and its rotation in degrees; None where check_content has said what is wrong."""
    from prep.media import probe

    try:
        header = read_header(path)
    except PrepError:
        return None
    facts, _ = probe(path)
    return header, facts.rotation if facts is not None else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
