"""Routes of the Hub: the API, `resolve`, and the storage host behind LFS files."""

from __future__ import annotations

import hashlib
import json
import mimetypes
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from prep.loopback.content import Content
from prep.loopback.repositories import Commit, Repository, RepositoryFile, RepositoryType
from prep.loopback.wire import LAST_MODIFIED, Request, Response

__all__ = ["HubRoutes", "content_type_of", "gated_response", "text_response"]

_JSON_TYPE = "application/json; charset=utf-8"
_API_VERBS = frozenset({"revision", "tree", "paths-info", "refs"})
_KINDS: dict[str, RepositoryType] = {"datasets": "dataset", "models": "model"}


class HubRoutes:
    """All repositories of one server, and the answers to requests for them."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.endpoint = ""
        self.storage_endpoint = ""
        self._repositories: dict[tuple[RepositoryType, str], Repository] = {}
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        files: Mapping[str, bytes | Path],
        kind: RepositoryType,
        lfs: Sequence[str],
        gated: bool,
    ) -> str:
        """Make the repository if it is new, and commit the files to its `main`."""
        with self._lock:
            repository = self._repositories.setdefault((kind, name), Repository(name, kind))
            repository.gated = gated
            return repository.commit(files, lfs)

    def api(self, request: Request) -> Response:
        """Answer `/api/{datasets,models}/...`."""
        segments = request.segments[1:]
        if len(segments) < 2 or segments[0] not in _KINDS:
            return _json_error(404, "", "Not found")
        kind, names = _KINDS[segments[0]], segments[1:]
        length = 1 if len(names) == 1 or names[1] in _API_VERBS else 2
        repository = self._repositories.get((kind, "/".join(names[:length])))
        if repository is None:
            return _no_repository(request)
        verb, rest = (names[length], names[length + 1 :]) if len(names) > length else ("revision", ["main"])
        if verb == "refs":
            return _json(repository.refs_json())
        commit = repository.at(rest[0]) if rest else None
        if commit is None:
            return _no_revision(rest)
        return self._api_at(request, repository, commit, verb, "/".join(rest[1:]))

    def _api_at(
        self, request: Request, repository: Repository, commit: Commit, verb: str, path: str
    ) -> Response:
        if verb == "revision":
            return _json(repository.info_json(commit, request.flag("blobs")))
        if verb == "paths-info":
            paths, expand = _form(request)
            return _json(commit.paths_info(paths, expand))
        if verb == "tree":
            return self._tree(request, commit, path.strip("/"))
        return _json_error(404, "", "Not found")

    def _tree(self, request: Request, commit: Commit, folder: str) -> Response:
        if not commit.has_folder(folder):
            return _no_entry(folder, commit.sha)
        entries = commit.tree(folder, request.flag("recursive"), request.flag("expand"))
        limit = int(request.query.get("limit", [str(self.page_size)])[0])
        start = int(request.query.get("cursor", ["0"])[0])
        response = _json(entries[start : start + limit])
        if start + limit < len(entries):
            query = {name: values[0] for name, values in request.query.items()}
            following = urlencode(query | {"limit": str(limit), "cursor": str(start + limit)})
            response.headers["Link"] = f'<{self.endpoint}{request.path}?{following}>; rel="next"'
        return response

    def resolve(self, request: Request) -> Response | None:
        """Answer `/[datasets/]{name}/resolve/{revision}/{path}`; None if the path has another form."""
        segments = request.segments
        kind: RepositoryType = "dataset" if segments[0] == "datasets" else "model"
        names = segments[1:] if kind == "dataset" else segments
        place = next((index for index in (1, 2) if names[index : index + 1] == ["resolve"]), None)
        if place is None or len(names) < place + 3:
            return None
        repository = self._repositories.get((kind, "/".join(names[:place])))
        if repository is None:
            return _no_repository(request)
        if repository.gated and "authorization" not in request.fields:
            return gated_response(request, repository.name)
        commit = repository.at(names[place + 1])
        if commit is None:
            return _no_revision(names[place + 1 :])
        path = "/".join(names[place + 2 :])
        file = commit.files.get(path)
        if file is None:
            return _no_entry(path, commit.sha)
        return self._file(repository, commit, file)

    def _file(self, repository: Repository, commit: Commit, file: RepositoryFile) -> Response:
        headers = {"X-Repo-Commit": commit.sha}
        if not file.is_lfs:
            return Response(200, file.content, content_type_of(file.path), file.etag, headers, ranges=True)
        address = quote(f"{repository.kind}/{repository.name}/{commit.sha}/{file.path}")
        headers |= {
            "Location": f"{self.storage_endpoint}/storage/{address}?X-Amz-Signature={file.etag[:16]}",
            "X-Linked-Etag": f'"{file.etag}"',
            "X-Linked-Size": str(file.content.size),
        }
        return Response(302, Content(b"Found. Redirecting."), "text/plain; charset=utf-8", headers=headers)

    def storage(self, request: Request) -> Response:
        """Answer `/storage/{kind}/{name}/{commit}/{path}`, where LFS files really lie.

        As on the real storage host, the ETag is not the SHA-256 and a token is refused.
        """
        one_host = self.storage_endpoint == self.endpoint
        if "authorization" in request.fields and not one_host:
            return text_response(400, "Only one auth mechanism allowed")
        file, commit = self._stored(request.segments[1:])
        if file is None:
            return text_response(404, "The specified key does not exist.")
        etag = hashlib.md5(file.etag.encode(), usedforsecurity=False).hexdigest()
        headers = {"Last-Modified": LAST_MODIFIED}
        if one_host:  # the client then follows the redirect of HEAD and reads these from its end
            headers |= {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{file.etag}"'}
        return Response(200, file.content, content_type_of(file.path), etag, headers, ranges=True)

    def _stored(self, segments: list[str]) -> tuple[RepositoryFile | None, str]:
        kind: RepositoryType = "dataset" if segments[0] == "dataset" else "model"
        for length in (1, 2):  # words in the repository's name
            repository = self._repositories.get((kind, "/".join(segments[1 : length + 1])))
            commit = "".join(segments[length + 1 : length + 2])
            if repository is not None and commit in repository.commits:
                return repository.commits[commit].files.get("/".join(segments[length + 2 :])), commit
        return None, ""


def content_type_of(path: str) -> str:
    """The media type that a server names for a file of this name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def text_response(status: int, text: str) -> Response:
    """A short plain answer."""
    return Response(status, Content(text.encode()), "text/plain; charset=utf-8")


def gated_response(request: Request, name: str) -> Response:
    """The refusal of a gated repository: 401 without a token, 403 with one that has no access."""
    status = 403 if "authorization" in request.fields else 401
    message = f"Access to {name} is restricted. You must have access to it and be authenticated to access it."
    return _json_error(status, "GatedRepo", message)


def _form(request: Request) -> tuple[list[str], bool]:
    if request.fields.get("content-type", "").startswith("application/json"):
        document = json.loads(request.body)
        return list(document.get("paths", [])), bool(document.get("expand", False))
    form = parse_qs(request.body.decode())
    return form.get("paths", []), form.get("expand", [""])[0].lower() in ("1", "true")


def _json(document: dict[str, Any] | list[dict[str, Any]]) -> Response:
    return Response(200, Content(json.dumps(document).encode()), _JSON_TYPE)


def _json_error(status: int, code: str, message: str) -> Response:
    response = Response(status, Content(json.dumps({"error": message}).encode()), _JSON_TYPE)
    # A header holds no line break and no character beyond Latin-1, a repository path may.
    response.headers["X-Error-Message"] = message.encode("ascii", "backslashreplace").decode()
    if code:
        response.headers["X-Error-Code"] = code
    return response


def _no_repository(request: Request) -> Response:
    # Without a token the Hub does not say whether a repository is missing or private.
    status = 404 if "authorization" in request.fields else 401
    return _json_error(status, "RepoNotFound", "Repository not found")


def _no_revision(rest: Sequence[str]) -> Response:
    return _json_error(404, "RevisionNotFound", f"Invalid rev id: {''.join(rest[:1])}")


def _no_entry(path: str, commit: str) -> Response:
    response = _json_error(404, "EntryNotFound", f"Entry not found: {path}")
    response.headers["X-Repo-Commit"] = commit
    return response
