"""Faults that the loopback server shows on request: which, where and how many times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote, urlsplit

__all__ = ["BODY_FAULTS", "STATUS_FAULTS", "Fault", "FaultKind", "Faults"]


class FaultKind(StrEnum):
    """What goes wrong with a request."""

    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    GATED = "gated"  # 401 without a token, 403 with one, and X-Error-Code GatedRepo
    NOT_FOUND = "not_found"  # 404
    GONE = "gone"  # 410
    TOO_MANY = "too_many"  # 429
    SERVER_ERROR = "server_error"  # 500
    UNAVAILABLE = "unavailable"  # 503
    CUT = "cut"  # Content-Length of the whole, closed after `after_bytes`
    STALL = "stall"  # pauses for `seconds` after `after_bytes`, then sends the rest
    WRONG_BYTES = "wrong_bytes"  # every bit of the body turned over, same length
    HTML = "html"  # an HTML page with status 200
    LFS_POINTER = "lfs_pointer"  # the Git LFS pointer of the file in its place
    EMPTY = "empty"  # 200 with a body of zero bytes
    NO_RANGE = "no_range"  # the Range header is ignored: 200 and the whole body
    SLOW = "slow"  # waits for `seconds` before it answers, then all is well
    RESET = "reset"  # TCP reset; with `after_bytes`, after that many bytes of body
    NEW_ETAG = "new_etag"  # another ETag at each request, the same bytes


STATUS_FAULTS = {
    FaultKind.UNAUTHORIZED: 401,
    FaultKind.FORBIDDEN: 403,
    FaultKind.NOT_FOUND: 404,
    FaultKind.GONE: 410,
    FaultKind.TOO_MANY: 429,
    FaultKind.SERVER_ERROR: 500,
    FaultKind.UNAVAILABLE: 503,
}

# These need a body to spoil: they pass over (and do not count) HEAD, redirects and error answers.
BODY_FAULTS = frozenset(
    {
        FaultKind.CUT,
        FaultKind.STALL,
        FaultKind.WRONG_BYTES,
        FaultKind.HTML,
        FaultKind.LFS_POINTER,
        FaultKind.EMPTY,
        FaultKind.NO_RANGE,
    }
)


@dataclass(frozen=True)
class Fault:
    """One fault; fields that its kind does not use are ignored.

    `retry_after` is sent as the Retry-After header of a status fault (seconds, or an HTTP date
    as text); None sends no such header. `after_bytes` counts bytes of the body as sent, so from
    the start of the range for a 206; None means half of it. `seconds` is the wait of SLOW and STALL.
    """

    kind: FaultKind
    retry_after: int | str | None = None
    after_bytes: int | None = None
    seconds: float = 1.0


@dataclass
class _Rule:
    fault: Fault
    remaining: int | None


class Faults:
    """The table of faults of one server; every method may be called from any thread."""

    def __init__(self) -> None:
        self._rules: dict[str, _Rule] = {}
        self._lock = threading.Lock()

    def set(self, path_or_url_suffix: str, fault: Fault, times: int | None = None) -> None:
        """Show `fault` to the next `times` requests (None: to all) whose path ends with the text.

        The text is compared with the path both as sent and percent-decoded, without the query; of a
        full URL the path is taken. The longest text that fits decides. An empty text fits
        everything. A second call with the same text replaces the first.
        """
        with self._lock:
            self._rules[_path_of(path_or_url_suffix)] = _Rule(fault, times)

    def clear(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._rules.clear()

    def take(self, path: str, applies: Callable[[Fault], bool]) -> Fault | None:
        """The fault for this request path, one time used up; None where none fits or applies."""
        if not self._rules:
            return None
        forms = (path, unquote(path))
        with self._lock:
            for suffix in sorted(self._rules, key=len, reverse=True):
                rule = self._rules[suffix]
                if rule.remaining != 0 and any(form.endswith(suffix) for form in forms):
                    return _use(rule) if applies(rule.fault) else None
        return None


def _use(rule: _Rule) -> Fault:
    if rule.remaining is not None:
        rule.remaining -= 1
    return rule.fault


def _path_of(suffix: str) -> str:
    return urlsplit(suffix).path if suffix.startswith(("http://", "https://")) else suffix
