"""The reader of the conversations layout (contracts, section 2)."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prep.clip_frames import chosen_frames, sampled_frames
from prep.errors import PrepError
from prep.layouts.conversations import META
from prep.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MAX_FRAMES", "ConversationsReader", "frame_indices"]

MAX_FRAMES = 32
"""Upstream's cap on the frames of one clip."""
_UNKNOWN_RATE = 30
_RATE_WANTED = 2.0


def frame_indices(frames: int, rate: Fraction | float | None) -> tuple[list[int], float, float]:
    """Which frames training takes of a clip of `frames` frames at `rate` frames a second.

    Returns 0-based indices, the rate as upstream reports it at the locked commit (not corrected
    after the cap), and the rate of the frames really taken. The step is the rate over two, rounded
    half to even, at least 1; more than 32 frames are thinned to 32. An unknown rate counts as 30.
    """
    known = float(rate) if rate else float(_UNKNOWN_RATE)
    indices, step = chosen_frames(frames, known, MAX_FRAMES, _RATE_WANTED)
    return indices, known / step, len(indices) / frames * known if frames else 0.0


class ConversationsReader:
    """Conversations with the bytes of their media, in the order of `meta.json`.

    A sample is a dict: `id` str, `texts` (the list of turns), `media` (one entry: the key that the
    conversation names → the file's bytes), `path` of the media. Nothing is opened before the first
    use and nothing is kept open; a reader pickles without its entries, which each process reads anew.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.root = manifest.root
        self.dataset_id = manifest.dataset_id
        self.media_type = manifest.document["recipe"]["record"]["media_type"]
        self._entries: list[dict[str, str]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_entries": None}

    def __len__(self) -> int:
        return len(self._loaded())

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index`, 0 to len - 1.

        Raises IndexError outside (negative indices too), PrepError for a file that cannot be read.
        """
        entry = self._entry(index)
        texts = _json(self.root / entry["conversation"])["conversations"]
        path = self.root / entry["media"]
        return {
            "id": entry["id"],
            "texts": texts,
            "media": {_key(texts, entry["id"]): _bytes(path)},
            "path": str(path),
        }

    def frames(self, index: int) -> tuple[NDArray[np.uint8], list[int], float]:
        """The frames that training takes: uint8 [T, H, W, 3] RGB, their 0-based indices, their rate.

        Raises IndexError outside, PrepError for a file of which no frame can be decoded.
        """
        import numpy as np

        path = self.root / self._entry(index)["media"]
        clip = sampled_frames(_bytes(path), max_frames=MAX_FRAMES, fps=_RATE_WANTED, name=str(path))
        return np.stack([np.asarray(frame) for frame in clip.frames]), clip.indices, clip.true_fps

    def _loaded(self) -> list[dict[str, str]]:
        if self._entries is None:
            self._entries = _json(self.root / META)
        return self._entries

    def _entry(self, index: int) -> dict[str, str]:
        place, count = operator.index(index), len(self)
        if not 0 <= place < count:
            raise IndexError(f"sample {place} of {self.dataset_id}: there are {count}")
        return self._loaded()[place]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_bytes(path))
    except ValueError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> PrepError:
    reason = getattr(error, "strerror", None) or error
    return PrepError(f"{path}: cannot be read: {reason}.", remedy="`prep validate` says what is wrong.")


def _key(texts: Sequence[dict[str, Any]], sample: str) -> str:
    for turn in texts:
        for block in turn["content"] if isinstance(turn["content"], list) else ():
            if block["type"] in ("video", "image"):
                return str(block[block["type"]])
    raise PrepError(f"{sample}: the conversation names no media.", remedy="`prep validate` lists them.")
