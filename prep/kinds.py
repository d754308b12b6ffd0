"""The kinds of data that `validate` knows: who checks each, and by what a bare tree is told."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from prep.layouts.conversations import META
from prep.validation_reasoning import find_reasoning_trees
from prep.validation_robot import find_roots
from prep.validation_sft import find_sft_trees, is_sft_tree
from prep.validation_snapshot import find_snapshots, is_snapshot

__all__ = ["CHECKS", "PREPARE", "check_class", "foreign_trees", "kind_of"]

CHECKS: Final = {
    "arrow_snapshot": "prep.validation_snapshot:SnapshotCheck",
    "lerobot": "prep.validation_robot:RobotCheck",
    "reasoning_qa": "prep.validation_reasoning:ReasoningCheck",
    "sft_jsonl": "prep.validation_sft:SftCheck",
}
"""For each kind but conversations the class that checks a dataset of it."""

PREPARE: Final = {
    "arrow_snapshot": "Run `prep llava-ov` to make one of your own with a manifest.",
    "lerobot": "Run `prep lerobot --root DIR` to link the tree and write one.",
    "reasoning_qa": "Run `prep video-reasoning` on the annotation files.",
    "sft_jsonl": "Run `prep sft --source DIR` to take the tree over and write one.",
}
"""How a bare tree of a kind comes to a manifest, where `prep adopt` is not the way."""


def check_class(kind: str) -> Any:
    """The class that checks datasets of a kind."""
    module, _, name = CHECKS[kind].partition(":")
    return getattr(importlib.import_module(module), name)


def kind_of(root: Path, stated: object) -> str:
    """The kind that a manifest states, else what the directory looks like."""
    if isinstance(stated, str) and stated in ("conversations", *CHECKS):
        return stated
    if (root / META).exists():
        return "conversations"
    if find_roots(root):
        return "lerobot"
    if is_snapshot(root):
        return "arrow_snapshot"
    if is_sft_tree(root):
        return "sft_jsonl"
    return "reasoning_qa" if find_reasoning_trees(root) == [""] else "conversations"


def foreign_trees(root: Path, known: Sequence[str]) -> list[str]:
    """Trees of other kinds than conversations that no manifest tells of, outside the `known` datasets."""
    covered = {name.split("/")[0] for name in known}
    finders = (_robot_trees, find_sft_trees, find_reasoning_trees, find_snapshots)
    found = next((names for find in finders if (names := find(root))), [])
    return [name for name in found if name.split("/")[0] not in covered and (name or not covered)]


def _robot_trees(root: Path) -> list[str]:
    """The directory itself if it or its groups hold LeRobot roots, else its folders that do."""
    groups = {name.split("/")[0] for name in find_roots(root)}
    return [""] if groups and groups <= {"", "success", "failure"} else sorted(groups)
