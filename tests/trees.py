"""Small prepared conversations trees for tests: tiny clips, real files, with a manifest and without."""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prep.layouts.conversations import Layout, meta_json
from prep.manifest import FileRow, Manifest, RecordRow
from prep.recipe import load_recipe
from tests.clips import make_clip

__all__ = ["PROMPT", "clip_bytes", "conversation", "edit_json", "make_tree", "prove"]

PROMPT = "How likely is what you see? Answer with one whole number from 1 to 5."


@functools.cache
def _clip() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return make_clip(Path(folder) / "clip.mp4", frames=4, width=32, height=32).read_bytes()


def clip_bytes(number: int) -> bytes:
    """A whole MP4 that differs from that of another number: a `free` box at its end holds the number."""
    return _clip() + b"\x00\x00\x00\x10free" + number.to_bytes(8, "big")


def conversation(question: str, answer: str) -> dict[str, Any]:
    """A conversation as upstream reads it."""
    return {
        "conversations": [
            {
                "role": "user",
                "content": [{"type": "video", "video": "video_0"}, {"type": "text", "text": question}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": answer}]},
        ]
    }


def make_tree(
    root: Path,
    records: int = 3,
    *,
    manifest: bool = False,
    split: str = "val",
    first_clip: int = 1,
    question: Callable[[int], str] = lambda row: PROMPT,
    answer: Callable[[int], str] = lambda row: str(row % 5 + 1),
) -> Path:
    """Write a valid tree of so many records at `root` and return it.

    Clip `first_clip` goes to row 1, and so on; rows count from 1. With `manifest`, what stands
    there is proved as `prep videophy2` proves it.
    """
    layout = Layout.of(load_recipe("videophy2").document)
    for row in range(1, records + 1):
        media, text = root / layout.media(row), root / layout.conversation(row)
        media.parent.mkdir(parents=True, exist_ok=True)
        text.parent.mkdir(parents=True, exist_ok=True)
        media.write_bytes(clip_bytes(first_clip + row - 1))
        text.write_text(json.dumps(conversation(question(row), answer(row))), encoding="ascii")
    root.mkdir(parents=True, exist_ok=True)
    (root / "meta.json").write_bytes(b"".join(meta_json(layout.entry(row) for row in range(1, records + 1))))
    if manifest:
        prove(root, split=split)
    return root


def prove(root: Path, *, split: str = "val", **facts: Any) -> Manifest:
    """Write a manifest that is true of the tree as it stands; `facts` replace parts of it."""
    recipe = load_recipe("videophy2")
    entries = json.loads((root / "meta.json").read_text(encoding="ascii"))
    media = {entry["media"]: _row(root, entry["media"], "payload") for entry in entries}
    views = {entry["conversation"]: _row(root, entry["conversation"], "view") for entry in entries}
    files = sorted(
        [*media.values(), *views.values(), _row(root, "meta.json", "view")], key=lambda row: row.path
    )
    records = [
        RecordRow(
            row=row,
            id=entry["id"],
            split=split,
            status="kept",
            reason="",
            detail="",
            source=f"https://example.org/{row}.mp4",
            media=entry["media"],
            media_sha256=media[entry["media"]].sha256,
            sha256=views[entry["conversation"]].sha256,
        )
        for row, entry in enumerate(entries, 1)
    ]
    document = {
        "prep_version": "0.1.0",
        "name": root.name,
        "split": split,
        "kind": "conversations",
        "recipe": dict(recipe.document),
        "recipe_sha256": recipe.sha256,
        "request": {"score_field": "pc", "captions": []},
        "sources": [{"kind": "local", "file": "table.csv", "size": 1, "sha256": "0" * 64}],
        "counts": {"rows": len(records), "kept": len(records), "failed": 0},
        "drops": {},
        "consumption": {"samples": len(records)},
        "details": {"prompt": {"sha256": recipe.document["prompt"]["sha256"]}},
        "fingerprint": "0" * 64,
    }
    return Manifest.write(root, {**document, **facts}, files, records)


def _row(root: Path, path: str, role: Any) -> FileRow:
    data = (root / path).read_bytes()
    return FileRow(path, len(data), hashlib.sha256(data).hexdigest(), "computed", role)


def edit_json(path: Path, *steps: str | int, value: Any) -> None:
    """Set one value inside a JSON file, named by its keys and positions."""
    document = json.loads(path.read_text(encoding="utf-8"))
    inner: Any = document
    for step in steps[:-1]:
        inner = inner[step]
    inner[steps[-1]] = value
    path.write_text(json.dumps(document), encoding="ascii")
