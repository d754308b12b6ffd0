"""What an HTTP answer, or none, means for a download: whole, wrong, or worth asking again."""

from __future__ import annotations

import email.utils
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from prep.digests import stated_digests
from prep.errors import FetchError
from prep.signatures import is_text, lfs_oid, looks_like

if TYPE_CHECKING:
    import httpx

__all__ = [
    "MAX_RETRY_AFTER",
    "NOT_FROM_ZERO",
    "AttemptError",
    "check_content",
    "check_digests",
    "check_part_of",
    "failure",
    "network_fault",
    "retry_after",
    "stated_size",
]

MAX_RETRY_AFTER: Final = 120.0
"""Seconds; a server that asks for more is asked again after this."""

NOT_FROM_ZERO: Final = frozenset({206, 416})
"""Statuses that answer a request for the rest of a file."""

_TRANSIENT = frozenset({408, 425, 429})
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class AttemptError(Exception):
    """This attempt failed in a way that another may mend; `retry_after` is in seconds."""

    def __init__(self, error: FetchError, retry_after: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.retry_after = retry_after


def failure(url: str, answer: httpx.Response) -> AttemptError | FetchError:
    """The exception for a status that brings no file."""
    status = answer.status_code
    known = status in HTTPStatus.__members__.values()
    phrase = f" {HTTPStatus(status).phrase}" if known else ""
    at = "" if str(answer.url) == url or not answer.history else f" (redirected to {answer.url.host})"
    message = f"{url}: the server answered {status}{phrase}{at}; expected 200 OK."
    transient = status in _TRANSIENT or status >= 500
    error = FetchError(f"http_{status}", message, transient=transient, remedy=_remedy(status))
    return AttemptError(error, retry_after(answer.headers.get("Retry-After"))) if transient else error


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "The host refuses access: the file may be private, or the link may have run out."
    return "The file is gone from the host." if status in (404, 410) else ""


def retry_after(value: str | None) -> float | None:
    """Seconds to wait by a Retry-After header (a number, or an HTTP date), at most `MAX_RETRY_AFTER`."""
    if value is None:
        return None
    if re.fullmatch(r"\s*\d+\s*", value):
        return min(float(value), MAX_RETRY_AFTER)
    try:
        until = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(until - time.time(), 0.0), MAX_RETRY_AFTER)


def stated_size(answer: httpx.Response) -> int | None:
    """Content-Length in bytes, where the answer has a sound one."""
    value = answer.headers.get("Content-Length", "")
    return int(value) if value.isascii() and value.isdigit() else None


def check_part_of(answer: httpx.Response, size: int, version: str | None) -> tuple[str | None, int | None]:
    """What is wrong with an answer 206 or 416 to a request for all after `size` bytes, and the total.

    416 is fine where `size` is already the total of the same version: nothing was missing.
    """
    etag = answer.headers.get("ETag")
    stated = answer.headers.get("Content-Range", "")
    found = _RANGE.fullmatch(stated)
    total = int(found.group(2)) if found and found.group(2) != "*" else None
    if answer.status_code == 416:
        whole = total == size and etag == version
        return (None if whole else f"the server has no bytes after {size} ({stated or 'no range'})"), total
    if etag != version:
        return f"the server went on with version {etag or 'unnamed'}; expected {version}", total
    if found is None or found.group(1) != str(size):
        return f"the server went on with {stated or 'no range'!r}; expected bytes from {size}", total
    return None, total


def check_content(url: str, head: bytes, headers: Mapping[str, str]) -> None:
    """Raise `FetchError` (permanent) where the first bytes are no media: "empty", "lfs_pointer", "not_media".

    The content type does not decide: hosts send videos as text/plain and web pages as video/mp4.
    """
    if not head:
        message = f"{url}: the file has 0 bytes; expected media."
        raise FetchError("empty", message, transient=False)
    oid = lfs_oid(head)
    if oid:
        message = (
            f"{url}: the file is a Git-LFS pointer (oid sha256:{oid}); expected the media that it stands for."
        )
        raise FetchError(
            "lfs_pointer", message, transient=False, remedy="Fetch it from the host that stores LFS."
        )
    found = looks_like(head) or ("plain text" if is_text(head) else None)
    if found:
        kind = headers.get("Content-Type")
        said = f" (Content-Type {kind})" if kind else ""
        start = head[:60].decode("utf-8", "replace")
        message = f"{url}: the file is {found}{said}, beginning {start!r}; expected media."
        raise FetchError("not_media", message, transient=False)


def check_digests(answer: httpx.Response, digest: Callable[[str], str]) -> str | None:
    """Which stated hash differs from `digest(algorithm)`, or None."""
    for stated in stated_digests(answer.headers, partial=answer.status_code in NOT_FROM_ZERO):
        found = digest(stated.algorithm)
        if found != stated.value:
            return f"the bytes have {stated.algorithm} {found}; {stated.header} says {stated.value}"
    return None


@contextmanager
def network_fault(url: str) -> Iterator[None]:
    """Turn what httpx raises into `AttemptError` or a permanent `FetchError`."""
    import httpx

    try:
        yield
    except httpx.TimeoutException as error:
        message = f"{url}: no byte arrived for {_seconds(error)} s ({type(error).__name__})."
        raise AttemptError(FetchError("stalled", message, transient=True)) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise FetchError("bad_url", f"{url} cannot be asked for: {error}.", transient=False) from error
    except UnicodeError as error:
        # From the resolver, for a label that is empty or over 63 characters.
        raise FetchError("bad_url", f"{url} names no possible host: {error}.", transient=False) from error
    except httpx.TooManyRedirects as error:
        message = f"{url}: more than 10 redirects, the last from {error.request.url}."
        raise FetchError("redirect_loop", message, transient=False) from error
    except httpx.ConnectError as error:
        raise _unreachable(url, error) from error
    except httpx.RemoteProtocolError as error:
        reason = "cut_body" if "complete message body" in str(error) else "bad_answer"
        raise AttemptError(FetchError(reason, f"{url}: {error}.", transient=True)) from error
    except httpx.TransportError as error:
        said = str(error) or type(error).__name__
        raise AttemptError(
            FetchError("reset", f"{url}: the connection broke: {said}.", transient=True)
        ) from error


def _seconds(error: httpx.TimeoutException) -> str:
    timeouts = error.request.extensions.get("timeout", {})
    return f"{timeouts.get('read', 0) or 0:g}"


def _unreachable(url: str, error: httpx.ConnectError) -> AttemptError | FetchError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            message = f"{url}: the host's certificate is not trusted: {cause.verify_message}."
            remedy = "Set SSL_CERT_FILE to the certificates of this network."
            return FetchError("untrusted", message, transient=False, remedy=remedy)
        cause = cause.__cause__ or cause.__context__
    return AttemptError(FetchError("unreachable", f"{url}: no connection: {error}.", transient=True))
