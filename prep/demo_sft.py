"""The SFT part of the embedded first run: clips and captions of one's own, and a damaged copy of the result.

One clip is too short to train on, one caption has no clip, and one structured caption is broken.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from prep.demo_clips import draw_clip
from prep.demo_steps import Steps, reasons
from prep.readers import open as open_reader
from prep.validation import validate

__all__ = ["run"]

_NAME = "my_clips"
_CLIPS = {
    "ramp_clip000": "A red square rolls down a ramp.",
    "ramp_clip001": "The red square comes to rest at the foot of the ramp.",
    "shelf_clip000": "A green square slides along a shelf.",
    "shelf_clip001": "The green square falls off the shelf.",
    "table_clip000": "A blue square crosses a table.",
    "table_clip001": "The blue square turns back.",
    "table_clip002": "The blue square stops.",
    "table_clip003": "The blue square is gone.",
}
_FRAMES = 72
_SHORT, _BROKEN, _MISSING = "table_clip002", "shelf_clip001", "table_clip003"
_TOO_FEW = 40  # frames; a window has 61 or more
_RESULT = "^  (status|records|kept|dataset id|warning|failed row|note)"

_ON_PURPOSE = f"""\
On purpose: {_SHORT} is too short to train on, {_MISSING} is a caption without a clip, and the
structured caption of {_BROKEN} is cut off. Clips of one source are held out together."""


def run(steps: Steps, folder: Path) -> None:
    """Make captions and clips in `folder`, prepare them, show one, and find what is wrong with a copy."""
    captions, videos = folder / "raw" / "sft" / "captions", folder / "raw" / "sft" / "videos"
    steps.tell(f"Captions in {captions}, clips in {videos}", _ON_PURPOSE)
    _make(captions, videos)
    given = ("--from-captions", captions, "--videos", videos, "--name", _NAME)
    choice = ("--val-fraction", "0.3", "--min-coverage", "0.8")
    steps.run("sft", *given, *choice, "--out-root", folder / "data", shown=_RESULT)
    root = folder / "data" / _NAME
    left_out = {"too_few_frames": 1, "missing_video": 1}
    steps.expect("captions that are left out", reasons(root), left_out)
    val = open_reader(root, split="val")
    held_out = {val[index]["uuid"].partition("_")[0] for index in range(len(val))}
    steps.expect("sources that are held out", len(held_out), 1)
    steps.run("show", root, shown="^(sample|caption|fps|path)")
    _damage(steps, root, folder / "damaged")


def _make(captions: Path, videos: Path) -> None:
    for number, (name, text) in enumerate(_CLIPS.items()):
        caption = json.dumps({"subjects": [{"description": "a square"}], "temporal_caption": text})
        (captions / name).mkdir(parents=True, exist_ok=True)
        (captions / name / "caption.txt").write_text(text, encoding="utf-8")
        whole = caption if name != _BROKEN else caption[:20]
        (captions / name / "caption.json").write_text(whole, encoding="utf-8")
        if name != _MISSING:
            frames = _TOO_FEW if name == _SHORT else _FRAMES + number
            draw_clip(videos / f"{name}.mp4", seed=40 + number, frames=frames)


def _damage(steps: Steps, root: Path, copy: Path) -> None:
    """Cut a clip of a copy short, as a full disk does while files are copied, and let it be found."""
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(root, copy)
    clip = min((copy / "train" / "videos").iterdir())
    clip.write_bytes(clip.read_bytes()[:2000])
    steps.run(
        "validate",
        copy,
        status=1,
        shown="^(ERROR|  train|[0-9]+ errors)",
        why=f"A copy of it, with one clip cut short: {clip}",
    )
    errors = {item.path for group in validate(copy).ordered() for item in group.findings}
    steps.expect("files of the copy that have findings", errors, {clip.relative_to(copy).as_posix()})
