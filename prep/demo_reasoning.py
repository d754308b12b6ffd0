"""The video reasoning part of the embedded first run: questions about the clips that are there already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prep.demo_steps import Steps
from prep.readers import open as open_reader

__all__ = ["run"]

_FORMAT = "tao-vl-reason-v1.0"
_METADATA = {"type": "annotation", "license": "CC0-1.0"}
_QUESTION = "How does the shape move?\nA. It stays where it is.\nB. It moves to the right."
_SEEN = "At first the shape is at the left; from frame to frame it is further to the right."
_RESULT = r"^\w|^  (status|items|training reads|dataset id|warning)"

_ON_PURPOSE = """\
On purpose: one item of train has an answer, and no reasoning that leads to it. Train is hybrid: each
item is shown twice, as a bare answer and with the reasoning before it."""


def run(steps: Steps, folder: Path) -> None:
    """Write a train and a val file about the clips in `folder/raw`, prepare both, and show a sample."""
    raw, out = folder / "raw", folder / "data"
    train, val = raw / "reasoning_train.json", raw / "reasoning_val.json"
    steps.tell(f"Questions about the clips of step 1, in {train} and {val}", _ON_PURPOSE)
    _write(train, raw, sorted((raw / "train").glob("*.mp4"))[:4])
    _write(val, raw, sorted((raw / "test").glob("*.mp4"))[:2])
    given = ("--train", train, "--val", val, "--media-root", raw, "--global-batch", "4")
    steps.run("video-reasoning", *given, "--out-root", out, shown=_RESULT)
    for split, samples in (("train", 8), ("val", 2)):
        found = len(open_reader(out / "video_reasoning" / split))
        steps.expect(f"samples of {split} in a pass", found, samples)
    steps.run("show", out / "video_reasoning" / "train", "--index", "1")


def _write(path: Path, raw: Path, clips: list[Path]) -> None:
    items: list[dict[str, Any]] = [
        {
            "video_id": clip.relative_to(raw).as_posix(),
            "question": _QUESTION,
            "answer": "B",
            "reasoning": _SEEN,
        }
        for clip in clips
    ]
    if path.name == "reasoning_train.json":
        del items[-1]["reasoning"]
    document = {"format": _FORMAT, "metadata": _METADATA, "items": items}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
