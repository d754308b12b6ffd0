"""The check of snapshots: documents, shards, rows, images, and the card of the local Hub layout."""

from __future__ import annotations

import os
import random
import re
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from prep.files import sha256_of, size_of
from prep.findings import Finding, found
from prep.folders import folders_below
from prep.images import check_image
from prep.layouts.arrow_snapshot import INFO, STATE_FILE
from prep.layouts.arrow_snapshot_checks import Columns, Scan, check_texts, scan_shards, shard_names
from prep.layouts.disk import check_disk
from prep.layouts.hub_card import CARD, subsets_in
from prep.layouts.repeats import repeated_positions
from prep.manifest import MANIFEST
from prep.proof import DatasetCheck
from prep.rules import guarded

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SnapshotCheck", "find_snapshots", "is_snapshot"]

Level = Literal["quick", "standard", "deep"]
Emit = Callable[[Finding], None]

_DEEPEST = 3  # a subset's split stands three folders below the out-root
_CACHE = re.compile(
    r"(?:cache-[0-9a-f]+|tmp[a-z0-9_]+).*"
)  # what `datasets` leaves in the folder of a snapshot
_BATCH = 16


def is_snapshot(folder: Path) -> bool:
    """Whether a folder is a map-style dataset saved by `datasets`, whoever saved it."""
    return (folder / STATE_FILE).is_file() and (folder / INFO).is_file()


def find_snapshots(path: Path) -> list[str]:
    """The saved datasets at `path` and up to three folders below it, as relative paths, sorted."""
    return folders_below(path, is_snapshot, deepest=_DEEPEST)


@dataclass(slots=True)
class SnapshotCheck(DatasetCheck):
    """The check of one snapshot at `root`, with its manifest if it has one.

    `sample` decodes so many images only, chosen by `seed`.
    """

    starts: list[tuple[int, str]] = field(default_factory=list)

    def run(self) -> int:
        """Check all that the level asks for; the number of rows."""
        names: list[str] = []
        scan = Scan()
        self._guard("documents", lambda: self._documents(names))
        self._guard("rows", lambda: self._rows(names, scan))
        self.report.count("records", scan.rows)
        self._guard("repeats", lambda: scan.repeats(self._name_of))
        if self.proof is not None:
            self._guard("counts", lambda: self._counts(scan))
            self._guard("sizes", self._sizes)
            self._guard("same images", self._same_images)
            if self._form() == "hub":
                self._guard("card", self._card)
        else:
            self._guard("shards", lambda: self._bare_sizes(names))
        self._guard("disk", lambda: self._disk(names))
        self._say_what_was_left_out()
        return scan.rows

    def _guard(self, name: str, rule: Callable[[], Any]) -> None:
        for finding in guarded(name, "", rule):
            self.emit(finding)

    def _form(self) -> str:
        return str(self.proof.part("details").get("form", "arrow")) if self.proof is not None else "arrow"

    def _columns(self) -> Columns:
        return Columns.of(self.proof.part("recipe") if self.proof is not None else {})

    def _documents(self, names: list[str]) -> Iterator[Finding]:
        names.extend(self._names())
        yield from ()

    def _names(self) -> list[str]:
        if self._form() == "arrow":
            return shard_names(self.root, self.emit)
        assert self.proof is not None
        listed = [
            path
            for paths, roles in self.proof.columns("files", "path", "role")
            for path, role in zip(paths, roles, strict=True)
            if role == "payload"
        ]
        return sorted(listed)

    def _rows(self, names: list[str], scan: Scan) -> Iterator[Finding]:
        """The texts of every row, and at a higher level than quick its image decoded."""
        columns = self._columns()
        chosen = self._chosen() if self.level != "quick" else set()
        with ThreadPoolExecutor(self.jobs, thread_name_prefix="prep-image") as threads:
            for name, first, batch in scan_shards(self.root, names, columns, self.emit):
                if first == 0:
                    self.starts.append((scan.rows, name))
                start = scan.rows
                for finding in check_texts(name, first, batch, columns, scan):
                    self.emit(finding)
                self._images(name, first, start, batch, chosen, threads)
        yield from ()

    def _chosen(self) -> set[int] | None:
        """The rows whose image is decoded; None for all."""
        total = self.proof.part("counts").get("kept") if self.proof is not None else None
        if self.sample is None or not isinstance(total, int) or self.sample >= total:
            return None
        return set(random.Random(self.seed).sample(range(total), self.sample))

    def _images(
        self,
        name: str,
        first: int,
        start: int,
        batch: pa.RecordBatch,
        chosen: set[int] | None,
        threads: Executor,
    ) -> None:
        if chosen is not None and not chosen:
            return
        images = batch.column(self._columns().image)
        wanted = [at for at in range(len(batch)) if chosen is None or start + at in chosen]
        for begin in range(0, len(wanted), _BATCH):
            group = wanted[begin : begin + _BATCH]
            items = [(at, images[at].as_py()) for at in group]
            for findings in threads.map(lambda item: _checked(name, first + item[0], item[1]), items):
                for finding in findings:
                    self.emit(finding)
            self.report.count("images decoded", len(group))

    def _name_of(self, row: int) -> str:
        """The shard that holds row `row`, from 0 over all."""
        return next((name for start, name in reversed(self.starts) if start <= row), "")

    def _counts(self, scan: Scan) -> Iterator[Finding]:
        assert self.proof is not None
        kept = self.proof.part("counts").get("kept")
        if isinstance(kept, int) and kept != scan.rows:
            yield found(
                "SNP003", MANIFEST, f"{scan.rows} rows in the shards; the manifest states {kept} kept"
            )
        if self._form() != "arrow":
            return
        wanted = self.proof.part("details").get("fingerprint")
        state = (self.root / STATE_FILE).read_bytes() if (self.root / STATE_FILE).is_file() else b""
        if isinstance(wanted, str) and state and wanted.encode() not in state:
            yield found(
                "SNP004", STATE_FILE, f"expected {wanted}, as the manifest states", place="/_fingerprint"
            )

    def _sizes(self) -> Iterator[Finding]:
        """Each file of the manifest: there, of its size, and at level deep of its sha256."""
        assert self.proof is not None
        for rows in self.proof.columns("files", "path", "size", "sha256"):
            for path, size, digest in zip(*rows, strict=True):
                there = size_of(self.root / path)
                if there is None:
                    yield found("FIL005", path, f"there is no such file; the manifest states {size} bytes")
                elif there == 0 and size:
                    yield found("FIL002", path, f"0 bytes; the manifest states {size}")
                elif there != size:
                    yield found("FIL003", path, f"{there} bytes; the manifest states {size}")
                elif self.level == "deep" and digest:
                    yield from self._hash(path, digest)

    def _hash(self, path: str, digest: str) -> Iterator[Finding]:
        self.report.count("files hashed")
        computed = sha256_of(self.root / path)
        if computed != digest:
            yield found("FIL004", path, f"the sha256 is {computed}; the manifest states {digest}")

    def _bare_sizes(self, names: list[str]) -> Iterator[Finding]:
        for name in names:
            if size_of(self.root / name) == 0:
                yield found("FIL002", name, "0 bytes")

    def _same_images(self) -> Iterator[Finding]:
        """FIL017: one image under several rows."""
        assert self.proof is not None
        keys = array("q")
        for digests, states in self.proof.columns("records", "media_sha256", "status"):
            keys.extend(
                int(digest[:16], 16) - (1 << 63)
                for digest, status in zip(digests, states, strict=True)
                if status == "kept" and digest
            )
        for group in repeated_positions(keys):
            rows = ", ".join(map(str, group[:5])) + (" …" if len(group) > 5 else "")
            yield found("FIL017", self._name_of(group[0]), f"{len(group)} rows have one image: {rows}")

    def _card(self) -> Iterator[Finding]:
        """SNP008: the card beside the subsets names this one with its files."""
        assert self.proof is not None
        root = self.root.absolute()
        folder = root.parents[1]
        names = sorted(self._names())
        below = root.relative_to(folder).as_posix()
        subset, split = self.proof.part("details").get("subset"), self.proof.document.get("split")
        if not (folder / CARD).is_file():
            yield found("SNP008", f"../../{CARD}", "there is no card")
            return
        local = [f"{below}/{name}" for name in names]
        stated = subsets_in(folder / CARD, local).get(str(subset))
        listed = stated.files.get(str(split), []) if stated is not None else []
        if sorted(listed) != sorted(local):
            message = f"{len(listed)} of {len(local)} files of the subset {subset!r} are named"
            yield found("SNP008", f"../../{CARD}", message)

    def _disk(self, names: list[str]) -> Iterator[Finding]:
        named = array("q", map(hash, (*names, STATE_FILE, INFO)))
        if self.proof is not None:
            for (paths,) in self.proof.columns("files", "path"):
                named.extend(map(hash, paths))
        with os.scandir(self.root) as entries:
            named.extend(hash(entry.name) for entry in entries if _CACHE.fullmatch(entry.name))
        for _ in check_disk(self.root, [named], self.emit):
            pass
        yield from ()

    def _say_what_was_left_out(self) -> None:
        if self.level == "quick":
            self.report.skip("pixels", "level quick")
        if self.level != "deep":
            self.report.skip("sha256", f"level {self.level}")


def _checked(name: str, row: int, image: Any) -> list[Finding]:
    """The findings on one row's image; a null one is SNP005's."""
    if image is None:
        return []
    own = image if isinstance(image, dict) else {"bytes": image}
    _, findings = check_image(own.get("bytes"), name=own.get("path"), path=name, place=f"row {row}")
    return findings
