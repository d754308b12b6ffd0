"""The reader of the conversations layout (contracts, section 2)."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from prep.layouts.conversations import META
from prep.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MAX_FRAMES", "ConversationsReader", "frame_indices"]

MAX_FRAMES = 32
"""Upstream's cap on the frames of one clip."""
_UNKNOWN_RATE = 30
_RATE_WANTED = 2


def frame_indices(frames: int, rate: Fraction | float | None) -> tuple[list[int], float, float]:
    """Which frames training takes of a clip of `frames` frames at `rate` frames a second.

    Returns 0-based indices, the rate as upstream reports it at the locked commit (not corrected
    after the cap), and the rate of the frames really taken. The step is the rate over two, rounded
    half to even, at least 1; more than 32 frames are thinned to 32. An unknown rate counts as 30.
    """
    known = float(rate) if rate else float(_UNKNOWN_RATE)
    stride = max(1, round(known / _RATE_WANTED))
    indices = list(range(0, frames, stride))
    reported = known / stride
    if len(indices) > MAX_FRAMES:
        indices = [indices[int(place * len(indices) / MAX_FRAMES)] for place in range(MAX_FRAMES)]
    taken = len(indices) / frames * known if frames else 0.0
    return indices, reported, taken


class ConversationsReader:
    """Conversations with the bytes of their media, in the order of `meta.json`.

    A sample is a dict: `id` str, `texts` (the list of turns), `media` (one entry: the key that the
    conversation names → the file's bytes), `path` of the media. Nothing is kept open, and a reader
    pickles small.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.root = manifest.root
        self.dataset_id = manifest.dataset_id
        self.media_type = manifest.document["recipe"]["record"]["media_type"]
        self._entries: list[dict[str, str]] = json.loads((self.root / META).read_bytes())

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index`, 0 to len - 1; raises IndexError outside, OSError for a missing file."""
        entry = self._entry(index)
        texts = json.loads((self.root / entry["conversation"]).read_bytes())["conversations"]
        path = self.root / entry["media"]
        return {
            "id": entry["id"],
            "texts": texts,
            "media": {_key(texts): path.read_bytes()},
            "path": str(path),
        }

    def frames(self, index: int) -> tuple[NDArray[np.uint8], list[int], float]:
        """The frames that training takes: uint8 [T, H, W, 3] RGB, their 0-based indices, their rate."""
        import av
        import numpy as np

        with av.open(str(self.root / self._entry(index)["media"])) as container:
            stream = container.streams.video[0]
            rate = stream.average_rate
            pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        indices, _, taken = frame_indices(len(pictures), rate)
        return np.stack([pictures[place] for place in indices]), indices, taken

    def _entry(self, index: int) -> dict[str, str]:
        place = operator.index(index)
        if not 0 <= place < len(self._entries):
            raise IndexError(f"sample {place} of {self.dataset_id}: there are {len(self._entries)}")
        return self._entries[place]


def _key(texts: Sequence[dict[str, Any]]) -> str:
    for turn in texts:
        for block in turn["content"] if isinstance(turn["content"], list) else ():
            if block["type"] in ("video", "image"):
                return str(block[block["type"]])
    raise KeyError("the conversation names no media")
