"""prep.hub through the real client against a Hub on this machine."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prep.errors import EnvironmentLacksError, FetchError, IncompleteError, PrepError, UsageError
from prep.hub import Listing, cache_folder, download, listing, parse_source
from prep.loopback import Fault, FaultKind, LoopbackHub

REPO = "owner/name"
VIDEO = b"\x00\x00\x00\x20ftypisom" + bytes(range(256)) * 64
TABLE = b"a,b\n1,2\n"
FILES = {"table.csv": TABLE, "videos/clip.mp4": VIDEO, "videos/deep/a b.mp4": VIDEO[:-1]}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    for name in (
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with LoopbackHub(page_size=2) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# Names.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", ("owner/name", None)),
        ("owner/na.me-1_x@v1.0", ("owner/na.me-1_x", "v1.0")),
        ("owner/name@refs/convert/parquet", ("owner/name", "refs/convert/parquet")),
        (f"owner/name@{'a' * 40}", ("owner/name", "a" * 40)),
    ],
)
def test_sources(text: str, expected: tuple[str, str | None]) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "a/b/c",
        "https://hub/datasets/a/b",
        "a/b@",
        "a/b@../x",
        "a/b@/x",
        "a/b@x y",
        "a/..",
        "a--b/c",
    ],
)
def test_what_names_no_source(text: str) -> None:
    with pytest.raises(UsageError):
        parse_source(text)


# Listings.


def test_a_listing_over_several_pages(hub: LoopbackHub) -> None:
    commit = hub.add_repo(REPO, FILES)
    got = listing(REPO)
    assert (got.repo, got.asked, got.commit, got.verified) == (REPO, None, commit, True)
    assert sorted(got.files) == sorted(FILES)
    video = got.files["videos/clip.mp4"]
    assert (video.size, video.sha256) == (len(VIDEO), hashlib.sha256(VIDEO).hexdigest())
    table = got.files["table.csv"]
    assert (table.size, table.sha256, table.blob_id) == (len(TABLE), None, git_blob(TABLE))


def test_a_pinned_commit_stays_what_it_was(hub: LoopbackHub) -> None:
    first = hub.add_repo(REPO, FILES)
    second = hub.add_repo(REPO, {"table.csv": b"other"})
    assert listing(REPO).commit == second
    pinned = listing(REPO, first)
    assert (pinned.asked, pinned.commit, len(pinned.files)) == (first, first, 3)


def test_a_model_repository(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, {"ranges.json": b"{}"}, repo_type="model")
    got = listing(REPO, repo_type="model")
    assert download(got, "ranges.json").read_bytes() == b"{}"
    with pytest.raises(FetchError, match="no dataset"):
        listing(REPO)


# Downloads.


@pytest.mark.parametrize("path", FILES)
def test_a_file_lands_in_the_cache_and_is_not_asked_for_again(hub: LoopbackHub, path: str) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    found = download(got, path)
    assert found.read_bytes() == FILES[path]
    assert found.is_relative_to(cache_folder())
    hub.clear_requests()
    assert download(got, path) == found
    assert hub.requests == []


@pytest.mark.parametrize("path", ["table.csv", "videos/clip.mp4"])
@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_corrupt_cached_file_is_fetched_again(hub: LoopbackHub, path: str, damage: bytes | None) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    found = download(got, path)
    size_kept = FILES[path][:-1] + b"\x7f"
    found.resolve().write_bytes(size_kept if damage is None else damage)
    assert download(got, path).read_bytes() == FILES[path]


def test_a_cache_entry_without_its_blob_is_fetched_again(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    download(got, "table.csv").resolve().unlink()
    assert download(got, "table.csv").read_bytes() == TABLE


def test_bytes_that_stay_wrong_are_an_error(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    hub.faults.set("clip.mp4", Fault(FaultKind.WRONG_BYTES))
    with pytest.raises(FetchError) as caught:
        download(got, "videos/clip.mp4")
    assert (caught.value.reason, caught.value.transient) == ("wrong_bytes", False)
    assert hashlib.sha256(VIDEO).hexdigest() in caught.value.message
    hub.faults.clear()
    assert download(got, "videos/clip.mp4").read_bytes() == VIDEO


@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.RESET])
def test_a_cut_body_is_fetched_to_its_end(hub: LoopbackHub, kind: FaultKind) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    hub.faults.set("clip.mp4", Fault(kind, after_bytes=1000), times=1)
    assert download(got, "videos/clip.mp4").read_bytes() == VIDEO


def test_a_file_that_is_not_in_the_repository(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    hub.clear_requests()
    with pytest.raises(FetchError) as caught:
        download(got, "clip.mp4")
    assert (caught.value.reason, caught.value.transient) == ("missing_file", False)
    assert "videos/clip.mp4" in caught.value.remedy
    with pytest.raises(FetchError) as caught:
        download(got, "tabel.csv")
    assert "table.csv" in caught.value.remedy
    assert hub.requests == []


def test_a_cache_that_cannot_be_written(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    with pytest.raises(IncompleteError, match="cannot be kept") as caught:
        download(got, "table.csv")
    assert not isinstance(caught.value, FetchError)
    assert "HF_HOME" in caught.value.remedy


# Refusals.


def one_sentence(error: PrepError) -> None:
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
    assert error.remedy


def test_a_gated_repository_names_its_terms_page_and_the_login(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repo(REPO, FILES, gated=True)
    got = listing(REPO)
    with pytest.raises(EnvironmentLacksError) as caught:
        download(got, "videos/clip.mp4")
    one_sentence(caught.value)
    assert f"{hub.endpoint}/datasets/{REPO}" in caught.value.remedy
    assert "hf auth login" in caught.value.remedy
    assert "HF_TOKEN" in caught.value.remedy
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert download(got, "videos/clip.mp4").read_bytes() == VIDEO


def test_a_gated_listing(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    hub.faults.set("", Fault(FaultKind.GATED))
    with pytest.raises(EnvironmentLacksError, match="gated"):
        listing(REPO)


def test_a_missing_repository_and_a_missing_revision(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    with pytest.raises(FetchError) as caught:
        listing("owner/nmae")
    one_sentence(caught.value)
    assert (caught.value.reason, caught.value.exit_status) == ("missing_repo", 1)
    with pytest.raises(FetchError) as caught:
        listing(REPO, "v9")
    one_sentence(caught.value)
    assert (caught.value.reason, caught.value.exit_status) == ("missing_revision", 1)
    assert "'v9'" in caught.value.message


@pytest.mark.parametrize("where", ["name", "clip.mp4"])
@pytest.mark.parametrize(
    ("kind", "kept"),
    [("forbidden", EnvironmentLacksError), ("unauthorized", PrepError)],
)
def test_access_refused(hub: LoopbackHub, where: str, kind: str, kept: type[PrepError]) -> None:
    hub.add_repo(REPO, FILES)
    got = listing(REPO)
    hub.faults.set(where, Fault(FaultKind(kind)))
    with pytest.raises(kept) as caught:
        listing(REPO) if where == "name" else download(got, "videos/clip.mp4")
    one_sentence(caught.value)
    assert "hf auth login" in caught.value.remedy


def test_a_listing_under_a_rate_limit(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    hub.faults.set("", Fault(FaultKind.TOO_MANY, retry_after=7))
    with pytest.raises(FetchError) as caught:
        listing(REPO)
    one_sentence(caught.value)
    assert (caught.value.reason, caught.value.transient) == ("http_429", True)
    assert "7 s" in caught.value.remedy


def test_a_listing_from_a_server_in_trouble(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    hub.faults.set("", Fault(FaultKind.SERVER_ERROR))
    with pytest.raises(FetchError) as caught:
        listing(REPO)
    assert (caught.value.reason, caught.value.exit_status) == ("http_500", 3)


def test_a_sign_in_page_in_place_of_a_hub(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    hub.faults.set("", Fault(FaultKind.HTML))
    with pytest.raises(FetchError) as caught:
        listing(REPO)
    one_sentence(caught.value)
    assert "HF_ENDPOINT" in caught.value.remedy


def test_nobody_answers(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(IncompleteError) as caught:
            listing(REPO)
    one_sentence(caught.value)
    assert isinstance(caught.value, FetchError)
    assert (caught.value.reason, caught.value.exit_status) == ("unreachable", 3)


def test_a_connection_that_is_reset_at_once(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    hub.faults.set("", Fault(FaultKind.RESET))
    with pytest.raises(FetchError) as caught:
        listing(REPO)
    assert caught.value.transient
    one_sentence(caught.value)


# Offline.


def test_offline_uses_what_the_cache_holds(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    online = listing(REPO)
    for path in ("table.csv", "videos/clip.mp4"):
        download(online, path)
    hub.clear_requests()
    for asked in (None, "main", online.commit):
        got = listing(REPO, asked, offline=True)
        assert (got.commit, got.verified) == (online.commit, False)
        assert sorted(got.files) == ["table.csv", "videos/clip.mp4"]
        assert download(got, "videos/clip.mp4", offline=True).read_bytes() == VIDEO
    assert got.files["videos/clip.mp4"].sha256 == online.files["videos/clip.mp4"].sha256
    assert hub.requests == []


def test_offline_by_the_environment(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add_repo(REPO, FILES)
    download(listing(REPO), "table.csv")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not listing(REPO).verified
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert listing(REPO).verified


def lacking(work: Listing | None, path: str = "") -> EnvironmentLacksError:
    with pytest.raises(EnvironmentLacksError) as caught:
        listing(REPO, offline=True) if work is None else download(work, path, offline=True)
    one_sentence(caught.value)
    assert "--download-only" in caught.value.remedy
    return caught.value


def test_offline_without_the_repository_or_the_file(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    assert REPO in lacking(None).message
    assert "table.csv" in lacking(listing(REPO), "table.csv").message


def test_offline_a_corrupt_file_is_found_by_the_name_of_its_blob(hub: LoopbackHub) -> None:
    hub.add_repo(REPO, FILES)
    download(listing(REPO), "videos/clip.mp4").resolve().write_bytes(VIDEO[:-1] + b"\x7f")
    with pytest.raises(FetchError) as caught:
        download(listing(REPO, offline=True), "videos/clip.mp4", offline=True)
    assert caught.value.reason == "wrong_bytes"
    assert "--download-only" in caught.value.remedy


# The environment at the import of the client.

SCRIPT = """
import sys
from prep.hub import download, listing
got = listing(sys.argv[1])
print(got.verified, download(got, "table.csv"))
"""


def test_a_process_that_starts_with_the_variables_set(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add_repo(REPO, FILES)
    for offline, verified in (("0", "True"), ("1", "False")):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, REPO],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "HF_HUB_OFFLINE": offline},
        )
        said, path = done.stdout.split()
        assert said == verified
        assert Path(path).is_relative_to(tmp_path / "hf" / "hub")
        assert "table.csv" not in done.stderr, "the client's progress bar"
