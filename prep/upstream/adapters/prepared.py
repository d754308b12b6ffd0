"""A prepared dataset as one side of a comparison: ours, or another that stands for the reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prep import readers
from prep.comparison import Side
from prep.manifest import Manifest
from prep.readers import Reader

__all__ = ["Rebased", "prepared_side"]


def prepared_side(
    name: str,
    manifest: Manifest,
    *,
    index: str | None = None,
    beside: Path | None = None,
    model_input: bool = False,
) -> Side:
    """The dataset's own reader; with `beside`, paths inside it are told as if it lay there.

    `index` names one of several window indices; `model_input` asks for what a model is given.
    """
    reader: Reader
    if manifest.document["kind"] == "lerobot":
        from prep.readers.lerobot import LeRobotReader
        from prep.upstream.adapters.model_input import OurModelInputs
        from prep.upstream.adapters.robot import OurWindows

        windows = LeRobotReader(manifest, index=index)
        reader = OurModelInputs(windows) if model_input else OurWindows(windows)
    else:
        reader = readers.open(manifest.root)
    facts = {"dataset_id": manifest.dataset_id, "kind": manifest.document["kind"]}
    return Side(name, reader if beside is None else Rebased(reader, manifest.root, beside), facts)


class Rebased:
    """A reader whose texts name one root in place of another, so that equal datasets compare equal."""

    def __init__(self, reader: Reader, root: Path, beside: Path) -> None:
        self._reader = reader
        self._root, self._beside = f"{root}/", f"{beside}/"

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        sample: Mapping[str, Any] = self._told(self._reader[index])
        return sample

    def __getattr__(self, name: str) -> Any:
        # What only some readers have, such as `identity` and `spans`.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._reader, name)

    def _told(self, value: Any) -> Any:
        if isinstance(value, str):
            is_inside = value.startswith(self._root)
            return self._beside + value.removeprefix(self._root) if is_inside else value
        if isinstance(value, Mapping):
            return {key: self._told(each) for key, each in value.items()}
        return [self._told(each) for each in value] if isinstance(value, list) else value
