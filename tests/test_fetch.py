"""prep.fetch against real servers on this machine: what arrives, what is refused, what is asked again."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from prep.answers import MAX_RETRY_AFTER, retry_after
from prep.errors import FetchError, IncompleteError
from prep.fetch import Fetched, UrlFetcher
from prep.loopback import Fault, FaultKind, LoopbackHub
from prep.part import Part

MEDIA = b"\x00\x00\x00\x20ftypisom" + bytes(range(256)) * 1200
SHA256 = hashlib.sha256(MEDIA).hexdigest()
NAME = "clip.mp4"


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as server:
        yield server


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "clip.mp4.part"


def fetch(url: str, part: Path, attempts: int = 4, timeout: float = 5.0) -> Fetched:
    with UrlFetcher(attempts=attempts, timeout=timeout, backoff=0.01) as fetcher:
        return fetcher.fetch(url, part)


def refused(url: str, part: Path, attempts: int = 4, timeout: float = 5.0) -> FetchError:
    with pytest.raises(FetchError) as caught:
        fetch(url, part, attempts, timeout)
    return caught.value


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """A server whose every GET and HEAD is answered by `answer`; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def do_HEAD(self) -> None:
            answer(self)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def reply(status: int, headers: Mapping[str, str], body: bytes = MEDIA) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return answer


# The good case.


def test_a_file_arrives_whole(hub: LoopbackHub, part: Path) -> None:
    starts: list[tuple[str | None, int | None]] = []
    growth: list[int] = []
    with UrlFetcher() as fetcher:
        got = fetcher.fetch(
            hub.add_file(NAME, MEDIA),
            part,
            on_start=lambda etag, total: starts.append((etag, total)),
            on_bytes=growth.append,
        )
    assert (got.size, got.sha256, got.resumed) == (len(MEDIA), SHA256, False)
    assert part.read_bytes() == MEDIA
    assert starts == [(got.etag, len(MEDIA))]
    assert sum(growth) == len(MEDIA)


def test_many_threads_share_one_fetcher(hub: LoopbackHub, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bodies = [MEDIA + bytes([number]) for number in range(24)]
    urls = [hub.add_file(f"{number}.mp4", body) for number, body in enumerate(bodies)]
    with UrlFetcher() as fetcher, ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda at: fetcher.fetch(urls[at], tmp_path / str(at)), range(24)))
    assert [each.sha256 for each in got] == [hashlib.sha256(body).hexdigest() for body in bodies]


def test_an_answer_without_a_length(part: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for at in range(0, len(MEDIA), 50_000):
            chunk = MEDIA[at : at + 50_000]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        handler.wfile.write(b"0\r\n\r\n")

    with serving(answer) as url:
        assert fetch(url, part).sha256 == SHA256


def test_stored_bytes_are_kept_and_identity_is_asked_for(part: Path) -> None:
    asked: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers.get("Accept-Encoding"))
        reply(200, {"Content-Encoding": "br"})(handler)

    with serving(answer) as url:
        assert fetch(url, part).sha256 == SHA256
    assert asked == ["identity"]


# URLs.


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        ("/a b.mp4", "/a%20b.mp4"),
        ("/a%20b.mp4", "/a%20b.mp4"),
        ("/a_brick_wall;_it,_isn't_+1.mp4", "/a_brick_wall;_it,_isn't_+1.mp4"),
        ("/caf\u00e9/\u65e5.mp4", "/caf%C3%A9/%E6%97%A5.mp4"),
        ("/caf%C3%A9%2Fx.mp4", "/caf%C3%A9%2Fx.mp4"),
        ("/100%.mp4", "/100%25.mp4"),
        ("/a//b.mp4?X-Sig=a%2Fb+c", "/a//b.mp4?X-Sig=a%2Fb+c"),
        ("/a[1](2).mp4", "/a[1](2).mp4"),
    ],
)
def test_the_path_reaches_the_server_meaning_the_same(part: Path, text: str, wire: str) -> None:
    from urllib.parse import unquote

    seen: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.path)
        reply(200, {})(handler)

    with serving(answer) as url:
        fetch(f"  {url}{text}\n", part)
    assert seen[0].isascii()
    if "[" in text:
        assert unquote(seen[0]) == wire
    else:
        assert seen == [wire]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nan",
        "host/clip.mp4",
        "localhost:80/clip.mp4",
        "ftp://host/clip.mp4",
        "file:///etc/passwd",
        "s3://bucket/clip.mp4",
        "http://",
        "http:///clip.mp4",
        "http://host:port/clip.mp4",
        "http://host:99999/clip.mp4",
        "http://[::1/clip.mp4",
        "http://host/a\nb.mp4",
        "http://ho st/a.mp4",
        "http://ex\u0378ample/a.mp4",
        "http://host..example/a.mp4",
        f"http://{'a' * 64}.example/a.mp4",
    ],
)
def test_bad_urls(part: Path, url: str) -> None:
    error = refused(url, part)
    assert (error.reason, error.transient) == ("bad_url", False)
    assert not part.exists()


# Statuses and retries.


@pytest.mark.parametrize(
    ("kind", "status"), [("not_found", 404), ("forbidden", 403), ("gone", 410), ("unauthorized", 401)]
)
def test_refusals_are_permanent_and_asked_once(hub: LoopbackHub, part: Path, kind: str, status: int) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind(kind)))
    error = refused(url, part)
    assert (error.reason, error.transient, error.exit_status) == (f"http_{status}", False, 1)
    assert url in error.message
    assert str(status) in error.message
    assert len(hub.requests) == 1
    assert not part.exists()


@pytest.mark.parametrize("kind", ["server_error", "unavailable", "too_many", "reset"])
def test_passing_trouble_is_asked_again(hub: LoopbackHub, part: Path, kind: str) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind(kind)), times=3)
    assert fetch(url, part).sha256 == SHA256
    assert len(hub.requests) == 4


@pytest.mark.parametrize(
    ("kind", "reason"), [("server_error", "http_500"), ("reset", "reset"), ("cut", "cut_body")]
)
def test_lasting_trouble_is_given_up_as_transient(
    hub: LoopbackHub, part: Path, kind: str, reason: str
) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind(kind)))
    error = refused(url, part, attempts=3)
    assert error.reason in (reason, "cut_body")
    assert (error.transient, error.exit_status) == (True, 3)
    assert "3 attempts" in error.message
    assert len(hub.requests) == 3


@pytest.mark.parametrize("status", [408, 425, 502, 504])
def test_other_transient_statuses(part: Path, status: int) -> None:
    with serving(reply(status, {}, b"later")) as url:
        error = refused(url, part, attempts=2)
    assert (error.reason, error.transient) == (f"http_{status}", True)


def test_a_proxy_is_asked_in_place_of_the_host(
    hub: LoopbackHub, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        reply(200, {})(handler)

    with serving(answer) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        assert fetch("http://videos.example/clip.mp4", part).sha256 == SHA256
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert fetch(hub.add_file(NAME, MEDIA), part).sha256 == SHA256
    assert asked == ["http://videos.example/clip.mp4"]


def test_nobody_listens(part: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = refused(f"http://127.0.0.1:{unused.getsockname()[1]}/a.mp4", part, attempts=2)
    assert (error.reason, error.transient) == ("unreachable", True)


def test_a_stall_is_noticed_and_a_slow_start_is_not(hub: LoopbackHub, part: Path) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind.STALL, seconds=30), times=1)
    assert refused(url, part, attempts=1, timeout=0.4).reason == "stalled"
    hub.faults.set(NAME, Fault(FaultKind.SLOW, seconds=0.2), times=1)
    assert fetch(url, part, attempts=1, timeout=2.0).sha256 == SHA256


def test_retry_after_is_honoured(hub: LoopbackHub, part: Path) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind.TOO_MANY, retry_after=1), times=1)
    before = time.monotonic()
    fetch(url, part)
    assert time.monotonic() - before >= 1.0


def test_retry_after_in_both_spellings() -> None:
    soon = email.utils.formatdate(time.time() + 50, usegmt=True)
    past = email.utils.formatdate(time.time() - 50, usegmt=True)
    assert retry_after("7") == 7.0
    assert 45 < (retry_after(soon) or 0) <= 50
    assert retry_after(past) == 0.0
    assert retry_after("86400") == MAX_RETRY_AFTER
    assert retry_after("soon") is None
    assert retry_after(None) is None


def test_cancel_ends_a_wait_at_once(hub: LoopbackHub, part: Path) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind.UNAVAILABLE, retry_after=60))
    cancel = threading.Event()
    timer = threading.Timer(0.2, cancel.set)
    timer.start()
    before = time.monotonic()
    with UrlFetcher(cancel=cancel) as fetcher, pytest.raises(IncompleteError, match="Stopped") as caught:
        fetcher.fetch(url, part)
    assert time.monotonic() - before < 30
    assert not isinstance(caught.value, FetchError)


# Redirects.


def test_redirects_are_followed_to_a_limit(hub: LoopbackHub, part: Path) -> None:
    def hops(count: int) -> Answer:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            left = int(handler.path.strip("/") or count)
            reply(302, {"Location": f"/{left - 1}"}, b"")(handler) if left else reply(200, {})(handler)

        return answer

    with serving(hops(10)) as url:
        assert fetch(f"{url}/10", part).sha256 == SHA256
        error = refused(f"{url}/12", part)
    assert (error.reason, error.transient) == ("redirect_loop", False)


def test_a_redirect_to_another_scheme(part: Path) -> None:
    with serving(reply(302, {"Location": "ftp://host/clip.mp4"}, b"")) as url:
        assert refused(url, part).reason == "bad_url"


# Cut bodies and resuming.


def test_a_cut_body_is_resumed(hub: LoopbackHub, part: Path) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind.CUT, after_bytes=100_000), times=1)
    growth: list[int] = []
    with UrlFetcher(backoff=0.01) as fetcher:
        got = fetcher.fetch(url, part, on_bytes=growth.append)
    assert (got.sha256, got.resumed) == (SHA256, True)
    assert [record.range for record in hub.requests] == [None, "bytes=100000-"]
    assert part.read_bytes() == MEDIA
    assert sum(growth) == len(MEDIA)
    assert min(growth) > 0


@pytest.mark.parametrize("size", [100, 3_000, 100_000])
def test_a_server_without_ranges_starts_anew(hub: LoopbackHub, part: Path, size: int) -> None:
    """Of a short body nothing has left the process when it is cut."""
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set("", Fault(FaultKind.NO_RANGE))
    hub.faults.set(NAME, Fault(FaultKind.CUT, after_bytes=size), times=1)
    growth: list[int] = []
    with UrlFetcher(backoff=0.01) as fetcher:
        got = fetcher.fetch(url, part, on_bytes=growth.append)
    assert (got.sha256, got.resumed) == (SHA256, False)
    assert part.read_bytes() == MEDIA
    assert [record.status for record in hub.requests] == [200, 200]
    assert min(growth) == -size
    assert sum(growth) == len(MEDIA)


def first_part(hub: LoopbackHub, part: Path, size: int = 70_000) -> tuple[str, str]:
    """Leave a part as a run that was cut would; its URL and ETag."""
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind.CUT, after_bytes=size), times=1)
    etags: list[str | None] = []
    with UrlFetcher(attempts=1) as fetcher, pytest.raises(FetchError) as caught:
        fetcher.fetch(url, part, on_start=lambda etag, total: etags.append(etag))
    assert caught.value.transient
    assert part.stat().st_size == size
    assert etags[0] is not None
    hub.clear_requests()
    return url, etags[0]


def test_a_later_run_goes_on_from_the_part(hub: LoopbackHub, part: Path) -> None:
    url, etag = first_part(hub, part)
    growth: list[int] = []
    with UrlFetcher() as fetcher:
        got = fetcher.fetch(url, part, resume_etag=etag, on_bytes=growth.append)
    assert (got.sha256, got.resumed) == (SHA256, True)
    assert hub.requests[0].range == "bytes=70000-"
    assert sum(growth) == len(MEDIA)


@pytest.mark.parametrize("etag", [None, 'W/"weak"', "bare"])
def test_without_a_strong_etag_it_starts_anew(hub: LoopbackHub, part: Path, etag: str | None) -> None:
    url, _ = first_part(hub, part)
    with UrlFetcher() as fetcher:
        got = fetcher.fetch(url, part, resume_etag=etag)
    assert (got.sha256, got.resumed) == (SHA256, False)
    assert hub.requests[0].range is None


def test_another_version_is_never_joined(hub: LoopbackHub, part: Path) -> None:
    url, etag = first_part(hub, part)
    changed = MEDIA[:-5] + b"\x00new\x00"
    hub.add_file(NAME, changed)
    with UrlFetcher() as fetcher:
        got = fetcher.fetch(url, part, resume_etag=etag)
    assert (got.sha256, got.resumed) == (hashlib.sha256(changed).hexdigest(), False)
    assert part.read_bytes() == changed


@pytest.mark.parametrize("later", [{"ETag": '"second"'}, {}])
def test_a_server_that_joins_versions_is_not_believed(part: Path, later: dict[str, str]) -> None:
    part.write_bytes(b"\x00" * 1000)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("Range"):
            span = f"bytes 1000-{len(MEDIA) - 1}/{len(MEDIA)}"
            reply(206, {"Content-Range": span, **later}, MEDIA[1000:])(handler)
        else:
            reply(200, later)(handler)

    with serving(answer) as url, UrlFetcher(backoff=0.01) as fetcher:
        got = fetcher.fetch(url, part, resume_etag='"first"')
    assert (got.sha256, got.resumed, got.etag) == (SHA256, False, later.get("ETag"))


def test_a_range_from_elsewhere_is_not_taken(part: Path) -> None:
    part.write_bytes(MEDIA[:1000])

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("Range"):
            reply(206, {"Content-Range": f"bytes 0-9/{len(MEDIA)}", "ETag": '"v"'}, MEDIA[:10])(handler)
        else:
            reply(200, {"ETag": '"v"'})(handler)

    with serving(answer) as url, UrlFetcher(backoff=0.01) as fetcher:
        assert fetcher.fetch(url, part, resume_etag='"v"').sha256 == SHA256
    assert part.read_bytes() == MEDIA


def test_a_part_that_is_whole_needs_no_body(part: Path) -> None:
    part.write_bytes(MEDIA)
    seen: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers.get("Range"))
        reply(416, {"Content-Range": f"bytes */{len(MEDIA)}", "ETag": '"v"'}, b"")(handler)

    with serving(answer) as url, UrlFetcher() as fetcher:
        got = fetcher.fetch(url, part, resume_etag='"v"')
    assert (got.sha256, got.resumed) == (SHA256, True)
    assert seen == [f"bytes={len(MEDIA)}-"]


# Content.


@pytest.mark.parametrize(
    ("kind", "reason"), [("html", "not_media"), ("lfs_pointer", "lfs_pointer"), ("empty", "empty")]
)
def test_what_is_no_media_is_refused_at_once(hub: LoopbackHub, part: Path, kind: str, reason: str) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind(kind)))
    error = refused(url, part)
    assert (error.reason, error.transient) == (reason, False)
    assert url in error.message
    assert len(hub.requests) == 1
    assert not part.exists()


def test_a_pointer_is_named_by_its_oid(hub: LoopbackHub, part: Path) -> None:
    url = hub.add_file(NAME, MEDIA)
    hub.faults.set(NAME, Fault(FaultKind.LFS_POINTER))
    assert SHA256 in refused(url, part).message


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>Sign in</body></html>",
        b'<?xml version="1.0"?><Error/>',
        b'{"error": 1}',
        b"Access denied",
    ],
)
def test_a_page_that_is_labelled_video(part: Path, body: bytes) -> None:
    with serving(reply(200, {"Content-Type": "video/mp4"}, body)) as url:
        error = refused(url, part)
    assert error.reason == "not_media"
    assert "video/mp4" in error.message


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", "text/html"])
def test_a_video_under_any_label(real_data: Path, part: Path, kind: str) -> None:
    video = min((real_data / "videophy2" / "examples").glob("*.mp4"), key=lambda path: path.stat().st_size)
    body = video.read_bytes()
    with serving(reply(200, {"Content-Type": kind}, body)) as url:
        assert fetch(url, part).sha256 == hashlib.sha256(body).hexdigest()


def base64_of(algorithm: str, body: bytes) -> str:
    return base64.b64encode(hashlib.new(algorithm, body).digest()).decode()


def stated(body: bytes) -> dict[str, dict[str, str]]:
    md5 = hashlib.md5(body).hexdigest()
    return {
        "content-md5": {"Content-MD5": base64_of("md5", body)},
        "repr-digest": {"Repr-Digest": f"sha-512=:AAAA:, sha-256=:{base64_of('sha256', body)}:"},
        "digest": {"Digest": f"SHA-256={base64_of('sha256', body)}"},
        "google": {"x-goog-hash": f"crc32c=AAAAAA==,md5={base64_of('md5', body)}"},
        "amazon": {"x-amz-checksum-sha256": base64_of("sha256", body)},
        "amazon-etag": {
            "ETag": f'"{md5}"',
            "x-amz-request-id": "1",
            "x-amz-server-side-encryption": "AES256",
        },
    }


@pytest.mark.parametrize("name", stated(b""))
def test_a_stated_hash_is_checked(part: Path, name: str) -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        reply(200, stated(b"other")[name])(handler)

    with serving(answer) as url:
        error = refused(url, part)
    assert (error.reason, error.transient, len(asked)) == ("wrong_bytes", False, 2)
    assert (
        hashlib.new("md5", b"other").hexdigest() in error.message
        or hashlib.sha256(b"other").hexdigest() in error.message
    )
    assert not part.exists()
    with serving(reply(200, stated(MEDIA)[name])) as url:
        assert fetch(url, part).sha256 == SHA256


def test_wrong_bytes_once_are_fetched_again(part: Path) -> None:
    bodies = iter([MEDIA[:-1] + b"\x01", MEDIA])

    def answer(handler: BaseHTTPRequestHandler) -> None:
        reply(200, stated(MEDIA)["google"], next(bodies))(handler)

    with serving(answer) as url:
        assert fetch(url, part).sha256 == SHA256


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"' + "0" * 32 + '"'},
        {"ETag": '"' + "0" * 32 + '-2"', "x-amz-request-id": "1"},
        {"ETag": '"' + "0" * 32 + '"', "x-amz-request-id": "1", "x-amz-server-side-encryption": "aws:kms"},
        {"x-amz-checksum-sha256": base64_of("sha256", b"") + "-3"},
        {"Content-MD5": "not base64"},
        {"x-goog-hash": f"md5={base64_of('md5', b'')}", "x-goog-stored-content-encoding": "gzip"},
    ],
)
def test_what_is_no_hash_of_the_file_is_not_compared(part: Path, headers: dict[str, str]) -> None:
    with serving(reply(200, headers)) as url:
        assert fetch(url, part).sha256 == SHA256


def test_content_md5_of_a_range_is_not_that_of_the_file(part: Path) -> None:
    part.write_bytes(MEDIA[:1000])
    rest = MEDIA[1000:]
    headers = {
        "Content-Range": f"bytes 1000-{len(MEDIA) - 1}/{len(MEDIA)}",
        "ETag": '"v"',
        "Content-MD5": base64_of("md5", rest),
    }
    with serving(reply(206, headers, rest)) as url, UrlFetcher() as fetcher:
        assert fetcher.fetch(url, part, resume_etag='"v"').sha256 == SHA256


# Mirrors.


def test_the_first_mirror_that_matches_wins(hub: LoopbackHub, part: Path) -> None:
    hub.add_file("a/clip.mp4", MEDIA)
    mirrors = [
        ("https://elsewhere.invalid/", "http://nobody.invalid/"),
        ("https://host.invalid/x/", f"{hub.endpoint}/files/a/"),
        ("https://host.invalid/", "http://nobody.invalid/"),
    ]
    with UrlFetcher(mirrors=mirrors) as fetcher:
        assert fetcher.fetch("https://host.invalid/x/clip.mp4", part).sha256 == SHA256


@pytest.mark.parametrize("name", ["plain.mp4", "a b;c,d'+.mp4", "caf\u00e9.mp4", "100%25.mp4"])
def test_a_mirror_on_disk(tmp_path: Path, part: Path, name: str) -> None:
    (tmp_path / name).write_bytes(MEDIA)
    mirrors = [("https://host.invalid/", f"{tmp_path.as_uri()}/")]
    for text in {name, name.replace(" ", "%20")}:
        with UrlFetcher(mirrors=mirrors) as fetcher:
            assert fetcher.fetch(f"https://host.invalid/{text}", part).sha256 == SHA256
            assert fetcher.size(f"https://host.invalid/{text}") == len(MEDIA)


@pytest.mark.parametrize("rest", ["/../secret.mp4", "/a/%2e%2e/%2E./secret.mp4", "/%00.mp4"])
def test_a_mirror_on_disk_is_not_left(tmp_path: Path, part: Path, rest: str) -> None:
    (tmp_path / "mirror" / "a").mkdir(parents=True)
    (tmp_path / "secret.mp4").write_bytes(MEDIA)
    (tmp_path / "mirror" / "a..b.mp4").write_bytes(MEDIA)
    mirrors = [("https://host.invalid", (tmp_path / "mirror").as_uri())]
    with UrlFetcher(mirrors=mirrors) as fetcher:
        with pytest.raises(FetchError) as caught:
            fetcher.fetch(f"https://host.invalid{rest}", part)
        assert fetcher.fetch("https://host.invalid/a..b.mp4", part).sha256 == SHA256
    assert caught.value.reason == "bad_url"


def test_a_mirror_on_disk_is_checked_alike(tmp_path: Path, part: Path) -> None:
    (tmp_path / "page.mp4").write_bytes(b"<html></html>")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "folder.mp4").mkdir()
    with UrlFetcher(mirrors=[("https://host.invalid", tmp_path.as_uri())]) as fetcher:
        for name, reason in {
            "page": "not_media",
            "empty": "empty",
            "folder": "not_a_file",
            "gone": "missing_file",
        }.items():
            with pytest.raises(FetchError) as caught:
                fetcher.fetch(f"https://host.invalid/{name}.mp4", part)
            assert (caught.value.reason, caught.value.transient) == (reason, False)
            assert f"{name}.mp4" in caught.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_mirror_that_may_not_be_read(tmp_path: Path, part: Path) -> None:
    (tmp_path / NAME).write_bytes(MEDIA)
    (tmp_path / NAME).chmod(0)
    mirrors = [("https://host.invalid", tmp_path.as_uri())]
    with UrlFetcher(mirrors=mirrors) as fetcher, pytest.raises(FetchError) as caught:
        fetcher.fetch(f"https://host.invalid/{NAME}", part)
    assert caught.value.reason == "no_permission"


# Sizes.


def test_size(hub: LoopbackHub) -> None:
    with UrlFetcher(backoff=0.01) as fetcher:
        assert fetcher.size(hub.add_file(NAME, MEDIA)) == len(MEDIA)
        with pytest.raises(FetchError) as caught:
            fetcher.size(f"{hub.endpoint}/files/none.mp4")
        assert caught.value.reason == "http_404"
        with serving(reply(405, {}, b"")) as url:
            assert fetcher.size(url) is None


# The disk.


def test_a_folder_that_is_not_there(hub: LoopbackHub, tmp_path: Path) -> None:
    with UrlFetcher() as fetcher, pytest.raises(IncompleteError, match="No such file") as caught:
        fetcher.fetch(hub.add_file(NAME, MEDIA), tmp_path / "none" / "part")
    assert not isinstance(caught.value, FetchError)


def test_a_full_disk() -> None:
    """/dev/full takes no byte, as a full disk does."""
    part = Part(Path("/dev/full"))
    with part, pytest.raises(IncompleteError, match="No space left") as caught:
        part.write(MEDIA)
    assert caught.value.exit_status == 3
    assert "run the same command again" in caught.value.remedy


LIMITED = """
import resource, sys
from pathlib import Path
from prep.errors import FetchError, IncompleteError
from prep.fetch import UrlFetcher
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    UrlFetcher().fetch(sys.argv[1], Path(sys.argv[2]))
except IncompleteError as error:
    print(isinstance(error, FetchError), error.exit_status, error)
"""


def test_a_limit_on_file_sizes_is_told_in_one_sentence_and_resumable(hub: LoopbackHub, part: Path) -> None:
    url = hub.add_file(NAME, MEDIA)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, url, str(part)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"False 3 {part}: File too large.")
    assert len(hub.requests) == 1
    assert 0 < part.stat().st_size <= 100_000
    with UrlFetcher(backoff=0.01) as fetcher:
        etag = f'"{hashlib.md5(MEDIA).hexdigest()}"'
        got = fetcher.fetch(url, part, resume_etag=etag)
    assert (got.sha256, got.resumed) == (SHA256, True)


def test_importing_is_quick() -> None:
    """httpx is loaded with the first fetcher, not with the module."""
    code = "import sys, prep.fetch, prep.hub; print('httpx' in sys.modules, 'huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
