"""The examples of docs/loader.md, run as they stand there on datasets that the real stages prepared."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prep.snapshots import SnapshotOptions, prepare_snapshots
from tests.clips import make_clip
from tests.commands import PROJECT
from tests.llava import parquet, row
from tests.reasoning import annotation, clips, item, run
from tests.robot_scenes import droid_scenes, libero_scenes
from tests.sft_trees import build, source
from tests.trees import make_tree, prove

torch = pytest.importorskip("torch")

PAGE = (PROJECT / "docs" / "loader.md").read_text(encoding="utf-8")
SETUP = "The examples"


def sections() -> dict[str, str]:
    """The page's Python by heading."""
    parts = re.split(r"(?m)^#{2,3} (.+)$", PAGE)
    blocks = {
        title: "\n".join(re.findall(r"(?ms)^```python\n(.*?)^```$", text))
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {title: code for title, code in blocks.items() if code}


def executed(title: str) -> dict[str, Any]:
    """What the names of a section are, after it was run behind the setup."""
    names: dict[str, Any] = {"__name__": "page"}
    for part in (SETUP, title):
        exec(compile(sections()[part], f"docs/loader.md, {part}", "exec"), names)
    return names


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def videophy2(data: Path) -> None:
    root = make_tree(data / "videophy2_train", 6, split="train")
    for path in sorted((root / "media").iterdir()):
        make_clip(path, frames=40, rate=8, width=32, height=32)
    prove(root, split="train")


def llava(data: Path) -> None:
    (data.parent / "rows.parquet").write_bytes(parquet([row(number) for number in range(9)]))
    options = SnapshotOptions(source=str(data.parent / "rows.parquet"))
    [made] = prepare_snapshots("llava_ov", data.parent / "out", subsets=["default"], options=options)
    shutil.copytree(made.root, data / "llava_ov/ai2d/train")


def reasoning(data: Path) -> None:
    media = clips(data.parent / "in", "a.mp4", "b.mp4")
    run(data, [annotation(media / "qa.json", [item("a.mp4"), item("b.mp4", "And then?")])])


def sft(data: Path) -> None:
    build(data, **source(data.parent / "in", ["a", "b", "c"]), name="my_clips")


def droid(data: Path) -> None:
    made = droid_scenes(data.parent)
    shutil.copytree(made, data / "droid_plus_lerobot_640x360_20260412", symlinks=False)


def libero(data: Path) -> None:
    shutil.copytree(libero_scenes(data.parent), data / "LIBERO_LeRobot_v3/libero_10", symlinks=False)


def is_chat(batch: dict[str, Any], samples: int = 1) -> None:
    """A batch as the VLM collator gives it: padded to 16, and something to learn in each sample."""
    ids, labels = batch["input_ids"], batch["labels"]
    assert ids.shape == labels.shape == batch["token_mask"].shape == batch["attention_mask"].shape
    assert ids.shape[0] == samples
    assert ids.shape[1] % 16 == 0
    assert bool((labels >= 0).any(dim=1).all())
    assert bool(((labels >= 0) == batch["token_mask"]).all())


def check_videophy2(names: dict[str, Any]) -> None:
    is_chat(names["batch"])
    assert tuple(names["batch"]["pixel_values_videos"].shape) == (10, 12)


def check_llava(names: dict[str, Any]) -> None:
    is_chat(names["batch"], 4)
    assert tuple(names["batch"]["pixel_values"].shape) == (4, 12)
    assert 0.5 < names["loader"].stats()["fill"] <= 1


def check_reasoning(names: dict[str, Any]) -> None:
    is_chat(names["batch"])
    assert names["loader"].stats()["samples"] == 4


def check_sft(names: dict[str, Any]) -> None:
    batch = names["batch"]
    assert len(batch["text_token_ids"]) == len(batch["video"]) > 1
    for (ids,), (video,), size in zip(
        batch["text_token_ids"], batch["video"], batch["image_size"], strict=True
    ):
        assert (ids.dtype, ids.ndim) == (torch.int64, 1)
        assert (video.dtype, video.shape[0]) == (torch.uint8, 3)
        assert size.flatten().tolist() == [*video.shape[-2:]] * 2
    assert all("It lasts" in text for texts in batch["ai_caption"] for text in [texts])


def check_droid(names: dict[str, Any]) -> None:
    batch = names["batch"]
    for (video,), (action,), state in zip(batch["video"], batch["action"], batch["state"], strict=True):
        assert (video.dtype, tuple(video.shape[:2])) == (torch.uint8, (3, 33))
        assert video.shape[-1] in (256, 320, 192)
        assert (tuple(action.shape), tuple(state.shape)) == ((32, 8), (1, 8))


def check_libero(names: dict[str, Any]) -> None:
    (video,), (action,) = names["batch"]["video"][0], names["batch"]["action"][0]
    assert (video.dtype, tuple(video.shape)) == (torch.float32, (3, 17, 192, 320))
    assert float(video.min()) >= -1
    assert float(video.max()) <= 1
    assert tuple(action.shape) == (16, 10)


def check_resume(names: dict[str, Any]) -> None:
    assert names["expected"].shape[0] == 2
    assert names["loader"].stats()["batches"] == 2
    assert names["resumed"].stats()["batches"] == 2


CASES: dict[str, tuple[Callable[[Path], None], Callable[[dict[str, Any]], None]]] = {
    "VideoPhy-2": (videophy2, check_videophy2),
    "LLaVA-OneVision": (llava, check_llava),
    "Video reasoning": (reasoning, check_reasoning),
    "SFT clips": (sft, check_sft),
    "DROID": (droid, check_droid),
    "LIBERO": (libero, check_libero),
    "Resume": (videophy2, check_resume),
}


@pytest.mark.parametrize("title", CASES)
def test_an_example_runs_as_it_stands(title: str, data: Path) -> None:
    prepared, check = CASES[title]
    prepared(data)
    check(executed(title))


def test_every_example_is_run() -> None:
    assert {*sections()} == {SETUP, *CASES}
