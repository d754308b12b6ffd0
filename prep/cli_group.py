"""How every command of `prep` behaves: shared flags, near names, quiet pipes, paths that must be there."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from prep.errors import UsageError

__all__ = ["ExistingPath", "Group", "Settings"]


@dataclass(slots=True)
class Settings:
    """What the flags that every command knows have set."""

    debug: bool = False


def _flag(names: list[str], help_text: str, action: Callable[[click.Context], None]) -> click.Option:
    def callback(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            action(ctx)

    # Eager, so that --debug holds for the errors of the other arguments.
    return click.Option(
        names, is_flag=True, is_eager=True, expose_value=False, callback=callback, help=help_text
    )


def _shared_flags() -> list[click.Option]:
    return [
        _flag(["-v", "--verbose"], "Log what is done, on stderr.", _log),
        _flag(["--debug"], "Log more, and show the traceback of an error.", _debug),
    ]


def _log(_ctx: click.Context) -> None:
    from prep.log import show

    show("INFO")


def _debug(ctx: click.Context) -> None:
    from prep.log import show

    ctx.ensure_object(Settings).debug = True
    show("DEBUG")


class Group(click.Group):
    """Lists commands in the order in which a user meets them, and suggests near names.

    Each command takes the shared flags, so that they may stand before and after its name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_shared_flags())

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """As click does, with the shared flags."""
        if not isinstance(cmd, Group):
            cmd.params.extend(_shared_flags())
        super().add_command(cmd, name)

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The names, in the order of definition."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but no arguments at all are wrong usage that is answered with the help."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a near name where this version of click suggests none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            said = error.format_message()
            close = difflib.get_close_matches(args[0], self.commands, n=1)
            if not close or "Did you mean" in said:
                raise
            raise click.UsageError(f"{said} Did you mean {close[0]!r}?", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but a reader of stdout that has gone, as with `| head`, is no failure."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)


class ExistingPath(click.Path):
    """A path that must be there; UsageError names one that is nearly so spelt."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, _parameter: click.Parameter | None, _ctx: click.Context | None) -> Path:
        """The path; raises UsageError if there is nothing."""
        path = Path(value)
        try:
            if path.exists():
                return path
            near = _near(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}.", remedy="Give another path.") from error
        raise UsageError(
            f"There is nothing at {path}.",
            remedy=f"Did you mean {near}?" if near else "Give the directory of a dataset.",
        )


def _near(path: Path) -> Path | None:
    missing, rest = path, Path()
    while missing.parent != missing and not missing.parent.exists():
        missing, rest = missing.parent, missing.name / rest
    if not missing.parent.is_dir():
        return None
    names = [child.name for child in missing.parent.iterdir()]
    for close in difflib.get_close_matches(missing.name, names):
        candidate = missing.parent / close / rest
        if candidate.exists():
            return candidate
    return None
