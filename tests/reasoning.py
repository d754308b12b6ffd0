"""Annotation files and videos for tests of the reasoning kind, and runs over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prep.findings import Report
from prep.proof import load_proof
from prep.reasoning import Asked, ReasoningOptions, prepare_video_reasoning
from prep.stages.options import Result
from prep.validation_reasoning import Level, ReasoningCheck
from tests.clips import make_clip

__all__ = ["annotation", "check", "clips", "codes", "item", "run"]


def item(video: str, question: str = "Why?", **more: Any) -> dict[str, Any]:
    """An item with an answer and a reasoning; a value of None leaves its key out."""
    given = {"video_id": video, "question": question, "answer": "So.", "reasoning": "Look.", **more}
    return {key: value for key, value in given.items() if value is not None}


def annotation(path: Path, items: Sequence[Any], **around: Any) -> Path:
    """Write a file of bare items, or with what is given around them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**around, "items": list(items)}), encoding="utf-8")
    return path


def clips(folder: Path, *names: str) -> Path:
    """Small whole videos, each of another length."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make_clip(folder / name, frames=4 + number, width=32, height=32)
    return folder


def run(out: Path, train: Sequence[Path] = (), val: Sequence[Path] = (), **more: Any) -> list[Result]:
    """Prepare; keywords that `Asked` knows hold for train, the others are the run's options."""
    asked = {name: more.pop(name) for name in list(more) if name in Asked.__dataclass_fields__}
    splits = {"train": Asked(annotations=train, **asked), "val": Asked(annotations=val)}
    return prepare_video_reasoning(out_root=out, options=ReasoningOptions(asked=splits, **more))


def check(root: Path, level: Level = "quick") -> Report:
    """The report of one dataset or foreign tree."""
    report = Report(str(root), level)
    proof = load_proof(root, report.add)
    ReasoningCheck(root, proof, level, 2, report, report.add).run()
    return report


def codes(report: Report) -> dict[str, int]:
    """How often each code was found."""
    return {group.code: group.count for group in report.ordered()}
