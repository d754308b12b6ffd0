"""How the embedded first run tells its steps, runs each as a user would, and judges what came of it."""

from __future__ import annotations

import io
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import click

from prep.errors import IncompleteError, PrepError
from prep.files import write_whole
from prep.manifest import Manifest

__all__ = ["Steps", "reasons"]

_ALL = ""  # a pattern that every line has
_CONTINUED = " " * 6  # how a line begins that goes on with the one above it
_REMEDY = "Run `prep demo` in an empty folder; if it ends like this there too, it is a fault of prep."


class Steps:
    """Numbered steps on stdout. A step that does not give what it should ends the demo by an error.

    All that the commands print goes into files in `log`, one a step; shown are the lines that matter.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._number = 0

    def tell(self, title: str, why: str = "") -> None:
        """Begin a step: its number and title, and below it what is worth knowing beforehand."""
        self._number += 1
        click.secho(f"\n{self._number}. {title}", bold=True)
        if why:
            click.echo(why)

    def run(self, *words: str | Path, shown: str = _ALL, status: int = 0, why: str = "") -> None:
        """Tell a command and run it, here, by the very words that are told.

        Shown are the lines with a match of the pattern `shown`. Raises what the command raises, PrepError
        where it ends with another status than `status`, and IncompleteError where it was asked to stop.
        """
        line = shlex.join(["prep", *map(str, words)])
        self.tell(line, why)
        before = signal.getsignal(signal.SIGINT)
        with self._noted(shown) as judge:
            found = _status([str(word) for word in words])
            # A command that is told to stop finishes what it has in hand, perhaps all of it, and keeps
            # the signals: by that it is known here.
            if signal.getsignal(signal.SIGINT) is not before:
                raise IncompleteError("Stopped as asked.", remedy="Run the same command again to go on.")
            judge(f"the status of {line}", found, status)

    def run_python(self, program: str, *words: str | Path, why: str) -> None:
        """Tell a Python program and run it, in a process of its own; raises PrepError if that fails."""
        arguments = ["-c", program, *map(str, words)]
        self.tell(shlex.join(["python", *arguments]), why)
        with self._noted(_ALL) as judge:
            judge("the status of that process", _child(arguments), 0)

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Raise PrepError, with both, where `found` is not `wanted`."""
        if found != wanted:
            raise PrepError(f"{what}: found {found}, expected {wanted}.", remedy=_REMEDY)

    @contextmanager
    def _noted(self, shown: str) -> Iterator[Callable[[str, object, object], None]]:
        """Note what is printed here, show the lines that match, or all of them where an error comes."""
        written = io.BytesIO()
        stream = io.TextIOWrapper(written, "utf-8", errors="backslashreplace", write_through=True)
        try:
            with redirect_stdout(stream), redirect_stderr(stream):
                yield self.expect
        except BaseException:
            click.echo(written.getvalue(), err=True, nl=False)
            raise
        finally:
            stream.flush()
        self._log.mkdir(parents=True, exist_ok=True)
        write_whole(self._log / f"step-{self._number:02d}.txt", written.getvalue())
        for line in _chosen(written.getvalue().decode().splitlines(), shown):
            click.echo(line)


def _chosen(lines: list[str], pattern: str) -> Iterator[str]:
    """The lines that match, each with those that go on with it."""
    chosen = False
    for line in lines:
        chosen = bool(re.search(pattern, line)) or (chosen and line.startswith(_CONTINUED))
        if chosen:
            yield line


def _status(words: list[str]) -> int:
    from prep.cli import cli

    try:
        status = cli.main(words, prog_name="prep", standalone_mode=False)
    except SystemExit as end:
        status = end.code
    return status if isinstance(status, int) else 0


def _child(arguments: list[str]) -> int:
    import subprocess

    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    click.echo(done.stdout, nl=False)
    return done.returncode


def reasons(directory: Path) -> dict[str, int]:
    """How many source records of a finished dataset are not in it, by reason."""
    manifest = Manifest.load(directory)
    return dict(Counter(row.reason for row in manifest.records() if row.reason)) if manifest else {}
