"""Options that several subcommands share, and how their texts become values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from prep.errors import UsageError

if TYPE_CHECKING:
    from prep.stages.options import Options

__all__ = [
    "adopt_options",
    "download_only_option",
    "format_option",
    "limit_option",
    "offline_option",
    "options_from",
    "prepare_options",
    "prune_option",
    "quiet_option",
    "refresh_option",
    "update_option",
    "wait_option",
    "with_options",
]

Command = TypeVar("Command", bound=Callable[..., Any])

_MIRROR = re.compile(r"(.+?)=((?:https?|file)://.*|/.*)")
_SOURCE = re.compile(r"([A-Za-z0-9_-]+)=(.+)")

quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress.")
format_option = click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for programs on stdout.",
)

limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="The first N source records of each split."
)
download_only_option = click.option("--download-only", is_flag=True, help="Fetch and stop (login node).")
offline_option = click.option("--offline", is_flag=True, help="Open no connection (compute node).")
update_option = click.option("--update", is_flag=True, help="Allow changes to a finished dataset.")
refresh_option = click.option("--refresh", is_flag=True, help="Ask the Hub for a newer revision.")
prune_option = click.option("--prune", is_flag=True, help="Delete what the dataset no longer needs.")
wait_option = click.option("--wait", is_flag=True, help="Wait while another run holds the dataset.")

_PLACE = (
    click.option(
        "--out-root", default="data", show_default=True, metavar="DIR", help="Where the datasets are made."
    ),
    click.option(
        "--split", default="both", show_default=True, metavar="NAME", help="train, val (or test), or both."
    ),
    click.option(
        "--reuse", type=click.Path(path_type=Path), metavar="DIR", help="Link media from another out-root."
    ),
)

_SHAPE = (
    click.option(
        "--score-field", metavar="COLUMN", help="Column of the answers, in place of the recipe's first."
    ),
    click.option("--include-caption", is_flag=True, help="Append the caption to the question."),
    click.option("--caption-field", metavar="COLUMN", help="Caption column to try first."),
    click.option(
        "--prompt",
        default="auto",
        show_default=True,
        metavar="auto|builtin|FILE",
        help="The recipe's own text (upstream's), our own words, or a file's.",
    ),
    click.option(
        "--upstream", type=click.Path(path_type=Path), metavar="DIR", help="Read the text from this checkout."
    ),
    click.option(
        "--on-bad-bytes",
        type=click.Choice(["fail", "replace"]),
        default="fail",
        show_default=True,
        help="A row that is not UTF-8 in a used column: drop it, or replace the bytes.",
    ),
    limit_option,
    click.option(
        "--min-coverage",
        type=click.FloatRange(0, 1),
        default=1.0,
        show_default=True,
        help="Share of rows that must be kept, 0 to 1.",
    ),
)

_FETCH = (
    click.option(
        "--source",
        multiple=True,
        metavar="SPLIT=WHERE",
        help="owner/name, owner/name@revision, or a local folder; commas join several.",
    ),
    click.option(
        "--mirror",
        multiple=True,
        metavar="FROM=TO",
        help="Rewrite the start of media URLs; TO may be file://.",
    ),
    click.option(
        "--jobs", type=click.IntRange(1, 256), default=16, show_default=True, help="Files fetched at a time."
    ),
    click.option("--dry-run", is_flag=True, help="Say what would be fetched; write nothing."),
    download_only_option,
    offline_option,
    update_option,
    refresh_option,
    prune_option,
    click.option("--give-up", is_flag=True, help="Count clips that cannot be had now as final failures."),
    wait_option,
    click.option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=30.0,
        show_default=True,
        help="Seconds without a byte that make a stall.",
    ),
    quiet_option,
    format_option,
)


def prepare_options(command: Command) -> Command:
    """All options of a prepare run."""
    return with_options(*_PLACE, *_SHAPE, *_FETCH)(command)


def adopt_options(command: Command) -> Command:
    """The options of a prepare run that make sense for a tree that is there."""
    return with_options(*_SHAPE, *_FETCH)(command)


def with_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """A decorator that gives a command several options, in the order in which they are written."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def options_from(values: Mapping[str, Any]) -> Options:
    """The run's options from the parsed values; raises UsageError for a malformed --source or --mirror."""
    from prep.stages.options import Options

    plain = {
        name: values[name]
        for name in Options.__dataclass_fields__
        if name in values and name not in ("sources", "mirrors")
    }
    return Options(
        **plain,
        sources=dict(_source(text) for given in values.get("source", ()) for text in _parts(given)),
        mirrors=tuple(_mirror(text) for text in values.get("mirror", ())),
    )


def _parts(given: str) -> list[str]:
    """Cut at commas that begin another SPLIT=, so that a path may hold a comma."""
    return re.split(r",(?=[A-Za-z0-9_-]+=)", given)


def _source(text: str) -> tuple[str, str]:
    match = _SOURCE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--source {text!r} is not SPLIT=WHERE.",
            remedy="Write it as --source val=owner/name@revision or --source train=some/folder.",
        )
    return match[1], match[2]


def _mirror(text: str) -> tuple[str, str]:
    match = _MIRROR.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--mirror {text!r} is not FROM=TO.",
            remedy="Write it as --mirror https://old.host/=https://new.host/ or --mirror https://=file:///mnt/copy/.",
        )
    to = Path(match[2]).as_uri() + "/" * match[2].endswith("/") if match[2].startswith("/") else match[2]
    return match[1], to
