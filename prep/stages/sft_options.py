"""What a user may ask of an SFT run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prep.stages.options import Options

__all__ = ["SftOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SftOptions(Options):
    """The options of an SFT dataset.

    `source` is a local tree, or `owner/name[@revision]`; `captions` with `videos`, or `curator`,
    are folders that a JSONL is built of. `name` takes the place of the recipe's directory.
    `val_fraction` is the share of clips that is held out, by `seed`; `group` is a regular
    expression whose first group in a clip's name is its source. `min_short_edge` is in pixels.
    `tokenizer` is a folder with a tokenizer's files. None stands for the recipe's own setting.
    """

    source: str | None = None
    captions: Path | None = None
    videos: Path | None = None
    curator: Path | None = None
    name: str | None = None
    val_fraction: float | None = None
    seed: int | None = None
    group: str | None = None
    num_video_frames: int | None = None
    min_short_edge: int | None = None
    caption_model: str | None = None
    enhanced_caption_model: str | None = None
    tokenizer: Path | None = None
    align_prompts: bool = False
