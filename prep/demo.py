"""The embedded first run: a small raw world, made here, and a dataset of each kind prepared from it.

Nothing is faked between source and dataset: each step is a command, run as a user types it. Tables
and parquet are in Hub repositories that the real Hub client reads over loopback, clips are encoded
here and fetched as plain URLs, and some rows are bad on purpose.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from prep import demo_reasoning, demo_robot, demo_sft, demo_snapshot
from prep.demo_clips import draw_clip
from prep.demo_steps import Steps, reasons
from prep.errors import UsageError
from prep.loopback import Fault, FaultKind, LoopbackHub

__all__ = ["run"]

DEFAULT_FOLDER = "prep-demo"
_HOST = "https://videos.example/"
_FRAMES = 40
_COLUMNS = ("caption", "video_url", "sa", "pc", "joint", "", "upsampled_caption")
_MOVES = ("falls", "bounces", "slides", "turns", "rolls", "stops")
_SHAPES = ("A red square", "A green disc", "A blue bar")

_RESULT = r"^\w|^  (status|rows|kept|training reads|dataset id|warning|failed row)"
_VERDICT = r"^(ERROR|WARNING|\d+ errors)|^\S+: \S+@"

_ON_PURPOSE = """\
Bad on purpose: two clips that are gone, a page in place of a clip, a score of 3.7, a caption that
is not UTF-8 and that nothing reads, and a test table that is shorter than the real one."""


def run(directory: Path | None) -> int:
    """Make the world in `directory` (default `prep-demo`), prepare, validate, show; the exit status.

    Raises PrepError and its kin where a step does not end as it should.
    """
    folder = directory or Path(DEFAULT_FOLDER)
    _refuse_foreign(folder)
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    steps = Steps(folder / "log")
    click.echo(f"Shown are the lines that matter; all that the commands print is in {folder / 'log'}.")
    with LoopbackHub() as hub, _environment(hub.endpoint, folder / "hub-cache"):
        _conversations(steps, hub, folder)
        demo_robot.run(steps, folder)
        demo_sft.run(steps, folder)
        demo_snapshot.run(steps, hub, folder)
        demo_reasoning.run(steps, folder)
    steps.run("validate", folder / "data", shown=_VERDICT, why="All that was made, in one go.")
    click.secho("\nThe real thing: prep videophy2 --split val --limit 20", bold=True)
    return 0


def _conversations(steps: Steps, hub: LoopbackHub, folder: Path) -> None:
    raw, data = folder / "raw", folder / "data"
    steps.tell(f"A raw world in {raw}, served on {hub.endpoint}, where HF_ENDPOINT points", _ON_PURPOSE)
    _serve(hub, raw)
    given = ("--prompt", "builtin", "--min-coverage", "0.7", "--mirror", f"{_HOST}={hub.endpoint}/files/")
    steps.run("videophy2", *given, "--out-root", data, shown=_RESULT)
    bad = {"http_404": 1, "not_media": 1, "not_an_integer": 1}
    steps.expect("rows of train that are left out", reasons(data / "videophy2_train"), bad)
    sample = folder / "sample.png"
    steps.run("show", data / "videophy2_val", "--png", sample, shown="^(sample|video_0|assistant|frames)")
    steps.run("env", data, "--for", "videophy2_sft_nano", shown="^export")


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file.", remedy="Give an empty folder: `prep demo some/folder`.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "raw").is_dir():
        raise UsageError(f"{folder} is not empty.", remedy="Give an empty folder: `prep demo some/folder`.")


@contextmanager
def _environment(endpoint: str, cache: Path) -> Iterator[None]:
    """Point the Hub's client at the loopback server, and put everything back afterwards."""
    changed = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache.absolute()), "HF_HUB_DISABLE_TELEMETRY": "1"}
    before = {name: os.environ.get(name) for name in (*changed, "HF_HUB_OFFLINE", "HF_TOKEN")}
    os.environ.update(changed)
    os.environ.pop("HF_HUB_OFFLINE", None)
    os.environ.pop("HF_TOKEN", None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(hub: LoopbackHub, raw: Path) -> None:
    for split, count in (("train", 12), ("test", 6)):
        rows = []
        for number in range(count):
            name = f"{split}/{_SHAPES[number % 3]}, it {_MOVES[number % 6]}; take {number}.mp4".replace(
                " ", "_"
            )
            draw_clip(raw / name, seed=number + 100 * (split == "test"), frames=_FRAMES)
            hub.add_file(name, raw / name)
            rows.append(_row(name, number))
        table = _table(rows, damage=split == "train")
        (raw / f"{split}.csv").write_bytes(table)
        names = {"train": "videophy2_training.csv", "test": "videophy2_test.csv"}
        hub.add_repo(f"videophysics/videophy2_{split}", {names[split]: table})
    hub.faults.set("take_3.mp4", Fault(FaultKind.NOT_FOUND))
    hub.faults.set("take_7.mp4", Fault(FaultKind.HTML))
    hub.faults.set("take_5.mp4", Fault(FaultKind.UNAVAILABLE, retry_after=0), times=1)


def _row(name: str, number: int) -> list[str]:
    caption = f"{_SHAPES[number % 3]} {_MOVES[number % 6]}."
    plausibility = 1 + number * 7 % 5
    agreement = 1 + number * 3 % 5
    both = int(plausibility >= 4 and agreement >= 4)
    told = f"In an empty room, {caption[0].lower()}{caption[1:]} “Nothing else moves.”"
    return [caption, _HOST + name, str(agreement), str(plausibility), str(both), "", told]


def _table(rows: list[list[str]], *, damage: bool) -> bytes:
    if damage:
        rows[8][3] = "3.7"  # a score that is not a whole number
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    writer.writerows(rows)
    data = text.getvalue().encode()
    # One row's caption in another encoding: bytes that are not UTF-8 in a column that is not used.
    return data.replace("“Nothing".encode(), b"\x93Nothing", 1) if damage else data
