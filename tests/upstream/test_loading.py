"""Which copy of upstream is imported, and what is said of it, in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import PROJECT

SOURCE = b'import os, sys\nprint("to stdout", file=sys.stdout)\nLEVEL = os.environ.get("LOGURU_LEVEL")\n'
FILES = {"cosmos_framework/__init__.py": b"", "cosmos_framework/data.py": SOURCE}

PROGRAM = """
import json, os, sys
from prep.errors import PrepError
from prep.upstream.checkout import installed_root
from prep.upstream.loading import import_upstream, locate_upstream
try:
    module, upstream = import_upstream("cosmos_framework.data")
except PrepError as error:
    print(json.dumps([type(error).__name__, str(error)]))
else:
    again = locate_upstream()
    told = {"file": module.__file__, "level": module.LEVEL, "again": again == upstream, "last": sys.path[-1]}
    told |= {"left": os.environ.get("LOGURU_LEVEL"), "own": installed_root() is None}
    print(json.dumps({**upstream.facts(), **told}))
"""


@pytest.fixture
def vendored(tmp_path: Path) -> Path:
    """The user's cache with a small package in upstream's place, and a lock of it."""
    folder = tmp_path / "cache" / "cosmos-prep" / "upstream" / ("a" * 40)
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def run(tmp_path: Path, *, installed: Path | None = None) -> tuple[object, str]:
    """What the program prints, in a copy of the project's package with a lock of the small package."""
    project = tmp_path / "project"
    if not project.exists():
        project.mkdir()
        (project / "prep").symlink_to(PROJECT / "prep")
        (project / "vendor").mkdir()
        entries = [
            {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in FILES.items()
        ]
        lock = {"repository": "https://example.org/up", "commit": "a" * 40, "license": "x", "raw_url": ""}
        (project / "vendor" / "upstream.lock.json").write_text(json.dumps({**lock, "files": entries}))
    patch = f"import pathlib, prep.resources as r\nr.PACKAGE = pathlib.Path({str(project)!r}) / 'prep'\n"
    places = [str(PROJECT), *([str(installed)] if installed else [])]
    done = subprocess.run(
        [sys.executable, "-c", patch + PROGRAM],
        env={
            **{name: value for name, value in os.environ.items() if name != "LOGURU_LEVEL"},
            "PYTHONPATH": os.pathsep.join(places),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_the_vendored_copy_is_appended_and_its_log_kept_off_stdout(tmp_path: Path, vendored: Path) -> None:
    told, err = run(tmp_path)
    assert isinstance(told, dict)
    assert told["file"] == str(vendored / "cosmos_framework" / "data.py")
    assert told["last"] == str(vendored)
    assert told["installed"] is False
    assert told["differing"] == []
    assert told["commit"] == "a" * 40
    assert str(vendored) in told["loaded"]
    assert told["again"]
    assert told["own"]
    assert (told["level"], told["left"]) == ("WARNING", None)
    assert "to stdout" in err


def test_an_installed_copy_wins_and_what_it_has_otherwise_is_told(tmp_path: Path, vendored: Path) -> None:
    for path, data in FILES.items():
        target = tmp_path / "site" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    same, _ = run(tmp_path, installed=tmp_path / "site")
    assert isinstance(same, dict)
    assert same["file"] == str(tmp_path / "site" / "cosmos_framework" / "data.py")
    assert (same["installed"], same["differing"]) == (True, [])
    (tmp_path / "site" / "cosmos_framework" / "data.py").write_bytes(SOURCE + b"# changed\n")
    other, _ = run(tmp_path, installed=tmp_path / "site")
    assert isinstance(other, dict)
    assert other["differing"] == ["cosmos_framework/data.py"]
    assert "1 of the locked files differ" in other["loaded"]


def test_a_changed_or_absent_file_of_the_vendored_copy_is_refused(tmp_path: Path, vendored: Path) -> None:
    (vendored / "cosmos_framework" / "data.py").write_bytes(SOURCE.upper())
    told, _ = run(tmp_path)
    assert isinstance(told, list)
    assert told[0] == "PrepError"
    assert "cosmos_framework/data.py" in told[1]
    (vendored / "cosmos_framework" / "data.py").unlink()
    told, _ = run(tmp_path)
    assert isinstance(told, list)
    assert told[0] == "EnvironmentLacksError"
    assert "prep vendor sync --from https://example.org/up" in told[1]


def test_a_package_that_upstream_misses_is_named(tmp_path: Path, vendored: Path) -> None:
    target = tmp_path / "site" / "cosmos_framework"
    target.mkdir(parents=True)
    (target / "__init__.py").write_text("import no_such_package\n")
    told, _ = run(tmp_path, installed=tmp_path / "site")
    assert isinstance(told, list)
    assert told[0] == "EnvironmentLacksError"
    assert "no_such_package" in told[1]
