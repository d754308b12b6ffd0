"""Plain URLs to disk: hashed on the way, resumed where that is safe, and never taken for whole too soon.

A file arrives in a part that the caller names and later renames. What may pass by itself (a
cut connection, a stall, 429, 5xx) is tried again with growing waits; what will not (404, a web
page in place of a video, hashes that differ twice) is said at once. Bytes of two versions are
never joined: a part is continued only under the strong ETag that it began with.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from prep.address import resolve_url
from prep.answers import (
    NOT_FROM_ZERO,
    AttemptError,
    check_content,
    check_digests,
    check_part_of,
    failure,
    network_fault,
    stated_size,
)
from prep.errors import FetchError, IncompleteError
from prep.part import Part
from prep.progress import counted

if TYPE_CHECKING:
    import httpx

__all__ = ["Fetched", "UrlFetcher"]

_MAX_BACKOFF: Final = 30.0
_CHUNK: Final = 1 << 20
_HEAD_REFUSED = frozenset({405, 501})

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole file: `size` in bytes, `sha256` in hex, the `etag` as the server wrote it."""

    size: int
    sha256: str
    etag: str | None
    resumed: bool


@dataclass(slots=True)
class _Request:
    """One `fetch` call; `version` is the strong ETag of the bytes in `part`, if it may be continued."""

    url: str
    part: Part
    on_start: Callable[[str | None, int | None], None] | None
    version: str | None = None
    resumed: bool = False

    def begin(self, etag: str | None, total: int | None) -> None:
        """Another version of the file begins to arrive."""
        self.part.restart()
        self.resumed = False
        self.version = etag if _is_strong(etag) else None
        self.started(etag, total)

    def started(self, etag: str | None, total: int | None) -> None:
        if self.on_start:
            self.on_start(etag, total)


class UrlFetcher:
    """Fetch URLs from any number of threads, each over its own connections; a context manager.

    `timeout` the seconds without a byte that make a stall,
    `backoff` the first wait in seconds (it doubles). `mirrors` are (start, replacement) pairs;
    the first that matches wins, and a replacement may begin with `file://`. Once `cancel` is set,
    every call ends with `IncompleteError`. Proxies and SSL_CERT_FILE are taken from the environment.
    """

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        attempts: int = 5,
        mirrors: Sequence[tuple[str, str]] = (),
        cancel: threading.Event | None = None,
        backoff: float = 0.5,
    ) -> None:
        import httpx

        if attempts < 1:
            raise ValueError(f"attempts is {attempts}; it must be at least 1")
        self._attempts = attempts
        self._mirrors = tuple(mirrors)
        self._cancel = cancel or threading.Event()
        self._backoff = backoff
        self._timeout = httpx.Timeout(timeout)
        # One context for all: reading the certificates is what makes a client slow to create.
        self._certificates = httpx.create_ssl_context()
        self._clients: list[httpx.Client] = []
        self._own = threading.local()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        while self._clients:
            self._clients.pop().close()

    def _client(self) -> httpx.Client:
        """The calling thread's client: a pool that threads share is looked through at every request."""
        import httpx

        client: httpx.Client | None = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = httpx.Client(
                timeout=self._timeout,
                verify=self._certificates,
                headers={"Accept-Encoding": "identity", "User-Agent": "cosmos-prep"},
                follow_redirects=True,
                max_redirects=10,
            )
            self._clients.append(client)
        return client

    def fetch(
        self,
        url: str,
        part: Path,
        *,
        resume_etag: str | None = None,
        on_start: Callable[[str | None, int | None], None] | None = None,
        on_bytes: Callable[[int], None] | None = None,
    ) -> Fetched:
        """Stream `url` into `part`, checked and synced to disk.

        `resume_etag` is the ETag under which the bytes now in `part` came; without it, or where it
        is weak, `part` starts anew. `on_start(etag, total size)` is called whenever a version of the
        file begins or goes on to arrive; `on_bytes` with each growth of `part` (negative where bytes
        are dropped), so that its sum is the size in hand.

        Raises `FetchError` where this file cannot be had (`part` stays if a rerun may go on from it),
        and `IncompleteError` where `part` cannot be written or `cancel` is set.
        """
        address = resolve_url(url, self._mirrors)
        with Part(part, on_bytes) as target:
            request = _Request(address.url, target, on_start)
            if _is_strong(resume_etag) and address.path is None and target.load():
                request.version = resume_etag
            try:
                if address.path is not None:
                    return self._copy(request, address.path)
                return self._with_retries(address.url, lambda: self._download(request))
            except FetchError as error:
                if not error.transient:
                    target.remove()
                raise

    def size(self, url: str) -> int | None:
        """The file's size in bytes by a HEAD request; None where the server does not say.

        Raises `FetchError` as `fetch` does.
        """
        address = resolve_url(url, self._mirrors)
        if address.path is not None:
            with _reading(address.path):
                return address.path.stat().st_size
        return self._with_retries(address.url, lambda: self._head(address.url))

    def _with_retries(self, url: str, work: Callable[[], _Result]) -> _Result:
        """Run `work` until it succeeds, fails for good, or has failed too often."""
        wrong_bytes = 0
        for attempt in range(1, self._attempts + 1):
            self._check_cancel(url)
            try:
                with network_fault(url):
                    return work()
            except AttemptError as again:
                wrong_bytes += again.error.reason == "wrong_bytes"
                if wrong_bytes == 2:
                    raise FetchError("wrong_bytes", again.error.message, transient=False) from again
                if attempt == self._attempts:
                    raise _after(attempt, again.error) from again
                self._wait(again, attempt)
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, again: AttemptError, attempt: int) -> None:
        """Sleep before the next attempt: as long as the server asks, else twice as long as last time."""
        wait = min(_MAX_BACKOFF, self._backoff * 2 ** (attempt - 1))
        wait *= random.uniform(0.5, 1.0)
        if again.retry_after is not None:
            # On top, so that many threads do not come back in the same instant.
            wait += again.retry_after
        self._cancel.wait(wait)

    def _check_cancel(self, url: str) -> None:
        if self._cancel.is_set():
            raise IncompleteError(f"Stopped before {url} was whole.", remedy="Run the same command again.")

    def _head(self, url: str) -> int | None:
        answer = self._client().head(url)
        if answer.status_code in _HEAD_REFUSED:
            return None
        if answer.status_code != 200:
            raise failure(url, answer)
        return stated_size(answer)

    def _download(self, request: _Request) -> Fetched:
        part = request.part
        headers = {"Range": f"bytes={part.size}-", "If-Range": request.version or ""}
        continuing = request.version is not None and part.size > 0
        with self._client().stream("GET", request.url, headers=headers if continuing else {}) as answer:
            etag = answer.headers.get("ETag")
            if answer.status_code == 200:
                total = stated_size(answer)
                request.begin(etag, total)
            elif answer.status_code in NOT_FROM_ZERO and continuing:
                total = self._go_on(request, answer)
            else:
                raise failure(request.url, answer)
            if answer.status_code != 416:
                self._receive(request, answer)
            self._check_whole(request, answer, total)
        return self._done(request, etag)

    def _go_on(self, request: _Request, answer: httpx.Response) -> int | None:
        """Accept the rest of the version in hand, or drop it and come again; the total size."""
        fault, total = check_part_of(answer, request.part.size, request.version)
        if fault:
            request.version = None
            request.part.restart()
            raise AttemptError(FetchError("bad_range", f"{request.url}: {fault}.", transient=True))
        request.resumed = True
        request.started(request.version, total)
        return total

    def _receive(self, request: _Request, answer: httpx.Response) -> None:
        checked = False
        for chunk in answer.iter_raw():
            self._check_cancel(request.url)
            request.part.write(chunk)
            if not checked and request.part.size >= 512:
                check_content(request.url, request.part.head, answer.headers)
                checked = True

    def _check_whole(self, request: _Request, answer: httpx.Response, total: int | None) -> None:
        part = request.part
        if total is not None and part.size != total:
            message = f"{request.url}: {part.size} bytes arrived; expected {total}."
            raise AttemptError(FetchError("cut_body", message, transient=True))
        check_content(request.url, part.head, answer.headers)
        fault = check_digests(answer, part.digest)
        if fault:
            request.version = None
            part.restart()
            raise AttemptError(FetchError("wrong_bytes", f"{request.url}: {fault}.", transient=True))

    def _done(self, request: _Request, etag: str | None) -> Fetched:
        request.part.sync()
        return Fetched(request.part.size, request.part.digest("sha256"), etag, request.resumed)

    def _copy(self, request: _Request, source: Path) -> Fetched:
        with _reading(source), source.open("rb") as stream:
            request.begin(None, source.stat().st_size)
            while chunk := stream.read(_CHUNK):
                self._check_cancel(request.url)
                request.part.write(chunk)
        check_content(request.url, request.part.head, {})
        return self._done(request, None)


def _is_strong(etag: str | None) -> bool:
    return etag is not None and len(etag) > 2 and etag.startswith('"') and etag.endswith('"')


def _after(attempts: int, error: FetchError) -> FetchError:
    message = f"{error.message.removesuffix('.')} ({counted(attempts, 'attempt')})."
    return FetchError(error.reason, message, transient=True, remedy="Run the same command again later.")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name what is wrong with a mirror's file."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{path} is not there; the mirror leads to it."
        raise FetchError("missing_file", message, transient=False) from error
    except PermissionError as error:
        message = f"{path} may not be read by this user: {error.strerror}."
        raise FetchError("no_permission", message, transient=False) from error
    except IsADirectoryError as error:
        raise FetchError("not_a_file", f"{path} is a folder; expected a file.", transient=False) from error
    except OSError as error:
        raise FetchError("unreadable", f"{path}: {error.strerror or error}.", transient=True) from error
