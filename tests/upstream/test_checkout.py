"""The lock of upstream's files, against a small repository made here in upstream's place.

The project is copied with a lock of that repository, and its own command is run: whatever upstream
holds, and wherever this checkout stands, plays no part.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prep.loopback import LoopbackHub
from prep.upstream.checkout import load_lock
from tests.commands import PROJECT, prep, told

FILES = {
    "cosmos_framework/scripts/prepare.py": b'PROMPT_TEMPLATE = "Why?"\n',
    "cosmos_framework/data/stats.json": b'{"q01": [0.5]}\n',
}
FIRST = "cosmos_framework/scripts/prepare.py"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@dataclass
class Project:
    """A copy of this project whose lock is of the repository in `upstream`."""

    folder: Path
    upstream: Path
    commit: str
    cache: Path

    def prep(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {"PYTHONPATH": str(self.folder), "XDG_CACHE_HOME": str(self.cache)}
        return prep(*arguments, env=environment, cwd=self.folder.parent)

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "XDG_CACHE_HOME": str(self.cache)}
        return subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            cwd=self.folder.parent,
            capture_output=True,
            text=True,
            check=False,
        )

    def lock(self, **changes: Any) -> None:
        entries = [
            {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in FILES.items()
        ]
        document = {
            "repository": self.upstream.as_uri(),
            "commit": self.commit,
            "license": "OpenMDW-1.1",
            "raw_url": "http://127.0.0.1:9/{commit}/{path}",
            "files": entries,
        }
        (self.folder / "vendor").mkdir(exist_ok=True)
        (self.folder / "vendor" / "upstream.lock.json").write_text(json.dumps({**document, **changes}))

    def vendored(self) -> dict[str, bytes]:
        return {path: (self.folder / "vendor" / path).read_bytes() for path in FILES}

    def is_empty(self) -> bool:
        return [path.name for path in (self.folder / "vendor").iterdir()] == ["upstream.lock.json"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    upstream = tmp_path / "upstream"
    for path, data in FILES.items():
        (upstream / path).parent.mkdir(parents=True, exist_ok=True)
        (upstream / path).write_bytes(data)
    git(tmp_path, "init", "--quiet", str(upstream))
    git(upstream, "add", ".")
    git(upstream, "commit", "--quiet", "-m", "first")
    folder = tmp_path / "project"
    skip = shutil.ignore_patterns("__pycache__", "_data")
    shutil.copytree(PROJECT / "prep", folder / "prep", ignore=skip)
    for name in ("recipes", "schemas"):
        shutil.copytree(PROJECT / name, folder / name)
    (folder / "pyproject.toml").touch()
    project = Project(folder, upstream, git(upstream, "rev-parse", "HEAD"), tmp_path / "cache")
    project.lock()
    return project


@pytest.mark.parametrize("way", ["checkout", "bare", "address", "archive"])
def test_sync_fills_the_vendor_folder_from_each_kind_of_source(way: str, project: Project) -> None:
    source: str | Path = project.upstream
    if way == "bare":
        source = project.folder.parent / "bare.git"
        git(project.folder.parent, "clone", "--quiet", "--bare", str(project.upstream), str(source))
    elif way == "address":
        source = project.upstream.as_uri()
    elif way == "archive":
        shutil.rmtree(project.upstream / ".git")
    done = project.prep("vendor", "sync", "--from", source)
    assert done.returncode == 0, done.stderr
    assert project.vendored() == FILES
    assert project.prep("vendor", "verify").returncode == 0


def test_sync_takes_the_locked_commit_of_a_repository_that_went_on(project: Project) -> None:
    (project.upstream / FIRST).write_bytes(b"OTHER = 1\n")
    git(project.upstream, "commit", "--quiet", "-am", "second")
    done = project.prep("vendor", "sync", "--from", project.upstream.as_uri())
    assert done.returncode == 0, done.stderr
    assert project.vendored() == FILES


@pytest.mark.parametrize(("data", "what"), [(b'PROMPT_TEMPLATE = "why?"\n', "sha256"), (b"", "0 bytes")])
def test_a_file_that_differs_is_named_and_nothing_is_written(
    data: bytes, what: str, project: Project
) -> None:
    (project.upstream / FIRST).write_bytes(data)
    said = told(project.prep("vendor", "sync", "--from", project.upstream), 1)
    assert FIRST in said
    assert what in said
    assert project.commit in said
    assert project.is_empty()


def test_a_source_without_the_files_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "absent", "file:///nowhere.git"):
        told(project.prep("vendor", "sync", "--from", source), 2)
    (project.upstream / FIRST).unlink()
    assert FIRST in told(project.prep("vendor", "sync", "--from", project.upstream), 2)
    assert project.is_empty()


def test_a_repository_without_the_locked_commit_is_refused(project: Project) -> None:
    bare = project.folder.parent / "bare.git"
    git(project.folder.parent, "clone", "--quiet", "--bare", str(project.upstream), str(bare))
    project.lock(commit="0" * 40)
    for source in (bare, bare.as_uri()):
        assert "locked commit" in told(project.prep("vendor", "sync", "--from", source), 2)


def test_verify_names_a_changed_file_and_an_absent_one(project: Project) -> None:
    assert "prep vendor sync" in told(project.prep("vendor", "verify"), 4)
    project.prep("vendor", "sync", "--from", project.upstream)
    (project.folder / "vendor" / FIRST).write_bytes(FILES[FIRST].swapcase())
    said = told(project.prep("vendor", "verify"), 1)
    assert FIRST in said
    assert "Delete" in said


def test_status_says_the_commit_and_where_each_file_is(project: Project) -> None:
    done = project.prep("vendor", "status")
    assert done.returncode == 0
    assert project.commit in done.stdout
    assert done.stdout.count("not here") == len(FILES)
    project.prep("vendor", "sync", "--from", project.upstream)
    done = project.prep("vendor", "status")
    assert str(project.folder / "vendor" / FIRST) in done.stdout


def test_outside_of_a_checkout_the_users_cache_is_filled(project: Project) -> None:
    (project.folder / "pyproject.toml").unlink()
    done = project.prep("vendor", "sync", "--from", project.upstream)
    assert done.returncode == 0, done.stderr
    assert project.is_empty()
    cached = project.cache / "cosmos-prep" / "upstream" / project.commit
    assert {path: (cached / path).read_bytes() for path in FILES} == FILES
    assert project.prep("vendor", "verify").returncode == 0


READ = f"""
from prep.errors import PrepError
from prep.upstream.checkout import locked_bytes
try:
    print(locked_bytes({FIRST!r}, offline=OFFLINE)[0].decode(), end="")
except PrepError as error:
    print(type(error).__name__, error)
"""


def test_a_file_that_is_nowhere_is_fetched_once_and_checked(project: Project) -> None:
    program = READ.replace("OFFLINE", "False")
    with LoopbackHub() as hub:
        hub.add_file(f"{project.commit}/{FIRST}", FILES[FIRST])
        project.lock(raw_url=f"{hub.endpoint}/files/{{commit}}/{{path}}")
        assert project.python(program).stdout.encode() == FILES[FIRST]
        asked = len(hub.requests)
        assert asked > 0
        assert project.python(program).stdout.encode() == FILES[FIRST]
        assert len(hub.requests) == asked
    assert project.is_empty()


def test_a_fetched_file_of_other_bytes_is_refused_and_not_kept(project: Project) -> None:
    with LoopbackHub() as hub:
        hub.add_file(f"{project.commit}/{FIRST}", FILES[FIRST].swapcase())
        project.lock(raw_url=f"{hub.endpoint}/files/{{commit}}/{{path}}")
        assert "sha256" in project.python(READ.replace("OFFLINE", "False")).stdout
    assert project.python(READ.replace("OFFLINE", "True")).stdout.startswith("EnvironmentLacksError")


def test_offline_and_unreachable_are_a_lack_of_the_environment(project: Project) -> None:
    with LoopbackHub() as hub:
        project.lock(raw_url=f"{hub.endpoint}/files/{{commit}}/{{path}}")
        said = project.python(READ.replace("OFFLINE", "False")).stdout
    assert said.startswith("EnvironmentLacksError")
    assert "404" in said
    assert project.python(READ.replace("OFFLINE", "True")).stdout.startswith("EnvironmentLacksError")


def test_an_installed_framework_is_found_without_being_imported(project: Project) -> None:
    package = project.folder / "cosmos_framework"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    program = "from prep.upstream.checkout import installed_root; print(installed_root())"
    assert project.python(program).stdout.strip() == str(project.folder)


def test_the_lock_of_this_project_is_complete() -> None:
    lock = load_lock()
    assert len(lock.commit) == 40
    assert "{commit}" in lock.raw_url
    assert "{path}" in lock.raw_url
    assert lock.files
    for entry in lock.files:
        assert entry.path.startswith("cosmos_framework/")
        assert entry.size > 0
        assert len(entry.sha256) == 64


# --- another commit ------------------------------------------------------------------------


@pytest.fixture
def newer(project: Project) -> Project:
    """Upstream goes on: a locked file changes, one goes, one comes beside it, and one elsewhere."""
    (project.upstream / FIRST).write_bytes(b"OTHER = 1\n")
    (project.upstream / "cosmos_framework/scripts/new.py").write_bytes(b"")
    (project.upstream / "cosmos_framework/elsewhere").mkdir()
    (project.upstream / "cosmos_framework/elsewhere/new.py").write_bytes(b"")
    git(project.upstream, "rm", "--quiet", "cosmos_framework/data/stats.json")
    git(project.upstream, "add", ".")
    git(project.upstream, "commit", "--quiet", "-m", "second")
    git(project.upstream, "tag", "newer")
    return project


@pytest.mark.parametrize("way", ["checkout", "bare", "address"])
def test_status_lists_what_another_commit_has_otherwise(way: str, newer: Project) -> None:
    source: str | Path = newer.upstream
    if way == "bare":
        source = newer.folder.parent / "bare.git"
        git(newer.folder.parent, "clone", "--quiet", "--bare", str(newer.upstream), str(source))
    elif way == "address":
        source = newer.upstream.as_uri()
    done = newer.prep("vendor", "status", "--against", "newer", "--from", source)
    assert done.returncode == 0, done.stderr
    commit = git(newer.upstream, "rev-parse", "HEAD")
    assert done.stdout.splitlines()[1:] == [
        f"changed  {FIRST}",
        "added    cosmos_framework/scripts/new.py",
        "removed  cosmos_framework/data/stats.json",
        f"{commit}: 1 changed, 1 added, 1 removed (added: new files beside locked ones)",
    ]
    assert newer.is_empty()


def test_the_locked_commit_has_nothing_otherwise(newer: Project) -> None:
    done = newer.prep("vendor", "status", "--against", newer.commit)
    assert done.returncode == 0, done.stderr
    assert ": 0 changed, 0 added, 0 removed" in done.stdout


def test_a_commit_that_is_not_there_is_refused(project: Project, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for revision, source in (
        ("absent", project.upstream),
        ("absent", project.upstream.as_uri()),
        ("-x", project.upstream),
        ("HEAD", tmp_path / "empty"),
    ):
        told(project.prep("vendor", "status", f"--against={revision}", "--from", source), 2)
    told(project.prep("vendor", "status", "--from", project.upstream), 2)


def test_a_server_that_cannot_be_reached_may_be_tried_again(project: Project) -> None:
    address = "http://127.0.0.1:9/upstream.git"
    message = told(project.prep("vendor", "status", "--against", "main", "--from", address), 3)
    assert "could not be reached" in message
    assert address in message
