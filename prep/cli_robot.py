"""The robot half of the `prep` command: droid, libero, lerobot, windows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from prep.cli_group import Group
from prep.cli_options import (
    format_option,
    quiet_option,
    wait_option,
    with_options,
)
from prep.cli_size import ByteSize
from prep.errors import UsageError

if TYPE_CHECKING:
    from prep.stages.options import RobotOptions
    from prep.window_lists import Found

__all__ = ["droid", "lerobot", "libero", "windows"]

Command = TypeVar("Command", bound=Callable[..., Any])

_SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")

_OPTIONS = (
    click.option("--out-root", default="data", show_default=True, help="Where the datasets are made."),
    click.option("--root", type=click.Path(path_type=Path), help="A local tree: linked, never written to."),
    click.option("--copy", is_flag=True, help="Copy the tree in place of linking it."),
    click.option("--chunk-length", type=click.IntRange(min=1), help="Actions of a window."),
    click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help="Training ranks."),
    click.option(
        "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Loader workers a rank."
    ),
    click.option("--metadata-only", is_flag=True, help="From the Hub, fetch only meta/."),
    click.option(
        "--max-download",
        type=ByteSize(),
        default="50GB",
        show_default=True,
        help="Stop beyond so many bytes.",
    ),
    click.option("--ignore", multiple=True, help="Codes of findings to accept."),
    click.option("--dry-run", is_flag=True, help="Say what would be made; write nothing."),
    click.option("--offline", is_flag=True, help="Open no connection."),
    click.option("--update", is_flag=True, help="Allow changes to a finished dataset or index."),
    wait_option,
    click.option("--jobs", type=click.IntRange(1, 256), default=16, show_default=True, help="At a time."),
    quiet_option,
    format_option,
)


_robot_options = with_options(*_OPTIONS)


@click.command(cls=Group.command_class)
@click.option("--keep-ranges", help="A filter file, or hub for the published one.")
@click.option("--source-prefix", help="The prefix of the filter's keys (or DROID_FILTER_SOURCE_PREFIX).")
@click.option("--include", help="From the Hub: success, failure, or one institution.")
@click.option(
    "--recipe",
    type=click.Choice(["droid_policy", "droid_forward_dynamics"]),
    default="droid_policy",
    show_default=True,
)
@_robot_options
def droid(recipe: str, **values: Any) -> None:
    """Link or fetch DROID and index its training windows.

    \b
    Example: prep droid --keep-ranges keep_ranges.json --root /data/Cosmos3-DROID
             prep droid --keep-ranges hub --metadata-only
    """
    _prepare(recipe, "all", values)


@click.command(cls=Group.command_class)
@click.option(
    "--suite",
    type=click.Choice([*_SUITES, "all"]),
    default="libero_10",
    show_default=True,
    help="One suite, or all four.",
)
@_robot_options
def libero(suite: str, **values: Any) -> None:
    """Link or fetch LIBERO and index its training windows.

    \b
    Example: prep libero --suite libero_10 --root /data/LIBERO_LeRobot_v3
    """
    _prepare("libero_10" if suite == "libero_10" else "libero_all", suite, values)


@click.command(cls=Group.command_class)
@click.option(
    "--recipe", default="lerobot", show_default=True, help="A recipe of robot data, such as MINE.toml."
)
@_robot_options
def lerobot(recipe: str, **values: Any) -> None:
    """Index the windows of any LeRobot v3.0 tree.

    \b
    Example: prep lerobot --root /data/my_robot --chunk-length 16
    """
    _prepare(recipe, "all", values)


def _prepare(recipe: str, datasets: str, values: dict[str, Any]) -> None:
    from prep.cli_output import print_results
    from prep.pool import interruptible
    from prep.robots import prepare_robots
    from prep.stages.options import overall_status

    with interruptible() as cancel:
        options = _options({**values, "cancel": cancel})
        results = prepare_robots(recipe, values["out_root"], datasets=datasets, options=options)
    print_results(results, values["output"])
    sys.exit(overall_status(results))


def _options(values: dict[str, Any]) -> RobotOptions:
    from prep.stages.options import RobotOptions

    known = RobotOptions.__dataclass_fields__
    ignored = tuple(code.strip().upper() for text in values["ignore"] for code in text.split(","))
    return RobotOptions(
        **{name: value for name, value in values.items() if name in known} | {"ignore": ignored}
    )


@click.command(cls=Group.command_class)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--index", "name", help="Which index, by the beginning of its file's name.")
@click.option("--at", type=int, multiple=True, help="Name the window at this flat index.")
@click.option("--episode", help="List the windows of EPISODE, or ROOT:EPISODE.")
@click.option("--id", "identity", multiple=True, help="Find the window ROOT:EPISODE:FRAME.")
@click.option("--export", type=click.Path(path_type=Path), help="Write the windows as a list by identity.")
@click.option("--exclude", type=click.Path(path_type=Path), help="Leave out the windows of such a list.")
@click.option("--hold-out", type=click.IntRange(min=1), help="Draw so many windows.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Which are drawn."
)
@format_option
def windows(directory: Path, name: str | None, **values: Any) -> None:
    """Look windows up in an index, by flat index, episode or identity, and make lists of them.

    \b
    Example: prep windows data/droid_plus_lerobot_640x360_20260412 --index droid_policy-train --at 12345
             prep windows data/droid_plus_lerobot_640x360_20260412 --episode success:31450
             prep windows data/LIBERO_LeRobot_v3/libero_10 --hold-out 500 --export held_out.parquet
    """
    from prep.stages.robot_report import counted
    from prep.window_lists import open_index

    found = open_index(directory, name)
    answers = [
        *_at(found, values["at"]),
        *_located(found, values["identity"]),
        *_episode(found, values["episode"]),
    ]
    exported = _export(found, values)
    if values["output"] == "json":
        facts = {"index": found.path.name, "windows": len(found.index), "exported": exported}
        click.echo(json.dumps({**facts, "answers": answers}, indent=2))
    else:
        for answer in answers:
            click.echo("  ".join(f"{key} {value}" for key, value in answer.items()))
    said = "" if exported is None else f"; {counted(exported, 'window')} written to {values['export']}"
    spans = counted(len(found.index.spans["length"]), "span")
    click.echo(f"{found.path.name}: {counted(len(found.index), 'window')} in {spans}{said}", err=True)


def _at(found: Found, places: tuple[int, ...]) -> list[dict[str, Any]]:
    answers = []
    for place in places:
        try:
            window = found.index.resolve(place)
        except IndexError as error:
            last = len(found.index) - 1
            remedy = f"Give 0 to {last}." if last >= 0 else "This index is empty; name another with --index."
            raise UsageError(f"{error}.", remedy=remedy) from error
        answers.append(
            {"index": place, **_named(found, window.identity), "row": window.row, "span": window.span}
        )
    return answers


def _named(found: Found, identity: tuple[int, int, int]) -> dict[str, Any]:
    root, episode, frame = identity
    return {"root": found.roots[root] or "0", "episode": episode, "frame": frame}


def _located(found: Found, texts: tuple[str, ...]) -> list[dict[str, Any]]:
    from prep.window_lists import parse_identity

    answers = []
    for text in texts:
        identity = parse_identity(text, found.roots)
        try:
            place = found.index.index_of(identity)
        except KeyError as error:
            raise UsageError(
                f"{error.args[0]}.", remedy="--episode lists the windows of an episode."
            ) from error
        answers.append({"index": place, **_named(found, identity)})
    return answers


def _episode(found: Found, text: str | None) -> list[dict[str, Any]]:
    from prep.window_lists import episode_spans, parse_episode

    if text is None:
        return []
    root, episode = parse_episode(text, found.roots)
    spans = list(episode_spans(found, root, episode))
    if not spans:
        raise UsageError(
            f"{found.path.name} has no window of episode {text}.",
            remedy="It is of another split, shorter than a window, or the filter drops it.",
        )
    return [{"root": found.roots[root] or "0", "episode": episode, **span} for span in spans]


def _export(found: Found, values: dict[str, Any]) -> int | None:
    """Write the list that is asked for, and say how many windows it has; None if none is asked for."""
    import numpy as np

    from prep.window_lists import exclude, hold_out, write_list

    if values["export"] is None:
        if values["exclude"] or values["hold_out"]:
            raise UsageError(
                "--exclude and --hold-out make a list.", remedy="Say where with --export ids.parquet."
            )
        return None
    left = exclude(found, values["exclude"]) if values["exclude"] else np.arange(len(found.index))
    if values["hold_out"]:
        left = left[hold_out(values["hold_out"], len(left), values["seed"])]
    write_list(found, left, values["export"])
    return len(left)
