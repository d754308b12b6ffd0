"""Hugging Face Hub: what a repository holds at a commit, and its files in the Hub's own cache.

Everything goes through the `huggingface_hub` client, so that its cache, tokens and mirrors serve
as everywhere else. The client reads its environment when it is imported; HF_ENDPOINT, HF_HOME,
HF_HUB_CACHE and HF_HUB_OFFLINE are read again here at each call, so that they hold whoever
imported the client first. HF_TOKEN and the stored login are the client's matter.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from prep.errors import EnvironmentLacksError, FetchError, IncompleteError, UsageError
from prep.hub_faults import client_faults

if TYPE_CHECKING:
    from huggingface_hub import HfApi

__all__ = [
    "Listing",
    "RemoteFile",
    "RepoType",
    "cache_folder",
    "download",
    "download_into",
    "listing",
    "parse_source",
]

RepoType = Literal["dataset", "model"]

_CHUNK: Final = 1 << 20
_TRIES: Final = 3
"""How often a file is asked for whose body breaks off; the client keeps what it has of it."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_CONNECT = (
    "Run the same command with --download-only on a machine that reaches the Hub, with the same HF_HOME."
)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file: `size` in bytes, `sha256` for LFS files only, `blob_id` (git's sha1) for the others.

    The blob_id of an LFS file is that of its pointer; it says nothing about the content.
    """

    path: str
    size: int | None
    sha256: str | None
    blob_id: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit. `asked` is the revision as the recipe names it.

    `verified` is False where the files are only those that the cache happens to hold: nothing may
    be judged complete by such a listing.
    """

    repo: str
    repo_type: RepoType
    asked: str | None
    commit: str
    files: Mapping[str, RemoteFile] = field(repr=False)
    license: str | None
    verified: bool


def parse_source(text: str) -> tuple[str, str | None]:
    """Split "owner/name" or "owner/name@revision"; raises `UsageError` for anything else."""
    repo, at, revision = text.strip().partition("@")
    sound = _REPO.fullmatch(repo) and ".." not in repo and "--" not in repo
    if not sound or (at and not revision):
        raise UsageError(
            f"{text!r} names no Hub repository; expected owner/name or owner/name@revision.",
            remedy="Give the name without the host and without datasets/.",
        )
    return repo, _sound_revision(revision) if at else None


def listing(
    repo: str, revision: str | None = None, *, repo_type: RepoType = "dataset", offline: bool = False
) -> Listing:
    """The files of `repo` at `revision` (a branch, tag or commit; None is the default branch).

    `offline`, or HF_HUB_OFFLINE, asks the cache alone and gives a listing that is not `verified`.

    Raises `EnvironmentLacksError` where a login or, offline, the cached repository is missing,
    and `FetchError` where the Hub has no such repository or revision, or cannot be reached.
    """
    if revision is not None:
        _sound_revision(revision)
    if _is_offline(offline):
        return _cached_listing(repo, revision, repo_type)
    api = _api()
    with client_faults(api.endpoint, repo, repo_type, revision):
        info = api.repo_info(repo, repo_type=repo_type, revision=revision)
        # The siblings of `repo_info` come without sizes, and on large repositories not all of them.
        entries = list(api.list_repo_tree(repo, recursive=True, revision=info.sha, repo_type=repo_type))
    files = {entry.path: _remote_file(entry) for entry in entries if hasattr(entry, "blob_id")}
    return Listing(repo, repo_type, revision, str(info.sha), files, _license(info), verified=True)


def download(listing: Listing, path: str, *, offline: bool = False) -> Path:
    """The file in the Hub's cache, fetched if need be, its bytes checked against the listing.

    A cached file that differs is fetched anew, once.

    Raises `FetchError` ("missing_file", "wrong_bytes", or what the network did) and
    `EnvironmentLacksError` where it cannot be had offline or without a login.
    """
    expected = listing.files.get(path)
    if expected is None:
        raise _no_such_file(listing, path)
    offline = _is_offline(offline)
    found = _in_cache(listing, path, offline=offline, force=False)
    fault = _difference(found, expected)
    if fault and not offline:
        found = _in_cache(listing, path, offline=False, force=True)
        fault = _difference(found, expected)
    if fault:
        remedy = (
            _CONNECT
            if offline
            else "Report it to the repository's owner, or check the mirror in HF_ENDPOINT."
        )
        message = f"{listing.repo}@{listing.commit}: {path}: {fault}."
        raise FetchError("wrong_bytes", message, transient=False, remedy=remedy)
    if listing.verified and not offline:
        _remember_revision(listing)
    return found


def download_into(listing: Listing, path: str, folder: Path, *, offline: bool = False) -> Path:
    """The file, checked against the listing: from the cache if that holds it, else fetched into `folder`.

    For what is read once: it need not stay in the cache beside what is made of it. A fetch that was cut
    off goes on where it stopped. Raises as `download` does.
    """
    from huggingface_hub import try_to_load_from_cache

    expected = listing.files.get(path)
    if expected is None:
        raise _no_such_file(listing, path)
    cached = try_to_load_from_cache(
        listing.repo, path, cache_dir=cache_folder(), revision=listing.commit, repo_type=listing.repo_type
    )
    if isinstance(cached, str) and _difference(Path(cached), expected) is None:
        return Path(cached)
    if _is_offline(offline):
        return download(listing, path, offline=True)
    fault: str | None = ""
    for force in (False, True):
        found = _until_whole(listing, path, offline=False, force=force, folder=folder)
        fault = _difference(found, expected)
        if fault is None:
            return found
        found.unlink(missing_ok=True)
    raise FetchError(
        "wrong_bytes",
        f"{listing.repo}@{listing.commit}: {path}: {fault}.",
        transient=False,
        remedy="Report it to the repository's owner, or check the mirror in HF_ENDPOINT.",
    )


def cache_folder() -> Path:
    """Where the Hub's cache is, by the client's rules over today's environment."""
    explicit = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if explicit:
        return _expanded(explicit)
    home = os.environ.get("HF_HOME")
    if home:
        return _expanded(home) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _expanded(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser()


def _sound_revision(revision: str) -> str:
    """Refuse what would leave the cache's `refs` folder."""
    parts = revision.split("/")
    if any(part in ("", ".", "..") for part in parts) or any(character.isspace() for character in revision):
        raise UsageError(f"{revision!r} is no revision; expected a branch, a tag or a commit.")
    return revision


def _is_offline(asked: bool) -> bool:
    from huggingface_hub import constants

    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    # The constant counts too: a library may have switched this process off since.
    return asked or value.upper() in _TRUE or bool(constants.HF_HUB_OFFLINE)


def _api() -> HfApi:
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars

    if not are_progress_bars_disabled() and "HF_HUB_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    endpoint = os.environ.get("HF_ENDPOINT")
    return HfApi(endpoint=endpoint.rstrip("/") if endpoint else None)


def _remote_file(entry: Any) -> RemoteFile:
    """From the client's RepoFile, which has no common type over the versions that we bear."""
    lfs = entry.lfs
    return RemoteFile(
        path=entry.path,
        size=lfs.size if lfs is not None else entry.size,
        sha256=lfs.sha256 if lfs is not None else None,
        blob_id=entry.blob_id,
    )


def _license(info: Any) -> str | None:
    """The card's licence; several are joined by commas. Else the repository's licence tag."""
    stated = getattr(info.card_data, "license", None) if info.card_data else None
    if isinstance(stated, list):
        return ", ".join(str(each) for each in stated)
    tags = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    return str(stated) if stated else next(iter(tags), None)


def _in_cache(listing: Listing, path: str, *, offline: bool, force: bool) -> Path:
    return _until_whole(listing, path, offline=offline, force=force, folder=None)


def _until_whole(listing: Listing, path: str, *, offline: bool, force: bool, folder: Path | None) -> Path:
    """Ask until the body comes whole: only the newer clients go on by themselves after a cut."""
    tries = 0
    while True:
        tries += 1
        try:
            return _asked_once(listing, path, offline=offline, force=force, folder=folder)
        except FetchError as error:
            if error.reason != "cut_body" or tries == _TRIES:
                raise


def _asked_once(listing: Listing, path: str, *, offline: bool, force: bool, folder: Path | None) -> Path:
    """The file in the cache, or in `folder` if one is given."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    api = _api()
    with client_faults(api.endpoint, listing.repo, listing.repo_type, listing.asked, path):
        try:
            return Path(
                api.hf_hub_download(
                    listing.repo,
                    path,
                    repo_type=listing.repo_type,
                    revision=listing.commit,
                    cache_dir=cache_folder() if folder is None else None,
                    local_dir=folder,
                    force_download=force,
                    local_files_only=offline,
                )
            )
        except LocalEntryNotFoundError as error:
            if not offline:
                raise
            message = f"{listing.repo}@{listing.commit}: {path} is not in the cache {cache_folder()}."
            raise EnvironmentLacksError(message, remedy=_CONNECT) from error


def _remember_revision(listing: Listing) -> None:
    """Note which commit a branch or tag stood for, as the client does, for offline runs."""
    asked = listing.asked or "main"
    reference = _repo_folder(listing.repo, listing.repo_type) / "refs" / asked
    if asked == listing.commit or (reference.is_file() and reference.read_text("ascii") == listing.commit):
        return
    # A cache that may only be read is no fault: the file itself is there.
    with contextlib.suppress(PermissionError):
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(listing.commit, encoding="ascii")


def _repo_folder(repo: str, repo_type: RepoType) -> Path:
    return cache_folder() / f"{repo_type}s--{repo.replace('/', '--')}"


def _difference(found: Path, expected: RemoteFile) -> str | None:
    """How the bytes at `found` differ from the listing, or None."""
    try:
        return _byte_difference(found, expected)
    except OSError as error:
        message = f"{found} cannot be read: {error.strerror or error}."
        raise IncompleteError(
            message, remedy="Mend the Hub's cache, or set HF_HOME to another folder."
        ) from error


def _byte_difference(found: Path, expected: RemoteFile) -> str | None:
    size = found.stat().st_size
    if expected.size is not None and size != expected.size:
        return f"the file has {size} bytes; the listing says {expected.size}"
    if expected.sha256 is not None:
        return _digest_difference("sha256", _hashed(found, hashlib.sha256()), expected.sha256)
    if expected.blob_id is not None:
        # Git hashes a short header before the content.
        digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        return _digest_difference("git blob id", _hashed(found, digest), expected.blob_id)
    return None


def _digest_difference(name: str, found: str, expected: str) -> str | None:
    return None if found == expected else f"the file's {name} is {found}; the listing says {expected}"


def _hashed(path: Path, digest: hashlib._Hash) -> str:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _no_such_file(listing: Listing, path: str) -> FetchError:
    same_name = [each for each in listing.files if each.rpartition("/")[2] == path.rpartition("/")[2]]
    close = same_name[:3] or difflib.get_close_matches(path, listing.files, n=3)
    where = "repository" if listing.verified else "cached part of the repository"
    message = (
        f"{listing.repo}@{listing.commit}: the {where} has no file {path!r} among its {len(listing.files)}."
    )
    remedy = f"The closest names: {', '.join(close)}." if close else "Check the name, or the pinned revision."
    return FetchError("missing_file", message, transient=False, remedy=remedy)


def _cached_listing(repo: str, revision: str | None, repo_type: RepoType) -> Listing:
    """What the cache holds of the revision. A blob's name is its hash, so its bytes can still be checked."""
    folder = _repo_folder(repo, repo_type)
    commit = _cached_commit(folder, revision or "main")
    snapshot = folder / "snapshots" / commit if commit else None
    if snapshot is None or not snapshot.is_dir():
        message = (
            f"{repo}@{revision or 'main'} is not in the cache {cache_folder()}, and the Hub may not be asked."
        )
        raise EnvironmentLacksError(message, remedy=_CONNECT)
    paths = sorted(path for path in snapshot.rglob("*") if path.is_file())
    files = {file.path: file for file in (_cached_file(snapshot, path) for path in paths)}
    return Listing(repo, repo_type, revision, snapshot.name, files, license=None, verified=False)


def _cached_commit(folder: Path, revision: str) -> str | None:
    if _COMMIT.fullmatch(revision):
        return revision
    reference = folder / "refs" / revision
    return reference.read_text(encoding="ascii").strip() if reference.is_file() else None


def _cached_file(snapshot: Path, path: Path) -> RemoteFile:
    blob = path.readlink().name if path.is_symlink() else ""
    return RemoteFile(
        path=path.relative_to(snapshot).as_posix(),
        size=path.stat().st_size,
        sha256=blob if re.fullmatch(r"[0-9a-f]{64}", blob) else None,
        blob_id=blob if _COMMIT.fullmatch(blob) else None,
    )
