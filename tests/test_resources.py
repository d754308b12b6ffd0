"""The data folders are found in a checkout and in an installed wheel, and hold the same files."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Literal

import pytest

from prep.resources import data_folder

ROOT = Path(__file__).resolve().parents[1]
Kind = Literal["recipes", "schemas", "vendor"]
LOCK = "upstream.lock.json"


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def ask(package_root: Path, kind: str) -> subprocess.CompletedProcess[str]:
    """What the copy of the package under `package_root` answers, in a process of its own."""
    program = f"from prep.resources import data_folder\nprint(data_folder({kind!r}))"
    return run_python("-P", "-c", program, PYTHONPATH=str(package_root))


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, unpacked as an installer would."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run_python("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("cosmos_prep-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.parametrize("kind", ["recipes", "schemas", "vendor"])
def test_a_checkout_reads_the_top_level_folder(kind: Kind) -> None:
    assert data_folder(kind) == ROOT / kind


def test_a_wheel_reads_the_folder_it_carries(unpacked: Path) -> None:
    answer = ask(unpacked, "vendor")

    assert answer.stdout.strip() == str(unpacked / "prep" / "_data" / "vendor"), answer.stderr


@pytest.mark.parametrize("kind", ["recipes", "schemas"])
def test_a_wheel_carries_every_file_of_the_folder(unpacked: Path, kind: Kind) -> None:
    assert files_below(unpacked / "prep" / "_data" / kind) == files_below(ROOT / kind)


def test_a_wheel_carries_of_vendor_only_the_lock(unpacked: Path) -> None:
    assert files_below(unpacked / "prep" / "_data" / "vendor") == {
        LOCK: (ROOT / "vendor" / LOCK).read_bytes()
    }


@pytest.mark.parametrize("name", ["catalogue.toml", "py.typed"])
def test_a_wheel_carries_the_data_inside_the_package(unpacked: Path, name: str) -> None:
    assert (unpacked / "prep" / name).read_bytes() == (ROOT / "prep" / name).read_bytes()


def test_a_wheel_holds_nothing_outside_the_package(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"} == {"prep"}


def test_a_damaged_installation_says_so(tmp_path: Path) -> None:
    (tmp_path / "prep").mkdir()
    for name in ["__init__.py", "errors.py", "resources.py"]:
        source = ROOT / "prep" / name
        text = "" if name == "__init__.py" else source.read_text(encoding="utf-8")
        (tmp_path / "prep" / name).write_text(text, encoding="utf-8")

    answer = ask(tmp_path, "recipes")

    assert answer.returncode == 1
    assert "EnvironmentLacksError: The installation is incomplete" in answer.stderr
