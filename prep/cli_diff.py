"""`prep diff`: our reader beside a reference, field by field."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click

from prep.cli_group import ExistingPath
from prep.cli_options import format_option, quiet_option
from prep.errors import UsageError

__all__ = ["diff"]


@click.command()
@click.argument("directory", type=ExistingPath())
@click.option(
    "--reference",
    required=True,
    metavar="cosmos|lerobot|tao-daft|DIR",
    help="Upstream's own reader, lerobot's, nvidia-tao-daft's, or another prepared directory.",
)
@click.option(
    "--samples", type=click.IntRange(min=1), default=200, show_default=True, help="How many to compare."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which ones.")
@click.option("--fields", multiple=True, metavar="FIELD", help="Only these fields; commas join several.")
@click.option(
    "--atol", multiple=True, metavar="FIELD=VALUE", help="Greatest difference of a field's numbers; else 0."
)
@click.option("--index", metavar="NAME", help="Window index of robot data, where there are several.")
@click.option(
    "--model-input", is_flag=True, help="Compare what a model is given of robot windows, not the samples."
)
@click.option(
    "--png", type=click.Path(path_type=Path), help="Write the first pictures that differ, side by side."
)
@click.option(
    "--report", type=click.Path(path_type=Path, dir_okay=False), help="Write the report to a file as well."
)
@quiet_option
@format_option
def diff(
    directory: Path,
    fields: tuple[str, ...],
    atol: tuple[str, ...],
    report: Path | None,
    quiet: bool,
    output: str,
    **values: Any,
) -> None:
    """Compare samples with a reference, field by field; status 1 if any differs.

    \b
    Example: prep diff data/videophy2_val --reference cosmos --samples 50
             prep diff data/videophy2_val --reference other/videophy2_val --format json
    """
    from prep.comparison import diff as compare
    from prep.progress import progress

    with progress("comparing", values["samples"], quiet=quiet) as bar:
        found = compare(
            directory,
            fields=[name.strip() for given in fields for name in given.split(",") if name.strip()],
            atol=dict(_tolerance(text) for given in atol for text in given.split(",")),
            on_sample=bar.advance,
            **values,
        )
    _print(found, output, report)
    sys.exit(found.exit_status)


def _tolerance(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not name.strip() or not number >= 0:
        raise UsageError(
            f"--atol {text!r} is not FIELD=VALUE with a number of 0 or more.",
            remedy="Write it as --atol action=1e-6.",
        )
    return name.strip(), number


def _print(found: Any, output: str, report: Path | None) -> None:
    from prep.comparison_report import render_json, render_text
    from prep.files import disk_errors, write_whole

    text = render_json(found) if output == "json" else render_text(found)
    if report is not None:
        with disk_errors(report):
            report.parent.mkdir(parents=True, exist_ok=True)
            write_whole(report, text.encode("utf-8", errors="backslashreplace"))
    click.echo(text, nl=False)
