"""`prep audit-loader`: what the loader would deliver of a prepared dataset, proved without decoding."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from prep.cli_group import ExistingPath
from prep.cli_options import format_option
from prep.errors import UsageError

if TYPE_CHECKING:
    from prep.audit import Audit
    from prep.audit_streams import Layout

__all__ = ["audit_loader", "print_audit"]

_LAYOUT = re.compile(r"([1-9][0-9]{0,5})x([0-9]{1,4})")


@click.command("audit-loader")
@click.argument("directory", type=ExistingPath())
@click.option("--ranks", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Ranks of data.")
@click.option(
    "--workers", type=click.IntRange(0, 1024), default=0, show_default=True, help="Workers of each rank."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the epochs' orders.")
@click.option("--epochs", type=click.IntRange(min=1), default=2, show_default=True, help="Epochs of the run.")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=1, show_default=True, help="Of each stream."
)
@click.option(
    "--spans/--no-spans",
    default=True,
    show_default=True,
    help="Robot data: deal out whole spans.",
)
@click.option("--index", metavar="NAME", help="Window index of robot data, where there are several.")
@click.option(
    "--on-uneven",
    type=click.Choice(["pad", "drop", "error"]),
    default="pad",
    show_default=True,
    help="What makes streams of one length.",
)
@click.option(
    "--resume-points",
    type=click.IntRange(min=0),
    metavar="N",
    help="Resume at N drawn batches and around the borders; else at all, where there are few.",
)
@click.option(
    "--reshard-to",
    multiple=True,
    metavar="RxW",
    help="Resume with so many ranks and workers; else with a worker more, twice the ranks, one rank.",
)
@format_option
def audit_loader(directory: Path, reshard_to: tuple[str, ...], output: str, **values: Any) -> None:
    """Prove that epochs are covered once, ranks end together, and resumes are exact; status 1 if not.

    \b
    Example: prep audit-loader data/videophy2_train --ranks 4 --workers 2
    """
    from prep.audit import audit
    from prep.dataflow.base import LoaderError

    try:
        found = audit(directory, reshard_to=[_layout(text) for text in reshard_to], **values)
    except LoaderError as error:
        raise LoaderError(error.message, remedy=_typed(error.remedy)) from error
    if output == "json":
        click.echo(json.dumps(found.as_dict(), indent=2))
    print_audit(found)
    sys.exit(found.exit_status)


def _typed(remedy: str) -> str:
    """A remedy that names the loader's argument, as this command takes it."""
    if "on_uneven=" not in remedy:
        return remedy
    return remedy.replace("on_uneven=", "--on-uneven ").replace('"', "")


def _layout(text: str) -> Layout:
    from prep.audit_streams import Layout

    match = _LAYOUT.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--reshard-to {text!r} is not RANKSxWORKERS.", remedy="Write it as --reshard-to 8x2."
        )
    return Layout(int(match[1]), max(int(match[2]), 1))


def print_audit(found: Audit) -> None:
    """A table on stderr, and a line for each thing that does not hold."""
    facts = _facts(found)
    width = max(len(name) for name, _ in facts)
    click.echo(click.style(found.subject, bold=True), err=True)
    for name, value in facts:
        click.echo(f"  {name:<{width}}  {value}", err=True)
    for problem in found.problems:
        click.echo(f"  error {problem.check}: {problem.message}", err=True)
    more = found.findings.count - len(found.problems)
    if more:
        click.echo(f"  … and {more} more", err=True)
    click.echo(f"  {_verdict(found)}", err=True)


def _verdict(found: Audit) -> str:
    from prep.progress import counted

    if found.findings.count:
        return counted(found.findings.count, "thing") + " wrong"
    return "all proved" + " of what was checked" * bool(found.not_checked or found.findings.refused)


def _facts(found: Audit) -> list[tuple[str, str]]:
    from prep.progress import counted, seconds_text

    spans = f" in {counted(found.spans, 'span')}" if found.spans is not None else ""
    dealt = f"{counted(found.layout.ranks, 'rank')}, {counted(found.layout.workers, 'worker')} each"
    facts = [("samples", f"{found.samples}{spans}"), ("streams", f"{found.layout.streams} ({dealt})")]
    for cover in found.covers:
        least, most = min(cover.own), max(cover.own)
        a_rank = f"{least} to {most}" if least != most else f"{least}"
        noun = "sample" if most == 1 == least else "samples"
        text = f"{a_rank} {noun} a rank, {cover.padding} padding, {cover.dropped} dropped"
        facts.append((f"epoch {cover.epoch}", text))
    facts += [("covered once", _yes(found.covered_once)), ("ranks end together", _yes(found.end_together))]
    if found.batches is not None:
        followed = f"{found.followed} {'batch' if found.followed == 1 else 'batches'}"
        targets = ", ".join(map(str, found.targets)) or "no other layout"
        facts += [
            ("batches a rank", f"{found.batches} of {found.batch_size}"),
            (
                "resumed",
                f"at {counted(found.resumed, 'point')}, {followed} compared after each",
            ),
            ("dealt anew", f"at {counted(found.resharded, 'point')}, to {targets}"),
        ]
    how = "the whole run" if found.whole else "around the points, positions between computed"
    facts.append(("walked", f"{counted(found.findings.samples, 'sample')} through the engine: {how}"))
    planned = ": first, middle and last of each span, the others counted up" if found.counted_up else ""
    facts.append(("planned", f"{counted(found.findings.positions, 'position')}{planned}"))
    facts += [("refused", why) for why in found.findings.refused.values()]
    facts += [("not checked", what) for what in found.not_checked]
    return [*facts, ("time", seconds_text(found.seconds))]


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"
