"""Rows of a source table as the conversations stage reads them: what each gives, or why it fails."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prep.errors import UsageError
from prep.findings import Finding, found
from prep.layouts.conversations import Answer, RejectedAnswerError
from prep.progress import counted
from prep.prompts import Prompt
from prep.recipe import Recipe, Split
from prep.stages.options import Options
from prep.table import Row, Table

__all__ = ["MISSING", "Plan", "RowPlan", "Rule", "plan_rows", "read_rows"]

MISSING = frozenset(
    (
        "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
        "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
    )
)  # fmt: skip
"""The cells that upstream's table reader takes for no value (pandas' own list)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which columns make a record, and how: a recipe's rule with the user's options applied."""

    media: str
    score_field: str
    answer: Answer
    prompt_column: str | None
    captions: tuple[str, ...]
    caption_template: str
    turns_column: str | None = None

    @classmethod
    def of(cls, recipe: Recipe, options: Options) -> Rule:
        """The rule; raises UsageError for a score field or caption that the recipe does not know."""
        document = recipe.document
        score_field = options.score_field or next(iter(document["answers"]))
        if score_field not in document["answers"]:
            known = ", ".join(document["answers"])
            raise UsageError(
                f"The recipe {recipe.name} has no answer column {score_field!r}.", remedy=f"It has: {known}."
            )
        return cls(
            media=document["columns"]["media"],
            score_field=score_field,
            answer=Answer.of(document["answers"][score_field]),
            prompt_column=document["prompt"].get("column") if options.prompt in ("auto", "builtin") else None,
            captions=_captions(document, options),
            caption_template=document.get("caption", {}).get("template", ""),
            turns_column=document.get("turns", {}).get("column"),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        optional = (name for name in (self.prompt_column, self.turns_column) if name)
        return tuple(dict.fromkeys((self.media, self.score_field, *optional, *self.captions)))

    def caption(self, values: Mapping[str, str]) -> str | None:
        """The first caption that is there."""
        return next((values[name] for name in self.captions if values[name] not in MISSING), None)

    def question(self, values: Mapping[str, str], prompt: Prompt) -> str:
        """The user's text of a record."""
        text = values[prompt.column] if prompt.column else prompt.text
        caption = self.caption(values)
        return text if caption is None else text + self.caption_template.replace("{caption}", caption)

    def further(self, values: Mapping[str, str]) -> list[str]:
        """The texts behind the first answer, the user's and the assistant's by turns.

        Raises ValueError for a cell that is no JSON array of such pairs.
        """
        cell = values[self.turns_column].strip() if self.turns_column else ""
        texts: Any = json.loads(cell) if cell else []
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError("it is no JSON array of texts")
        if len(texts) % 2:
            raise ValueError(f"{len(texts)} texts; a question without an answer")
        return texts

    def failure(self, row: Row) -> tuple[str, str] | None:
        """Why a row gives no record, as a stable reason and a sentence; None if it gives one."""
        if row.problems:
            return row.problems[0].reason, row.problems[0].message
        if row.values[self.media].strip() in MISSING:
            return "no_media", f"line {row.line}: {self.media} is {row.values[self.media]!r}"
        if self.prompt_column and row.values[self.prompt_column].strip() in MISSING:
            return "no_prompt", f"line {row.line}: {self.prompt_column} is empty"
        cell = row.values[self.score_field]
        if cell.strip() in MISSING:
            return "no_answer", f"line {row.line}: {self.score_field} is {cell!r}"
        try:
            self.answer.text(cell)
        except RejectedAnswerError as rejected:
            return rejected.reason, f"line {row.line}: {self.score_field}: {rejected}"
        try:
            self.further(row.values)
        except ValueError as error:
            return "broken_turn", f"line {row.line}: {self.turns_column}: {error}"
        return None


def _captions(document: Mapping[str, Any], options: Options) -> tuple[str, ...]:
    if not options.include_caption:
        if options.caption_field is not None:
            raise UsageError(
                f"The caption column {options.caption_field!r} is named, and captions are not asked for.",
                remedy="Add --include-caption, or leave out --caption-field.",
            )
        return ()
    if "caption" not in document:
        raise UsageError("The recipe has no caption columns.", remedy="Leave out --include-caption.")
    columns = document["caption"]["columns"]
    first = options.caption_field or columns[0]
    return tuple(dict.fromkeys((first, *columns[1:])))


@dataclass(slots=True)
class RowPlan:
    """What is known of a row: `reason` is empty as long as it may be kept.

    `detail` says what is wrong in the table, the same on every machine; `message` says how
    fetching failed, which may name a mirror of this machine and is kept out of the manifest.
    """

    number: int
    source: str
    reason: str = ""
    detail: str = ""
    message: str = ""


@dataclass(slots=True)
class Plan:
    """The rows of a split, in order, and what the table's reading brought up."""

    rows: list[RowPlan] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    captions: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def fail(self, failures: Mapping[str, tuple[str, str]]) -> None:
        """Mark the rows whose source is among `failures` (reason and message)."""
        for row in self.rows:
            if not row.reason and row.source in failures:
                row.reason, row.message = failures[row.source]

    def kept(self) -> list[RowPlan]:
        """The rows that are records."""
        return [row for row in self.rows if not row.reason]

    def drops(self) -> dict[str, int]:
        """How many rows failed, by reason."""
        return dict(sorted(Counter(row.reason for row in self.rows if row.reason).items()))

    def sources(self) -> list[str]:
        """The sources of the rows that may be kept, each once, in order."""
        return list(dict.fromkeys(row.source for row in self.rows if not row.reason))


def read_rows(table: Table, limit: int | None) -> Iterator[Row]:
    """The first `limit` rows of a table."""
    for row in table.rows():
        if limit is not None and row.number > limit:
            return
        yield row


def plan_rows(table: Table, rule: Rule, split: Split, options: Options) -> Plan:
    """Read the table once: each row's source, or why it fails."""
    plan = Plan()
    for row in read_rows(table, options.limit):
        failure = rule.failure(row)
        source = row.values.get(rule.media, "").strip()
        plan.rows.append(RowPlan(row.number, source, *(failure or ("", ""))))
        if failure is None and rule.captions:
            plan.captions["with" if rule.caption(row.values) is not None else "without"] += 1
    plan.findings = _table_findings(table, plan, split, options)
    return plan


def _table_findings(table: Table, plan: Plan, split: Split, options: Options) -> list[Finding]:
    name, notes = table.name, table.notes
    findings = []
    if notes.unused_bad_rows:
        first = notes.unused_bad_column
        message = f"bytes that are not UTF-8 in {counted(notes.unused_bad_rows, 'row')}, first in {first!r}"
        findings.append(found("TAB003", name, message, place=str(notes.unused_bad_first)))
    if notes.replaced_rows:
        rows = counted(notes.replaced_rows, "row")
        message = f"bytes that are not UTF-8 in a used column, replaced as asked in {rows}"
        findings.append(found("TAB010", name, message, place=str(notes.replaced_first)))
    if notes.blank_lines:
        findings.append(
            found(
                "TAB009",
                name,
                f"{counted(notes.blank_lines, 'blank line')}, the first at line {notes.first_blank_line}",
            )
        )
    if options.limit is None and split.expected_rows not in (None, len(plan.rows)):
        findings.append(
            found(
                "TAB007", name, f"{counted(len(plan.rows), 'row')}, the recipe expects {split.expected_rows}"
            )
        )
    return findings
