"""Run a rule so that its own fault becomes a finding and the other rules go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prep.findings import Finding, found

__all__ = ["guarded"]


def guarded(name: str, path: str, rule: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of `rule`; where it crashes, one RUL001 with the exception's type and message.

    This is the one place that catches every exception. A rule reads what strangers wrote, so its
    faults can't be foreseen, and one of them must not hide what the other rules see in a million
    records; nothing is lost, for the finding is an error and names the file.
    """
    try:
        return list(rule())
    except Exception as error:  # noqa: BLE001 - see above
        what = f"{type(error).__name__}: {error}"
        return [found("RUL001", path, f"the rule {name} ended with {what}"[:500])]
