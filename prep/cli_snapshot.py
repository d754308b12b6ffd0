"""The snapshot half of the `prep` command: llava-ov."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prep.cli_group import Group
from prep.cli_options import (
    download_only_option,
    format_option,
    quiet_option,
    refresh_option,
    update_option,
    wait_option,
)
from prep.cli_size import ByteSize

if TYPE_CHECKING:
    from prep.snapshots import ListedSubset

__all__ = ["llava_ov"]

_LIST = "list"


@click.command("llava-ov", cls=Group.command_class)
@click.option("--subset", multiple=True, help="Which subsets (may be repeated), or list to see them all.")
@click.option("--out-root", default="data", show_default=True, help="Where the datasets are made.")
@click.option("--split", default="all", show_default=True, help="train, or all that the recipe has.")
@click.option(
    "--recipe", default="llava_ov", show_default=True, help="A recipe of this kind, such as MINE.toml."
)
@click.option("--source", help="owner/name[@revision], a local copy, or a parquet file.")
@click.option("--limit", type=click.IntRange(min=1), help="The first N source rows.")
@click.option("--max-samples", type=click.IntRange(min=1), help="The first N rows that are kept.")
@click.option(
    "--on-bad-image",
    type=click.Choice(["fail", "drop"]),
    default="fail",
    show_default=True,
    help="A row that would end training: publish nothing, or leave it out and count it.",
)
@click.option(
    "--hub-layout", is_flag=True, help="Write what load_dataset opens by name, in place of a snapshot."
)
@click.option(
    "--shard-size",
    "shard_bytes",
    type=ByteSize(),
    default="256MB",
    show_default=True,
    help="Payload of a shard.",
)
@click.option(
    "--reuse",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Link shards from another out-root or snapshot.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be fetched; write nothing.")
@download_only_option
@click.option("--offline", is_flag=True, help="Open no connection.")
@update_option
@refresh_option
@click.option("--prune", is_flag=True, help="Delete shards of former snapshots.")
@wait_option
@click.option("--jobs", type=click.IntRange(1, 256), default=16, show_default=True, help="Images at a time.")
@quiet_option
@format_option
def llava_ov(subset: tuple[str, ...], recipe: str, hub_layout: bool, **values: Any) -> None:
    """Prepare LLaVA-OneVision: images with conversations, one subset at a time.

    \b
    Example: prep llava-ov --subset list
             prep llava-ov --subset "ai2d(gpt4v)" --max-samples 4000
             prep llava-ov --subset "ai2d(gpt4v)" --hub-layout --on-bad-image drop
    """
    from prep.cli_output import print_results
    from prep.pool import interruptible
    from prep.snapshots import SnapshotOptions, list_subsets, prepare_snapshots
    from prep.stages.options import overall_status

    known = SnapshotOptions.__dataclass_fields__
    given = {name: value for name, value in values.items() if name in known}
    with interruptible() as cancel:
        options = SnapshotOptions(**given, form="hub" if hub_layout else "arrow", cancel=cancel)
        if subset == (_LIST,):
            _print_subsets(
                list(list_subsets(recipe, split=values["split"], options=options)), values["output"]
            )
            return
        results = prepare_snapshots(
            recipe, values["out_root"], subsets=subset, split=values["split"], options=options
        )
    print_results(results, values["output"])
    sys.exit(overall_status(results))


def _print_subsets(subsets: Sequence[ListedSubset], output: str) -> None:
    """A line for each subset, the largest figures right-aligned; a JSON array for machines."""
    from dataclasses import asdict

    from prep.progress import bytes_text, counted

    if output == "json":
        click.echo(json.dumps([asdict(subset) for subset in subsets], indent=2))
        return
    width = max((len(subset.name) for subset in subsets), default=0)
    for subset in subsets:
        rows = "" if subset.rows is None else counted(subset.rows, "row")
        files = counted(subset.files, "file")
        click.echo(f"{subset.name:<{width}}  {bytes_text(subset.bytes):>9}  {files:>9}  {rows:>13}".rstrip())
    total = bytes_text(sum(subset.bytes for subset in subsets))
    click.echo(f"{counted(len(subsets), 'subset')}, {total}; name one with --subset", err=True)
