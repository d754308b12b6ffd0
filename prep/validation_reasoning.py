"""The check of reasoning datasets: annotation files, the videos that they name, and the manifest."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prep.content import Digests, Work, check_content
from prep.documents import BrokenDocumentError
from prep.errors import PrepError
from prep.files import sha256_of, size_of
from prep.findings import Finding, Report, found
from prep.folders import folders_below
from prep.layouts.disk import check_disk
from prep.layouts.reasoning_qa import FORMATS, MEDIA, Sampling
from prep.layouts.reasoning_qa_checks import Annotation, Scan, format_of
from prep.layouts.reasoning_qa_tree import media_paths, media_roots
from prep.manifest import MANIFEST
from prep.proof import DatasetCheck, Proof
from prep.rules import guarded

__all__ = [
    "ReasoningCheck",
    "check_annotation_file",
    "find_reasoning_trees",
    "is_annotation",
    "shared_videos",
]

Emit = Callable[[Finding], None]
Level = Literal["quick", "standard", "deep"]
Files = list[tuple[Path, str, Path | None]]

_REMEDY = "Run the prepare command again with --update: what differs from its source is made anew."


def find_reasoning_trees(path: Path) -> list[str]:
    """Folders with annotation files, at `path` and up to two below it, as relative paths, sorted."""
    return folders_below(path, _holds_annotations)


def _holds_annotations(folder: Path) -> bool:
    files = (file for file in sorted(folder.iterdir()) if file.suffix == ".json" and file.is_file())
    return any(is_annotation(file) for file in files)


def is_annotation(path: Path) -> bool:
    """Whether a JSON file is an annotation file of either name, or bare items."""
    return path.name != MANIFEST and format_of(path) in (*FORMATS, "")


def check_annotation_file(path: Path, report: Report) -> None:
    """Check one annotation file by itself, with the videos where the file says that they stand."""
    annotations = Scan(report.add).run([(path, path.name, None)])
    report.count("annotation files")
    report.count("items", sum(annotation.items for annotation in annotations))
    report.skip("pixels", "one annotation file was given")


@dataclass(slots=True)
class ReasoningCheck(DatasetCheck):
    """The check of one reasoning dataset at `root`, with its manifest if it has one.

    `sample` takes so many videos for decoding and hashing, chosen by `seed`.
    """

    quiet: bool = True

    def run(self) -> int:
        """Check files, items and videos, and all against the manifest; the number of raw items."""
        stated = self._stated() if self.proof is not None else (self._found(), None)
        if stated is None:
            self.report.skip("items and videos", f"the manifest of {self.root.name} does not lead to them")
            return 0
        files, sampling = stated
        scan = Scan(self.emit, sampling, moved=self.proof is not None)
        annotations = scan.run(files)
        items = sum(annotation.items for annotation in annotations)
        self.report.count("annotation files", len(files))
        self.report.count("items", items)
        if sampling is not None and len(sampling.touched(items)) < items:
            self.report.skip("videos of items that training is not shown", "the sampling leaves them out")
        if self.proof is not None:
            for finding in guarded("manifest", MANIFEST, lambda: self._against_manifest(items)):
                self.emit(finding)
        self._content(annotations)
        return items

    def _found(self) -> Files:
        """The annotation files of a tree that no manifest tells of."""
        paths = (path for path in sorted(self.root.glob("*.json")) if is_annotation(path))
        return [(path, path.name, None) for path in paths]

    def _stated(self) -> tuple[Files, Sampling | None] | None:
        """The annotation files that the manifest states, their roots, and the sampling."""
        assert self.proof is not None
        try:
            document = self.proof.document
            names = [entry["file"] for entry in document["details"]["annotations"]]
            roots = media_roots(self.root, document)
            files: Files = [(self.root / name, name, place) for name, place in zip(names, roots, strict=True)]
            return files, Sampling.of(document["request"])
        except PrepError as error:
            self.emit(found("FIL005", MEDIA, error.message, remedy=error.remedy))
        except (KeyError, TypeError, ValueError) as error:
            self.emit(found("MAN001", MANIFEST, f"it does not state files and sampling: {error!r}"))
        return None

    def _against_manifest(self, items: int) -> Iterator[Finding]:
        """FIL003 to FIL005, MAN003 and what stands around the files."""
        assert self.proof is not None
        named = array("q")
        for paths, sizes, digests in self.proof.columns("files", "path", "size", "sha256"):
            named.extend(map(hash, paths))
            for path, size, digest in zip(paths, sizes, digests, strict=True):
                yield from self._file(path, size, digest)
        kept = self.proof.part("counts").get("kept")
        if isinstance(kept, int) and kept != items:
            message = f"{items} items in the annotation files; the manifest states {kept}"
            yield found("MAN003", MANIFEST, message, place="/counts/kept")
        links = [path for path in (self.root / MEDIA).glob("*") if path.is_symlink()]
        named.extend(hash(f"{MEDIA}/{path.name}") for path in links)
        whole = {f"{MEDIA}/{path.name}" for path in links if path.exists()}
        for _ in check_disk(self.root, [named], self.emit, external=whole):
            pass  # it has reported the file

    def _file(self, path: str, size: int, digest: str | None) -> Iterator[Finding]:
        there = size_of(self.root / path)
        is_annotation = "/" not in path
        if there is None and is_annotation:
            message = f"there is no such file; the manifest lists it with {size} bytes"
            yield found("FIL005", path, message, remedy=_REMEDY)
        elif there is not None and there != size:
            yield found("FIL003", path, f"{there} bytes; the manifest states {size}", remedy=_REMEDY)
        elif there is not None and is_annotation and digest is not None:
            computed = sha256_of(self.root / path)
            if computed != digest:
                message = f"the sha256 is {computed}; the manifest states {digest}"
                yield found("FIL004", path, message, remedy=_REMEDY)

    def _content(self, annotations: Sequence[Annotation]) -> None:
        """Decode the videos, and hash those whose digest is stated, as the level asks."""
        if self.level == "quick":
            self.report.skip("pixels", "level quick")
            return
        from prep.media import decoder_name

        videos = self._sampled(list(self._videos(annotations)))
        digests = Digests.of(self.proof if self.level == "deep" else None)
        work = Work(self.root, self.level, self.jobs, digests, self.quiet)
        computed = check_content(work, videos, [], self._emit_media)
        self.report.count("videos", len(videos))
        self.report.count("files hashed", len(computed) // 2)
        self.report.environment["decoder"] = decoder_name()
        if self.level == "standard":
            self.report.skip("every frame", "level standard: one frame of each video is decoded")
            self.report.skip("sha256 of media", "level standard")

    def _emit_media(self, finding: Finding) -> None:
        self.emit(replace(finding, remedy=_REMEDY) if finding.code in ("FIL004", "FIL016") else finding)

    def _videos(self, annotations: Sequence[Annotation]) -> Iterator[str]:
        """Each video that is there and not empty, once; relative to the dataset where it is below it."""
        base = os.path.abspath(self.root)  # noqa: PTH100 - links are kept
        seen: set[str] = set()
        for annotation in annotations:
            for video in annotation.videos:
                path = str(annotation.root.path / video)
                if path not in seen and "\0" not in path and size_of(Path(path)):
                    seen.add(path)
                    yield path.removeprefix(f"{base}/")

    def _sampled(self, videos: list[str]) -> list[str]:
        if self.sample is None or self.sample >= len(videos):
            return videos
        chosen = sorted(random.Random(self.seed).sample(range(len(videos)), self.sample))
        left = f"{len(videos) - self.sample} of {len(videos)} videos in {self.root.name}"
        self.report.skip(left, f"sampled {self.sample} of {len(videos)}, seed {self.seed}")
        return [videos[at] for at in chosen]


def shared_videos(datasets: Sequence[tuple[str, Proof]]) -> Iterator[Finding]:
    """FIL009: each video file that two reasoning datasets of different splits show.

    Linked media have no digest in the manifest, so the files themselves are compared: by device and
    inode, which costs a stat each. Between two copies their digests tell.
    """
    held: dict[tuple[int, int], tuple[Proof, str]] = {}
    for below, proof in datasets:
        if proof.document.get("kind") != "reasoning_qa":
            continue
        for path, identity in _identities(proof):
            other, where = held.setdefault(identity, (proof, below))
            splits = [each.document.get("split") for each in (proof, other)]
            copied = [each.part("request").get("media") == "copy" for each in (proof, other)]
            if splits[0] != splits[1] and not all(copied):
                yield found("FIL009", below, f"{path} is also in {where}: in {splits[0]} and {splits[1]}")


def _identities(proof: Proof) -> Iterator[tuple[Path, tuple[int, int]]]:
    for path in _media_of(proof):
        if size_of(path) is not None:
            state = path.stat()
            yield path, (state.st_dev, state.st_ino)


def _media_of(proof: Proof) -> list[Path]:
    try:
        return list(media_paths(proof.root, proof.document))
    except (PrepError, BrokenDocumentError, OSError, KeyError, TypeError, ValueError):
        return []  # the check of that dataset has reported what is wrong with it
