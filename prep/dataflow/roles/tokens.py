"""A text as token ids, by whatever tokenizer the user has."""

from __future__ import annotations

import random
from typing import Any

from prep.dataflow.base import LoaderError

__all__ = ["check_tokenizer", "dropped_out", "token_ids"]


def check_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer as given; raises LoaderError for one that `token_ids` could not call."""
    if callable(tokenizer) or hasattr(tokenizer, "apply_chat_template") or hasattr(tokenizer, "encode"):
        return tokenizer
    raise LoaderError(
        f"{type(tokenizer).__name__} is no tokenizer.",
        remedy="Give a callable from text to ids, or an object with `apply_chat_template` or `encode`.",
    )


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text. What is called is the first that the tokenizer has:

    - ``apply_chat_template([{"role": "user", "content": text}], tokenize=True, add_generation_prompt=True,
      return_dict=False)``, which is how upstream makes ids of a caption;
    - ``encode(text)``;
    - ``tokenizer(text)``.

    It may return ids (a list, an array or a tensor), a mapping with `input_ids`, or an object with `ids`.
    To leave a tokenizer's chat template out, give its bound method `encode`.
    """
    if hasattr(tokenizer, "apply_chat_template"):
        chat = [{"role": "user", "content": text}]
        made = tokenizer.apply_chat_template(
            chat, tokenize=True, add_generation_prompt=True, return_dict=False
        )
    else:
        made = tokenizer.encode(text) if hasattr(tokenizer, "encode") else tokenizer(text)
    if hasattr(made, "keys"):
        made = made["input_ids"]
    return [int(each) for each in getattr(made, "ids", made)]


def dropped_out(text: str, share: float) -> str:
    """The text, or, for a `share` of calls, an empty one; what is not asked for is not drawn."""
    return "" if share > 0 and random.random() < share else text
