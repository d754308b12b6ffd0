"""The reader of robot windows against what upstream's own classes gave for the same files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import prep
from tests.robot_scenes import droid_scenes, libero_scenes, videos_digest

pytest.importorskip("scipy", reason="the robot readers' rotations are SciPy's (extra [robot])")

STEP = 7
"""Every seventh window is compared."""

# What DROIDLeRobotDataset, DROIDMergedLeRobotDataset and LIBEROLeRobotDataset (cosmos-framework 5eee9ed,
# lerobot 0.4.4, torch 2.14.1 on one thread, torchcodec 0.17 with FFmpeg 5.1; unmodified) gave for the
# datasets of tests/robot_scenes.py: windows, and the first 12 digits of `digest` by field.
VIDEOS = {"droid": "e49b291f684de21c", "libero": "c17d91cbb95bb57e", "libero128": "c8f534bf9be925b1"}
UPSTREAM: dict[str, tuple[int, dict[str, str]]] = {
    "ee_pose": (
        252,
        {
            "action": "2f9989cfb2ac",
            "candidates": "fd72235e9e48",
            "conditioning_fps": "2d2e0ddb763d",
            "domain_id": "966a806cc61e",
            "idle_frames": "a8f47d2c2557",
            "initial_pose": "9b5bd28f7ff0",
            "mode": "b855fe6be8fb",
            "video": "e426a63434e7",
            "viewpoint": "02db4d4d1cd8",
        },
    ),
    "ee_pose filtered": (
        194,
        {
            "action": "a06b1adccafb",
            "candidates": "caf9361f8f51",
            "conditioning_fps": "59d86ebdc56b",
            "domain_id": "ba07080ebfb3",
            "idle_frames": "3f29b0b02f7a",
            "initial_pose": "f3595b94e630",
            "mode": "c9dcd549a10b",
            "video": "d78e1f655f89",
            "viewpoint": "332a2a5a6a88",
        },
    ),
    "ee_pose state": (
        194,
        {
            "action": "53ec04bc44a5",
            "candidates": "caf9361f8f51",
            "conditioning_fps": "59d86ebdc56b",
            "domain_id": "ba07080ebfb3",
            "idle_frames": "ddd21764f372",
            "initial_pose": "f3595b94e630",
            "mode": "c9dcd549a10b",
            "video": "d78e1f655f89",
            "viewpoint": "332a2a5a6a88",
        },
    ),
    "joint_pos": (
        48,
        {
            "action": "579e95b5648f",
            "candidates": "3e02d745a7d8",
            "conditioning_fps": "ad5068697256",
            "domain_id": "b674fb650fce",
            "idle_frames": "26d367cc3cf1",
            "mode": "adccb5afc7b3",
            "video": "88baa1ffe528",
            "viewpoint": "2b176cdf9ccd",
        },
    ),
    "joint_pos filtered": (
        22,
        {
            "action": "3b91f9b079ab",
            "candidates": "4fe844cf6d66",
            "conditioning_fps": "5ace1bb429b6",
            "domain_id": "337341dd396c",
            "idle_frames": "bf59ae408135",
            "mode": "530eeea6f108",
            "video": "9b1df7a80216",
            "viewpoint": "41e0a122f1d4",
        },
    ),
    "joint_pos wrist": (
        22,
        {
            "action": "8b0725636b5d",
            "candidates": "4fe844cf6d66",
            "conditioning_fps": "5ace1bb429b6",
            "domain_id": "337341dd396c",
            "idle_frames": "9a17258cbb9f",
            "mode": "530eeea6f108",
            "video": "636c37dbc12c",
            "viewpoint": "e889612ad891",
        },
    ),
    "libero": (
        23,
        {
            "action": "1f38fee70e6f",
            "candidates": "31a4ee42f308",
            "conditioning_fps": "4dd2d15ef1b6",
            "domain_id": "adc86a96719f",
            "idle_frames": "da8efeab9a64",
            "mode": "530eeea6f108",
            "video": "4e9f7b059c6d",
            "viewpoint": "41e0a122f1d4",
        },
    ),
    "libero 128": (
        23,
        {
            "action": "1f38fee70e6f",
            "candidates": "31a4ee42f308",
            "conditioning_fps": "4dd2d15ef1b6",
            "domain_id": "adc86a96719f",
            "idle_frames": "da8efeab9a64",
            "mode": "530eeea6f108",
            "video": "c6b972d16060",
            "viewpoint": "41e0a122f1d4",
        },
    ),
    "libero third": (
        23,
        {
            "action": "1f38fee70e6f",
            "candidates": "31a4ee42f308",
            "conditioning_fps": "4dd2d15ef1b6",
            "domain_id": "adc86a96719f",
            "idle_frames": "da8efeab9a64",
            "mode": "530eeea6f108",
            "video": "e77a4bde1ab2",
            "viewpoint": "a975b88e0bb8",
        },
    ),
    "libero val": (
        10,
        {
            "action": "299f4db3e866",
            "candidates": "a6d04155c335",
            "conditioning_fps": "52084f656772",
            "domain_id": "d58582c2c1ee",
            "idle_frames": "9d162d0b1e23",
            "mode": "183a4bfad54c",
            "video": "098f5541cd86",
            "viewpoint": "f0bcf02af361",
        },
    ),
    "libero wrist": (
        23,
        {
            "action": "1f38fee70e6f",
            "candidates": "31a4ee42f308",
            "conditioning_fps": "4dd2d15ef1b6",
            "domain_id": "adc86a96719f",
            "idle_frames": "da8efeab9a64",
            "mode": "530eeea6f108",
            "video": "1489dedc51b2",
            "viewpoint": "e889612ad891",
        },
    ),
}
CASES = {
    "joint_pos": ("droid", {"index": "droid_policy-train-c32"}),
    "joint_pos filtered": ("droid", {"index": "droid_policy-train-c32-filtered"}),
    "joint_pos wrist": (
        "droid",
        {"index": "droid_policy-train-c32-filtered", "view": "wrist_view", "state": False},
    ),
    "ee_pose": ("droid", {"index": "droid_forward_dynamics-train-c16"}),
    "ee_pose filtered": ("droid", {"index": "droid_forward_dynamics-train-c16-filtered"}),
    "ee_pose state": (
        "droid",
        {"index": "droid_forward_dynamics-train-c16-filtered", "state": True},
    ),
    "libero": ("libero", {}),
    "libero val": ("libero", {"index": "libero_10-val"}),
    "libero 128": ("libero128", {}),
    "libero wrist": ("libero", {"view": "wrist_view"}),
    "libero third": ("libero", {"view": "third_person_view"}),
}


def digest(values: Sequence[Any]) -> str:
    """Arrays by dtype, shape and bytes, floats of rotations to five places; the rest as JSON."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            if array.dtype == np.float32:
                # The last bit is the linear algebra library's, which differs from processor to processor.
                array = np.round(array, 5) + np.float32(0)
            found.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        else:
            found.update(json.dumps(value).encode())
    return found.hexdigest()[:12]


def digests(samples: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By field, without the words that depend on a checkout, or on our draw."""
    names = sorted(set(samples[0]) - {"additional_view_description", "ai_caption"})
    return {name: digest([sample[name] for sample in samples]) for name in names}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    version = av.library_versions["libavcodec"]
    if version[0] != 62:
        pytest.skip(f"the facts are of FFmpeg 8's encoder and decoder (libavcodec 62), here is {version}")
    folder = tmp_path_factory.mktemp("scenes")
    places = {
        "droid": droid_scenes(folder / "droid"),
        "libero": libero_scenes(folder / "libero"),
        "libero128": libero_scenes(folder / "libero128", 128),
    }
    made = {name: videos_digest(place, ROOTS[name]) for name, place in places.items()}
    if made != VIDEOS:
        pytest.skip(f"the encoder made other videos here ({made}) than those that the facts are of")
    return places


ROOTS = {"droid": ("success", "failure"), "libero": ("",), "libero128": ("",)}


@pytest.mark.parametrize("case", CASES)
def test_samples_are_upstreams(scenes: dict[str, Path], case: str) -> None:
    dataset, options = CASES[case]
    reader: Any = prep.open(scenes[dataset], **options)
    windows, expected = UPSTREAM[case]
    assert len(reader) == windows
    places = range(0, len(reader), STEP)
    samples = [{**reader[place], "candidates": reader.instructions(place)} for place in places]
    assert digests(samples) == expected


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_reading_changes_nothing(scenes: dict[str, Path], case: str) -> None:
    dataset, options = CASES[case]
    reader: Any = prep.open(scenes[dataset], **options)
    places = list(range(0, len(reader), STEP))
    shuffled = np.random.RandomState(1).permutation(places).tolist()
    samples = {place: {**reader[place], "candidates": reader.instructions(place)} for place in shuffled}
    assert digests([samples[place] for place in places]) == UPSTREAM[case][1]
