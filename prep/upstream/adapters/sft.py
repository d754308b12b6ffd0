"""Upstream's SFT metadata (contracts, section 1): which windows it keeps, in which order, with which text."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from prep.comparison import Side
from prep.layouts.sft_jsonl import LINES
from prep.layouts.sft_windows import Loader
from prep.manifest import Manifest
from prep.upstream.adapters.draws import Draws
from prep.upstream.adapters.requirements import SFT, require
from prep.upstream.loading import import_upstream

__all__ = ["CosmosSft", "open_side"]

_MODULE = "cosmos_framework.data.generator.local_datasets.sft_dataset"
_DECODED = "upstream knows it only after it has run the ffmpeg program on the clip"
_NOTES = {
    "frame_indices": _DECODED,
    "interval": _DECODED,
    "fps": _DECODED,
    "conditioning_fps": _DECODED,
    "window": "upstream's metadata has the kept windows only, without their places in the record",
}


def open_side(manifest: Manifest, *, index: str | None = None, ours: Any = None) -> Side:
    """Upstream's metadata of the train split; raises EnvironmentLacksError if it cannot be had."""
    del index, ours  # the windows stand in the records
    require("cosmos", SFT)
    module, upstream = import_upstream(_MODULE)
    loader = Loader.of(manifest.document["recipe"], manifest.document["request"])
    reader = CosmosSft(module, str(manifest.root / "train" / LINES), loader)
    return Side("cosmos", reader, {**upstream.facts(), "reader": _MODULE}, _NOTES)


class CosmosSft:
    """The windows that upstream's metadata code keeps, in its order: sha256 of the uuid, then window.

    A window without a caption that upstream knows is left out, as upstream skips it at every visit.
    """

    def __init__(self, module: ModuleType, lines: str, loader: Loader) -> None:
        self._module = module
        self._loader = loader
        self._draws = Draws()
        metadata = module._load_sft_metadata_from_s3(
            None, lines, loader.min_window_frames, min_short_edge=loader.min_short_edge
        )
        metadata.sort(key=lambda entry: hashlib.sha256(entry["uuid"].encode("utf-8")).hexdigest())
        self._windows = [
            (entry["uuid"], window)
            for entry in metadata
            for window in module._flatten_metadata_by_window([entry])
            if self._caption(window, None) is not None
        ]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The window at `index`, 0 to len - 1, with the first caption that upstream could draw."""
        return self.beside(index, {})

    def beside(self, index: int, ours: Mapping[str, Any]) -> dict[str, Any]:
        """The window at `index` with the caption that ours has, where upstream draws one."""
        place = operator.index(index)
        if not 0 <= place < len(self):
            raise IndexError(f"window {place}: there are {len(self)}")
        uuid, window = self._windows[place]
        sizes = self._module.VIDEO_RES_SIZE_INFO[self._loader.resolution]
        width, height = sizes[window["aspect_ratio"]]
        caption = self._caption(window, ours.get("caption_key"))
        key, text = caption[:2] if caption is not None else ("", "")
        return {
            "id": window["uuid"],
            "uuid": uuid,
            "caption": text,
            "caption_key": key,
            "width": width,
            "height": height,
            "path": window["vision_path"],
        }

    def _caption(self, window: Mapping[str, Any], wanted: str | None) -> tuple[str, str, bool] | None:
        with self._draws.hand_over(self._module, wanted):
            chosen: tuple[str, str, bool] | None = self._module._select_caption(window["t2w_windows"][0])
        return chosen
