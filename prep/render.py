"""A report as text for people, as JSON for programs, and as JUnit for continuous integration."""

from __future__ import annotations

import json
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Final

from prep.findings import Finding, Group, Report
from prep.progress import counted

__all__ = ["render_json", "render_junit", "render_text"]

WIDTH: Final = 100
"""Characters a line of text has at most, unless one path alone is longer."""
_PLACES: Final = 5
_LONGEST: Final = 400

# What XML 1.0 forbids, and what would move a terminal's cursor.
_FORBIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def render_text(report: Report) -> str:
    """The report for people, readable in a log: a block a code, what was not checked, the verdict."""
    blocks = ["\n".join(_group_lines(group)) for group in report.ordered()]
    if report.accepted_counts:
        blocks.append("\n".join(_accepted_lines(report)))
    if report.not_checked:
        blocks.append("\n".join(_not_checked_lines(report)))
    blocks.append("\n".join(_closing_lines(report)))
    return "\n\n".join(blocks) + "\n"


def _group_lines(group: Group) -> Iterator[str]:
    entry = group.as_dict()
    times = "" if group.count == 1 else f" ({group.count} times)"
    yield f"{group.severity.upper()} {group.code} {entry['title']}{times}"
    remedies = dict.fromkeys(finding.remedy for finding in group.findings)
    for finding in group.findings[:_PLACES]:
        yield from _wrapped(f"{_plain(finding.at()) or '.'}: {_plain(finding.message)}", "  ", "      ")
        if len(remedies) > 1:
            yield from _wrapped(f"remedy: {_plain(finding.remedy)}", "      ", "      ")
    if group.count > _PLACES:
        yield f"  … and {group.count - _PLACES} more"
    if len(remedies) == 1:
        yield from _wrapped(f"remedy: {_plain(next(iter(remedies)))}", "  ", "      ")


def _accepted_lines(report: Report) -> Iterator[str]:
    yield "Accepted in the recipe:"
    for code, count in sorted(report.accepted_counts.items()):
        yield from _wrapped(
            f"{code} {counted(count, 'time')}: {_plain(report.accepted[code])}", "  ", "      "
        )


def _not_checked_lines(report: Report) -> Iterator[str]:
    yield "Not checked:"
    for entry in report.not_checked:
        yield from _wrapped(f"{_plain(entry['what'])} ({_plain(entry['why'])})", "  ", "      ")


def _closing_lines(report: Report) -> Iterator[str]:
    if report.checked:
        counts = ", ".join(
            f"{number} {_of_one(what, number)}" for what, number in sorted(report.checked.items()) if number
        )
        level = f", level {report.level}" if report.level else ""
        yield from _wrapped(f"Checked: {counts or 'nothing'}{level}", "", "  ")
    for dataset in report.datasets:
        name = str(dataset["dataset_id"] or "no manifest")
        yield f"{_plain(dataset['path'])}: {_plain(name)}, {counted(dataset['records'], 'record')}"
    verdict = f"{counted(report.errors, 'error')}, {counted(report.warnings, 'warning')}"
    yield f"{verdict} in {_plain(report.subject)}"


def _of_one(what: str, number: int) -> str:
    """The noun of a count, which stands in the plural: `frame tables`, `files hashed`."""
    if number != 1:
        return what
    if what.endswith("indices"):
        return f"{what.removesuffix('ices')}ex"
    return re.sub(r"s\b", "", what, count=1)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return textwrap.wrap(
        short,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """The text with what a terminal or XML must not see spelt as an escape."""
    return _FORBIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def render_json(report: Report) -> str:
    """The report as `schemas/report.schema.json` has it, ASCII only, with a newline at its end."""
    return json.dumps(report.as_dict(), indent=2) + "\n"


def render_junit(report: Report) -> str:
    """The report as JUnit XML: one test case a code; an error fails, a warning is its output.

    A clean report has one passed case, and what was not checked is a skipped one.
    """
    groups = report.ordered()
    cases = max(len(groups), 1) + len(report.not_checked)
    failed = sum(group.severity == "error" for group in groups)
    suite = ET.Element(
        "testsuite",
        name=f"prep validate {_plain(report.subject)}",
        tests=str(cases),
        failures=str(failed),
        errors="0",
        skipped=str(len(report.not_checked)),
    )
    for group in groups:
        _case_of(suite, report, group)
    if not groups:
        ET.SubElement(suite, "testcase", classname=_plain(report.subject), name="no findings")
    for entry in report.not_checked:
        name = f"not checked: {_plain(entry['what'])}"
        case = ET.SubElement(suite, "testcase", classname=_plain(report.subject), name=name)
        ET.SubElement(case, "skipped", message=_plain(entry["why"]))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=False) + "\n"


def _case_of(suite: ET.Element, report: Report, group: Group) -> None:
    title = f"{group.code} {group.as_dict()['title']}"
    case = ET.SubElement(suite, "testcase", classname=_plain(report.subject), name=title)
    lines = "\n".join(_place_line(finding) for finding in group.findings)
    if group.severity == "error":
        message = f"{title}: {group.count} found"
        ET.SubElement(case, "failure", type=group.code, message=message).text = lines
    else:
        ET.SubElement(case, "system-out").text = f"warning, {group.count} found\n{lines}"


def _place_line(finding: Finding) -> str:
    return f"{_plain(finding.at()) or '.'}: {_plain(finding.message)} {_plain(finding.remedy)}".rstrip()
