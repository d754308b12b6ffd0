"""Findings: what a check saw, where, and what to do; grouped and bounded in a `Report`.

The one catalogue of codes is `catalogue.toml` beside this file: data, so that
`prep explain`, the documentation and the checks read the same words.
"""

from __future__ import annotations

import difflib
import functools
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from prep.errors import UsageError

__all__ = ["PLACES_KEPT", "Code", "Finding", "Group", "Report", "catalogue", "explain", "found", "listing"]

Severity = Literal["error", "warning"]
Claim = Literal["defect", "risk"]

PLACES_KEPT = 20
"""Places kept for each code; the count goes on."""
_NARROWEST = 40


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of fault: an entry of the catalogue.

    `reasons` are the words by which a prepare run names it for a failed row, such as `http_404`;
    a `*` in one stands for anything.
    """

    code: str
    severity: Severity
    claim: Claim
    title: str
    why: str
    remedy: str
    reasons: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault at one place.

    `path` is relative to the directory that was checked; `place` is a line, row,
    JSON pointer, frame or camera inside it, or empty.
    """

    code: str
    severity: Severity
    claim: Claim
    path: str
    place: str
    message: str
    remedy: str

    def at(self) -> str:
        """The place as one string, `path:place`."""
        return f"{self.path}:{self.place}" if self.place else self.path

    def as_dict(self) -> dict[str, str]:
        """The finding as the report schema wants it."""
        return {"path": self.path, "place": self.place, "message": self.message, "remedy": self.remedy}


@functools.cache
def catalogue() -> Mapping[str, Code]:
    """Every code, in the order of the catalogue."""
    raw = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    return {code: Code(code=code, **entry) for code, entry in raw.items()}


def found(
    code: str,
    path: str,
    message: str,
    *,
    place: str = "",
    remedy: str = "",
    severity: Severity | None = None,
) -> Finding:
    """A finding with the severity, claim and remedy of its code, unless given here."""
    entry = catalogue()[code]
    return Finding(
        code=code,
        severity=severity or entry.severity,
        claim=entry.claim,
        path=path,
        place=place,
        message=message,
        remedy=remedy or entry.remedy,
    )


def explain(code: str, *, width: int = 80) -> str:
    """The catalogue's entry for `code`, `width` columns wide, or the codes that begin so.

    Raises UsageError for an unknown code.
    """
    entry = catalogue().get(code.upper()) or _of_reason(code)
    if entry is None and code.isalpha() and (family := listing(code.upper())):
        return family
    if entry is None:
        near = _near(code.upper())
        hint = f"Did you mean {near}? " if near else ""
        raise UsageError(f"There is no finding {code!r}.", remedy=f"{hint}`prep explain` lists all codes.")
    parts = {
        "severity": f"{entry.severity} ({entry.claim})",
        "why": entry.why,
        "remedy": entry.remedy,
    }
    lines = [_wrapped(f"{name:<10}{text}", width) for name, text in parts.items()]
    return "\n".join([_wrapped(f"{entry.code:<8}{entry.title}", width), "", *lines]) + "\n"


def _of_reason(reason: str) -> Code | None:
    """The entry for a failed row's reason: one that names it, before one whose pattern fits."""
    entries = catalogue().values()
    named = (entry for entry in entries if reason in entry.reasons)
    fitting = (entry for entry in entries if any(fnmatchcase(reason, known) for known in entry.reasons))
    return next(named, None) or next(fitting, None)


def _near(code: str) -> str | None:
    """The code that is meant by `VID3`, `VID-003` or a slip of the finger."""
    parts = re.fullmatch(r"([A-Z]+)\W*0*(\d{1,3})", code)
    padded = f"{parts[1]}{parts[2]:0>3}" if parts else code
    close = difflib.get_close_matches(padded, catalogue(), n=1)
    return close[0] if close else None


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(
        text,
        max(width, _NARROWEST),
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )


def listing(letters: str = "") -> str:
    """The codes that begin with `letters`, one a line, with severity and title."""
    chosen = (entry for entry in catalogue().values() if entry.code.startswith(letters))
    return "".join(f"{entry.code}  {entry.severity:7}  {entry.title}\n" for entry in chosen)


@dataclass(slots=True)
class Group:
    """All findings of one code and severity: how many, and the first places."""

    code: str
    severity: Severity
    count: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count one more; keep it if it is among the first."""
        self.count += 1
        if len(self.findings) < PLACES_KEPT:
            self.findings.append(finding)

    def as_dict(self) -> dict[str, Any]:
        """The group as the report schema wants it."""
        entry = catalogue()[self.code]
        return {
            "code": self.code,
            "title": entry.title,
            "severity": self.severity,
            "claim": entry.claim,
            "count": self.count,
            "places": [finding.as_dict() for finding in self.findings],
        }


@dataclass(slots=True)
class Report:
    """Findings grouped by code, with what was checked and what was not.

    Memory is bounded: `PLACES_KEPT` findings a code, however many there are.
    """

    subject: str
    level: str = ""
    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    accepted: Mapping[str, str] = field(default_factory=dict)
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    not_checked: list[dict[str, str]] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    datasets: list[dict[str, Any]] = field(default_factory=list)
    accepted_counts: dict[str, int] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Take one finding, unless it is deselected; an accepted one is only counted."""
        if not self._wanted(finding.code):
            return
        if finding.code in self.accepted:
            self.accepted_counts[finding.code] = self.accepted_counts.get(finding.code, 0) + 1
            return
        key = (finding.code, finding.severity)
        self.groups.setdefault(key, Group(finding.code, finding.severity)).add(finding)

    def extend(self, findings: Iterable[Finding], *, below: str = "") -> None:
        """Take many; `below` is put before each path."""
        for finding in findings:
            self.add(replace(finding, path=f"{below}/{finding.path}".rstrip("/")) if below else finding)

    def skip(self, what: str, why: str) -> None:
        """Note something that was not checked, once."""
        entry = {"what": what, "why": why}
        if entry not in self.not_checked:
            self.not_checked.append(entry)

    def count(self, what: str, number: int = 1) -> None:
        """Count things that were checked, such as records or videos."""
        self.checked[what] = self.checked.get(what, 0) + number

    def ordered(self) -> list[Group]:
        """The groups, errors first, then by code."""
        return sorted(self.groups.values(), key=lambda group: (group.severity != "error", group.code))

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(group.count for group in self.groups.values() if group.severity == "error")

    @property
    def warnings(self) -> int:
        """How many findings are warnings."""
        return sum(group.count for group in self.groups.values() if group.severity == "warning")

    @property
    def exit_status(self) -> int:
        """1 with an error among the findings, else 0."""
        return 1 if self.errors else 0

    def as_dict(self) -> dict[str, Any]:
        """The report as `schemas/report.schema.json` wants it."""
        return {
            "schema": "prep-report/1",
            "subject": self.subject,
            "level": self.level,
            "status": self.exit_status,
            "errors": self.errors,
            "warnings": self.warnings,
            "datasets": self.datasets,
            "checked": dict(sorted(self.checked.items())),
            "not_checked": self.not_checked,
            "accepted": [
                {"code": code, "count": count, "reason": self.accepted[code]}
                for code, count in sorted(self.accepted_counts.items())
            ],
            "thresholds": dict(self.thresholds),
            "environment": self.environment,
            "groups": [group.as_dict() for group in self.ordered()],
        }

    def _wanted(self, code: str) -> bool:
        if self.select and not any(code.startswith(prefix) for prefix in self.select):
            return False
        return not any(code.startswith(prefix) for prefix in self.ignore)
