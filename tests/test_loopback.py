"""The loopback server against the real clients: huggingface_hub for the Hub, httpx for the rest."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile, RepoFolder

from prep.loopback import Fault, FaultKind, LoopbackHub, RepositorySpec, file_url, loopback_process

REPO = "videophysics/videophy2_test"
BODY = bytes(range(256)) * 40
ODD_NAMES = [
    "clips/a b,;'+.mp4",
    "clips/100% sure.mp4",
    "clips/%41.mp4",
    "clips/видео é 試.mp4",
    "clips/q?x=1&y#z.mp4",
    "clips/[a](b)=~!@$.mp4",
]


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub(page_size=4) as hub:
        yield hub


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=5, trust_env=False) as client:
        yield client


@pytest.fixture
def api(hub: LoopbackHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=False)


def quoted(digest: hashlib._Hash) -> str:
    return f'"{digest.hexdigest()}"'


def repository_files(tmp_path: Path) -> dict[str, bytes | Path]:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(BODY * 60)  # more than one packet, so from disk by sendfile
    texts: dict[str, bytes | Path] = {"README.md": b"# card\n", "test.csv": b"a,b\n1,2\n"}
    return texts | {"clips/one.mp4": clip, "clips/deep/two.mp4": BODY}


def test_dataset_info_gives_sizes_and_digests(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    sha = hub.add_repo(REPO, repository_files(tmp_path))
    info = api.dataset_info(REPO, files_metadata=True)
    assert info.sha == sha
    assert info.siblings is not None
    siblings = {sibling.rfilename: sibling for sibling in info.siblings}
    assert siblings.keys() == {"README.md", "test.csv", "clips/one.mp4", "clips/deep/two.mp4"}
    # git hash-object of "a,b\n1,2\n" is the SHA-1 of the header and the bytes.
    assert siblings["test.csv"].blob_id == hashlib.sha1(b"blob 8\0a,b\n1,2\n").hexdigest()
    assert siblings["test.csv"].lfs is None
    clip = siblings["clips/one.mp4"]
    assert clip.size == len(BODY) * 60
    assert clip.lfs is not None
    assert clip.lfs.sha256 == hashlib.sha256(BODY * 60).hexdigest()
    plain = api.dataset_info(REPO).siblings
    assert plain is not None
    assert plain[0].size is None


@pytest.mark.parametrize("recursive", [True, False])
def test_tree_over_several_pages(hub: LoopbackHub, api: HfApi, recursive: bool) -> None:
    hub.add_repo(REPO, {f"part-{n % 3}/clip {n:02}.mp4": bytes([n]) for n in range(11)} | {"a.csv": b"a"})
    entries = list(api.list_repo_tree(REPO, recursive=recursive, repo_type="dataset", expand=True))
    folders = [entry.path for entry in entries if isinstance(entry, RepoFolder)]
    files = [entry for entry in entries if isinstance(entry, RepoFile)]
    assert folders == ["part-0", "part-1", "part-2"]
    assert len(files) == (12 if recursive else 1)
    assert len(hub.requests) == (4 if recursive else 1)
    assert all(entry.last_commit is not None for entry in entries)
    inside = list(api.list_repo_tree(REPO, "part-1", repo_type="dataset"))
    assert [entry.path for entry in inside] == [f"part-1/clip {n:02}.mp4" for n in (1, 4, 7, 10)]
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(REPO, "part-9", repo_type="dataset"))


def test_paths_info_and_refs(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    sha = hub.add_repo(REPO, repository_files(tmp_path))
    entries = api.get_paths_info(REPO, ["clips/deep/two.mp4", "clips", "missing"], repo_type="dataset")
    assert [entry.path for entry in entries] == ["clips/deep/two.mp4", "clips"]
    clip = entries[0]
    assert isinstance(clip, RepoFile)
    assert clip.lfs is not None
    assert (clip.lfs.sha256, clip.lfs.size) == (hashlib.sha256(BODY).hexdigest(), len(BODY))
    branches = api.list_repo_refs(REPO, repo_type="dataset").branches
    assert [(branch.name, branch.target_commit) for branch in branches] == [("main", sha)]


def test_commits_are_deterministic_and_stay_readable(hub: LoopbackHub, tmp_path: Path) -> None:
    first = hub.add_repo(REPO, {"a.csv": b"one", "a.mp4": b"video one"})
    second = hub.add_repo(REPO, {"a.csv": b"two", "a.mp4": b"video two"})
    with LoopbackHub() as other:
        assert other.add_repo(REPO, {"a.mp4": b"video one", "a.csv": b"one"}) == first
        assert other.add_repo(REPO, {"a.mp4": b"video two", "a.csv": b"two"}) == second

    def read(name: str, revision: str) -> bytes:
        where = {"repo_type": "dataset", "endpoint": hub.endpoint, "cache_dir": tmp_path, "token": False}
        return Path(hf_hub_download(REPO, name, revision=revision, **where)).read_bytes()

    assert read("a.csv", "main") == read("a.csv", second) == b"two"
    assert read("a.mp4", "main") == read("a.mp4", second) == b"video two"
    assert (read("a.csv", first), read("a.mp4", first)) == (b"one", b"video one")


def test_snapshot_of_a_dataset(hub: LoopbackHub, tmp_path: Path) -> None:
    files = repository_files(tmp_path) | {name: name.encode() for name in ODD_NAMES}
    sha = hub.add_repo(REPO, files)
    where = {
        "repo_type": "dataset",
        "endpoint": hub.endpoint,
        "cache_dir": tmp_path / "cache",
        "token": False,
    }
    folder = Path(snapshot_download(REPO, max_workers=2, **where))
    assert folder.name == sha
    for name, source in files.items():
        assert (folder / name).read_bytes() == (source if isinstance(source, bytes) else source.read_bytes())


def test_models_with_and_without_a_namespace(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    for name in ("lab/small", "small"):
        files: dict[str, bytes | Path] = {"config.json": name.encode(), "w.bin": b"weights"}
        sha = hub.add_repo(name, files, repo_type="model", lfs=("*.bin",))
        assert api.model_info(name).sha == sha
        for file, content in files.items():
            place = hf_hub_download(name, file, endpoint=hub.endpoint, cache_dir=tmp_path, token=False)
            assert Path(place).read_bytes() == content
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("lab/small")


def test_lfs_redirects_to_a_foreign_host_that_refuses_tokens(hub: LoopbackHub, client: httpx.Client) -> None:
    sha = hub.add_repo(REPO, {"a.mp4": BODY})
    url = hf_hub_url(REPO, "a.mp4", repo_type="dataset", endpoint=hub.endpoint)
    answer = client.head(url)
    assert answer.status_code == 302
    assert answer.headers["X-Repo-Commit"] == sha
    assert answer.headers["X-Linked-Etag"] == quoted(hashlib.sha256(BODY))
    assert answer.headers["X-Linked-Size"] == str(len(BODY))
    token = {"Authorization": "Bearer hf_x"}
    assert client.get(answer.headers["Location"], headers=token).status_code == 400
    part = client.get(url, headers=token | {"Range": "bytes=5-9"}, follow_redirects=True)
    assert (part.status_code, part.content) == (206, BODY[5:10])


def test_one_host_for_hub_and_storage(tmp_path: Path) -> None:
    with LoopbackHub(storage_host="127.0.0.1") as hub:
        hub.add_repo(REPO, {"a.mp4": BODY})
        place = hf_hub_download(
            REPO, "a.mp4", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path, token="hf_x"
        )
    assert Path(place).read_bytes() == BODY
    assert Path(place).resolve().name == hashlib.sha256(BODY).hexdigest()


def test_an_ordinary_file_has_its_git_name_as_etag(hub: LoopbackHub, client: httpx.Client) -> None:
    sha = hub.add_repo(REPO, {"a.csv": b"a,b\n"})
    answer = client.head(hf_hub_url(REPO, "a.csv", repo_type="dataset", endpoint=hub.endpoint))
    assert answer.status_code == 200
    assert answer.headers["ETag"] == quoted(hashlib.sha1(b"blob 4\0a,b\n"))
    assert answer.headers["X-Repo-Commit"] == sha
    assert (answer.headers["Content-Length"], answer.content) == ("4", b"")


def test_the_client_names_what_is_missing(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    hub.add_repo(REPO, {"a.csv": b"a"})
    where = {"repo_type": "dataset", "endpoint": hub.endpoint, "cache_dir": tmp_path}
    for token in (False, "hf_x"):
        with pytest.raises(RepositoryNotFoundError):
            api.dataset_info("nobody/nothing", token=token)
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download("nobody/nothing", "a.csv", token=token, **where)
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(REPO, revision="f" * 40)
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download(REPO, "a.csv", revision="v9", token=False, **where)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, "é missing.csv", token=False, **where)


def test_gated_repository(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    hub.add_repo(REPO, {"a.csv": b"a"}, gated=True)
    where = {"repo_type": "dataset", "endpoint": hub.endpoint, "cache_dir": tmp_path}
    assert api.dataset_info(REPO).gated == "auto"
    with pytest.raises(GatedRepoError) as raised:
        hf_hub_download(REPO, "a.csv", token=False, **where)
    assert raised.value.response.status_code == 401
    assert Path(hf_hub_download(REPO, "a.csv", token="hf_x", **where)).read_bytes() == b"a"
    hub.faults.set("a.csv", Fault(FaultKind.GATED))
    with pytest.raises(GatedRepoError) as raised:
        hf_hub_download(REPO, "a.csv", token="hf_x", **where | {"cache_dir": tmp_path / "new"})
    assert raised.value.response.status_code == 403


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_on_the_plain_host(hub: LoopbackHub, client: httpx.Client, name: str) -> None:
    url = hub.add_file(name, name.encode())
    assert url.startswith(f"{hub.endpoint}/files/clips/")
    assert url.isascii()
    assert " " not in url
    assert client.get(url).content == name.encode()
    hub.faults.set(name, Fault(FaultKind.GONE), times=1)
    assert client.get(url).status_code == 410
    hub.faults.set(url, Fault(FaultKind.FORBIDDEN), times=1)
    assert client.get(url).status_code == 403


def test_plain_file_headers(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    for answer in (client.get(url), client.head(url)):
        assert answer.headers["ETag"] == quoted(hashlib.md5(BODY))
        assert answer.headers["Content-Length"] == str(len(BODY))
        assert answer.headers["Content-Type"] == "video/mp4"
        assert answer.headers["Last-Modified"]
        assert answer.headers["Accept-Ranges"] == "bytes"
    assert client.get(url, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
    assert client.get(f"{hub.endpoint}/files/missing.mp4").status_code == 404
    assert client.put(url).status_code == 405


@pytest.mark.parametrize(
    ("wanted", "status", "start", "stop"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=100-", 206, 100, len(BODY)),
        ("bytes=-7", 206, len(BODY) - 7, len(BODY)),
        ("bytes=10-999999", 206, 10, len(BODY)),
        (f"bytes=-{len(BODY) + 5}", 206, 0, len(BODY)),
        ("bytes=9-3", 200, 0, len(BODY)),
        ("bytes=0-1,4-5", 200, 0, len(BODY)),
        ("lines=0-1", 200, 0, len(BODY)),
    ],
)
@pytest.mark.parametrize("on_disk", [True, False])
def test_ranges(
    hub: LoopbackHub,
    client: httpx.Client,
    tmp_path: Path,
    wanted: str,
    status: int,
    start: int,
    stop: int,
    on_disk: bool,
) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(BODY)
    answer = client.get(hub.add_file("a.mp4", path if on_disk else BODY), headers={"Range": wanted})
    assert (answer.status_code, answer.content) == (status, BODY[start:stop])
    if status == 206:
        assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(BODY)}"


def test_a_range_past_the_end_is_refused(hub: LoopbackHub, client: httpx.Client) -> None:
    answer = client.get(hub.add_file("a.mp4", BODY), headers={"Range": f"bytes={len(BODY)}-"})
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, f"bytes */{len(BODY)}")
    assert hub.requests == [("GET", "/files/a.mp4", f"bytes={len(BODY)}-", 416)]
    hub.clear_requests()
    assert hub.requests == []


def test_if_range(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    first = client.head(url)
    for validator, status in (
        (first.headers["ETag"], 206),
        (first.headers["Last-Modified"], 206),
        ('"other"', 200),
    ):
        answer = client.get(url, headers={"Range": "bytes=10-", "If-Range": validator})
        assert (answer.status_code, len(answer.content)) == (status, len(BODY) - (10 if status == 206 else 0))


def test_files_of_a_root_folder(tmp_path: Path, client: httpx.Client) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "secret.txt").write_bytes(b"secret")
    (tmp_path / "served" / "a b.txt").write_bytes(b"one")
    with LoopbackHub(tmp_path / "served") as hub:
        url = file_url(hub.endpoint, "a b.txt")
        first = client.get(url)
        (tmp_path / "served" / "a b.txt").write_bytes(b"three")
        second = client.get(url)
        assert (first.content, second.content) == (b"one", b"three")
        assert first.headers["ETag"] != second.headers["ETag"]
        assert client.get(f"{hub.endpoint}/files/..%2Fsecret.txt").status_code == 404


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (FaultKind.UNAUTHORIZED, 401),
        (FaultKind.FORBIDDEN, 403),
        (FaultKind.GATED, 401),
        (FaultKind.NOT_FOUND, 404),
        (FaultKind.GONE, 410),
        (FaultKind.TOO_MANY, 429),
        (FaultKind.SERVER_ERROR, 500),
        (FaultKind.UNAVAILABLE, 503),
    ],
)
def test_status_faults(hub: LoopbackHub, client: httpx.Client, kind: FaultKind, status: int) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(kind), times=2)
    assert [client.head(url).status_code, client.get(url).status_code] == [status, status]
    assert client.get(url).content == BODY


@pytest.mark.parametrize("kind", [FaultKind.TOO_MANY, FaultKind.UNAVAILABLE])
def test_retry_after_is_sent_where_given(hub: LoopbackHub, client: httpx.Client, kind: FaultKind) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(kind, retry_after=7), times=1)
    assert client.get(url).headers["Retry-After"] == "7"
    hub.faults.set("a.mp4", Fault(kind))
    assert "Retry-After" not in client.get(url).headers
    hub.faults.clear()
    assert client.get(url).status_code == 200


def received(
    client: httpx.Client, url: str, headers: dict[str, str] | None = None
) -> tuple[bytes, httpx.Response]:
    """What arrived before a cut or a reset, and the answer."""
    got = b""
    with client.stream("GET", url, headers=headers) as answer:
        try:
            for piece in answer.iter_raw():
                got += piece
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout):
            return got, answer
    return got, answer


def test_cut_body_is_resumed(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(FaultKind.CUT, after_bytes=1000), times=2)
    assert client.head(url).status_code == 200  # passes, and is not counted
    got, answer = received(client, url)
    assert (answer.headers["Content-Length"], got) == (str(len(BODY)), BODY[:1000])
    got, answer = received(client, url, {"Range": "bytes=1000-"})
    assert (answer.status_code, got) == (206, BODY[1000:2000])
    got, answer = received(client, url, {"Range": "bytes=2000-"})
    assert got == BODY[2000:]


def test_stall(hub: LoopbackHub) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(FaultKind.STALL, after_bytes=10, seconds=0.5))
    with httpx.Client(timeout=0.1, trust_env=False) as hasty:
        assert received(hasty, url)[0] == BODY[:10]
    with httpx.Client(timeout=5, trust_env=False) as patient:
        assert received(patient, url)[0] == BODY


def test_the_end_of_the_server_does_not_wait_for_a_stall(client: httpx.Client) -> None:
    with LoopbackHub() as hub:
        url = hub.add_file("a.mp4", BODY)
        hub.faults.set("a.mp4", Fault(FaultKind.SLOW, seconds=3600), times=1)
        with pytest.raises(httpx.ReadTimeout):
            client.get(url, timeout=0.1)
        assert client.get(url).content == BODY  # the connection is kept
    with pytest.raises(httpx.TransportError):
        client.get(url)


def test_wrong_bytes_have_the_right_length(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(FaultKind.WRONG_BYTES), times=1)
    wrong, right = client.get(url), client.get(url)
    assert len(wrong.content) == len(BODY)
    assert wrong.content != BODY
    assert wrong.headers["ETag"] == right.headers["ETag"]
    assert right.content == BODY


def test_other_bodies(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set(".mp4", Fault(FaultKind.HTML))
    page = client.get(url)
    assert page.status_code == 200
    assert page.content.startswith(b"<!DOCTYPE html>")
    assert page.headers["Content-Type"].startswith("text/html")
    hub.faults.set(".mp4", Fault(FaultKind.LFS_POINTER))
    pointer = client.get(url).text.splitlines()
    assert pointer[0] == "version https://git-lfs.github.com/spec/v1"
    assert pointer[1:] == [f"oid sha256:{hashlib.sha256(BODY).hexdigest()}", f"size {len(BODY)}"]
    hub.faults.set(".mp4", Fault(FaultKind.EMPTY))
    empty = client.get(url, headers={"Range": "bytes=5-"})
    assert (empty.status_code, empty.headers["Content-Length"], empty.content) == (200, "0", b"")


def test_slow(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(FaultKind.SLOW, seconds=0.2), times=1)
    start = time.monotonic()
    assert client.get(url).content == BODY
    assert time.monotonic() - start >= 0.2


def test_reset(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(FaultKind.RESET), times=1)
    with pytest.raises(httpx.ReadError):
        client.get(url)
    hub.faults.set("a.mp4", Fault(FaultKind.RESET, after_bytes=100), times=1)
    with pytest.raises(httpx.ReadError):
        client.get(url)
    assert client.get(url).content == BODY
    assert [record.status for record in hub.requests] == [0, 0, 200]


def test_new_etag_makes_if_range_fail(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(FaultKind.NEW_ETAG))
    first = client.get(url).headers["ETag"]
    answer = client.get(url, headers={"Range": "bytes=10-", "If-Range": first})
    assert (answer.status_code, answer.content) == (200, BODY)
    assert answer.headers["ETag"] != first


def test_no_range(hub: LoopbackHub, client: httpx.Client) -> None:
    url = hub.add_file("a.mp4", BODY)
    hub.faults.set("a.mp4", Fault(FaultKind.NO_RANGE), times=1)
    assert client.get(url).content == BODY  # without a range there is nothing to ignore
    statuses = [client.get(url, headers={"Range": "bytes=10-"}).status_code for _ in range(2)]
    assert statuses == [200, 206]


def test_the_longest_suffix_decides(hub: LoopbackHub, client: httpx.Client) -> None:
    urls = [hub.add_file(name, BODY) for name in ("a.mp4", "b.mp4")]
    hub.faults.set(".mp4", Fault(FaultKind.NOT_FOUND))
    hub.faults.set("/b.mp4", Fault(FaultKind.GONE), times=1)
    assert [client.get(url).status_code for url in [*urls, urls[1]]] == [404, 410, 404]


def test_faults_reach_the_hub_half(hub: LoopbackHub, api: HfApi, tmp_path: Path) -> None:
    hub.add_repo(REPO, {"a.mp4": BODY, "a.csv": b"a"})
    where = {"repo_type": "dataset", "endpoint": hub.endpoint, "cache_dir": tmp_path, "token": False}
    hub.faults.set(REPO, Fault(FaultKind.UNAVAILABLE), times=1)
    with pytest.raises(HfHubHTTPError) as raised:
        api.dataset_info(REPO)
    assert raised.value.response.status_code == 503
    hub.faults.set("a.mp4", Fault(FaultKind.EMPTY), times=1)
    with pytest.raises(OSError, match="Consistency check failed"):
        hf_hub_download(REPO, "a.mp4", **where)
    hub.faults.set("a.mp4", Fault(FaultKind.CUT, after_bytes=1000), times=1)
    hub.clear_requests()
    # Clients of 0.x and the first of 1.x give up here.
    with contextlib.suppress(OSError, httpx.RemoteProtocolError):
        hf_hub_download(REPO, "a.mp4", **where)
    assert Path(hf_hub_download(REPO, "a.mp4", **where)).read_bytes() == BODY
    # The client reads blocks of 10 MB and drops a partial one, so it begins this file anew.
    assert [record.status for record in hub.requests if record.status != 302] == [200, 200]
    hub.faults.set("a.csv", Fault(FaultKind.NOT_FOUND), times=1)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, "a.csv", **where)


def test_server_in_another_process(client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"from root")
    spec = RepositorySpec(REPO, {"a.csv": b"a,b\n"})
    with loopback_process({"b c.txt": b"from memory"}, repositories=[spec], root=tmp_path) as endpoint:
        assert client.get(file_url(endpoint, "a.txt")).content == b"from root"
        assert client.get(file_url(endpoint, "b c.txt")).content == b"from memory"
        assert HfApi(endpoint=endpoint, token=False).dataset_info(REPO).id == REPO
    with pytest.raises(httpx.TransportError):
        client.get(file_url(endpoint, "a.txt"))
