"""Inference prompts of the validation clips, brought to the form of text that training sees."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prep.errors import FetchError
from prep.layouts.sft_windows import CAPTION_JSON, caption_text

__all__ = ["Aligned", "align", "is_prompt"]

_SHOWN = 60


@dataclass(slots=True)
class Aligned:
    """The prompt files as they are to be: all, the new texts of those that change, those that cannot."""

    files: dict[str, bytes] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def notes(self, *, dry_run: bool) -> list[str]:
        """What a user is told: counts, and in a dry run each file."""
        if not self.files:
            return ["--align-prompts: there are no inference prompts"]
        verb = "would be set" if dry_run else "set"
        notes = [f"prompts {verb} to the structured caption: {len(self.changed)} of {len(self.files)}"]
        if dry_run:
            notes += [f"{name}: the prompt {verb}: {_shown(text)}" for name, text in self.changed.items()]
        return notes + [f"{name}: its clip has no usable caption.json" for name in self.missing]


def is_prompt(path: str) -> bool:
    """Whether a path of a dataset is that of an inference prompt."""
    parts = path.split("/")
    return len(parts) == 3 and parts[1].startswith("inference_prompt") and path.endswith(".json")


def align(paths: Iterable[str], names: Mapping[str, str], locate: Any) -> Aligned:
    """Set `prompt` to the text of `captions/<clip>/caption.json`, beside the prompts' folder.

    `names` are the source's files by their path in the dataset. Every other key stays as it is.
    """
    aligned = Aligned()
    for path in sorted(paths):
        split, _, name = path.split("/")
        data = Path(locate(names[path])).read_bytes()
        aligned.files[path] = data
        caption = _caption(f"{split}/captions/{name.removesuffix('.json')}/caption.json", names, locate)
        record = _json(data)
        if caption is None or not isinstance(record, dict):
            aligned.missing.append(path)
            continue
        record["prompt"] = caption
        aligned.files[path] = json.dumps(record, indent=4, ensure_ascii=False).encode()
        if aligned.files[path] != data:
            aligned.changed[path] = caption
    return aligned


def _shown(text: str) -> str:
    """The beginning of a prompt, with its length in characters."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _caption(path: str, names: Mapping[str, str], locate: Any) -> str | None:
    if path not in names:
        return None
    try:
        value = _json(Path(locate(names[path])).read_bytes())
    except FetchError as error:
        if error.transient:
            raise
        return None
    return caption_text(CAPTION_JSON, value) if isinstance(value, dict) and value else None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
