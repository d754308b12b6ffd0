"""Repositories of the loopback Hub: commits, files, and the JSON that the Hub's API gives of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from prep.loopback.content import Content, git_blob_oid

__all__ = ["Commit", "Repository", "RepositoryFile", "RepositoryType"]

RepositoryType = Literal["dataset", "model"]
Json = dict[str, Any]

_DATE = "2025-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class RepositoryFile:
    """A file of one commit; `path` is relative to the repository, with forward slashes."""

    path: str
    content: Content
    is_lfs: bool

    @property
    def blob_id(self) -> str:
        """The git name of what git stores: the file, or its LFS pointer."""
        return git_blob_oid(self.content.lfs_pointer) if self.is_lfs else self.content.git_oid

    @property
    def etag(self) -> str:
        """The ETag that the Hub gives, without quotes: SHA-256 for LFS, else the git name."""
        return self.content.sha256 if self.is_lfs else self.content.git_oid

    def lfs_json(self, digest_key: str) -> Json:
        """LFS part; the tree API names the digest `oid`, the repository API `sha256`."""
        pointer_size = len(self.content.lfs_pointer)
        return {digest_key: self.content.sha256, "size": self.content.size, "pointerSize": pointer_size}


@dataclass(frozen=True)
class Commit:
    """One revision: its name (40 hex) and its files by path."""

    sha: str
    files: Mapping[str, RepositoryFile]

    @staticmethod
    def of(files: Iterable[RepositoryFile], parent: str) -> Commit:
        """Name a commit by its parent and by the paths and blobs in it."""
        by_path = {file.path: file for file in sorted(files, key=lambda file: file.path)}
        lines = "".join(f"{file.blob_id} {path}\n" for path, file in by_path.items())
        return Commit(_sha1(f"commit {parent}\n{lines}"), by_path)

    def has_folder(self, folder: str) -> bool:
        """Whether `folder` (without a slash at its end) holds a file; "" is the root, always there."""
        return not folder or any(path.startswith(f"{folder}/") for path in self.files)

    def tree(self, folder: str, recursive: bool, expand: bool) -> list[Json]:
        """Entries below `folder` ("" is the root) sorted by path, in the form of the tree API."""
        prefix = f"{folder}/" if folder else ""
        entries: dict[str, Json] = {}
        for path, file in self.files.items():
            if not path.startswith(prefix):
                continue
            parts = path.removeprefix(prefix).split("/")
            depth = len(parts) if recursive else 2
            for end in range(1, min(len(parts), depth)):
                subfolder = prefix + "/".join(parts[:end])
                if subfolder not in entries:
                    entries[subfolder] = self.folder_json(subfolder, expand)
            if recursive or len(parts) == 1:
                entries[path] = self.file_json(file, expand)
        return [entries[path] for path in sorted(entries)]

    def paths_info(self, paths: Sequence[str], expand: bool) -> list[Json]:
        """The entries at `paths`, files or folders; those that are not there are left out."""
        entries = []
        for path in paths:
            if path in self.files:
                entries.append(self.file_json(self.files[path], expand))
            elif path and self.has_folder(path):
                entries.append(self.folder_json(path, expand))
        return entries

    def file_json(self, file: RepositoryFile, expand: bool) -> Json:
        """A file in the form of the tree API."""
        entry: Json = {"type": "file", "oid": file.blob_id, "size": file.content.size, "path": file.path}
        if file.is_lfs:
            entry["lfs"] = file.lfs_json("oid")
        return entry | self._last_commit(expand)

    def folder_json(self, folder: str, expand: bool) -> Json:
        """A folder in the form of the tree API."""
        entry = {"type": "directory", "oid": _sha1(f"tree {self.sha} {folder}"), "size": 0, "path": folder}
        return entry | self._last_commit(expand)

    def _last_commit(self, expand: bool) -> Json:
        return {"lastCommit": {"id": self.sha, "title": "Add files", "date": _DATE}} if expand else {}


@dataclass
class Repository:
    """A dataset or model repository with one branch, `main`."""

    name: str
    kind: RepositoryType
    gated: bool = False
    commits: dict[str, Commit] = field(default_factory=dict)
    head: str = ""

    def commit(self, files: Mapping[str, bytes | Path], lfs: Sequence[str]) -> str:
        """Put a commit that holds just these files on `main`; returns its name (40 hex).

        A file is an LFS file if its path fits one of the patterns in `lfs`, where `*` also
        stands for slashes.
        """
        entries = [
            RepositoryFile(path, Content(source), any(fnmatchcase(path, pattern) for pattern in lfs))
            for path, source in files.items()
        ]
        commit = Commit.of(entries, self.head)
        self.commits[commit.sha] = commit
        self.head = commit.sha
        return commit.sha

    def at(self, revision: str) -> Commit | None:
        """The commit that a branch or commit name stands for, None if there is none."""
        return self.commits.get(self.head if revision in ("main", "refs/heads/main") else revision)

    def refs_json(self) -> Json:
        """Branches and tags in the form of the refs API."""
        main = {"name": "main", "ref": "refs/heads/main", "targetCommit": self.head}
        return {"branches": [main], "converts": [], "tags": [], "pullRequests": []}

    def info_json(self, commit: Commit, blobs: bool) -> Json:
        """The repository at `commit`; `blobs` adds size, blob and LFS digest to each sibling."""
        return {
            "_id": _sha1(f"{self.kind} {self.name}")[:24],
            "id": self.name,
            "author": self.name.split("/")[0],
            "sha": commit.sha,
            "createdAt": _DATE,
            "lastModified": _DATE,
            "private": False,
            "gated": "auto" if self.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "usedStorage": sum(file.content.size for file in commit.files.values()),
            "siblings": [_sibling_json(file, blobs) for file in commit.files.values()],
        }


def _sibling_json(file: RepositoryFile, blobs: bool) -> Json:
    sibling: Json = {"rfilename": file.path}
    if blobs:
        sibling |= {"size": file.content.size, "blobId": file.blob_id}
        if file.is_lfs:
            sibling["lfs"] = file.lfs_json("sha256")
    return sibling


def _sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
