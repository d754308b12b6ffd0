"""Run a rule so that its own fault becomes a finding and the other rules go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from prep.findings import Finding, found

__all__ = ["applied", "guarded"]

Facts = TypeVar("Facts")


def guarded(name: str, path: str, rule: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of `rule`; where it crashes, one RUL001 with the exception's type and message.

    This file is the one place that catches every exception. A rule reads what strangers wrote, so its
    faults can't be foreseen, and one of them must not hide what the other rules see in a million
    records; nothing is lost, for the finding is an error and names the file.
    """
    try:
        return list(rule())
    except Exception as error:  # noqa: BLE001 - see above
        what = f"{type(error).__name__}: {error}"
        return [found("RUL001", path, f"the rule {name} ended with {what}"[:500])]


def applied(rules: Sequence[Callable[[Facts], Iterable[Finding]]], facts: Facts, path: str) -> list[Finding]:
    """The findings of several rules on the same facts; a crash costs only the rule that crashed.

    The rules run unguarded first, which is several times faster; after a crash they all run
    again, each by itself.
    """
    try:
        return [finding for rule in rules for finding in rule(facts)]
    except Exception:  # noqa: BLE001 - see `guarded`, which takes over
        guarded_rules = (guarded(rule.__name__, path, partial(rule, facts)) for rule in rules)
        return [finding for findings in guarded_rules for finding in findings]
