"""HTTP/1.1 on a socket: read a request, choose the range, send an answer.

The parser of http.server builds an e-mail message for each request; at thousands of small
files a second that would be the slowest part of the benchmark, so requests are read here.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from io import BufferedIOBase
from urllib.parse import parse_qs, unquote

from prep.loopback.content import Content

__all__ = [
    "LAST_MODIFIED",
    "Disruption",
    "Request",
    "Response",
    "choose_range",
    "read_request",
    "reset",
    "send",
]

LAST_MODIFIED = "Wed, 01 Jan 2025 00:00:00 GMT"

_ONE_PACKET = 256 * 1024  # up to here head and body leave in one call
_LINE_LIMIT = 65536


@dataclass(frozen=True)
class Request:
    """One request; `path` is as sent (percent-encoded, without the query), field names in lower case."""

    method: str
    target: str
    path: str
    query: dict[str, list[str]]
    fields: dict[str, str]
    body: bytes

    @property
    def segments(self) -> list[str]:
        """The parts of the path, each percent-decoded (so a part may hold a slash)."""
        return [unquote(part) for part in self.path.removeprefix("/").split("/")]

    def flag(self, name: str) -> bool:
        """Whether the query says yes to `name`."""
        return self.query.get(name, [""])[0].lower() in ("1", "true")


@dataclass(frozen=True)
class Disruption:
    """After `after_bytes` of the body: wait `seconds` and go on, or close, or reset the connection."""

    after_bytes: int
    then: str  # "wait", "close" or "reset"
    seconds: float = 0.0


@dataclass
class Response:
    """An answer before the range is chosen; `etag` is without quotes.

    After `choose_range` the body is the bytes [start, stop) of `content`.
    """

    status: int
    content: Content = field(default_factory=lambda: Content(b""))
    content_type: str = "application/octet-stream"
    etag: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ranges: bool = False
    start: int = 0
    stop: int = 0
    disruption: Disruption | None = None


def read_request(stream: BufferedIOBase) -> Request | None:
    """The next request of a connection, None if the client has closed it or sends something else."""
    words = stream.readline(_LINE_LIMIT).decode("latin-1").split()
    if len(words) != 3:
        return None
    fields: dict[str, str] = {}
    while line := stream.readline(_LINE_LIMIT).rstrip(b"\r\n"):
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.lower()] = value.strip()
    body = stream.read(int(fields.get("content-length", 0)))
    path, _, query = words[1].partition("?")
    return Request(words[0], words[1], path, parse_qs(query) if query else {}, fields, body)


def choose_range(request: Request, response: Response) -> None:
    """Set the bytes to send, and 206, 304 or 416 where the request asks for it (RFC 9110, 13 and 14)."""
    response.stop = response.content.size
    if response.status != 200 or not response.ranges:
        return
    response.headers["Accept-Ranges"] = "bytes"
    quoted = f'"{response.etag}"'
    if response.etag and request.fields.get("if-none-match") == quoted:
        response.status, response.stop = 304, 0
        return
    condition = request.fields.get("if-range", quoted)
    if request.method == "GET" and condition in (quoted, response.headers.get("Last-Modified")):
        _apply_range(request.fields.get("range", ""), response)


def _apply_range(wanted: str, response: Response) -> None:
    unit, _, numbers = wanted.partition("=")
    first, dash, last = numbers.strip().partition("-")
    if unit.strip() != "bytes" or not dash or not (first + last).isdigit():
        return  # none, malformed, or several ranges: a server may send the whole
    size = response.content.size
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if first and last and int(last) < start:
        return
    if start >= size:
        response.status, response.content, response.stop = 416, Content(b""), 0
        response.headers["Content-Range"] = f"bytes */{size}"
        return
    response.status, response.start, response.stop = 206, start, stop
    response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"


def send(
    connection: socket.socket, response: Response, *, with_body: bool, wait: Callable[[float], object]
) -> bool:
    """Send the answer; False if the connection is at its end. `wait` sleeps for some seconds.

    Raises OSError if the client has gone.
    """
    head = _head(response)
    start, stop = response.start, response.stop
    if not with_body:
        connection.sendall(head)
        return True
    if (disruption := response.disruption) is None:
        _send_bytes(connection, head, response.content, start, stop)
        return True
    middle = min(start + disruption.after_bytes, stop)
    _send_bytes(connection, head, response.content, start, middle)
    if disruption.then == "wait":
        wait(disruption.seconds)
        _send_bytes(connection, b"", response.content, middle, stop)
        return True
    if disruption.then == "reset":
        reset(connection)
    return False


def reset(connection: socket.socket) -> None:
    """End a connection with a TCP reset: the client sees ECONNRESET, not an end of file."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    # The request's streams hold the socket open past close(); the bare descriptor closes at once.
    socket.close(connection.detach())


def _head(response: Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    if response.status != 304:
        lines.append(f"Content-Type: {response.content_type}")
        lines.append(f"Content-Length: {response.stop - response.start}")
    if response.etag is not None:
        lines.append(f'ETag: "{response.etag}"')
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _send_bytes(connection: socket.socket, head: bytes, content: Content, start: int, stop: int) -> None:
    if stop - start <= _ONE_PACKET:
        connection.sendall(head + content.read(start, stop))
        return
    connection.sendall(head)
    file = content.open()
    if file is None:
        connection.sendall(memoryview(content.read())[start:stop])
        return
    with file:
        connection.sendfile(file, start, stop - start)
