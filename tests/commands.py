"""The `prep` command in tests: run as a child process, and its lines parsed without being run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from prep.cli import cli

__all__ = ["PROJECT", "check_line", "leaves", "prep", "prep_lines", "told"]

PROJECT = Path(__file__).resolve().parents[1]


def prep(
    *arguments: str | Path, cwd: Path | str = "/", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with nothing of this machine's Hub."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PREP_"))}
    return subprocess.run(
        [sys.executable, "-m", "prep", *map(str, arguments)],
        env={**kept, "PYTHONPATH": str(PROJECT), "COLUMNS": "80", **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str], status: int) -> str:
    """What a failed command says: one sentence and the next step, no traceback; both as one text."""
    assert done.returncode == status, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("prep: "), done.stderr
    assert lines[1].startswith("      "), done.stderr
    return done.stderr


def leaves(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its name as it is typed after `prep`."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def prep_lines(text: str) -> list[str]:
    """The `prep …` commands in a page: those of its indented blocks, and those between backticks."""
    block = r"^ {4,}(?:\$ |eval \"\$\()?(prep [^\n)>|]*)"
    inline = r"`(prep [^`\n]*)`"
    found = re.findall(f"(?m){block}|{inline}", text)
    return [
        (first or second).strip() for first, second in found if not (first or second).startswith("prep: ")
    ]


def check_line(line: str) -> None:
    """Raise click.UsageError where a line's command, options or values are not the command's."""
    words = shlex.split(line, comments=True)
    assert words[0] == "prep", line
    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group):
        if not rest or rest[0].startswith("-"):
            break
        if rest[0] not in command.commands:
            raise click.UsageError(f"{line}: no command {rest[0]!r}")
        command = command.commands[rest.pop(0)]
    context = click.Context(command)
    values, left, _ = command.make_parser(context).parse_args(rest)
    if left:
        raise click.UsageError(f"{line}: too many arguments {left}")
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if isinstance(parameter.type, click.Choice | click.IntRange | click.FloatRange) and value is not None:
            parameter.type_cast_value(context, value)
        if parameter.required and not value:
            raise click.UsageError(f"{line}: lacks {parameter.name}")
