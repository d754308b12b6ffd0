"""References that look like a reader of ours: the same keys, the same identities, the same order.

An adapter imports what it adapts when it is opened, never before; `prep` itself needs none of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

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
}
"""The module of each reference and kind; its `open_side` is given the manifest."""


def open_sides(
    directory: Path, reference: str | Path, *, index: str | None = None
) -> tuple[Side, Side, Mapping[str, str]]:
    """Ours, the reference, and the differences that the recipe declares, by field.

    Raises UsageError for a directory without a dataset and a reference that its kind does not have,
    EnvironmentLacksError for one that is not installed.
    """
    manifest = _manifest(directory)
    if index is not None and manifest.document["kind"] != "lerobot":
        raise UsageError("Only robot data has window indices.", remedy="Leave --index out.")
    ours = prepared_side("ours", manifest)
    named = str(reference)
    if named in REFERENCES:  # `./cosmos` is a directory of that name
        other = open_reference(manifest, named, index=index)
    else:
        beside = _manifest(Path(reference))
        other = prepared_side("reference", beside, beside=manifest.root)
    return ours, other, dict(manifest.document["recipe"].get("differences", {}))


def open_reference(manifest: Manifest, name: str, *, index: str | None = None) -> Side:
    """The reference of this name for a prepared dataset. Raises as `open_sides` does."""
    kind = manifest.document["kind"]
    module = _ADAPTERS.get((name, kind))
    if module is None:
        known = [each for each, of in _ADAPTERS if of == kind]
        raise UsageError(
            f"{manifest.root}: {name} is no reference for datasets of the kind {kind}.",
            remedy=f"There is: {', '.join(known)}, or another prepared directory."
            if known
            else "Give another prepared directory.",
        )
    side: Side = importlib.import_module(module).open_side(manifest, index=index)
    return side


def _manifest(directory: Path) -> Manifest:
    absolute = directory.absolute()
    manifest = Manifest.load(absolute)
    if manifest is None:
        raise UsageError(
            f"{directory} is no finished dataset.",
            remedy=f"Give one of {', '.join(REFERENCES)}, or the directory of a prepared dataset.",
        )
    return manifest
