"""lerobot's own dataset, row by row, beside our reading of the same rows: values, timestamps, frames."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.comparison import Side
from prep.errors import UsageError
from prep.layouts.lerobot import Root
from prep.manifest import Manifest
from prep.upstream.adapters.requirements import LEROBOT, require
from prep.upstream.loading import upstream_errors
from prep.window_lists import index_parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prep.readers.robot_rows import FrameRows

__all__ = ["LerobotRows", "OurRows", "open_side", "our_side", "picture_bytes"]

_TOLERANCE = 1e-4
"""Seconds by which a frame may be shown beside its row's timestamp: lerobot's default."""


def our_side(manifest: Manifest, *, index: str | None = None) -> Side:
    """Every row of every root, as our own layout and decoder read it; frames by PyAV."""
    del index  # all rows, whatever the windows
    return Side("ours", OurRows(_roots(manifest)), {"dataset_id": manifest.dataset_id, "decoder": "pyav"})


def open_side(manifest: Manifest, *, index: str | None = None, ours: Any = None) -> Side:
    """lerobot over the same roots; raises EnvironmentLacksError if it is not installed."""
    del index, ours
    require("lerobot", LEROBOT)
    import lerobot
    from lerobot.datasets.video_utils import get_safe_default_codec

    facts = {"loaded": f"lerobot {lerobot.__version__}", "decoder": str(get_safe_default_codec())}
    return Side("lerobot", LerobotRows(_roots(manifest)), facts)


def _roots(manifest: Manifest) -> list[Path]:
    names = next((facts["roots"] for _, facts in index_parameters(manifest.root)), None)
    if names is None:
        raise UsageError(
            f"{manifest.root} has no window index, which names its roots.",
            remedy="Run the prepare command first.",
        )
    return [manifest.root / name for name in names]


class _Roots:
    """Several roots as one run of rows; a place is told as (root, row)."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._ends = list(accumulate(lengths))

    def __len__(self) -> int:
        return self._ends[-1]

    def at(self, index: int) -> tuple[int, int]:
        """Raises IndexError outside 0 to len - 1."""
        place = operator.index(index)
        if not 0 <= place < len(self):
            raise IndexError(f"row {place}: there are {len(self)}")
        root = bisect_right(self._ends, place)
        return root, place - (self._ends[root - 1] if root else 0)


class OurRows:
    """Rows of roots as dicts: `id`, every column that is no video, `task`, and each camera's frame.

    A frame is uint8 [3, H, W] RGB.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        from prep.readers.robot_frames import FrameCache

        self._roots = [_OurRoot(Root.open(path)) for path in paths]
        self._places = _Roots([root.rows for root in self._roots])
        self._frames = FrameCache("pyav")

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The row at `index`, 0 to len - 1; raises IndexError, and PrepError for what cannot be read."""
        place, row = self._places.at(index)
        root = self._roots[place]
        episode = root.episode_of(row)
        columns = root.frame_rows.take(row, 1, episode)
        sample = {name: values[0] for name, values in columns.items()}
        second = float(sample["timestamp"])
        for camera in root.root.cameras:
            shot = root.frame_rows.routes.shot(episode, camera)
            (picture,) = self._frames.take(shot.path, [shot.start + second], _TOLERANCE)
            sample[camera] = np.ascontiguousarray(picture.transpose(2, 0, 1))
        sample["task"] = root.tasks[int(sample["task_index"])]
        return {"id": f"{place}:{episode}:{int(sample['frame_index'])}", **sample}


class _OurRoot:
    """One root: its rows, and which episode each belongs to."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.tasks = list(root.tasks().texts)
        episodes = root.episodes()
        order = np.argsort(episodes.first_rows, kind="stable")
        self._first_rows = episodes.first_rows[order].tolist()
        self._numbers = episodes.numbers[order].tolist()
        self.rows = int(episodes.lengths.sum())
        self.frame_rows = _frame_rows(root)

    def episode_of(self, row: int) -> int:
        """The number of the episode that a row belongs to."""
        return int(self._numbers[bisect_right(self._first_rows, row) - 1])


def _frame_rows(root: Root) -> FrameRows:
    from prep.readers.robot_rows import EpisodeRoutes, FrameRows

    videos = set(root.cameras)
    columns = [name for name in root.features if name not in videos]
    return FrameRows(root, EpisodeRoutes(root, root.cameras), columns, sorted_rows=False)


class LerobotRows:
    """`LeRobotDataset` of each root, without windows; tensors as arrays, frames as the bytes decoded."""

    def __init__(self, paths: Sequence[Path]) -> None:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        with upstream_errors("open the rows"):
            self._datasets = [LeRobotDataset("local/rows", root=path) for path in paths]
        self._places = _Roots([len(dataset) for dataset in self._datasets])

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The row at `index`, 0 to len - 1; raises IndexError, and PrepError where lerobot fails."""
        place, row = self._places.at(index)
        dataset = self._datasets[place]
        with upstream_errors(f"read row {row}"):
            item = dataset[row]
        cameras = set(dataset.meta.video_keys)
        sample = dict(_arrays(item, cameras))
        return {"id": f"{place}:{int(sample['episode_index'])}:{int(sample['frame_index'])}", **sample}


def _arrays(item: dict[str, Any], cameras: set[str]) -> Iterator[tuple[str, Any]]:
    for key, value in item.items():
        array = value.numpy() if hasattr(value, "numpy") else value
        yield key, picture_bytes(array) if key in cameras else array


def picture_bytes(picture: NDArray[np.float32]) -> NDArray[Any]:
    """The bytes that were divided by 255 in float32; the picture itself where that is not what it is."""
    found = np.rint(picture * np.float32(255)).clip(0, 255).astype(np.uint8)
    same = np.array_equal(found.astype(np.float32) / np.float32(255), picture)
    return found if same else picture
