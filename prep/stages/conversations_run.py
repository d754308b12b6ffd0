"""One split on its way through the conversations stage: what is asked, and what is found of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep.errors import FetchError, PrepError
from prep.files import resolve_below
from prep.layouts.conversations import Layout
from prep.manifest import RecordRow
from prep.prompts import Prompt, expected_prompt, resolve_prompt
from prep.recipe import Recipe, Split
from prep.stages.options import Options
from prep.stages.rows import Plan, Rule
from prep.stages.sources import SourceTable, asked_source
from prep.table import Table, open_table
from prep.workspace import Workspace

__all__ = ["Job", "Run", "attempted"]


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
                return resolve_below(folder, cell).as_uri()
            except PrepError as error:
                raise FetchError("outside_source", error.message, transient=False) from error

        return to_url


@dataclass(slots=True)
class Job:
    """A run that holds its dataset: the workspace, the table that was read, and the plan of its rows."""

    run: Run
    workspace: Workspace
    source: SourceTable
    table: Table
    plan: Plan
    prompt: Prompt

    def attempt(self) -> list[RecordRow]:
        """The records as far as they are known before anything is published."""
        return attempted(self.run, self.plan)


def attempted(run: Run, plan: Plan) -> list[RecordRow]:
    """The records of a plan, without media."""
    return [
        RecordRow(
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
        for row in plan.rows
    ]
