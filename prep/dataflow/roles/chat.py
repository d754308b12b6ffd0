"""Messages as the inputs of a model, by the user's own processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prep.dataflow.base import LoaderError

__all__ = ["ChatInputs", "with_media"]

Messages = list[dict[str, Any]]

_PASSED: Final = (
    "attention_mask",
    "mm_token_type_ids",
    "pixel_values",
    "pixel_values_videos",
    "image_grid_thw",
    "video_grid_thw",
    "second_per_grid_ts",
    "image_sizes",
)
"""What upstream passes on of a processor's output, besides the ids."""


def with_media(messages: Sequence[Mapping[str, Any]], media: Mapping[str, Mapping[str, Any]]) -> Messages:
    """The messages anew, each block that names a key of `media` replaced by what stands there."""

    def block(given: Mapping[str, Any]) -> dict[str, Any]:
        named = given.get(given.get("type", ""))
        return dict(media[named]) if isinstance(named, str) and named in media else dict(given)

    return [
        {
            "role": message["role"],
            "content": message["content"]
            if isinstance(message["content"], str)
            else [block(each) for each in message["content"]],
        }
        for message in messages
    ]


class ChatInputs:
    """Makes a sample of messages. `processor` is one of

    - an object with `apply_chat_template`, as upstream's processors are. Called are
      ``apply_chat_template(messages, tokenize=True, add_generation_prompt=False)``, which gives a
      mapping with `input_ids` (or the ids alone), and ``add_assistant_tokens_mask(input_ids)``, which
      tells the tokens to learn; without that method the mapping must hold `assistant_masks`.
      `pad_token_id`, else `eos_token_id`, is read from its `tokenizer`, or from itself if it has none.
    - any other callable: ``processor(messages)`` gives the finished sample.
    - None: the sample is the messages, under `messages`.

    Raises LoaderError for anything else, and for a tokenizer without either id.
    """

    def __init__(self, processor: Any, ignore_index: int = -100) -> None:
        self.processor, self.ignore_index = processor, ignore_index
        self.is_template = hasattr(processor, "apply_chat_template")
        if self.is_template:
            self.pad_token_id = _pad_token_id(processor)
        elif processor is not None and not callable(processor):
            raise LoaderError(
                f"{type(processor).__name__} is no processor.",
                remedy="Give an object with `apply_chat_template`, a callable, or None.",
            )

    def of(self, messages: Messages) -> dict[str, Any]:
        """The sample of messages.

        Of a chat template it holds `input_ids`, `labels`, `token_mask` and `attention_mask` (ones where the
        processor gives none), each [N], `pad_token_id`, `ignore_index`, and the vision keys as they came.
        """
        if self.processor is None:
            return {"messages": messages}
        if not self.is_template:
            return dict(self.processor(messages))
        import torch

        made = self.processor.apply_chat_template(messages, tokenize=True, add_generation_prompt=False)
        if not isinstance(made, Mapping):
            made = {"input_ids": made}
        ids = _row(made["input_ids"], torch.long)
        mask = _row(self._learnt(ids, made), torch.bool)
        return {
            "input_ids": ids,
            "labels": ids.masked_fill(~mask, self.ignore_index),
            "token_mask": mask,
            "pad_token_id": self.pad_token_id,
            "ignore_index": self.ignore_index,
            **{key: made[key] for key in _PASSED if made.get(key) is not None},
            "attention_mask": _row(made.get("attention_mask", torch.ones_like(ids)), torch.long),
        }

    def _learnt(self, ids: Any, made: Mapping[str, Any]) -> Any:
        if hasattr(self.processor, "add_assistant_tokens_mask"):
            return self.processor.add_assistant_tokens_mask(ids)
        if made.get("assistant_masks") is None:
            raise LoaderError(
                f"{type(self.processor).__name__} does not say which tokens are the assistant's.",
                remedy="Give it a method `add_assistant_tokens_mask`, or let it return `assistant_masks`.",
            )
        return made["assistant_masks"]


def _row(values: Any, kind: Any) -> Any:
    """Values as a tensor [N]; a batch of one is taken apart."""
    import torch

    tensor = torch.as_tensor(values, dtype=kind)
    return tensor[0] if tensor.ndim == 2 else tensor


def _pad_token_id(processor: Any) -> int:
    tokenizer = getattr(processor, "tokenizer", processor)
    for name in ("pad_token_id", "eos_token_id"):
        number = getattr(tokenizer, name, None)
        if number is not None:
            return int(number)
    raise LoaderError(
        f"{type(tokenizer).__name__} has neither a pad_token_id nor an eos_token_id.",
        remedy="Set one: the VLM collator pads with it.",
    )
