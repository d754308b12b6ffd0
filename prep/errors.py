"""Errors that a user can cause, and the exit status of each.

    PrepError                 1  (base; catch this one)
    ├── UsageError            2  wrong option, argument or recipe
    ├── WouldChangeError      2  a finished dataset would change without --update
    ├── IncompleteError       3  a failure that a rerun may mend
    │   ├── HeldError         3  another run holds the dataset
    │   └── FetchError        3 or 1  one file could not be had (see ``transient``)
    └── EnvironmentLacksError 4  a package, file or service is not there

Each carries one sentence (`message`) and what to do next (`remedy`); the command
prints both and ends with `exit_status`. Anything else that reaches the command is a
bug of ours.
"""

from __future__ import annotations

__all__ = [
    "EnvironmentLacksError",
    "FetchError",
    "HeldError",
    "IncompleteError",
    "PrepError",
    "UsageError",
    "WouldChangeError",
]


class PrepError(Exception):
    """What went wrong, in one sentence, and the remedy."""

    exit_status = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(PrepError):
    """A wrong option, argument or recipe."""

    exit_status = 2


class WouldChangeError(PrepError):
    """A finished dataset would change, and `--update` was not given."""

    exit_status = 2


class IncompleteError(PrepError):
    """The run stopped before its end; the same command goes on."""

    exit_status = 3


class HeldError(IncompleteError):
    """Another run is writing this dataset."""


class FetchError(IncompleteError):
    """One file could not be had.

    `reason` is a stable word such as ``http_404``, ``not_media`` or ``stalled``;
    `transient` says whether a rerun may mend it.
    """

    def __init__(self, reason: str, message: str, *, transient: bool, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason
        self.transient = transient
        self.exit_status = 3 if transient else 1


class EnvironmentLacksError(PrepError):
    """A package, file or service that this needs is not there."""

    exit_status = 4
