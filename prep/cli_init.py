"""The command that writes a first recipe for data of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from prep.cli_group import ExistingPath, Group

__all__ = ["init"]


@click.command(cls=Group.command_class)
@click.argument("source", type=ExistingPath())
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Where the recipe is written."
)
@click.option("--update", is_flag=True, help="Replace files that are there.")
@click.option("--dry-run", is_flag=True, help="Print the recipe on stdout; write nothing.")
def init(source: Path, output: Path | None, update: bool, dry_run: bool) -> None:
    """Look at a folder or a table, and write a recipe with what can be guessed.

    \b
    Example: prep init clips/
             prep init rows.csv --output my.toml
    """
    from prep.init import init as write

    made = write(source, output=output, update=update, dry_run=dry_run)
    if dry_run:
        click.echo(made.text, nl=False)
    else:
        click.echo(f"{made.recipe}: a recipe of the kind {made.kind}, each guess with its reason.", err=True)
    for table in made.tables:
        click.echo(f"{table}: the table that it names.", err=True)
    for remark in made.remarks:
        click.echo(f"note: {remark}", err=True)
    if not dry_run:
        click.echo(f"next: {made.command}", err=True)
