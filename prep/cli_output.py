"""What the command prints: tables for people on stderr, JSON for machines on stdout."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from prep.manifest import RecordRow, short_id
from prep.progress import bytes_text, counted, seconds_text

if TYPE_CHECKING:
    from prep.doctor import Check
    from prep.findings import Report
    from prep.stages.options import Result

__all__ = ["print_checks", "print_failures", "print_report", "print_results"]

_OUTCOMES = {
    "complete": "complete",
    "unchanged": "complete, nothing to do",
    "downloaded": "downloaded, not yet finished",
    "planned": "dry run, nothing written",
    "incomplete": "INCOMPLETE",
    "failed": "FAILED",
}


def print_results(results: Sequence[Result], output: str) -> None:
    """One block a split for people: what was done, what failed and why, what to do next; JSON if asked."""
    if output == "json":
        click.echo(json.dumps([result.as_dict() for result in results], indent=2))
    for result in results:
        _table(result.name, _facts(result))
        for finding in result.findings:
            label = f"  {finding.severity} {finding.code} "
            click.echo(_wrapped(label, f"{finding.at()}: {finding.message}", indent=8), err=True)
        _print_failed(result)
        for note in result.notes:
            click.echo(_wrapped("  note: ", note), err=True)
        if result.message:
            click.echo(_wrapped("  ", result.message), err=True)
        if result.remedy:
            click.echo(_wrapped("  next: ", result.remedy), err=True)


def _facts(result: Result) -> list[tuple[str, str]]:
    facts = [
        ("status", _OUTCOMES[result.outcome]),
        ("directory", str(result.root)),
        (result.unit, str(result.rows)),
        *_payload(result),
        *((f"failed: {reason}", str(count)) for reason, count in result.failed.items()),
        ("time", seconds_text(result.seconds)),
    ]
    if "samples" in result.consumption:
        facts.append(("training reads", _consumption(result.consumption)))
    if result.dataset_id:
        facts.append(("dataset id", short_id(result.dataset_id)))
    return facts


def _payload(result: Result) -> list[tuple[str, str]]:
    planned = result.outcome == "planned"
    came = (
        "to fetch" if planned else "fetched",
        f"{_files(result.fetched, result)}, {bytes_text(result.bytes)}",
    )
    if result.unit == "episodes":  # all are kept, and their files are linked as a whole
        return [came] if result.fetched else []
    return [
        ("kept" if not planned else "usable", str(result.kept)),
        ("reused", _files(result.reused, result)),
        came,
    ]


def _files(number: int, result: Result) -> str:
    return counted(number, result.files_unit.removesuffix("s"))


def _wrapped(label: str, text: str, indent: int | None = None) -> str:
    """A line for people, broken at the terminal's width and indented below its label."""
    width = max(shutil.get_terminal_size().columns, 60)
    return textwrap.fill(
        f"{label}{text}",
        width,
        subsequent_indent=" " * (len(label) if indent is None else indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _consumption(consumption: Mapping[str, object]) -> str:
    answers = consumption.get("answers")
    samples = consumption["samples"]
    text = f"{counted(samples, 'sample') if isinstance(samples, int) else samples} a pass"
    if isinstance(answers, dict) and len(answers) <= 10:
        text += "; answers " + ", ".join(f"{answer}: {count}" for answer, count in answers.items())
    return text


def _table(title: str, facts: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in facts)
    click.echo(click.style(title, bold=True), err=True)
    for name, value in facts:
        click.echo(f"  {name:<{width}}  {value}", err=True)


def _print_failed(result: Result) -> None:
    for row in result.failures:
        click.echo(f"  failed {_failure(row)}", err=True)
    more = sum(result.failed.values()) - len(result.failures)
    if more > 0:
        click.echo(f"  … and {more} more: prep failures {result.root}", err=True)


def _failure(row: RecordRow) -> str:
    name = row.source or row.id
    detail = row.detail.removeprefix(f"{name}: ")
    # A mirror's or a file's own address may name the source at another place of the sentence.
    named = detail if row.source and row.source in detail else ": ".join(filter(None, (name, detail)))
    return f"row {row.row} ({row.reason}): {named}"


def print_failures(directory: Path, of: str, rows: Sequence[RecordRow], output: str) -> None:
    """The failed rows on stdout."""
    if output == "json":
        fields = ("row", "id", "reason", "detail", "source")
        document = [{name: getattr(row, name) for name in fields} for row in rows]
        click.echo(json.dumps(document, indent=2))
    else:
        for row in rows:
            detail = row.detail.removeprefix(f"{row.source}: ")
            click.echo(f"row {row.row}\t{row.reason}\t{row.source}\t{detail}".rstrip("\t"))
    click.echo(f"{counted(len(rows), 'failed row')} of {of} in {directory}.", err=True)


def print_report(report: Report, output: str, path: Path | None) -> None:
    """The report on stdout, and into a file if asked; beside a machine's form the verdict for people."""
    from prep.files import disk_errors, write_whole
    from prep.render import render_json, render_junit, render_text

    text = {"text": render_text, "json": render_json, "junit": render_junit}[output](report)
    if path is not None:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode() + b"\n" * (not text.endswith("\n")))
    click.echo(text, nl=not text.endswith("\n"))
    if output != "text":
        click.echo(
            f"{counted(report.errors, 'error')}, {counted(report.warnings, 'warning')} in {report.subject}",
            err=True,
        )


def print_checks(checks: Sequence[Check], output: str) -> None:
    """What `doctor` found."""
    if output == "json":
        click.echo(json.dumps([check.as_dict() for check in checks], indent=2))
        return
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = "ok  " if check.good else "LACK" if check.needed else "--  "
        click.echo(f"{mark}  {check.name:<{width}}  {check.found}")
        if not check.good and check.remedy:
            click.echo(f"      {'':<{width}}  {check.remedy}")
