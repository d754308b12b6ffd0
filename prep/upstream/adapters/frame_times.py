"""From which video files, and at which seconds of them, the frames of a window are taken.

A time that is off by less than half a frame gives the same pictures today; it shows here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from prep.layouts.lerobot import Root
from prep.readers.lerobot import LeRobotReader
from prep.readers.robot_droid import Droid
from prep.readers.robot_libero import Libero
from prep.readers.robot_rows import EpisodeRoutes, FrameRows

__all__ = ["OurFrameTimes", "UpstreamFrameTimes"]

_DECODE = "decode_video_frames"
_PACKAGES = ("lerobot.", "cosmos_framework.")


class OurFrameTimes:
    """The files and seconds by our reading of the tables."""

    def __init__(self, reader: LeRobotReader) -> None:
        self._reader = reader

    @cached_property
    def _robot(self) -> Droid | Libero:
        view, fps = self._reader.view, 0.0
        return (
            Libero(view, fps) if self._reader.form.robot == "libero" else Droid("joint_pos", False, view, fps)
        )

    @cached_property
    def _rows(self) -> list[FrameRows]:
        columns = ("index", "episode_index", "timestamp")
        roots = [Root.open(self._reader.root / name) for name in self._reader.found.roots]
        cameras, is_sorted = self._robot.cameras, self._robot.sorted_rows
        return [
            FrameRows(root, EpisodeRoutes(root, cameras), columns, sorted_rows=is_sorted) for root in roots
        ]

    def of(self, index: int) -> dict[str, Any]:
        """`frame_files` below the dataset, in their order, and `frame_seconds`, float64 [files, C + 1].

        Raises as indexing the reader does.
        """
        window = self._reader.index.resolve(index)
        rows = self._rows[window.dataset_index]
        values = rows.take(window.row, self._reader.chunk_length + 1, window.episode_index)
        seconds = self._robot.seconds(values["timestamp"])
        shots = [rows.routes.shot(window.episode_index, camera) for camera in self._robot.cameras]
        calls = [(shot.path, [shot.start + second for second in seconds]) for shot in shots]
        return _told(calls, self._reader.root)


class UpstreamFrameTimes:
    """The files and seconds that upstream asks lerobot's decoder for, heard while it reads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._calls: list[tuple[Path, Sequence[float]]] = []

    @contextmanager
    def heard(self) -> Iterator[None]:
        """While this lasts, each call of the decoder is kept."""
        self._calls = []
        own = {module: getattr(module, _DECODE) for module in _decoding_modules()}
        for module, decode in own.items():
            setattr(module, _DECODE, self._listening(decode))
        try:
            yield
        finally:
            for module, decode in own.items():
                setattr(module, _DECODE, decode)

    @property
    def last(self) -> dict[str, Any]:
        """What was heard, as `OurFrameTimes.of` has it; empty if nothing was."""
        if not self._calls:
            return {}
        # lerobot also reads one frame of each camera that the view does not show.
        most = max(len(seconds) for _, seconds in self._calls)
        return _told([call for call in self._calls if len(call[1]) == most], self._root)

    def _listening(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        def listening(path: Path | str, seconds: Sequence[float], *more: Any, **named: Any) -> Any:
            self._calls.append((Path(path), list(seconds)))
            return decode(path, seconds, *more, **named)

        return listening


def _decoding_modules() -> list[ModuleType]:
    """The loaded modules of lerobot and upstream that have taken the decoder's name over."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(_PACKAGES) and _DECODE in getattr(module, "__dict__", {})
    ]


def _told(calls: Sequence[tuple[Path, Sequence[float]]], root: Path) -> dict[str, Any]:
    ordered = sorted(
        (str(path.relative_to(root)) if path.is_relative_to(root) else str(path), list(seconds))
        for path, seconds in calls
    )
    return {
        "frame_files": [path for path, _ in ordered],
        "frame_seconds": np.array([seconds for _, seconds in ordered], np.float64),
    }
