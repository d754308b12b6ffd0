"""The command for video reasoning, under both of its names: video-reasoning and daft."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from prep.cli_group import Group
from prep.cli_options import (
    format_option,
    quiet_option,
    update_option,
    wait_option,
    with_options,
)

if TYPE_CHECKING:
    from prep.stages.reasoning_options import Asked, ReasoningOptions

__all__ = ["daft", "video_reasoning"]

Command = TypeVar("Command", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_SPLITS = ("train", "val")


def _split_options(split: str) -> tuple[Callable[[Any], Any], ...]:
    start = f"COSMOS_VIDEO_{split.upper()}"
    default = "hybrid" if split == "train" else "answer"
    return (
        click.option(
            f"--{split}",
            f"{split}_annotations",
            type=_PATH,
            multiple=True,
            metavar="FILE",
            help=f"An annotation file ({start}_ANNOTATIONS); several are concatenated.",
        ),
        click.option(
            f"--{split}-media-root",
            f"{split}_media_roots",
            type=_PATH,
            multiple=True,
            metavar="DIR",
            help=f"Its media root, one for all files or one each ({start}_MEDIA_ROOTS).",
        ),
        click.option(
            f"--{split}-mode",
            type=click.Choice(["answer", "think", "hybrid"]),
            help=f"{start}_RESPONSE_MODE; the built-in recipe has {default}.",
        ),
        click.option(f"--{split}-stride", type=int, help=f"Every Nth raw item ({start}_SAMPLE_STRIDE)."),
        click.option(f"--{split}-offset", type=int, help=f"From this raw item ({start}_SAMPLE_OFFSET)."),
        click.option(f"--{split}-limit", type=int, help=f"At most so many samples ({start}_LIMIT)."),
        click.option(
            f"--{split}-system-prompt", metavar="TEXT", help="In place of --system-prompt, for this split."
        ),
    )


_OPTIONS = (
    click.option("--out-root", default="data", show_default=True, help="Where the datasets are made."),
    *_split_options("train"),
    *_split_options("val"),
    click.option(
        "--media-root",
        "media_roots",
        type=_PATH,
        multiple=True,
        metavar="DIR",
        help="The media root of both splits, where they have none of their own.",
    ),
    click.option(
        "--system-prompt",
        metavar="TEXT",
        help="A system message for both splits (COSMOS_VIDEO_SYSTEM_PROMPT).",
    ),
    click.option(
        "--media",
        type=click.Choice(["link", "copy", "reference"]),
        help="Link the media's folders, copy the files, or leave both where they are.  [default: link]",
    ),
    click.option(
        "--global-batch", type=click.IntRange(min=1), help="Samples of a step, for the count of steps."
    ),
    click.option(
        "--recipe",
        default="video_reasoning",
        show_default=True,
        help="A recipe of this kind, such as MINE.toml.",
    ),
    click.option("--ignore", multiple=True, help="Codes of findings to accept."),
    click.option("--dry-run", is_flag=True, help="Say what would be made; write nothing."),
    update_option,
    wait_option,
    click.option(
        "--jobs", type=click.IntRange(1, 256), default=16, show_default=True, help="Files copied at a time."
    ),
    quiet_option,
    format_option,
)


_reasoning_options = with_options(*_OPTIONS)


@click.command("video-reasoning", cls=Group.command_class)
@_reasoning_options
def video_reasoning(recipe: str, **values: Any) -> None:
    """Check annotation files of questions about videos, and lay them out for training.

    \b
    Example: prep video-reasoning --train bcq.json --train mcq.json --val val.json --media-root videos/
             prep video-reasoning --train bcq.json --train-stride 2 --train-limit 100 --global-batch 32
    """
    _prepare(recipe, values)


@click.command("daft", cls=Group.command_class)
@_reasoning_options
def daft(recipe: str, **values: Any) -> None:
    """The same as video-reasoning, by the name of the annotations' format.

    \b
    Example: prep daft --train bcq.json --val val.json --media-root videos/ --media copy
    """
    _prepare(recipe, values)


def _prepare(recipe: str, values: dict[str, Any]) -> None:
    from prep.cli_output import print_results
    from prep.pool import interruptible
    from prep.reasoning import prepare_video_reasoning
    from prep.stages.options import overall_status

    with interruptible() as cancel:
        options = _options({**values, "cancel": cancel})
        results = prepare_video_reasoning(recipe, values["out_root"], options=options)
    print_results(results, values["output"])
    sys.exit(overall_status(results))


def _options(values: dict[str, Any]) -> ReasoningOptions:
    from prep.stages.reasoning_options import ReasoningOptions

    plain = ("media_roots", "media", "global_batch", "dry_run", "update", "wait", "jobs", "quiet", "cancel")
    ignored = tuple(code.strip().upper() for text in values["ignore"] for code in text.split(","))
    return ReasoningOptions(
        **{name: values[name] for name in plain},
        asked={split: _asked(split, values) for split in _SPLITS},
        ignore=ignored,
    )


def _asked(split: str, values: dict[str, Any]) -> Asked:
    from prep.stages.reasoning_options import Asked

    prompt = values[f"{split}_system_prompt"]
    return Asked(
        annotations=values[f"{split}_annotations"],
        media_roots=values[f"{split}_media_roots"],
        mode=values[f"{split}_mode"],
        stride=values[f"{split}_stride"],
        offset=values[f"{split}_offset"],
        limit=values[f"{split}_limit"],
        system_prompt=values["system_prompt"] if prompt is None else prompt,
    )
