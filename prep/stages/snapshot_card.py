"""The card of the local Hub layout: README.md, by which `load_dataset` finds each subset that is prepared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from prep.files import disk_errors, write_whole
from prep.lock import Lock
from prep.manifest import Manifest

__all__ = ["card", "card_is_current", "write_card"]

CARD = "README.md"


def card(folder: Path, out_root: Path) -> bytes:
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


def card_is_current(folder: Path, out_root: Path) -> bool:
    """Whether the card in the folder is the one that its subsets give."""
    path = folder / CARD
    return path.is_file() and path.read_bytes() == card(folder, out_root)


def write_card(folder: Path, out_root: Path) -> None:
    """Write the card of a folder, one run at a time: several may prepare subsets of it at once."""
    lock = Lock(folder / ".card.lock")
    with disk_errors(folder):
        lock.acquire(wait=True)  # another run holds it for a moment only
        try:
            if not card_is_current(folder, out_root):
                write_whole(folder / CARD, card(folder, out_root))
        finally:
            lock.release()
