"""The reader of the SFT JSONL layout: one item a window that training keeps (contracts, section 1)."""

from __future__ import annotations

import hashlib
import operator
import random
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prep.clip_header import read_header
from prep.errors import PrepError, UsageError
from prep.layouts.sft_jsonl import LINES, SPLITS, line_at, parsed, read_lines
from prep.layouts.sft_windows import (
    Frames,
    Loader,
    UnusableCaptionError,
    caption_key,
    caption_text,
    choose_frames,
    kept_windows,
    record_drop,
    scaling,
)
from prep.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SftJsonlReader"]


@dataclass(frozen=True, slots=True)
class _Index:
    """Where each item is: its line's offset, the window's position in it, and its number among the kept."""

    offsets: array[int]
    places: array[int]
    numbers: array[int]


class SftJsonlReader:
    """Windows with their text and frames, in the order of sha256(uuid), then window.

    An item is a dict: `id` (`<uuid>_w<i>`, i counting the windows that pass the length filter, as
    upstream does), `uuid`, `window` (position in the record), `caption`, `caption_key`,
    `frame_indices`, `interval`, `fps` of the file, `conditioning_fps` (fps over interval), `width`
    and `height` of the frames in pixels, `path`, and with `frames` also `video`, uint8 [3, T, H, W].

    Nothing is opened before the first use and nothing is kept open; a reader pickles without its
    index. Where a caption or an offset is drawn, `seed` and the item decide, so that an item is
    always the same.
    """

    def __init__(
        self, manifest: Manifest, *, split: str = "train", frames: bool = False, seed: int = 0
    ) -> None:
        if split not in SPLITS:
            raise UsageError(f"There is no split {split!r}.", remedy=f"There are: {', '.join(SPLITS)}.")
        self.root = manifest.root
        self.dataset_id = manifest.dataset_id
        self.split_name = split
        self.with_frames = frames
        self.seed = seed
        self.loader = Loader.of(manifest.document["recipe"], manifest.document["request"])
        self._manifest = manifest
        self._index: _Index | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None}

    def __len__(self) -> int:
        return len(self._loaded().offsets)

    def split(self, name: str) -> SftJsonlReader:
        """The reader of another split of the dataset; raises UsageError for one that is not known."""
        return SftJsonlReader(self._manifest, split=name, frames=self.with_frames, seed=self.seed)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The item at `index`, 0 to len - 1.

        Raises IndexError outside (negative indices too), PrepError for a clip or caption that
        cannot be used.
        """
        item = self._item(index)
        if self.with_frames:
            item["video"] = self._video(item)
        del item["_frames"]
        return item

    def windows(self) -> Iterator[tuple[str, int]]:
        """Each item's id and the position of its window in its record; no clip is opened."""
        loaded = self._loaded()
        for offset, place, number in zip(loaded.offsets, loaded.places, loaded.numbers, strict=True):
            yield f"{self._record(offset)['uuid']}_w{number}", place

    def video(self, index: int) -> NDArray[np.uint8]:
        """The frames of an item as the loader gives them: uint8 [3, T, H, W] RGB. Raises as reading does."""
        return self._video(self._item(index))

    def frames(self, index: int) -> tuple[NDArray[np.uint8], list[int], float]:
        """The frames as pictures, uint8 [T, H, W, 3] RGB, their 0-based indices, and their rate."""
        item = self._item(index)
        pictures = self._pictures(item)
        return pictures, item["frame_indices"][: len(pictures)], item["conditioning_fps"]

    def _video(self, item: Mapping[str, Any]) -> NDArray[np.uint8]:
        import numpy as np

        return np.ascontiguousarray(np.transpose(self._pictures(item), (3, 0, 1, 2)))

    def _pictures(self, item: Mapping[str, Any]) -> NDArray[np.uint8]:
        from prep.scaling import scaled_frames

        frames, sizes = item["_frames"]
        try:
            return scaled_frames(Path(item["path"]), frames, sizes, self.loader.temporal_compression)
        except PrepError as error:
            raise PrepError(f"{item['id']}: {error.message}", remedy=error.remedy) from error

    def _item(self, index: int) -> dict[str, Any]:
        position, count = operator.index(index), len(self)
        if not 0 <= position < count:
            raise IndexError(f"item {position} of {self.dataset_id} ({self.split_name}): there are {count}")
        loaded = self._loaded()
        record = self._record(loaded.offsets[position])
        place = loaded.places[position]
        name = f"{record['uuid']}_w{loaded.numbers[position]}"
        draw = random.Random(f"{self.seed}/{name}")
        window = record["t2w_windows"][place]
        key, text = _caption(name, window, draw)
        path, header = self._header(name, record)
        frames = choose_frames(window, header.loader_frames, self.loader, header.rate, draw)
        if frames is None:
            raise PrepError(
                f"{name}: {path} states {header.loader_frames} frames, of which the loader takes none.",
                remedy="`prep validate` says why.",
            )
        return self._as_item(name, record, place, (key, text), path, frames, header.rate)

    def _as_item(
        self,
        name: str,
        record: Mapping[str, Any],
        place: int,
        caption: tuple[str, str],
        path: Path,
        frames: Frames,
        rate: float,
    ) -> dict[str, Any]:
        sizes = scaling(record["width"], record["height"], self.loader.resolution)
        return {
            "id": name,
            "uuid": record["uuid"],
            "window": place,
            "caption": caption[1],
            "caption_key": caption[0],
            "frame_indices": frames.indices,
            "interval": frames.interval,
            "fps": rate,
            "conditioning_fps": rate / frames.interval,
            "width": sizes.target_width,
            "height": sizes.target_height,
            "path": str(path),
            "_frames": (frames, sizes),
        }

    def _header(self, name: str, record: Mapping[str, Any]) -> Any:
        stated = record["vision_path"]
        if "://" in stated:
            raise PrepError(
                f"{name}: {stated} is not on this machine.", remedy="Fetch it and build the JSONL anew."
            )
        path = self.root / self.split_name / stated
        try:
            return path, read_header(path)
        except PrepError as error:
            raise PrepError(f"{name}: {error.message}", remedy="`prep validate` says why.") from error

    def _record(self, offset: int) -> dict[str, Any]:
        try:
            with self._lines.open("rb") as file:
                record: dict[str, Any] = parsed(line_at(file, offset))
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from error
        return record

    @property
    def _lines(self) -> Path:
        return self.root / self.split_name / LINES

    def _unreadable(self, error: Exception) -> PrepError:
        reason = getattr(error, "strerror", None) or error
        return PrepError(f"{self._lines}: cannot be read: {reason}.", remedy="`prep validate` says why.")

    def _loaded(self) -> _Index:
        if self._index is None:
            self._index = self._built()
        return self._index

    def _built(self) -> _Index:
        """Go through the JSONL once: some 60 bytes an item while sorting, 24 after it."""
        import numpy as np

        offsets, places, numbers, digests = array("q"), array("q"), array("q"), bytearray()
        try:
            for line in read_lines(self._lines):
                record = parsed(line.data)
                if record_drop(record, self.loader):
                    continue
                digest = hashlib.sha256(record["uuid"].encode()).digest()
                for number, (place, window) in enumerate(kept_windows(record, self.loader)):
                    if self._is_skipped(record, window):
                        continue
                    offsets.append(line.offset)
                    places.append(place)
                    numbers.append(number)
                    digests += digest
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unreadable(error) from error
        keys = np.frombuffer(bytes(digests), ">u8").reshape(-1, 4)
        order = np.lexsort((np.arange(len(keys)), *keys.T[::-1])) if len(keys) else np.empty(0, np.int64)

        def ordered(values: array[int]) -> array[int]:
            return array("q", np.frombuffer(values, np.int64)[order].tobytes()) if len(values) else values

        return _Index(ordered(offsets), ordered(places), ordered(numbers))

    def _stated_frames(self, name: str, otherwise: int) -> int:
        try:
            return read_header(self.root / self.split_name / name).loader_frames
        except PrepError:
            return otherwise  # reading the item says what is wrong

    def _is_skipped(self, record: Mapping[str, Any], window: Mapping[str, Any]) -> bool:
        """Whether the loader skips a window at every visit, as far as the record tells."""
        try:
            if caption_key(window) is None:
                return True
        except UnusableCaptionError:
            return False  # upstream stops at it: reading the item says so
        total = record.get("nb_frames") or window["end_frame"] + 1
        if record["vision_path"].lower().endswith(_WITHOUT_COUNT) and "://" not in record["vision_path"]:
            total = self._stated_frames(record["vision_path"], total)
        return choose_frames(window, total, self.loader, record.get("framerate") or 30.0) is None


_WITHOUT_COUNT = (".mkv", ".webm")
"""Containers that mostly state no frame count, so that the loader takes a clip for 0 frames long."""


def _caption(name: str, window: Mapping[str, Any], draw: random.Random) -> tuple[str, str]:
    try:
        key = caption_key(window, draw)
        if key is not None:
            return key, caption_text(key, window[key])
    except UnusableCaptionError as error:
        raise PrepError(f"{name}: {error}.", remedy="Mend the caption in the JSONL.") from error
    raise PrepError(f"{name}: no caption that training knows.", remedy="`prep validate` lists them.")
