"""The second decoder: torchcodec, where it is installed and finds FFmpeg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prep.errors import EnvironmentLacksError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TorchcodecVideo", "load_torchcodec"]

_AT_ONCE: Final = 8
"""Frames that are decoded at once."""
_REMEDY: Final = (
    "pip install 'cosmos-prep[torch]', and FFmpeg's shared libraries (on Debian: apt-get install ffmpeg); "
    "or take the decoder pyav."
)


def load_torchcodec() -> Any:
    """The module. Raises EnvironmentLacksError if it is not there, or without an FFmpeg that it can use."""
    try:
        import torchcodec
        import torchcodec.decoders
    except (ImportError, RuntimeError, OSError) as error:  # its libraries fail in each of these ways
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        raise EnvironmentLacksError(f"torchcodec cannot be loaded: {why}.", remedy=_REMEDY) from error
    if getattr(torchcodec, "ffmpeg_major_version", 0) is None:
        raise EnvironmentLacksError("torchcodec finds no FFmpeg that it can use.", remedy=_REMEDY)
    return torchcodec


class TorchcodecVideo:
    """A video that torchcodec decodes, opened as the reference opens it."""

    decoded = 0

    def __init__(self, path: Path, torchcodec: Any) -> None:
        self._decoder = torchcodec.decoders.VideoDecoder(
            str(path), seek_mode="approximate", dimension_order="NHWC", num_ffmpeg_threads=1
        )
        self.rate = float(self._decoder.metadata.average_fps)

    def take(self, numbers: Sequence[int]) -> Iterator[tuple[NDArray[np.uint8], float]]:
        """The frames by number, and when each is shown."""
        batch = self._decoder.get_frames_at(indices=list(numbers))
        yield from zip(batch.data.numpy(), batch.pts_seconds.tolist(), strict=True)

    def planes(self, numbers: Sequence[int]) -> Iterator[tuple[Any, float]]:
        """The same, each frame as its planes; few frames are in memory at once."""
        for first in range(0, len(numbers), _AT_ONCE):
            for picture, shown in self.take(numbers[first : first + _AT_ONCE]):
                yield (picture[..., 0], picture[..., 1], picture[..., 2]), shown

    def close(self) -> None:
        """Let the file go."""
        self._decoder = None
