"""One split on its way through the conversations stage: what is asked, and what is found of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from prep.address import resolve_url
from prep.errors import FetchError, PrepError
from prep.files import resolve_below
from prep.layouts.conversations import Layout
from prep.manifest import RecordRow
from prep.prompts import Prompt, expected_prompt, resolve_prompt
from prep.recipe import Recipe, Split
from prep.stages.options import FAILURES_SHOWN, Options, Result
from prep.stages.rows import Plan, RowPlan, Rule, plan_rows
from prep.stages.sources import SourceTable, asked_source
from prep.table import Table, open_table
from prep.workspace import Workspace

__all__ = ["Job", "Reading", "Run", "attempted", "result_of"]


@dataclass(frozen=True, slots=True)
class Run:
    """One split being prepared into `root`, as the recipe and the options want it."""

    recipe: Recipe
    split: Split
    root: Path
    options: Options
    rule: Rule
    layout: Layout

    @classmethod
    def of(cls, recipe: Recipe, split: Split, root: Path, options: Options) -> Run:
        """The run; raises UsageError for options that the recipe does not know."""
        return cls(recipe, split, root, options, Rule.of(recipe, options), Layout.of(recipe.document))

    def request(self) -> dict[str, Any]:
        """The options that shape the dataset, free of anything of this machine."""
        options = self.options
        return {
            "source": asked_source(self.split, options),
            "limit": options.limit,
            "score_field": self.rule.score_field,
            "captions": list(self.rule.captions),
            "on_bad_bytes": options.on_bad_bytes,
            "prompt": expected_prompt(self.recipe.document["prompt"], options.prompt, options.upstream),
        }

    def prompt(self) -> Prompt:
        """The prompt's text."""
        options = self.options
        rule = self.recipe.document["prompt"]
        return resolve_prompt(rule, options.prompt, upstream=options.upstream, offline=options.offline)

    def open_table(self, source: SourceTable) -> Table:
        """The source table, opened at its columns."""
        name = source.facts["file"]
        return open_table(source.path, self.rule.columns, on_bad_bytes=self.options.on_bad_bytes, name=name)

    def address(self, source: SourceTable) -> Callable[[str], str]:
        """How a cell of the media column becomes a URL."""
        folder = source.media_folder

        def to_url(cell: str) -> str:
            if folder is None or "://" in cell:
                return cell
            try:
                path = resolve_below(folder, cell)
            except PrepError as error:
                raise FetchError("outside_source", error.message, transient=False) from error
            if not path.exists():
                raise FetchError("missing_file", f"{cell!r} is not in {folder}.", transient=False)
            return path.as_uri()

        return to_url

    def urls(self, source: SourceTable, cells: Iterable[str]) -> list[str]:
        """The URLs of cells of the media column, without those that lead nowhere."""
        to_url, urls = self.address(source), []
        for cell in cells:
            with suppress(FetchError):  # counted as a failure when its turn to be fetched comes
                urls.append(to_url(cell))
        return urls

    def needs_network(self, source: SourceTable) -> Callable[[str], bool]:
        """Whether a cell of the media column leads to another machine; one that leads nowhere does not."""
        to_url = self.address(source)
        mirrors = (*self.options.mirrors, *source.local_media())

        def is_far(cell: str) -> bool:
            try:
                return resolve_url(to_url(cell), mirrors).path is None
            except FetchError:
                return False  # its fault is told when its turn to be fetched comes

        return is_far


@dataclass(slots=True)
class Reading:
    """What a run has read: the table, the plan of its rows, and the prompt."""

    run: Run
    source: SourceTable
    table: Table
    plan: Plan
    prompt: Prompt

    @classmethod
    def of(cls, run: Run, source: SourceTable) -> Reading:
        """Read the table once; raises PrepError for one that cannot be used."""
        prompt, table = run.prompt(), run.open_table(source)
        return cls(run, source, table, plan_rows(table, run.rule, run.split, run.options), prompt)

    def notes(self) -> list[str]:
        """What a user should know of the reading."""
        return [*self._source_notes(), *self._prompt_notes()]

    def _source_notes(self) -> list[str]:
        if self.source.verified:
            return []
        return ["the source table is the one in the Hub's cache; the Hub was not asked whether it is whole"]

    def _prompt_notes(self) -> list[str]:
        expected = self.run.recipe.document["prompt"].get("sha256")
        if self.prompt.origin != "upstream" or self.prompt.sha256 == expected:
            return []
        here, wanted = str(self.prompt.sha256)[:12], str(expected)[:12]
        return [f"upstream's prompt here is of another version: sha256 {here}, the recipe says {wanted}"]


@dataclass(slots=True)
class Job(Reading):
    """A reading whose run holds its dataset."""

    workspace: Workspace

    @classmethod
    def holding(cls, reading: Reading, workspace: Workspace) -> Job:
        """The job of a reading."""
        return cls(reading.run, reading.source, reading.table, reading.plan, reading.prompt, workspace)

    def attempt(self) -> list[RecordRow]:
        """The records as far as they are known before anything is published."""
        return [attempted(self.run, row) for row in self.plan.rows]


def attempted(run: Run, row: RowPlan) -> RecordRow:
    """The record of a row that is not published: no media, and the message of its failure."""
    return RecordRow(
        row=row.number,
        id=run.layout.id(row.number),
        split=run.split.name,
        status="failed" if row.reason else "kept",
        reason=row.reason,
        detail=row.detail or row.message,
        source=row.source,
        media=None,
        media_sha256=None,
        sha256=None,
    )


def result_of(run: Run, plan: Plan) -> Result:
    """The result of a plan: its rows, those that may be kept, and the failures."""
    failures = (attempted(run, row) for row in plan.rows if row.reason)
    return Result(
        name=run.split.directory,
        root=run.root,
        outcome="complete",
        rows=len(plan.rows),
        kept=len(plan.kept()),
        failed=plan.drops(),
        failures=list(islice(failures, FAILURES_SHOWN)),
        findings=list(plan.findings),
    )
