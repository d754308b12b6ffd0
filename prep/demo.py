"""The embedded first run: a small raw world, made here, prepared by the real stage over loopback.

Nothing is faked between source and dataset: the table is a real CSV in a Hub repository that
the real Hub client reads, the clips are encoded here and fetched as plain URLs, and some rows
are bad on purpose.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from prep import demo_robot
from prep.errors import UsageError
from prep.loopback import Fault, FaultKind, LoopbackHub
from prep.show import show
from prep.stages.options import Options, Result

__all__ = ["run"]

DEFAULT_FOLDER = "prep-demo"
_HOST = "https://videos.example/"
_SIZE = (160, 96)  # width, height in pixels
_RATE = 8
_FRAMES = 40
_COLUMNS = ("caption", "video_url", "sa", "pc", "joint", "", "upsampled_caption")
_MOVES = ("falls", "bounces", "slides", "turns", "rolls", "stops")
_SHAPES = ("A red square", "A green disc", "A blue bar")


_ON_PURPOSE = """\
Bad on purpose: two clips that are gone, a page in place of a clip, a score of 3.7, a caption that
is not UTF-8 and that nothing reads, and a test table that is shorter than the real one."""


def run(directory: Path | None) -> int:
    """Make the world in `directory` (default `prep-demo`), prepare, validate, show; the exit status."""
    folder = directory or Path(DEFAULT_FOLDER)
    _refuse_foreign(folder)
    with LoopbackHub() as hub, _environment(hub.endpoint, folder / "hub-cache"):
        _say(f"1. A raw world in {folder / 'raw'}, served on {hub.endpoint}")
        click.echo(_ON_PURPOSE, err=True)
        _serve(hub, folder / "raw")
        results = _prepare(hub, folder / "data")
    _say(f"3. prep validate {folder / 'data'}")
    status = _validate(folder / "data")
    _say(f"4. prep show {folder / 'data' / 'videophy2_val'} --png {folder / 'sample.png'}")
    click.echo(show(folder / "data" / "videophy2_val", 0, png=folder / "sample.png"))
    _say(f"5. prep env {folder / 'data'} --for videophy2_sft_nano")
    _env(folder / "data")
    status = demo_robot.run(folder) or status
    _say("The real thing: prep videophy2 --split val --limit 20")
    return status or max(result.exit_status for result in results)


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file.", remedy="Give an empty folder: `prep demo some/folder`.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "raw").is_dir():
        raise UsageError(f"{folder} is not empty.", remedy="Give an empty folder: `prep demo some/folder`.")


def _say(text: str) -> None:
    click.secho(f"\n{text}", bold=True, err=True)


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
            clip = raw / name
            if not clip.exists():
                clip.parent.mkdir(parents=True, exist_ok=True)
                _draw(clip, seed=number + 100 * (split == "test"))
            hub.add_file(name, clip)
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


def _draw(path: Path, *, seed: int) -> None:
    """Encode a clip of a shape that moves over a gradient."""
    import av
    import numpy as np

    width, height = _SIZE
    ground = np.linspace(40, 120, width, dtype=np.uint8)[None, :, None].repeat(height, 0).repeat(3, 2)
    with av.open(str(path), "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=_RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        # The same clip has the same bytes in every run: x264's macroblock tree, seen here, and its
        # threads make them depend on the process.
        stream.options = {"x264-params": "mbtree=0"}
        stream.codec_context.thread_count = 1
        for index in range(_FRAMES):
            image = ground.copy()
            side = 12 + seed % 9
            left = (seed * 5 + index * 3) % (width - side)
            top = abs((seed * 7 + index * 4) % (2 * (height - side)) - (height - side))
            image[top : top + side, left : left + side, seed % 3] = 255
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode())


def _prepare(hub: LoopbackHub, data: Path) -> list[Result]:
    from prep.cli_output import print_results
    from prep.preparation import prepare

    _say(f"2. prep videophy2 --out-root {data} --prompt builtin --min-coverage 0.7")
    options = Options(
        prompt="builtin",
        min_coverage=0.7,
        mirrors=((_HOST, f"{hub.endpoint}/files/"),),
        jobs=4,
        quiet=False,
    )
    results = prepare("videophy2", data, options=options)
    print_results(results, "text")
    return results


def _validate(data: Path) -> int:
    from prep.cli_output import print_report
    from prep.validation import validate

    report = validate(data)
    print_report(report, "text", None)
    return report.exit_status


def _env(data: Path) -> None:
    from prep.environment import env

    click.echo(env(data, consumer="videophy2_sft_nano").text("shell"))
