"""A small reader of windows in the manner of DROID's, into which each kind of drift can be planted."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prep.errors import PrepError

__all__ = ["DRIFTS", "SPANS", "WindowReader"]

CHUNK = 4
HEIGHT, WIDTH = 16, 24
SPANS = ((0, 3, 0, 5), (0, 3, 144, 4), (0, 1, 20, 6), (1, 3, 0, 5))
"""(dataset, episode, first frame, windows): episode 3 is split; its number comes again in another root."""
TASKS = ("pick up the cup", "", "put it down", "wave")

DRIFTS: Mapping[str, str] = {
    "a frame off by one": "video",
    "left and right swapped": "video",
    "gripper not flipped": "action",
    "the instruction drawn elsewhere": "ai_caption",
    "BGR": "video",
    "antialiased resize": "video",
    "rounding instead of truncation": "video",
    "half a tolerance of time shift": "timestamps",
    "a dropped key": "idle_frames",
    "a span keyed by episode id alone": "",
}
"""Each kind of drift, and the field in which it shows; the last shows in the identities."""


class WindowReader:
    """Windows of moving scenes from three cameras, worked out from their identity alone."""

    def __init__(self, drift: str = "", broken: int = -1) -> None:
        self.drift = drift
        self.broken = broken
        self._ends = list(accumulate(span[3] for span in SPANS))

    def __len__(self) -> int:
        return self._ends[-1]

    def identity(self, index: int) -> tuple[int, int, int]:
        """(dataset, episode, frame from the episode's start)."""
        if self.drift == "a span keyed by episode id alone":
            return self._by_episode(index)
        place = bisect_right(self._ends, index)
        dataset, episode, first, count = SPANS[place]
        return dataset, episode, first + index - (self._ends[place] - count)

    def _by_episode(self, index: int) -> tuple[int, int, int]:
        """As a table keyed by the episode's number has it: of two spans the later one survives."""
        table = {span[1]: (span, end) for span, end in zip(SPANS, self._ends, strict=True)}
        place = bisect_right(self._ends, index)
        span, end = table[SPANS[place][1]]
        return span[0], span[1], span[2] + index - (end - span[3])

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.broken:
            raise PrepError(f"window {index}: a frame cannot be decoded.")
        place = bisect_right(self._ends, index)
        dataset, episode, first, count = SPANS[place]
        frame = first + index - (self._ends[place] - count)
        times = np.arange(frame, frame + CHUNK + 1) / 15.0
        gripper = (np.arange(CHUNK, dtype=np.float32) + frame) % 7 / np.float32(7)
        draw = random.Random(f"{'other' if self.drift == 'the instruction drawn elsewhere' else ''}{index}")
        sample = {
            "video": self._video(dataset, episode, frame),
            "action": gripper if self.drift == "gripper not flipped" else 1 - gripper,
            "timestamps": times + 1e-4 * (self.drift == "half a tolerance of time shift"),
            "ai_caption": draw.choice(TASKS),
            "idle_frames": frame % 3,
            "mode": "wam",
        }
        if self.drift == "a dropped key":
            del sample["idle_frames"]
        return sample

    def _video(self, dataset: int, episode: int, frame: int) -> NDArray[np.uint8]:
        start = frame + (self.drift == "a frame off by one")
        pictures = [self._picture(dataset, episode, at) for at in range(start, start + CHUNK + 1)]
        return np.ascontiguousarray(np.stack(pictures).transpose(3, 0, 1, 2))

    def _picture(self, dataset: int, episode: int, frame: int) -> NDArray[np.uint8]:
        wrist, left, right = (_camera(dataset, episode, frame, camera) for camera in range(3))
        if self.drift == "left and right swapped":
            left, right = right, left
        halves = [self._half(left), self._half(right)]
        whole = np.concatenate([wrist, np.concatenate(halves, axis=1)], axis=0)
        scaled = whole * np.float32(255)
        exact = np.rint(scaled) if self.drift == "rounding instead of truncation" else scaled
        picture = exact.clip(0, 255).astype(np.uint8)
        return picture[..., ::-1] if self.drift == "BGR" else picture

    def _half(self, picture: NDArray[np.float32]) -> NDArray[np.float32]:
        """Half the size: the mean of 2 by 2 pixels, or, antialiased, a triangle over 4 by 4."""
        if self.drift != "antialiased resize":
            return picture.reshape(HEIGHT // 2, 2, WIDTH // 2, 2, 3).mean(axis=(1, 3), dtype=np.float32)
        for axis in (0, 1):
            edge = np.pad(picture, [(1, 1) if at == axis else (0, 0) for at in range(3)], mode="edge")
            taps = [np.take(edge, np.arange(at, edge.shape[axis] - 3 + at, 2), axis) for at in range(4)]
            picture = ((taps[0] + 3 * taps[1] + 3 * taps[2] + taps[3]) / 8).astype(np.float32)
        return picture


def _camera(dataset: int, episode: int, frame: int, camera: int) -> NDArray[np.float32]:
    """A frame in [0, 1], of bytes, as a decoder gives it."""
    seed = np.random.default_rng((dataset, episode, camera))
    scene = seed.integers(0, 256, (HEIGHT, WIDTH, 3))
    moved: NDArray[Any] = np.roll(scene, frame, axis=1).astype(np.float32) / np.float32(255)
    return moved
