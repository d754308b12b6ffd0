"""References that look like a reader of ours: the same keys, the same identities, the same order.

An adapter imports what it adapts when it is opened, never before; `prep` itself needs none of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from prep.comparison import Side
from prep.errors import UsageError
from prep.manifest import Manifest
from prep.upstream.adapters.prepared import prepared_side

__all__ = ["REFERENCES", "open_reference", "open_sides"]

REFERENCES = ("cosmos", "lerobot", "tao-daft")
"""What a dataset can be compared with by name; any other reference is a prepared directory."""

_ADAPTERS = {
    ("cosmos", "conversations"): "prep.upstream.adapters.conversations",
    ("cosmos", "sft_jsonl"): "prep.upstream.adapters.sft",
    ("cosmos", "lerobot"): "prep.upstream.adapters.robot",
    ("tao-daft", "reasoning_qa"): "prep.upstream.adapters.reasoning",
    ("lerobot", "lerobot"): "prep.upstream.adapters.lerobot",
}
"""The module of each reference and kind: `open_side`, and `our_side` where ours is not just opened."""


def open_sides(
    directory: Path, reference: str | Path, *, index: str | None = None, model_input: bool = False
) -> tuple[Side, Side, Mapping[str, str]]:
    """Ours, the reference, and the differences that the recipe declares, by field.

    `index` and `model_input` are of robot data.
    Raises UsageError for a directory without a dataset and a reference that its kind does not have,
    EnvironmentLacksError for one that is not installed.
    """
    manifest = _manifest(directory)
    named = str(reference)
    _check_options(manifest, named, index, model_input)
    if named in REFERENCES:  # `./cosmos` is a directory of that name
        ours, other = _named_sides(manifest, named, index, model_input)
    else:
        beside = _manifest(Path(reference))
        ours = prepared_side("ours", manifest, index=index, model_input=model_input)
        other = prepared_side("reference", beside, index=index, beside=manifest.root, model_input=model_input)
    return ours, other, dict(manifest.document["recipe"].get("differences", {}))


def _check_options(manifest: Manifest, reference: str, index: str | None, model_input: bool) -> None:
    is_robot = manifest.document["kind"] == "lerobot"
    if index is not None and not is_robot:
        raise UsageError("Only robot data has window indices.", remedy="Leave --index out.")
    if model_input and not is_robot:
        raise UsageError("Only robot windows become a model's input here.", remedy="Leave --model-input out.")
    if index is not None and reference == "lerobot":
        raise UsageError(
            "lerobot gives rows of the whole tree, not windows of an index.", remedy="Leave --index out."
        )
    if model_input and reference == "lerobot":
        raise UsageError(
            "lerobot gives rows, no input of a model.", remedy="Take the reference cosmos, or a directory."
        )


def _named_sides(manifest: Manifest, name: str, index: str | None, model_input: bool) -> tuple[Side, Side]:
    module = _adapter(manifest, name)
    if hasattr(module, "our_side"):
        more = {"model_input": True} if model_input else {}
        ours: Side = module.our_side(manifest, index=index, **more)
    else:
        ours = prepared_side("ours", manifest, index=index)
    other: Side = module.open_side(manifest, index=index, ours=ours.reader)
    return ours, other


def open_reference(manifest: Manifest, name: str, *, index: str | None = None) -> Side:
    """The reference of this name for a prepared dataset. Raises as `open_sides` does."""
    side: Side = _adapter(manifest, name).open_side(manifest, index=index)
    return side


def _adapter(manifest: Manifest, name: str) -> ModuleType:
    kind = manifest.document["kind"]
    module = _ADAPTERS.get((name, kind))
    if module is not None:
        return importlib.import_module(module)
    known = [each for each, of in _ADAPTERS if of == kind]
    raise UsageError(
        f"{manifest.root}: {name} is no reference for datasets of the kind {kind}.",
        remedy=f"There is: {', '.join(known)}, or another prepared directory."
        if known
        else "Give another prepared directory.",
    )


def _manifest(directory: Path) -> Manifest:
    absolute = directory.absolute()
    manifest = Manifest.load(absolute)
    if manifest is None:
        raise UsageError(
            f"{directory} is no finished dataset.",
            remedy=f"Give one of {', '.join(REFERENCES)}, or the directory of a prepared dataset.",
        )
    return manifest
