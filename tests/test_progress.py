"""Progress: a bar on a terminal, plain lines elsewhere, nothing where nothing is to be said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from prep.progress import bytes_text, plain_line, progress, seconds_text
from tests.commands import PROJECT

PROGRAM = """
import time
from prep.progress import progress
with progress("videos", 20) as bar:
    for number in range(20):
        bar.received(50_000)
        bar.advance()
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_999, "1.0 MB"),
        (2.5e9, "2.5 GB"),
        (3e15, "3000.0 TB"),
    ],
)
def test_sizes_are_in_decimal_units(size: float, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.4, "59.4 s"),
        (59.9, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_times_are_for_people(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_plain_line_says_how_far_how_fast_and_how_long() -> None:
    assert plain_line("videos", 500, 2000, 25_000_000, 50) == (
        "videos: 500/2000 (25%), 25.0 MB, 10.0/s, 2 min 30 s to go"
    )
    assert plain_line("videos", 0, 2000, 0, 0).endswith("0.0/s, unknown time to go")


@pytest.mark.parametrize(("total", "quiet"), [(0, False), (5, True)])
def test_nothing_is_said_where_nothing_is_to_do_or_silence_is_asked(
    total: int, quiet: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("videos", total, quiet=quiet) as bar:
        bar.advance()
        bar.received(1)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_a_short_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("videos", 3) as bar:
        for _ in range(3):
            bar.advance()
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_a_line_comes_when_it_is_due(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prep.progress.PLAIN_SECONDS", 0.0)
    with progress("videos", 2) as bar:
        bar.received(1000)
        bar.advance()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("videos: 1/2 (50%), 1.0 kB, ")
    assert said.err.count("\n") == 1


def test_bytes_of_many_threads_add_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prep.progress.PLAIN_SECONDS", 0.0)
    with progress("videos", 1) as bar:

        def receive() -> None:
            for _ in range(1000):
                bar.received(1000)

        threads = [threading.Thread(target=receive) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bar.advance()
    assert ", 8.0 MB, " in capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_on_a_terminal_the_bar_is_one_line_however_narrow(columns: int, tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "TERM": "xterm", "COLUMNS": str(columns)}
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stderr=theirs, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:
        pass  # how Linux says that the child has closed the terminal
    os.close(ours)
    assert child.wait(timeout=60) == 0
    text = shown.decode()
    assert "videos" in text
    assert "20/20" in text
    assert "1.0 MB" in text
    assert text.count("\n") == 1
