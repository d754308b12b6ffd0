"""Readers: a prepared dataset as samples, one map-style reader a kind."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from prep.errors import UsageError
from prep.manifest import Manifest
from prep.recognise import find_datasets

__all__ = ["Reader", "open"]


_READERS = {
    "arrow_snapshot": "prep.readers.arrow_snapshot:ArrowSnapshotReader",
    "lerobot": "prep.readers.lerobot:LeRobotReader",
    "conversations": "prep.readers.conversations:ConversationsReader",
    "sft_jsonl": "prep.readers.sft_jsonl:SftJsonlReader",
    "reasoning_qa": "prep.readers.reasoning_qa:ReasoningReader",
}
"""The reader's class for each kind; it is given the manifest, and options by name."""


class Reader(Protocol):
    """A map-style dataset: `len(reader)` samples, `reader[index]` for 0 to len - 1."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, Any]: ...


def open(directory: str | Path, *, reader: str = "prep", **options: Any) -> Reader:
    """The reader of the prepared dataset at `directory`; what `options` it takes, its class says.

    `reader` is `prep` for ours, or `cosmos` for upstream's own with the same keys and identities.
    Raises UsageError if there is no finished dataset, or for an option that its reader does not have;
    PrepError if its manifest is broken.
    """
    root = Path(directory)
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is not a directory.", remedy="Give the directory of a dataset.")
    manifest = Manifest.load(root)
    if manifest is None:
        below = find_datasets(root) if root.is_dir() else []
        raise UsageError(
            f"{root} is no finished dataset.",
            remedy=f"Give the directory of one, such as {root / below[0]}."
            if below and below != [""]
            else "Prepare one, or run `prep adopt` on a tree that another tool made.",
        )
    if reader != "prep":
        return _reference(manifest, reader, options)
    kind = manifest.document["kind"]
    if kind not in _READERS:
        raise UsageError(f"{root}: there is no reader for datasets of the kind {kind}.")
    module, _, name = _READERS[kind].partition(":")
    kind_of_reader = getattr(importlib.import_module(module), name)
    known = list(inspect.signature(kind_of_reader).parameters)[1:]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UsageError(
            f"{root}: its reader has no option {unknown[0]}.",
            remedy=f"Its options: {', '.join(known) or 'none'}.",
        )
    ours: Reader = kind_of_reader(manifest, **options)
    return ours


def _reference(manifest: Manifest, name: str, options: Mapping[str, Any]) -> Reader:
    if name != "cosmos" or options:
        raise UsageError(
            f"There is no reader {name!r} with the options {sorted(options)}.",
            remedy="It is `prep`, or `cosmos` without options.",
        )
    from prep.upstream.adapters import open_reference

    reference: Reader = open_reference(manifest, name).reader
    return reference
