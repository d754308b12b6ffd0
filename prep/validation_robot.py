"""The check of robot datasets: each LeRobot root, and the window indices beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from prep import schemas
from prep.errors import PrepError
from prep.files import sha256_of
from prep.findings import Finding, found
from prep.folders import folders_below
from prep.layouts.lerobot import INFO, numbered_files, version_of
from prep.layouts.lerobot_checks import check_root
from prep.layouts.lerobot_facts import EPISODES
from prep.proof import DatasetCheck
from prep.rules import guarded
from prep.window_lists import WINDOWS_FOLDER, filter_path
from prep.windows import WindowIndex

__all__ = ["RobotCheck", "find_roots"]

Emit = Callable[[Finding], None]


def find_roots(path: Path) -> list[str]:
    """The LeRobot roots at `path` and up to two folders below it, as relative paths, sorted."""
    return folders_below(path, lambda folder: version_of(folder) is not None)


@dataclass(slots=True)
class RobotCheck(DatasetCheck):
    """The check of one robot dataset at `root`, with its manifest if it has one."""

    def run(self) -> int:
        """Check roots, files against the manifest, and indices; the number of episodes."""
        before = self.report.checked.get("episodes", 0)
        for name in self._names():
            self._root(name)
        if self.proof is not None:
            for finding in guarded("sizes", "", self._sizes):
                self.emit(finding)
        for finding in guarded("indices", WINDOWS_FOLDER, self._indices):
            self.emit(finding)
        return self.report.checked.get("episodes", 0) - before

    def _names(self) -> list[str]:
        stated = self.proof.part("request").get("roots") if self.proof is not None else None
        return [str(name) for name in stated] if isinstance(stated, list) else find_roots(self.root)

    def _root(self, name: str) -> None:
        recipe = self.proof.part("recipe") if self.proof is not None else {}
        rules = recipe.get("windows", {})
        findings = check_root(
            self.root / name,
            level=self.level,
            reader="upstream" if rules.get("episodes_from") == "rows" else "lerobot",
            needs_ids=True if "filter" in recipe else None,
            jobs=self.jobs,
            sample=self.sample,
            seed=self.seed,
            report=self.report,
        )
        told = set()
        for finding in findings:
            told.add(finding.path)
            self.emit(replace(finding, path=f"{name}/{finding.path}".strip("/")))
        # A fault that a check of its own has told of is not told a second time by the schema.
        for path, rule in ((INFO, self._info_schema), (EPISODES, self._columns_schema)):
            if path not in told:
                for finding in guarded("schema", path, partial(rule, name)):
                    self.emit(replace(finding, path=f"{name}/{finding.path}".strip("/")))

    def _info_schema(self, name: str) -> Iterator[Finding]:
        path = self.root / name / INFO
        if path.is_file():
            yield from schemas.broken("lerobot-info", orjson.loads(path.read_bytes()), INFO)

    def _columns_schema(self, name: str) -> Iterator[Finding]:
        import pyarrow.parquet as pq

        root = self.root / name
        for relative in numbered_files(root, EPISODES, ".parquet")[:1]:
            types = {field.name: str(field.type) for field in pq.read_schema(root / relative)}
            yield from schemas.broken("lerobot-episode-columns", types, relative)

    def _sizes(self) -> Iterator[Finding]:
        """The files that the manifest lists: there, of its size, and at deep of its sha256 if stated."""
        assert self.proof is not None
        for rows in self.proof.columns("files", "path", "size", "sha256"):
            for path, size, stated in zip(*rows, strict=True):
                try:
                    there = os.stat(self.root / path).st_size  # noqa: PTH116 - one call a file, of many
                except OSError as error:
                    yield found("FIL005", path, f"{error.strerror}; the manifest states {size} bytes")
                    continue
                if there != size:
                    yield found("FIL003", path, f"{there} bytes; the manifest states {size}")
                elif self.level == "deep" and stated and (digest := sha256_of(self.root / path)) != stated:
                    yield found("FIL004", path, f"the sha256 is {digest}; the manifest states {stated}")

    def _indices(self) -> Iterator[Finding]:
        """Each saved index against the files that it was built from: by size, beyond quick by hash."""
        folder = self.root / WINDOWS_FOLDER
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = f"{WINDOWS_FOLDER}/{path.name}"
            if path.suffix != ".arrow":
                yield found("FIL006", name, "no window index")
                continue
            try:
                index = WindowIndex.open(path, inputs_below=self.root)
            except PrepError as error:
                yield found("WIN001", name, error.message)
                continue
            self.report.count("window indices")
            yield from schemas.broken("window-index", index.parameters, name, code="WIN001")
            yield from self._filter(name, index.parameters.get("filter"))
            if self.level != "quick":
                yield from self._inputs(name, index.parameters)

    def _filter(self, name: str, sha256: str | None) -> Iterator[Finding]:
        """The filter, in upstream's form, that an index was built with: what upstream is pointed to."""
        if sha256 is None:
            return
        path = filter_path(sha256)
        if not (self.root / path).is_file():
            yield found("WIN001", name, f"its filter {path} is not there; upstream would be pointed to it")
        elif self.level != "quick" and sha256_of(self.root / path) != sha256:
            yield found("WIN001", path, f"the filter is not the one that {name} was built with")

    def _inputs(self, name: str, parameters: dict[str, Any]) -> Iterator[Finding]:
        for entry in parameters.get("inputs", ()):
            digest = sha256_of(self.root / entry["path"])
            if digest != entry["sha256"]:
                message = f"{entry['path']} has sha256 {digest}; the index was built from {entry['sha256']}"
                yield found("WIN001", name, message)
