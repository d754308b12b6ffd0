"""The SFT half of the `prep` command: bridge and sft."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from prep.cli_group import Group
from prep.cli_options import (
    download_only_option,
    format_option,
    limit_option,
    offline_option,
    prune_option,
    quiet_option,
    refresh_option,
    update_option,
    wait_option,
    with_options,
)

__all__ = ["bridge", "sft"]

Command = TypeVar("Command", bound=Callable[..., Any])

_FOLDER = click.Path(path_type=Path)

_BUILD = (
    click.option("--from-captions", "captions", type=_FOLDER, help="A folder of <clip>/caption.{json,txt}."),
    click.option("--videos", type=_FOLDER, help="The folder of <clip>.mp4 and the like."),
    click.option("--from-curator", "curator", type=_FOLDER, help="A curator's output folder."),
    click.option("--name", metavar="NAME", help="The dataset's directory below the out-root."),
    click.option(
        "--val-fraction", type=click.FloatRange(0, 1, max_open=True), help="Share of clips to hold out."
    ),
    click.option("--seed", type=click.IntRange(min=0), help="Which sources are held out."),
    click.option("--group", metavar="REGEX", help="Its first group in a clip's name is the clip's source."),
    click.option("--caption-model", metavar="NAME", help="Take NAME_caption of a curator's windows."),
    click.option(
        "--enhanced-caption-model", metavar="NAME", help="Take NAME_enhanced_caption before any other."
    ),
    click.option(
        "--recipe", default="sft", show_default=True, help="A recipe of this kind, such as MINE.toml."
    ),
)

_COMMON = (
    click.option("--out-root", default="data", show_default=True, metavar="DIR", help="Where it is made."),
    click.option("--source", metavar="WHERE", help="A local tree, or owner/name[@revision]."),
    click.option(
        "--num-video-frames", type=click.IntRange(min=-1), help="The training recipe's frames; -1 for all."
    ),
    click.option(
        "--min-short-edge", type=click.IntRange(min=0), help="Leave out smaller pictures, in pixels."
    ),
    click.option(
        "--tokenizer", type=_FOLDER, help="Count captions over the token limit, by this tokenizer's folder."
    ),
    click.option("--align-prompts", is_flag=True, help="Set inference prompts to the structured captions."),
    limit_option,
    click.option(
        "--min-coverage",
        type=click.FloatRange(0, 1),
        default=1.0,
        show_default=True,
        help="Share of records that must be free of faults.",
    ),
    click.option("--jobs", type=click.IntRange(1, 256), default=16, show_default=True, help="At a time."),
    click.option("--reuse", type=_FOLDER, metavar="DIR", help="Link clips from another out-root or dataset."),
    click.option("--dry-run", is_flag=True, help="Say what would be made; write nothing."),
    download_only_option,
    offline_option,
    update_option,
    refresh_option,
    prune_option,
    click.option("--give-up", is_flag=True, help="Count files that cannot be had now as final failures."),
    wait_option,
    quiet_option,
    format_option,
)


@click.command(cls=Group.command_class)
@with_options(*_COMMON)
def bridge(**values: Any) -> None:
    """Prepare BridgeData2 with synthetic captions, for the generator's vision SFT.

    \b
    Example: prep bridge --out-root data/
             prep bridge --source /data/BridgeData2-Subset-Synthetic-Captions
    """
    _prepare("bridge", values)


@click.command(cls=Group.command_class)
@with_options(*_BUILD, *_COMMON)
def sft(recipe: str, **values: Any) -> None:
    """Prepare videos and captions of your own, for the generator's vision SFT.

    \b
    Example: prep sft --from-captions captions/ --videos videos/ --name my_clips --val-fraction 0.1
             prep sft --from-curator curator_output/ --name my_clips
    """
    _prepare(recipe, values)


def _prepare(recipe: str, values: dict[str, Any]) -> None:
    from prep.cli_output import print_results
    from prep.pool import interruptible
    from prep.sft import SftOptions, prepare_sft
    from prep.stages.options import overall_status

    known = SftOptions.__dataclass_fields__
    with interruptible() as cancel:
        given = {name: value for name, value in values.items() if name in known} | {"cancel": cancel}
        results = prepare_sft(recipe, values["out_root"], options=SftOptions(**given))
    print_results(results, values["output"])
    sys.exit(overall_status(results))
