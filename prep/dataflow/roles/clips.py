"""Clips with captions for the generator: what sequential packing and the VFM list collator take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from prep.dataflow.base import LoaderError, RawItemProcessor
from prep.dataflow.roles.tokens import check_tokenizer, dropped_out, token_ids
from prep.errors import EnvironmentLacksError
from prep.layouts.sft_windows import CAPTION_JSON
from prep.upstream.checkout import locked_bytes
from prep.upstream.literals import string_constant

__all__ = ["SFTClip"]

_SOURCE: Final = "cosmos_framework/data/generator/local_datasets/sft_dataset.py"
_NAMES: Final = ("_DURATION_TEMPLATE", "_RESOLUTION_TEMPLATE")


class SFTClip(RawItemProcessor):
    """Windows of the SFT reader, opened with `frames=True`, as upstream's SFT dataset gives them.

    A sample: `text_token_ids` int64 [S], cut at `max_tokens`; `video` uint8 [3, T, H, W]; `image_size`
    float32 [4], H and W twice; `padding_mask` float32 zeros [1, H, W]; `fps` of the file and
    `conditioning_fps`, frames a second; `ai_caption`, the text that was tokenized; `sampled_caption_style`,
    its key; `num_frames`, `num_multiplier` (the interval), `frame_start` and `chunk_index`, from 0; `__key__`
    and `__url__`. Upstream's `frame_end` and `n_orig_video_frames` are not given, nor its `sequence_plan`.

    `tokenizer` is any that `token_ids` takes; how it is called is said there. To a caption that is no
    structured one, `sentences` are appended, each filled with `duration` in seconds, `fps`, `height` and
    `width`; ``"upstream"`` reads its two from its locked source on this machine. `conditioning_fps` takes
    the place of the window's own rate. A share `caption_dropout` of captions is left empty, drawn from
    Python's `random`, which the loader seeds for every sample.

    Raises LoaderError for what is no tokenizer, EnvironmentLacksError if upstream's sentences are not here.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_tokens: int = 1024,
        sentences: Sequence[str] | Literal["upstream"] = "upstream",
        conditioning_fps: float | None = None,
        caption_dropout: float = 0.0,
    ) -> None:
        self.tokenizer = check_tokenizer(tokenizer)
        self.max_tokens, self.conditioning_fps = max_tokens, conditioning_fps
        self.caption_dropout = caption_dropout
        self.sentences = _upstream_sentences() if sentences == "upstream" else tuple(sentences)

    def process(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Raises LoaderError for an item without its frames."""
        import torch

        if "video" not in item:
            raise LoaderError(
                f"{item.get('id', 'The item')} has no frames.", remedy="Open the dataset with frames=True."
            )
        video = torch.as_tensor(item["video"])
        _, frames, height, width = video.shape
        rate = self.conditioning_fps or item["conditioning_fps"]
        text = self._text(item, frames / rate, rate, height, width)
        text = dropped_out(text, self.caption_dropout)
        return {
            "__key__": item["id"],
            "__url__": item["path"],
            "text_token_ids": torch.tensor(token_ids(self.tokenizer, text)[: self.max_tokens]),
            "video": video,
            "image_size": torch.tensor([height, width, height, width], dtype=torch.float32),
            "padding_mask": torch.zeros((1, height, width), dtype=torch.float32),
            "fps": item["fps"],
            "conditioning_fps": rate,
            "ai_caption": text,
            "sampled_caption_style": item["caption_key"],
            "num_frames": frames,
            "num_multiplier": item["interval"],
            "frame_start": item["frame_indices"][0],
            "chunk_index": int(item["id"].rpartition("_w")[2]),
        }

    def _text(self, item: Mapping[str, Any], duration: float, fps: float, height: int, width: int) -> str:
        caption = str(item["caption"])
        # A structured caption says these things itself; the reader gives prose, and only prose, with a dot.
        if item["caption_key"] == CAPTION_JSON or not caption.endswith("."):
            return caption
        filled = (
            sentence.format(duration=duration, fps=fps, height=height, width=width)
            for sentence in self.sentences
        )
        return " ".join([caption, *filled]).strip()


def _upstream_sentences() -> tuple[str, ...]:
    try:
        source, origin = locked_bytes(_SOURCE, offline=True)
    except EnvironmentLacksError as error:
        raise EnvironmentLacksError(
            "The sentences that upstream appends to a caption are not on this machine.",
            remedy="Run `prep vendor sync --from CHECKOUT`, or give sentences of your own, () for none.",
        ) from error
    return tuple(string_constant(source, name, origin) for name in _NAMES)
