"""The pictures of windows: cameras joined, those of the last window kept, arrays used again.

Adjacent windows share all but one frame, so what a window showed is kept for the next. A window's
video is large (34 MB at 640 by 360), and memory fresh from the system costs more than the copying:
an array that was handed out serves again once nobody holds it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from prep.errors import PrepError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Picture = NDArray[np.uint8]
    Frames = Callable[[int, list[int]], Iterator[Sequence[Picture]]]

__all__ = ["Joining", "Reused", "WindowPictures", "joined", "put"]

_REMEMBERED: Final = 2
"""Arrays that may serve again: one that the caller still holds while the next is made, and that one."""


class Joining(Protocol):
    """How frames of several cameras make one picture."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """The videos that a picture needs."""
        ...

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The picture's height and width where the first camera's are these."""
        ...

    def draw(self, camera: int, planes: Sequence[Picture], picture: Picture) -> None:
        """Put a camera's frame, planes uint8 [H, W], at its place in a picture [3, height, width]."""
        ...


def joined(robot: Joining, views: Sequence[Picture]) -> Picture:
    """Frames uint8 [H, W, 3], one a camera, as one picture [3, height, width]."""
    picture = np.empty((3, *robot.size(*views[0].shape[:2])), np.uint8)
    for camera, view in enumerate(views):
        robot.draw(camera, tuple(view.transpose(2, 0, 1)), picture)
    return picture


def put(planes: Sequence[Picture], picture: Picture) -> None:
    """Copy planes [H, W] to `picture` [3, H, W]; raises PrepError for planes of another size."""
    if planes[0].shape != picture.shape[1:]:
        raise _of_sizes(planes[0].shape, picture.shape[1:])
    for plane, target in zip(planes, picture, strict=True):
        target[...] = plane


def _of_sizes(one: tuple[int, ...], other: tuple[int, ...]) -> PrepError:
    return PrepError(f"The frames are of different sizes: {one} and {other}.")


class WindowPictures:
    """The joined pictures of the window read last, by row, and the videos made of them."""

    def __init__(self) -> None:
        self._dataset = -1
        self._slots: dict[int, int] = {}
        self._store = np.empty((0, 3, 0, 0), np.uint8)
        self._videos = Reused(np.uint8)

    def video(self, robot: Joining, dataset: int, rows: range, frames: Frames) -> Picture:
        """The pictures of `rows` as a video [3, rows, height, width], which is the caller's.

        `frames` gives a camera's frames for places in `rows`; it is asked for what the last window did
        not show. Raises PrepError for frames of different sizes, and what `frames` raises.
        """
        missing = self._let_go(dataset, rows)
        held = set(self._slots.values())
        slots = [slot for slot in range(len(rows)) if slot not in held]
        for camera in range(len(robot.cameras) if missing else 0):
            for place, (slot, planes) in enumerate(zip(slots, frames(camera, missing), strict=True)):
                if not camera:
                    self._fit(len(rows), robot.size(*planes[0].shape), is_first=not place and not held)
                robot.draw(camera, planes, self._store[slot])
        self._slots.update(zip((rows[place] for place in missing), slots, strict=True))
        return self._together(rows)

    def _let_go(self, dataset: int, rows: range) -> list[int]:
        """Forget all rows but these; the places of those that are not there."""
        before = self._slots if dataset == self._dataset else {}
        self._dataset = dataset
        self._slots = {row: before[row] for row in rows if row in before}
        return [place for place, row in enumerate(rows) if row not in before]

    def _fit(self, count: int, size: tuple[int, int], *, is_first: bool) -> None:
        """Pictures of one window are of one size; the next may be of another."""
        if self._store.shape == (count, 3, *size):
            return
        if not is_first:
            raise _of_sizes(size, self._store.shape[2:])
        self._store = np.empty((count, 3, *size), np.uint8)

    def _together(self, rows: range) -> Picture:
        _, channels, height, width = self._store.shape
        video: Picture = self._videos.take((channels, len(rows), height, width))
        for place, row in enumerate(rows):
            video[:, place] = self._store[self._slots[row]]
        return video


class Reused:
    """Arrays for results, each used again when the caller and all views of it are gone."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._arrays: list[NDArray[Any]] = []

    def take(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """An array of any content that nobody else holds."""
        for at in range(len(self._arrays)):
            if self._arrays[at].shape == shape and _references(self._arrays, at) == _ALONE:
                return self._arrays[at].view()
        self._arrays = [*self._arrays[1 - _REMEMBERED :], np.empty(shape, self._dtype)]
        return self._arrays[-1].view()


def _references(arrays: list[NDArray[Any]], at: int) -> int:
    """References to an array. Each view of it is one, and so is each view of a view."""
    return sys.getrefcount(arrays[at])


_ALONE: Final = _references([np.empty(0)], 0)
"""What is counted for an array that only a list holds; the interpreter's own references differ."""
