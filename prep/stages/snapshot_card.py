"""The card of the local Hub layout: README.md, by which `load_dataset` finds each subset that is prepared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prep.files import write_whole
from prep.layouts.hub_card import CARD
from prep.manifest import STATE, Manifest
from prep.workspace import Workspace

__all__ = ["write_card"]


def _card(folder: Path, out_root: Path) -> bytes:
    """The card for the subsets that stand in `folder`; what follows YAML's dashes is for people."""
    subsets: dict[str, list[tuple[str, list[str]]]] = {}
    for subset, split, files in _prepared(folder):
        subsets.setdefault(subset, []).append((split, files))
    lines = ["---", "configs:"]
    for subset, splits in sorted(subsets.items()):
        # JSON is YAML; a subset's name may hold any sign.
        lines += [f"- config_name: {json.dumps(subset)}", "  data_files:"]
        for split, files in splits:
            lines += [f"  - split: {json.dumps(split)}", f"    path: {json.dumps(files)}"]
    name = folder.relative_to(out_root).as_posix()
    call = f'load_dataset("{name}", name=SUBSET, split="train")'
    lines += [
        "---",
        "",
        f"# A local part of {name}",
        "",
        "Written by `prep`; each subset's folder has its own manifest. From the folder that holds",
        f"`{name}`, also offline: `{call}`.",
        "",
    ]
    return "\n".join(lines).encode()


def _prepared(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Each subset and split in the folder, with its files relative to the folder."""
    for parent in sorted(path for path in folder.iterdir() if path.is_dir()):
        for root in sorted(path for path in parent.iterdir() if path.is_dir()):
            manifest = Manifest.load(root)
            if manifest is None or manifest.document["details"].get("form") != "hub":
                continue
            below = root.relative_to(folder).as_posix()
            files = [f"{below}/{row.path}" for row in manifest.files() if row.role == "payload"]
            yield manifest.document["details"]["subset"], manifest.document["split"], files


def write_card(folder: Path, out_root: Path) -> None:
    """Write the card of a folder where it is not current; of several runs one at a time."""
    work = folder / ".card.building"
    if _is_current(folder, out_root) and not work.exists():
        return
    with Workspace(work, wait=True) as workspace:  # another run holds it for a moment only
        if not _is_current(folder, out_root):
            with workspace.held():
                write_whole(folder / CARD, _card(folder, out_root))
        (folder / f".{CARD}.partial").unlink(missing_ok=True)  # of a run that was killed
        workspace.clear()
    for leftover in (work / STATE, work):
        with suppress(OSError):  # another run has come
            leftover.rmdir()


def _is_current(folder: Path, out_root: Path) -> bool:
    path = folder / CARD
    return path.is_file() and path.read_bytes() == _card(folder, out_root)
