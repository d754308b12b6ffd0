"""Writes docs/reference from the code: the commands from their definitions, the findings from the catalogue.

`make docs` runs it; tests/test_docs.py fails where the pages are not what it would write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from prep.cli import cli
from prep.findings import Code, catalogue

__all__ = ["REFERENCE", "pages"]

REFERENCE = Path(__file__).resolve().parent / "reference"
_NOTE = "<!-- Written by docs/generate.py (`make docs`): change the code, not this page. -->"
_SHARED = ("--verbose", "--debug")
_FAMILIES = {
    "FET": "Downloads",
    "FIL": "Files",
    "KEP": "Keep-ranges",
    "LAY": "Layout",
    "LER": "LeRobot",
    "MAN": "Manifest",
    "REA": "Video reasoning",
    "REC": "Records",
    "ROB": "Robot datasets",
    "RUL": "Checks themselves",
    "SFT": "SFT records and windows",
    "SNP": "Snapshots",
    "TAB": "Source tables",
    "TXT": "Text and JSON",
    "VID": "Video",
}


def pages() -> dict[str, str]:
    """Each page of the reference by its file name."""
    return {"cli.md": "\n".join(_commands_page()) + "\n", "findings.md": "\n".join(_findings_page()) + "\n"}


def _commands_page() -> Iterator[str]:
    yield from ("# Commands", "", _NOTE, "")
    yield "Every command also takes `-v` (log what is done, on stderr), `--debug` (log more, and show the"
    yield "traceback of an error) and `--help`."
    yield ""
    yield "| status | meaning |"
    yield "|---|---|"
    yield "| 0 | done, and clean |"
    yield "| 1 | findings of severity error, or rows that failed for good |"
    yield "| 2 | wrong usage, or a run that would change a finished dataset without `--update` |"
    yield "| 3 | incomplete, or held by another run: the same command goes on |"
    yield "| 4 | something of the environment lacks; the message says which, and what to run |"
    for name, command in _leaves(cli, "prep"):
        yield from ("", f"## {name}", "", *_command(name, command))


def _leaves(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _command(name: str, command: click.Command) -> Iterator[str]:
    first, _, examples = (command.help or "").partition("\n\n")
    yield first
    arguments = [item for item in command.params if isinstance(item, click.Argument)]
    options = [item for item in command.params if isinstance(item, click.Option)]
    words = [_argument(item) for item in arguments]
    yield from ("", f"    {' '.join([name, '[OPTIONS]', *words])}", "")
    for line in examples.splitlines():
        text = line.strip("\b ").removeprefix("Example:").strip()
        if text:
            yield f"    {text}"
    rows = [_row(item) for item in options if not set(item.opts) & set(_SHARED)]
    if rows:
        yield from ("", "| option | meaning | default |", "|---|---|---|", *rows)


def _argument(argument: click.Argument) -> str:
    word = (argument.name or "").upper()
    return word if argument.required else f"[{word}]"


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    kind = "" if option.is_flag else f" {_escaped(option.metavar or _kind(option.type))}"
    default = f"`{option.default}`" if option.show_default else ""
    repeated = " May be given several times." if option.multiple else ""
    return f"| {names}{kind} | {_escaped(option.help or '')}{repeated} | {default} |"


def _kind(kind: Any) -> str:
    if isinstance(kind, click.Choice):
        return "|".join(str(choice) for choice in kind.choices)
    numbers = {"integer range": "N", "integer": "N", "float range": "F", "float": "F"}
    return numbers.get(kind.name) or str(kind.name).upper()


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _findings_page() -> Iterator[str]:
    yield from ("# Findings", "", _NOTE, "")
    yield "What `prep validate` and the prepare commands report. A *defect* is wrong; a *risk* may be what"
    yield "you want. `prep explain CODE` prints one entry; `--select` and `--ignore` take codes or their"
    yield "first letters."
    for family, entries in groupby(catalogue().values(), lambda entry: entry.code[:3]):
        yield from ("", f"## {_FAMILIES.get(family, family)}")
        for entry in entries:
            yield from ("", *_finding(entry))


def _finding(entry: Code) -> Iterator[str]:
    yield f"### {entry.code} {_escaped(entry.title)}"
    yield ""
    yield f"{entry.severity.capitalize()}, {entry.claim}. {_text(entry.why)}"
    yield ""
    yield f"*Remedy:* {_text(entry.remedy)}"


def _text(text: str) -> str:
    return re.sub(r"<(\w+)>", r"`<\1>`", text)


def main() -> None:
    """Write the pages."""
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
