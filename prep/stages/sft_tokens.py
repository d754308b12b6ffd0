"""How many tokens a caption takes, by the tokenizer that training uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prep.errors import EnvironmentLacksError, UsageError
from prep.files import sha256_of

__all__ = ["token_counter", "tokenizer_sha256"]


def tokenizer_sha256(folder: Path) -> str:
    """The digest of a tokenizer's file, by which a manifest names it; raises UsageError without one."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UsageError(f"{folder} holds no tokenizer.json.", remedy="Give the folder of a tokenizer.")
    return sha256_of(path)


def token_counter(folder: Path) -> Callable[[str], int]:
    """Counts the tokens of a caption as a user's turn of the tokenizer's chat template.

    The sentences on duration and resolution that upstream appends to prose are not counted. Raises
    EnvironmentLacksError without `transformers`, UsageError for a folder without a usable tokenizer.
    """
    tokenizer_sha256(folder)
    try:
        from transformers import AutoTokenizer  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise EnvironmentLacksError(
            "Counting tokens needs the package transformers, which is not installed.",
            remedy="Install it with `pip install transformers`, or leave out --tokenizer.",
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"{folder} holds no usable tokenizer: {why}", remedy="Give its folder.") from error

    def count(text: str) -> int:
        if not tokenizer.chat_template:
            return len(tokenizer(text)["input_ids"])
        turns = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(
            turns, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        return len(ids)

    return count
