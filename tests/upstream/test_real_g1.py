"""The real G1 robot, whole: every row value, timestamp and frame is lerobot's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prep.upstream.adapters.requirements import LEROBOT
from tests.commands import PROJECT
from tests.robot_trees import run

ROWS, EPISODES, CAMERA = 765, 3, "observation.images.cam_high"

# lerobot reads frames one after another far faster than one by one, so an item here is a row with the
# frames of those behind it; it repeats an episode's last frame, and says so, where the episode ends.
PROGRAM = """
import json, sys
from collections import Counter
from pathlib import Path
import numpy as np
from prep.manifest import Manifest
from prep.upstream.adapters.lerobot import our_side
from lerobot.datasets.lerobot_dataset import LeRobotDataset

directory, camera, block = sys.argv[1], sys.argv[2], 24
ours = our_side(Manifest.load(Path(directory))).reader
theirs = LeRobotDataset("local/g1", root=directory, delta_timestamps={camera: [k / 30 for k in range(block)]})
same, episodes = Counter(), set()
frames = None
for row in range(len(ours)):
    mine = ours[row]
    if frames is None or not len(frames):
        item = theirs[row]
        frames = item[camera][~item[camera + "_is_pad"]].numpy()
        same["task"] += item["task"] == mine["task"]
        same["blocks"] += 1
    frame, frames = frames[0], frames[1:]
    same[camera] += np.array_equal(mine[camera].astype(np.float32) / np.float32(255), frame)
    for name, value in theirs.hf_dataset[row].items():
        value, own = value.numpy(), np.asarray(mine[name])
        same[name] += (value.dtype, value.shape, value.tobytes()) == (own.dtype, own.shape, own.tobytes())
    episodes.add(int(mine["episode_index"]))
print(json.dumps({"ours": len(ours), "theirs": len(theirs), "episodes": len(episodes), "same": same}))
"""


@pytest.fixture
def lerobot_decodes() -> None:
    missing = [name for name in LEROBOT if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"lerobot needs {', '.join(missing)}")
    try:
        import torchcodec
    except (ImportError, RuntimeError, OSError) as error:  # its libraries fail in each of these ways
        pytest.skip(f"lerobot decodes by torchcodec: {str(error).strip().partition(chr(10))[0]}")
    if getattr(torchcodec, "ffmpeg_major_version", 0) is None:  # since 0.17 it is imported all the same
        pytest.skip("lerobot decodes by torchcodec, which finds no FFmpeg here")


@pytest.mark.slow
@pytest.mark.usefixtures("lerobot_decodes")
def test_every_row_and_every_frame_is_lerobots(real_data: Path, tmp_path: Path) -> None:
    """In a process of its own: lerobot keeps decoders open, and its table's cache is named at import."""
    made = run(tmp_path / "out", "lerobot", root=real_data / "g1_lerobot_v30_converted").root
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(made), CAMERA],
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["ours"], found["theirs"], found["episodes"]) == (ROWS, ROWS, EPISODES)
    same = found["same"]
    assert same.pop("task") == same.pop("blocks")
    columns = (
        "observation.state",
        "action",
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    )
    assert same == dict.fromkeys((*columns, CAMERA), ROWS)
