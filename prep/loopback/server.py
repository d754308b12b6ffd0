"""The loopback server itself: threads, routes, the request log, and the faults put on answers."""

from __future__ import annotations

import itertools
import socket
import socketserver
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from prep.loopback.content import Content
from prep.loopback.faults import BODY_FAULTS, STATUS_FAULTS, Fault, FaultKind, Faults
from prep.loopback.hub_api import HubRoutes, content_type_of, gated_response, text_response
from prep.loopback.repositories import RepositoryType
from prep.loopback.wire import (
    LAST_MODIFIED,
    Disruption,
    Request,
    Response,
    choose_range,
    read_request,
    reset,
    send,
)

__all__ = ["LoopbackHub", "RequestRecord", "file_url"]

_HTML_PAGE = b"<!DOCTYPE html>\n<html><head><title>Login</title></head><body>Please sign in.</body></html>\n"
_INVERTED = bytes(255 - value for value in range(256))
_STATUS_TEXT = {404: "Not found", 410: "Gone", 429: "Too many requests", 503: "Service unavailable"}


class RequestRecord(NamedTuple):
    """One request as it came; `path` is the target as sent, `status` is 0 for a reset connection."""

    method: str
    path: str
    range: str | None
    status: int


def file_url(endpoint: str, name: str) -> str:
    """The URL of the plain file `name` (forward slashes, not encoded) on the server at `endpoint`."""
    return f"{endpoint}/files/{quote(name.removeprefix('/'))}"


class LoopbackHub:
    """A Hub and a file host on 127.0.0.1 at a free port, served by daemon threads.

    `root` is a folder whose files are served as plain files besides those of `add_file`.
    `page_size` is the number of entries in one page of the tree API (1000 on the real Hub).
    `storage_host` is the host name of the redirects for LFS files. It must lead to 127.0.0.1; as it
    differs from the endpoint's, clients treat it as a foreign host and must not send their token.
    """

    def __init__(
        self, root: Path | None = None, *, page_size: int = 1000, storage_host: str = "localhost"
    ) -> None:
        self.faults = Faults()
        self._root = root.resolve() if root is not None else None
        self._storage_host = storage_host
        self._routes = HubRoutes(page_size)
        self._files: dict[str, Content] = {}
        self._records: list[RequestRecord] = []
        self._etag_numbers = itertools.count(1)
        self._stopping = threading.Event()
        self._server: _Server | None = None

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT`, without a slash at its end; empty before the start."""
        return self._routes.endpoint

    @property
    def requests(self) -> list[RequestRecord]:
        """A copy of the log; a request is in it before its answer is sent."""
        return self._records.copy()

    def clear_requests(self) -> None:
        """Empty the log."""
        self._records.clear()

    def __enter__(self) -> Self:
        self._server = _Server(self)
        port = self._server.server_address[1]
        self._routes.endpoint = f"http://127.0.0.1:{port}"
        self._routes.storage_endpoint = f"http://{self._storage_host}:{port}"
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(0.02,), daemon=True, name="loopback").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def add_repo(
        self,
        name: str,
        files: Mapping[str, bytes | Path],
        repo_type: RepositoryType = "dataset",
        lfs: Sequence[str] = ("*.mp4", "*.zip"),
        gated: bool = False,
    ) -> str:
        """Commit `files`, the whole of the new revision, to `main`; returns the commit (40 hex).

        Files whose path fits a pattern in `lfs` are LFS files. The files of a gated repository need
        some Authorization header; its listing is public, as on the real Hub.
        """
        return self._routes.add(name, files, repo_type, lfs, gated)

    def add_file(self, name: str, source: bytes | Path) -> str:
        """Serve a plain file under `/files/`; returns its URL. A second call replaces the first."""
        self._files[name.removeprefix("/")] = Content(source)
        return file_url(self.endpoint, name)

    def answer(self, connection: socket.socket, request: Request) -> bool:
        """Answer one request, faults included; False if the connection is at its end."""
        response = self._route(request)
        fault = self.faults.take(request.path, lambda fault: _applies(fault, request, response))
        if fault is not None:
            response = self._spoil(fault, request, response)
        choose_range(request, response)
        if fault is not None:
            _disrupt(fault, response)
        resets = fault is not None and fault.kind is FaultKind.RESET
        status = 0 if resets else response.status
        wanted = request.fields.get("range")
        self._records.append(RequestRecord(request.method, request.target, wanted, status))
        if fault is not None and resets and fault.after_bytes is None:
            reset(connection)
            return False
        goes_on = send(connection, response, with_body=request.method != "HEAD", wait=self._stopping.wait)
        return goes_on and request.fields.get("connection", "").lower() != "close"

    def _route(self, request: Request) -> Response:
        first = request.segments[0]
        if request.method not in ("GET", "HEAD", "POST"):
            return text_response(405, "Method not allowed")
        if first == "files":
            return self._plain("/".join(request.segments[1:]))
        if first == "api":
            return self._routes.api(request)
        if first == "storage":
            return self._routes.storage(request)
        return self._routes.resolve(request) or text_response(404, "Not found")

    def _plain(self, name: str) -> Response:
        content = self._files.get(name) or self._in_root(name)
        if content is None:
            return text_response(404, "Not found")
        headers = {"Last-Modified": LAST_MODIFIED}
        return Response(200, content, content_type_of(name), content.md5, headers, ranges=True)

    def _in_root(self, name: str) -> Content | None:
        if self._root is None or "\0" in name:
            return None
        path = (self._root / name).resolve()
        if not path.is_relative_to(self._root) or not path.is_file():
            return None
        stat = path.stat()
        return _content_on_disk(path, (stat.st_mtime_ns, stat.st_size))

    def _spoil(self, fault: Fault, request: Request, response: Response) -> Response:
        """The answer in place of the good one, before the range is chosen."""
        if fault.kind in STATUS_FAULTS:
            return _status_response(STATUS_FAULTS[fault.kind], fault, request)
        match fault.kind:
            case FaultKind.GATED:
                return gated_response(request, "this repository")
            case FaultKind.HTML:
                return Response(200, Content(_HTML_PAGE), "text/html; charset=utf-8")
            case FaultKind.EMPTY:
                response.content, response.ranges = Content(b""), False
            case FaultKind.LFS_POINTER:
                pointer = response.content.lfs_pointer
                response.content, response.content_type = Content(pointer), "text/plain; charset=utf-8"
            case FaultKind.WRONG_BYTES:
                response.content = Content(response.content.read().translate(_INVERTED))
            case FaultKind.NO_RANGE:
                response.ranges = False
            case FaultKind.NEW_ETAG:
                self._renew_etag(response)
            case FaultKind.SLOW:
                self._stopping.wait(fault.seconds)
        return response

    def _renew_etag(self, response: Response) -> None:
        number = next(self._etag_numbers)
        if response.etag is not None:
            response.etag = f"{response.etag}-{number}"
        if "X-Linked-Etag" in response.headers:
            response.headers["X-Linked-Etag"] = response.headers["X-Linked-Etag"][:-1] + f'-{number}"'


def _applies(fault: Fault, request: Request, response: Response) -> bool:
    if fault.kind is FaultKind.NO_RANGE and "range" not in request.fields:
        return False
    return fault.kind not in BODY_FAULTS or (request.method != "HEAD" and response.status == 200)


def _status_response(status: int, fault: Fault, request: Request) -> Response:
    response = text_response(status, _STATUS_TEXT.get(status, f"Status {status}"))
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(fault.retry_after)
    if status == 404 and "/resolve/" in request.path:
        response.headers["X-Error-Code"] = "EntryNotFound"
    elif status == 404 and request.path.startswith("/api/"):
        response.headers["X-Error-Code"] = "RepoNotFound"
    return response


def _disrupt(fault: Fault, response: Response) -> None:
    then = {FaultKind.CUT: "close", FaultKind.STALL: "wait", FaultKind.RESET: "reset"}.get(fault.kind)
    if then is not None:
        half = (response.stop - response.start) // 2
        after_bytes = half if fault.after_bytes is None else fault.after_bytes
        response.disruption = Disruption(after_bytes, then, fault.seconds)


@lru_cache(maxsize=65536)
def _content_on_disk(path: Path, stamp: tuple[int, int]) -> Content:  # noqa: ARG001 - part of the key
    """Keeps the digests of a file for as long as its time and size, the stamp, stay the same."""
    return Content(path)


class _Server(socketserver.ThreadingTCPServer):
    # ThreadingTCPServer rather than http.server's: that one looks up the host's name at its start.
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, hub: LoopbackHub) -> None:
        self.hub = hub
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Connection)

    def server_close(self) -> None:
        super().server_close()
        # Threads wait on kept-alive connections; without this they would answer after the end.
        for connection in self.connections.copy():
            _hang_up(connection)


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        self.server.connections.add(self.connection)
        try:
            while (request := read_request(self.rfile)) is not None:
                if not self.server.hub.answer(self.connection, request):
                    return
        except ConnectionError:
            return  # a client may leave at any time: that is what tests of interruption do
        finally:
            self.server.connections.discard(self.connection)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the client was quicker
