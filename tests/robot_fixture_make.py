"""Write `tests/fixtures/robot_windows` anew. Not a test, and not run by any.

    python -m tests.robot_fixture_make trees     the trees, where PyAV has libx264
    python -m tests.robot_fixture_make facts     what upstream gives for them, where upstream runs

Encoders give other bytes from version to version, so the trees are committed. The facts are of those
files: after new trees come new facts.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.robot_fixture import (
    CASES,
    FACTS,
    FIXTURE,
    Case,
    conversion,
    digest,
    file_digests,
    packed,
    prepare_fixture,
)
from tests.robots import DROID, LIBERO, Shape, edit_table, make_root, video_path

_PREFIX = "gs://xembodiment_data/r2d2/r2d2-data-full"


@dataclass(frozen=True)
class Coding:
    """How a camera is encoded: pictures from key frame to key frame, of them in both directions, quality."""

    group: int
    both_ways: int = 0
    quality: int = 34


# 18 episodes, of which the permutation puts 6 first: the one of the split val. Most are too short for a
# window, which keeps the files small.
_SUCCESS = {6: 40, 15: 36, 14: 33, 7: 44, 8: 34, 3: 39, 0: 70}
_SUCCESS_LENGTHS = tuple(_SUCCESS.get(number, 2 + number % 2) for number in range(18))
_FAILURE_LENGTHS = (30, 21, 3, 25)
# What the filter keeps of an episode; 0 stands for its length. All others lose their first frame.
_CUTS: Mapping[tuple[str, int], Sequence[tuple[int, int]]] = {
    ("success", 0): ((-2, 36), (37, 75)),
    ("success", 8): (),
    ("failure", 0): ((-2, 11), (12, 35)),
}
_CODINGS = (Coding(2), Coding(12), Coding(8, both_ways=2))

_DROID = replace(
    DROID,
    size=(640, 360),
    row_group=17,
    tasks=("open it | open the drawer | pull", " |  | ", "close it"),
    lengths=_SUCCESS_LENGTHS,
    packing=((7, 11), (1, 8, 9), (10, 8)),
    data_files=(8, 10),
    meta_files=(10, 8),
)
_FAILURE = replace(
    _DROID, lengths=_FAILURE_LENGTHS, packing=((4,), (2, 2), (1, 3)), data_files=(3, 1), meta_files=(4,)
)
_LIBERO = replace(
    LIBERO,
    size=(256, 256),
    row_group=11,
    lengths=(22, 30, 19, 26),
    packing=((2, 2), (4,)),
    data_files=(1, 2, 1),
    meta_files=(4,),
    tasks=("put it | put the bowl on the plate", " |  | ", " lift "),
)
_SMALL = replace(
    _LIBERO, size=(128, 128), lengths=(18, 24), packing=((2,), (1, 1)), data_files=(2,), meta_files=(2,)
)


def write_trees() -> None:
    """All trees, and the filter that splits and cuts episodes."""
    for name in ("droid", "libero", "libero_128"):
        shutil.rmtree(FIXTURE / name, ignore_errors=True)
    ranges: dict[str, list[list[int]]] = {}
    for place, (kind, shape) in enumerate((("success", _DROID), ("failure", _FAILURE))):
        root = _tree(FIXTURE / "droid" / kind, shape, place)
        names = [f"LAB/{kind}/2023-01-{1 + at:02d}/run_{at}" for at in range(len(shape.lengths))]
        for path in (root / "meta/episodes").rglob("*.parquet"):
            edit_table(path, lambda table, names=names: _named(table, names))
        for at, (name, length) in enumerate(zip(names, shape.lengths, strict=True)):
            cut = _CUTS.get((kind, at), ((1, 0),))
            key = f"{_PREFIX}/{name}/recordings/MP4--{_PREFIX}/{name}/trajectory.h5"
            if cut:
                ranges[key] = [[first, end or length] for first, end in cut]
    (FIXTURE / "keep_ranges.json").write_text(json.dumps(ranges, indent=1) + "\n")
    _tree(FIXTURE / "libero", _LIBERO, 2)
    _tree(FIXTURE / "libero_128", _SMALL, 3)


def _tree(root: Path, shape: Shape, seed: int) -> Path:
    make_root(root, replace(shape, size=(32, 32)))
    _stand_still(root)
    info = root / "meta/info.json"
    document = json.loads(info.read_text())
    for place, camera in enumerate(shape.cameras):
        document["features"][camera]["shape"] = [shape.size[1], shape.size[0], 3]
        first = 0
        for file, count in enumerate(shape.packing[place]):
            pictures = [
                picture((seed, episode, place), frame, shape.size)
                for episode in range(first, first + count)
                for frame in range(shape.lengths[episode])
            ]
            encode(video_path(root, camera, file), pictures, shape.fps, _CODINGS[place])
            first += count
    info.write_text(json.dumps(document, indent=1) + "\n")
    return root


@cache
def _scene(identity: tuple[int, int, int], size: tuple[int, int]) -> Any:
    """A still scene as int16 [H, W, 3]: a slope of two colours, and patches with sharp edges."""
    width, height = size
    drawn = np.random.default_rng(identity)
    colours = drawn.integers(30, 200, (2, 3))
    slope = np.linspace(0, 1, width)[None, :, None] * np.linspace(0.4, 1, height)[:, None, None]
    scene = (colours[0] * (1 - slope) + colours[1] * slope).astype(np.int16)
    for _ in range(12):
        top, left = drawn.integers(0, height - 12), drawn.integers(0, width - 12)
        high, wide = drawn.integers(6, height // 4), drawn.integers(6, width // 4)
        scene[top : top + high, left : left + wide] = drawn.integers(10, 245, 3)
    for column in range(8, width // 3, 5):  # fine lines: what a resize does to them is easily told
        scene[height // 2 : height // 2 + height // 8, column : column + 2] = (235, 60, 90)
    return scene


def picture(identity: tuple[int, int, int], frame: int, size: tuple[int, int]) -> Any:
    """A frame uint8 [H, W, 3]: over the scene a block moves, and a bar tells the frame's number."""
    width, height = size
    shown = _scene(identity, size).copy()
    left, top = (13 * frame) % (width - 40), (9 * frame + 31 * identity[2]) % (height - 40)
    shown[top : top + 33, left : left + 37] = (250, 215, 40)
    shown[top + 10 : top + 21, left + 9 : left + 26] = (20, 40, 190)
    shown[:6, : 6 + (width // 64) * (frame % 60)] = (255, 255, 255)
    return shown.clip(0, 255).astype(np.uint8)


def encode(path: Path, pictures: Sequence[Any], fps: int, coding: Coding) -> None:
    """An H.264 file with the key frames that `coding` says."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=Fraction(fps))
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = coding.group
        stream.options = {"crf": str(coding.quality), "preset": "veryslow", "bf": str(coding.both_ways)}
        for shown in pictures:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        output.mux(stream.encode(None))


def _named(table: pa.Table, names: Sequence[str]) -> pa.Table:
    ids = pa.array([names[at] for at in table["episode_index"].to_pylist()])
    return table.set_column(table.column_names.index("episode_id"), "episode_id", ids)


def _stand_still(root: Path) -> None:
    """Every third run of eight frames the robot nearly stands; grippers lie between 0 and 1."""
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        groups = pq.ParquetFile(path).metadata.row_group(0).num_rows
        frames = table["frame_index"].to_numpy()
        still = np.flatnonzero((frames % 24 >= 8) & (frames % 24 < 16))
        for name in table.column_names:
            if not name.startswith(("action", "observation.state")):
                continue
            values = np.array(table[name].to_pylist(), np.float32)
            if name == "action":
                values[still, :6] *= np.float32(1e-4)
                values[:, 6] = np.round(np.abs(np.sin(frames // 12)))
            else:
                for row in still:
                    values[row] = values[row - 1]
            if "gripper" in name:
                values = np.clip(np.abs(values), 0, 1)
            column = pa.array(values if values.ndim == 1 else values.tolist())
            column = column.cast(table.schema.field(name).type)
            table = table.set_column(table.column_names.index(name), name, column)
        pq.write_table(table, path, row_group_size=groups)


def write_facts() -> None:
    """What upstream gives for each case, and what it was computed with."""
    import torch
    import torchcodec

    from prep.upstream.checkout import load_lock

    facts: dict[str, Any] = {
        "upstream": load_lock().commit,
        "made_with": {
            "torch": torch.__version__,
            "torchcodec": torchcodec.__version__,
            "torch_threads": 1,
            "torchcodec_ffmpeg": _system_ffmpeg(),
        },
        "conversion": conversion(),
        "files": file_digests(),
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        places = prepare_fixture(Path(folder))
        for name, case in CASES.items():
            facts["cases"][name] = _case_facts(case, places[case.dataset])
    FACTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _case_facts(case: Case, directory: Path) -> dict[str, Any]:
    from prep.manifest import Manifest
    from prep.readers.lerobot import LeRobotReader
    from prep.upstream.adapters.model_input import OurModelInputs
    from prep.upstream.adapters.robot import open_side

    manifest = Manifest.load(directory)
    assert manifest is not None
    ours = OurModelInputs(LeRobotReader(manifest, index=case.index, **case.options))
    inputs: Any = open_side(manifest, index=case.index, ours=ours).reader
    return {
        "length": len(inputs),
        "windows": {str(place): _facts(inputs.windows, place) for place in case.places},
        "models": {str(place): _facts(inputs, place) for place in case.models},
    }


def _facts(reader: Any, place: int) -> dict[str, Any]:
    sample: Mapping[str, Any] = reader.beside(place, {"instruction_candidates": (), "frame_seconds": ()})
    told: dict[str, Any] = {"identity": ":".join(map(str, reader.identity(place)))}
    for key, value in sample.items():
        is_small = isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size < 4096
        told[key] = packed(value) if is_small else digest(value)
    return told


def _system_ffmpeg() -> str:
    import subprocess

    done = subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[2]


if __name__ == "__main__":
    {"trees": write_trees, "facts": write_facts}[sys.argv[1]]()
