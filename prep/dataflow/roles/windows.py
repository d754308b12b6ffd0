"""Robot windows for the generator: what sequential packing and the VFM list collator take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prep.dataflow.base import RawItemProcessor
from prep.dataflow.roles.tokens import check_tokenizer, dropped_out, token_ids

__all__ = ["RobotWindow"]


class RobotWindow(RawItemProcessor):
    """Windows of the robot reader on the model's canvas, with their instruction as ids.

    An item is what the reader gives by index, or its `model_input`. A sample: `text_token_ids` int64 [S], cut
    at `max_tokens`; `video` [3, C + 1, H, W] on its canvas, uint8, or with `normalise` float32 from -1 to 1;
    `action` float32 [C, D] and `state` float32 [D], or [0] where there is none; `image_size` float32 [4],
    canvas and content, height first; `ai_caption`, the text that was tokenized; `aspect_key`; and what else
    the item holds, such as `domain_id`, `mode` and `conditioning_fps`.

    With `state_row` the state stays the first row of `action`, as upstream packs it: [C + 1, D].

    `tokenizer` is any that `token_ids` takes; how it is called is said there. `tier` is that of the canvas,
    256 or 480, or None for the one that the picture's size gives. `model_input` has its canvas already, and
    floats. A share `caption_dropout` of instructions is left empty, drawn from Python's `random`, which the
    loader seeds for every sample. Raises UsageError for what is no tokenizer or tier.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        tier: str | int | None = None,
        normalise: bool = False,
        state_row: bool = False,
        max_tokens: int = 4096,
        caption_dropout: float = 0.0,
    ) -> None:
        from prep.readers.robot_canvas import check_tier

        self.tokenizer, self.tier = check_tokenizer(tokenizer), check_tier(tier)
        self.normalise, self.state_row = normalise, state_row
        self.max_tokens, self.caption_dropout = max_tokens, caption_dropout

    def process(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Raises UsageError for a picture that no tier fits."""
        import numpy as np
        import torch

        sample = dict(item) if "canvas_hw" in item else self._on_canvas(item)
        text = dropped_out(self.text(sample), self.caption_dropout)
        del sample["task"]
        canvas, content = sample.pop("canvas_hw"), sample.pop("content_hw")
        if self.state_row and len(sample["state"]):
            sample["action"] = np.concatenate([sample["state"][None], sample["action"]])
        tensors = {
            key: torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray | np.generic) else value
            for key, value in sample.items()
        }
        return tensors | {
            "ai_caption": text,
            "text_token_ids": torch.tensor(token_ids(self.tokenizer, text)[: self.max_tokens]),
            "image_size": torch.tensor([*canvas, *content], dtype=torch.float32),
        }

    def text(self, sample: Mapping[str, Any]) -> str:
        """The text that is tokenized: the instruction, `sample["task"]`, alone.

        Override it for a longer one: upstream appends the view, the duration and the resolution.
        """
        return str(sample["task"])

    def _on_canvas(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """A window by index in the names of `model_input`; the rows of state are told by the frames."""
        import numpy as np

        from prep.readers.robot_canvas import closest, normalised, on_canvas

        sample = dict(item)
        video, action = sample["video"], sample["action"]
        canvas = closest(video.shape[-2], video.shape[-1], self.tier)
        placed = on_canvas(video, canvas)
        extra = len(action) - (video.shape[1] - 1)
        return {
            **sample,
            **canvas._asdict(),
            "task": sample["ai_caption"],
            "video": normalised(placed) if self.normalise else placed,
            "action": action[extra:],
            "state": action[0] if extra else np.empty(0, np.float32),
        }
