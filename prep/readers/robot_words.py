"""The words of a window: which instruction is taken, and what is said of the view."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from prep.errors import PrepError, UsageError
from prep.upstream.checkout import load_lock, local_copy
from prep.windows import Identity

__all__ = ["Instruction", "View", "candidates", "check_instruction", "chosen", "view_text"]

Instruction = Literal["first", "drawn"] | int

_SEPARATOR: Final = " | "
_KEY: Final = "additional_view_description"


class View(NamedTuple):
    """What is said of a view, and whether in upstream's words or in ours."""

    text: str
    source: Literal["upstream", "prep"]


def check_instruction(instruction: Instruction | str) -> Instruction:
    """The choice as given, numbers as int; raises UsageError for none of `first`, `drawn`, 1, 2 …"""
    if isinstance(instruction, str) and instruction.isascii() and instruction.isdigit():
        instruction = int(instruction)
    if instruction in ("first", "drawn"):
        return instruction
    if isinstance(instruction, int) and not isinstance(instruction, bool) and instruction >= 1:
        return instruction
    raise UsageError(
        f"{instruction!r} chooses no instruction.", remedy="Give first, drawn, or which part, counted from 1."
    )


def candidates(task: str, *, blank: bool) -> list[str]:
    """The instructions that a task offers: its parts as they stand, `blank` ones too; or, without these,
    the parts stripped, and the whole task if all are blank.
    """
    parts = task.split(_SEPARATOR)
    return parts if blank else [part.strip() for part in parts if part.strip()] or [task]


def chosen(parts: Sequence[str], instruction: Instruction, seed: int, window: Identity) -> int:
    """Which part is taken, counted from 0: a draw depends on the seed and the window's identity alone.

    Raises PrepError if there is no such part.
    """
    if instruction == "drawn":
        name = f"{seed}:{window.dataset_index}:{window.episode_index}:{window.frame}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % len(parts)
    number = 1 if instruction == "first" else int(instruction)
    if number > len(parts):
        raise PrepError(
            f"instruction {number} is wanted, the task has {len(parts)}.", remedy="Take first or drawn."
        )
    return number - 1


def view_text(path: str, own: str) -> View:
    """What upstream says of its joined view, read from its file at `path` if it is on this machine.

    Nothing is fetched or run; else the text is `own`.
    """
    lock = load_lock()
    copy = local_copy(lock, path)
    if copy is None:
        return View(own, "prep")
    source = lock.file(path).check(copy.read_bytes(), str(copy), remedy="Run `prep vendor sync` again.")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and any(_is_key(target) for target in node.targets):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return View(value.value, "upstream")
    return View(own, "prep")


def _is_key(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == _KEY
    )
