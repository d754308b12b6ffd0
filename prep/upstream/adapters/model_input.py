"""What a model is given of a robot window: our thirteen keys, and the same made by upstream's functions.

Upstream pads the pictures in its transform (`utils/transforms.py`) and scales them to -1 … 1 inside the
model. It takes no state row off: its plan of the sequence says whether the first action is a state
(contracts, section 4). What the plan says is done here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from prep.readers.lerobot import LeRobotReader
from prep.upstream.adapters.robot import CosmosWindows, OurWindows, Span
from prep.upstream.loading import import_upstream, upstream_errors

__all__ = ["CosmosModelInputs", "OurModelInputs"]

_TRANSFORMS = "cosmos_framework.data.generator.action.utils.transforms"
_DROID_TIER = "480"
"""What both DROID recipes name; LIBERO's name none, and the picture's size decides."""


class OurModelInputs(OurWindows):
    """`LeRobotReader.model_input` as a map-style reader."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.reader.model_input(index)


@dataclass(frozen=True, slots=True)
class CosmosModelInputs:
    """Upstream's windows, made a model's input by upstream's own transform.

    `roots` name the datasets in `sample_id`; `tier` is the resolution that upstream's recipe names.
    """

    windows: CosmosWindows
    transforms: ModuleType
    roots: Sequence[str]
    tier: str | None

    @classmethod
    def beside_reader(cls, windows: CosmosWindows, reader: LeRobotReader) -> CosmosModelInputs:
        """For the windows that `reader` has; raises EnvironmentLacksError if upstream cannot be had."""
        transforms, _ = import_upstream(_TRANSFORMS)
        tier = reader.tier or (_DROID_TIER if reader.form.robot == "droid" else None)
        return cls(windows, transforms, reader.found.roots, tier)

    def __len__(self) -> int:
        return len(self.windows)

    def spans(self) -> Iterator[Span]:
        """As `CosmosWindows.spans`."""
        return self.windows.spans()

    def identity(self, index: int) -> tuple[int, int, int]:
        """As `CosmosWindows.identity`."""
        return self.windows.identity(index)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The input at `index`, 0 to len - 1, with the first instruction that upstream could draw."""
        return self.beside(index, {})

    def beside(self, index: int, ours: Mapping[str, Any]) -> dict[str, Any]:
        """The input at `index` with our instruction; raises as `CosmosWindows.beside` does."""
        asked = {"ai_caption": ours.get("task"), "instruction_candidates": ()}
        sample = self.windows.beside(index, asked)
        dataset, episode, frame = self.identity(index)
        with upstream_errors(f"make a model's input of window {index}"):
            pictures = self._pictures(sample["video"])
            extra = self._state_rows(sample)
        action = sample["action"]
        return {
            **pictures,
            "action": action[extra:],
            "state": action[0] if extra else np.empty(0, np.float32),
            "task": sample["ai_caption"],
            "idle_frames": sample["idle_frames"],
            "episode_index": episode,
            "start": frame,
            "draw_id": _place(sample["instruction_candidates"], sample["ai_caption"], ours.get("draw_id")),
            "sample_id": f"{self.roots[dataset]}:{episode}:{frame}".lstrip(":"),
            "additional_view_description": sample.get("additional_view_description", ""),
        }

    def _pictures(self, video: Any) -> dict[str, Any]:
        """The video on its canvas, float32 from -1 to 1, and the sizes, height first."""
        import torch

        padded = self.transforms.VideoResize()({"video": torch.from_numpy(video)}, self.tier)
        high, wide, *content = (int(size) for size in padded["image_size"].tolist())
        # As the model does it, on this processor; a GPU multiplies by the reciprocal instead.
        scaled = padded["video"].to(torch.float32) / 127.5 - 1.0
        return {
            "video": scaled.numpy(),
            "canvas_hw": (high, wide),
            "content_hw": tuple(content),
            "aspect_key": self._aspect((wide, high)),
        }

    def _aspect(self, size: tuple[int, int]) -> str:
        """Upstream's name of a canvas, width first."""
        tiers = self.transforms.VIDEO_RES_SIZE_INFO
        sizes = [tiers[self.tier]] if self.tier is not None else list(tiers.values())
        keys: Iterator[str] = (key for known in sizes for key, each in known.items() if tuple(each) == size)
        return next(keys)

    def _state_rows(self, sample: Mapping[str, Any]) -> int:
        """How many rows of the action upstream's plan puts before the first frame to predict: 0 or 1."""
        plan = self.transforms.build_sequence_plan_from_mode(
            mode=sample["mode"], video_length=sample["video"].shape[1], action_length=len(sample["action"])
        )
        return 1 - int(plan.action_start_frame_offset)


def _place(candidates: Sequence[str], text: str, ours: int | None) -> int:
    """Where the text stands among the candidates: where ours is, if it stands there too, else first."""
    if ours is not None and ours < len(candidates) and candidates[ours] == text:
        return ours
    return list(candidates).index(text)
