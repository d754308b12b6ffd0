"""The last step of the conversations stage: clips to their names, conversations, `meta.json`, manifest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep import __version__
from prep.files import disk_errors, sync_folder, write_whole
from prep.layouts.conversations import META, meta_json
from prep.manifest import MANIFEST, FileRow, Manifest, RecordRow
from prep.pool import map_threads
from prep.recipe import canonical_json
from prep.stages.conversations_run import Job, Reading
from prep.stages.payload import Store, place, walk_files
from prep.stages.rows import RowPlan, read_rows
from prep.stages.sources import SOURCE_FOLDER

__all__ = ["Publication", "View", "changed_views", "views"]

_BLOCK = 1 << 20
_ANSWERS_TOLD = 1000
"""Different answers that a manifest counts; with more it would grow with the dataset."""


@dataclass(frozen=True, slots=True)
class View:
    """One conversation file: its row, path, bytes, and the answer that it trains on."""

    row: int
    path: str
    data: bytes
    answer: str


def views(job: Reading) -> Iterator[View]:
    """The conversations of the kept rows, in order, from a second reading of the table."""
    run = job.run
    for row, planned in zip(read_rows(job.table, run.options.limit), job.plan.rows, strict=True):
        if planned.reason:
            continue
        answer = run.rule.answer.text(row.values[run.rule.score_field])
        question, further = run.rule.question(row.values, job.prompt), run.rule.further(row.values)
        data = run.layout.conversation_json(question, answer, further)
        yield View(row.number, run.layout.conversation(row.number), data, answer)


def changed_views(job: Reading) -> list[str]:
    """The conversation files that are there with another content than the recipe gives."""
    return [
        view.path
        for view in views(job)
        if (job.run.root / view.path).is_file() and not _holds(job.run.root / view.path, view.data)
    ]


@dataclass(slots=True)
class Publication:
    """Brings a dataset to the state that a job describes; may be stopped at any point and done again."""

    job: Job

    def publish(self, store: Store) -> Manifest:
        """Move clips, write views, and write the manifest last."""
        run, workspace = self.job.run, self.job.workspace
        with workspace.held():
            (run.root / MANIFEST).unlink(missing_ok=True)
            place(workspace, self._wanted(), store)
            written, answers = self._write_views()
            files = [self._write_meta(), self._keep_source(), *written.values(), *self._media()]
            self._remove_stale({row.path for row in written.values()})
            for folder in (run.root / SOURCE_FOLDER, run.root):
                sync_folder(folder)
        records = [self._record(row, written) for row in self.job.plan.rows]
        with workspace.held():
            return Manifest.write(
                run.root, self._facts(answers), sorted(files, key=lambda row: row.path), records
            )

    def _wanted(self) -> dict[str, str]:
        """The sha256 that each media path is to have."""
        contents, layout = self.job.workspace.ledger.sources, self.job.run.layout
        return {layout.media(row.number): contents[row.source].sha256 for row in self.job.plan.kept()}

    def _write_views(self) -> tuple[dict[int, FileRow], Counter[str]]:
        """Write the conversations that are not there yet; their rows by row number, the answers' counts."""
        run = self.job.run
        written: dict[int, FileRow] = {}
        answers: Counter[str] = Counter()
        folders = {(run.root / run.layout.conversation(row.number)).parent for row in self.job.plan.kept()}
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        writing = map_threads(
            self._write_view, views(self.job), jobs=run.options.jobs, cancel=run.options.cancel
        )
        for view, sha256 in writing:
            written[view.row] = FileRow(view.path, len(view.data), sha256, "computed", "view")
            if run.rule.answer.is_closed:
                answers[view.answer] += 1
        for folder in folders:
            sync_folder(folder)
        return dict(sorted(written.items())), answers

    def _write_view(self, view: View) -> str:
        path = self.job.run.root / view.path
        if not _holds(path, view.data):
            with disk_errors(path):
                write_whole(path, view.data)
        return hashlib.sha256(view.data).hexdigest()

    def _write_meta(self) -> FileRow:
        run = self.job.run
        digest, size = hashlib.sha256(), 0

        def pieces() -> Iterator[bytes]:
            nonlocal size
            for piece in meta_json(run.layout.entry(row.number) for row in self.job.plan.kept()):
                digest.update(piece)
                size += len(piece)
                yield piece

        write_whole(run.root / META, pieces())
        return FileRow(META, size, digest.hexdigest(), "computed", "view")

    def _keep_source(self) -> FileRow:
        """Keep the table itself, so that another view can be made without the Hub."""
        facts = self.job.source.facts
        target = self.job.run.root / SOURCE_FOLDER / Path(facts["file"]).name
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.job.source.path != target:
            with self.job.source.path.open("rb") as file:
                write_whole(target, iter(lambda: file.read(_BLOCK), b""))
        for other in target.parent.iterdir():
            if other != target:
                other.unlink()
        return FileRow(f"{SOURCE_FOLDER}/{target.name}", facts["size"], facts["sha256"], "computed", "source")

    def _remove_stale(self, wanted: set[str]) -> None:
        """Remove conversations of rows that are no more; they are views, made again at any time."""
        run = self.job.run
        for relative in walk_files(run.root):
            if run.layout.is_conversation(relative) and relative not in wanted:
                (run.root / relative).unlink()

    def _media(self) -> Iterator[FileRow]:
        for row in self.job.plan.kept():
            content = self.job.workspace.ledger.sources[row.source]
            path = self.job.run.layout.media(row.number)
            yield FileRow(path, content.size, content.sha256, "computed", "payload")

    def _record(self, row: RowPlan, written: Mapping[int, FileRow]) -> RecordRow:
        run, kept = self.job.run, not row.reason
        return RecordRow(
            row=row.number,
            id=run.layout.id(row.number),
            split=run.split.name,
            status="kept" if kept else "failed",
            reason=row.reason,
            detail=row.detail,
            source=row.source,
            media=run.layout.media(row.number) if kept else None,
            media_sha256=self.job.workspace.ledger.sources[row.source].sha256 if kept else None,
            sha256=written[row.number].sha256 if kept else None,
        )

    def _facts(self, answers: Counter[str]) -> dict[str, Any]:
        run, plan = self.job.run, self.job.plan
        kept, request = len(plan.kept()), run.request()
        inputs = {
            "recipe": run.recipe.sha256,
            "request": request,
            "table": self.job.source.facts["sha256"],
            "prompt": self.job.prompt.sha256,
        }
        return {
            "prep_version": __version__,
            "name": run.split.directory,
            "split": run.split.name,
            "kind": run.recipe.kind,
            "recipe": dict(run.recipe.document),
            "recipe_sha256": run.recipe.sha256,
            "request": request,
            "sources": [dict(self.job.source.facts)],
            "counts": {"rows": len(plan.rows), "kept": kept, "failed": len(plan.rows) - kept},
            "drops": plan.drops(),
            "consumption": {"samples": kept, "dropped": {}, **_told(answers)},
            "details": {"prompt": self.job.prompt.facts(), "captions": dict(sorted(plan.captions.items()))},
            "fingerprint": hashlib.sha256(canonical_json(inputs)).hexdigest(),
        }


def _told(answers: Counter[str]) -> dict[str, dict[str, int]]:
    return {"answers": dict(sorted(answers.items()))} if 0 < len(answers) <= _ANSWERS_TOLD else {}


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
