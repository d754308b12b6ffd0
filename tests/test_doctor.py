"""`prep doctor`: what the machine has and what a directory's file system can do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prep.doctor import Check, examine
from prep.loopback import Fault, FaultKind, LoopbackHub
from tests.commands import PROJECT, prep

LIMITED = Path("/proc")  # the one directory in which not even root makes a folder


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the real Hub unless it says so."""
    for name in [name for name in os.environ if name.startswith("HF_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def found(directory: Path, name: str) -> Check:
    (check,) = [check for check in examine(directory) if check.name == name]
    return check


def test_all_that_is_needed_is_here_and_every_lack_has_a_remedy(tmp_path: Path) -> None:
    checks = examine(tmp_path)
    assert [check.name for check in checks if check.needed and not check.good] == []
    assert all(check.remedy for check in checks if not check.good)
    assert len({check.name for check in checks}) == len(checks)
    names = {check.name for check in checks}
    assert {"av", "decoder h264", "rename over a file", "exclusive creation (the lock)", "hard link"} <= names


def test_the_trial_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    examine(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_directory_that_is_not_there_is_judged_by_its_nearest_folder_and_not_made(tmp_path: Path) -> None:
    checks = examine(tmp_path / "a" / "b")
    assert all(check.good for check in checks if check.needed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_directory_that_takes_no_folder_ends_with_4() -> None:
    done = prep("doctor", LIMITED)
    assert done.returncode == 4
    assert "LACK  write" in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory_is_a_lack(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    check = found(tmp_path, "write")
    tmp_path.chmod(0o755)
    assert not check.good
    assert "Permission" in check.found


def test_a_file_in_place_of_the_directory_is_a_lack(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not found(tmp_path / "file", "write").good


def test_a_current_folder_that_was_deleted_ends_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = (
        f"cd {tmp_path / 'gone'} && rmdir {tmp_path / 'gone'} && exec {sys.executable} -m prep doctor data"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (2, 3, 4)
    assert "Traceback" not in done.stderr


def test_a_hub_that_answers_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with LoopbackHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint + "/")
        check = found(tmp_path, "Hub")
        assert check.good
        assert hub.endpoint in check.found
        hub.faults.set("/api/datasets", Fault(FaultKind.UNAVAILABLE))
        check = found(tmp_path, "Hub")
        assert not check.good
        assert "503" in check.found


def test_a_hub_that_is_not_reached_is_told_and_is_no_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        check = found(tmp_path, "Hub")
    assert not check.good
    assert not check.needed
    assert "HF_ENDPOINT" in check.remedy


@pytest.mark.parametrize(
    "variables",
    [{"HF_ENDPOINT": "http://["}, {"HF_ENDPOINT": "huggingface.co"}, {"HTTPS_PROXY": "nonsense://a"}],
    ids=["no address", "no scheme", "no proxy"],
)
def test_an_address_or_proxy_that_means_nothing_is_told(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not found(tmp_path, "Hub").good


def test_the_json_is_the_checks(tmp_path: Path) -> None:
    done = prep("doctor", tmp_path, "--format", "json", env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0
    assert {"name", "found", "good", "needed", "remedy"} == set(json.loads(done.stdout)[0])
