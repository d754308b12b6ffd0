"""The `prep` command: each subcommand parses, calls the library, and prints.

Exit status: 0 done and clean, 1 findings or failures for good, 2 wrong usage or a change without
--update, 3 incomplete or held by another run (run again), 4 something of the environment lacks.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from prep import __version__
from prep.cli_audit import audit_loader
from prep.cli_diff import diff
from prep.cli_group import ExistingPath, Group, Settings
from prep.cli_init import init
from prep.cli_options import adopt_options, format_option, options_from, prepare_options, quiet_option
from prep.cli_reasoning import daft, video_reasoning
from prep.cli_robot import droid, lerobot, libero, windows
from prep.cli_sft import bridge, sft
from prep.cli_snapshot import llava_ov
from prep.errors import PrepError

__all__ = ["cli", "main"]


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="prep")
def cli() -> None:
    """Turn public datasets into the layouts that training reads, and prove them.

    \b
    Example: prep videophy2 --out-root data/ --split both
             prep validate data/
             prep env data/ --for videophy2_sft_nano
    """


@cli.command()
@prepare_options
def videophy2(**values: Any) -> None:
    """Prepare VideoPhy-2: videos scored for physical plausibility.

    \b
    Example: prep videophy2 --split val --limit 20
             prep videophy2 --mirror https://dead.host/=https://mirror.host/
    """
    _prepare("videophy2", values)


@cli.command()
@click.argument("recipe")
@prepare_options
@click.option(
    "--on-bad-image",
    type=click.Choice(["fail", "drop"]),
    help="Images: what becomes of a row that would end training.  [default: fail]",
)
@click.option("--ignore", multiple=True, metavar="CODE", help="Robot data, reasoning: findings to accept.")
def prepare(recipe: str, **values: Any) -> None:
    """Prepare a dataset by a recipe of your own, of any kind.

    \b
    Example: prep prepare my.toml --out-root data/
    """
    _prepare(recipe, values)


for command in (
    bridge, sft, llava_ov, video_reasoning, daft, droid, libero, lerobot, windows, init, diff, audit_loader,
):  # fmt: skip
    cli.add_command(command)


def _prepare(recipe: str, values: dict[str, Any]) -> None:
    from prep import preparation as run
    from prep.cli_output import print_results
    from prep.dispatch import with_kind_options
    from prep.pool import interruptible
    from prep.recipe import load_recipe
    from prep.stages.options import overall_status

    chosen = load_recipe(recipe)
    given = {"on_bad_image": values.get("on_bad_image"), "ignore": _codes(values.get("ignore", ()))}
    with interruptible() as cancel:
        options = with_kind_options(chosen, options_from({**values, "cancel": cancel}), given)
        results = run.prepare(chosen, values["out_root"], split=values["split"], options=options)
    print_results(results, values["output"])
    sys.exit(overall_status(results))


@cli.command()
@click.argument("directory", type=ExistingPath())
@click.option("--recipe", help="Recipe of the tree, when its directory has another name.")
@click.option("--split", help="Split of the tree, with --recipe.")
@adopt_options
def adopt(directory: Path, recipe: str | None, split: str | None, **values: Any) -> None:
    """Take over a tree that another tool made: check it and mend it.

    \b
    Example: prep adopt data/videophy2_train
    """
    from prep import preparation as run
    from prep.cli_output import print_results
    from prep.pool import interruptible

    with interruptible() as cancel:
        options = options_from({**values, "cancel": cancel})
        result, _ = run.adopt(directory, recipe=recipe, split=split, options=options)
    print_results([result], values["output"])
    sys.exit(result.exit_status)


@cli.command()
@click.argument("path", type=ExistingPath(), default="data")
@click.option(
    "--level",
    type=click.Choice(["quick", "standard", "deep"]),
    default="standard",
    show_default=True,
    help="quick: manifest, records, sizes. standard: and a decoded frame of each video. deep: and all bytes.",
)
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
    help="The report's form.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report to a file as well.",
)
@click.option("--select", multiple=True, help="Only these codes (or their first letters); commas join.")
@click.option("--ignore", multiple=True, help="Not these codes.")
@click.option("--sample", type=click.IntRange(min=1), help="Decode only N videos of each dataset.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which N videos.")
@click.option(
    "--envelope", type=click.Choice(["cosmos-reason-v1.0"]), help="Records are wrapped in this form."
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), help="Files checked at a time; else as many as CPUs, at most 8."
)
@quiet_option
def validate(
    path: Path,
    output: str,
    report: Path | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    **values: Any,
) -> None:
    """Find what is wrong with a dataset, several, or one file of one.

    \b
    Example: prep validate data/ --level quick
             prep validate data/videophy2_val --format junit --report report.xml
    """
    from prep.cli_output import print_report
    from prep.validation import validate as check

    found = check(path, select=_codes(select), ignore=_codes(ignore), **values)
    print_report(found, output, report)
    sys.exit(found.exit_status)


def _codes(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(code.strip().upper() for text in given for code in text.split(",") if code.strip())


@cli.command()
@click.argument("path", type=ExistingPath(), default="data")
@click.option("--for", "consumer", help="The upstream recipe that will train on it.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["shell", "dotenv", "json"]),
    default="shell",
    show_default=True,
    help="export lines, a dotenv file, or JSON with the remarks.",
)
def env(path: Path, consumer: str | None, output: str) -> None:
    """Print the environment variables that training reads.

    \b
    Example: eval "$(prep env data/ --for videophy2_sft_nano)"
    """
    from prep.environment import env as collect

    # Bytes, so that a path that is not UTF-8 comes out as it is.
    click.echo(os.fsencode(collect(path, consumer=consumer).text(output)))


@cli.command()
@click.argument("directory", type=ExistingPath())
@format_option
def failures(directory: Path, output: str) -> None:
    """List the rows that failed, with their reasons.

    \b
    Example: prep failures data/videophy2_train
    """
    from prep import preparation as run
    from prep.cli_output import print_failures

    of, rows = run.failures(directory)
    print_failures(directory, of, rows, output)


@cli.command()
@click.argument("directory", type=ExistingPath())
@click.option("--index", type=click.IntRange(min=0), default=0, show_default=True, help="Which one, from 0.")
@click.option("--png", type=click.Path(path_type=Path), help="Write the frames that training takes.")
def show(directory: Path, index: int, png: Path | None) -> None:
    """Show one sample: its text, and its frames as a picture.

    \b
    Example: prep show data/videophy2_val --index 7 --png sample.png
    """
    from prep.show import show as sample

    click.echo(sample(directory, index, png=png))


@cli.command()
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Explain a finding's code, or list all codes or those with the same letters.

    \b
    Example: prep explain VID003
             prep explain VID
    """
    from shutil import get_terminal_size

    from prep.findings import explain as text
    from prep.findings import listing

    click.echo(listing() if code is None else text(code, width=get_terminal_size().columns), nl=False)


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path), default="data")
@format_option
def doctor(directory: Path, output: str) -> None:
    """Say what this machine and a directory have of what prep needs.

    \b
    Example: prep doctor /scratch/data
    """
    from prep.cli_output import print_checks
    from prep.doctor import examine

    checks = examine(directory)
    print_checks(checks, output)
    sys.exit(0 if all(check.good for check in checks if check.needed) else 4)


@cli.group(cls=Group)
def vendor() -> None:
    """Get and check the files of upstream that prep reads."""


@vendor.command()
@click.option("--from", "source", required=True, help="A git URL, a checkout, or a bare repository.")
def sync(source: str) -> None:
    """Fill the vendor folder, refusing any file that differs.

    \b
    Example: prep vendor sync --from ../cosmos-framework
    """
    from prep.upstream.checkout import sync as fill

    folder, count = fill(source)
    click.echo(f"Files of upstream put into {folder}, each as the lock says: {count}.", err=True)


@vendor.command()
def verify() -> None:
    """Hash what is there again, and compare it with the lock.

    \b
    Example: prep vendor verify
    """
    from prep.upstream.checkout import verify as check

    click.echo(f"Files of upstream that are here and as the lock says: {check()}.", err=True)


@vendor.command()
@click.option("--against", metavar="REV", help="List what this commit, branch or tag has otherwise.")
@click.option("--from", "source", help="With --against: a git URL, a checkout, or a bare repository.")
def status(against: str | None, source: str | None) -> None:
    """Say which commit is locked and where its files are, or how another commit differs.

    \b
    Example: prep vendor status
             prep vendor status --against main --from ../cosmos-framework
    """
    from prep.upstream.checkout import load_lock, local_copy
    from prep.upstream.drift import drift

    lock = load_lock()
    click.echo(f"{lock.repository} at {lock.commit} ({lock.license})")
    if against is not None:
        found = drift(against, source)
        for line in found.lines():
            click.echo(line)
        return
    if source is not None:
        raise click.UsageError("--from needs --against here.")
    for entry in lock.files:
        click.echo(f"{entry.path}  {local_copy(lock, entry.path) or 'not here'}")


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
def demo(directory: Path | None) -> None:
    """Make a small raw world, prepare it for real, and look at it.

    \b
    Example: prep demo
             prep demo some/empty/folder
    """
    from prep.demo import run

    sys.exit(run(directory))


def main() -> None:
    """Run the command; a user's mistake ends in one sentence and the next step, not in a traceback."""
    settings = Settings()
    # Until a run takes both signals over. Not KeyboardInterrupt: raised inside an exec, as dataclasses use
    # while they are imported, it makes Python end by SIGINT whatever is caught later.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        status = cli.main(prog_name="prep", standalone_mode=False, obj=settings)
    except PrepError as error:
        _end(settings, error, error.message, error.remedy, error.exit_status)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "prep"
        _end(settings, error, error.format_message(), f"See `{command} --help`.", 2)
    except (click.Abort, KeyboardInterrupt, _Stopped) as error:
        _end(settings, error, "Stopped.", "Run the same command again to go on.", 3)
    except OSError as error:
        # A disk or a permission that no part of the library expected; the user can mend it and go on.
        where = f"{error.filename}: " if error.filename is not None else ""
        _end(
            settings,
            error,
            f"{where}{error.strerror or error}.",
            "Mend it and run the same command again.",
            3,
        )
    else:
        sys.exit(status or 0)


class _Stopped(BaseException):
    """A signal that came before a run had taken the signals over."""


def _stop(_number: int, _frame: object) -> NoReturn:
    raise _Stopped


def _end(settings: Settings, error: BaseException, message: str, remedy: str, status: int) -> NoReturn:
    """Say what is wrong and what to do; with --debug the traceback comes first."""
    if settings.debug:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    click.echo(f"prep: {message}", err=True)
    if remedy:
        click.echo(f"      {remedy}", err=True)
    sys.exit(status)
