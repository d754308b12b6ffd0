"""The commands video-reasoning and daft: options reach the run, and what is wrong ends in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prep.cli_group import Settings
from prep.cli_reasoning import daft, video_reasoning
from prep.environment import env
from prep.errors import UsageError
from tests.reasoning import annotation, clips, item

COMMANDS = {"video-reasoning": video_reasoning, "daft": daft}


def command(name: str, *arguments: str | Path) -> Result:
    return CliRunner().invoke(COMMANDS[name], [str(each) for each in arguments], obj=Settings())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = clips(tmp_path / "source/videos", "a.mp4", "b.mp4").parent
    for name in "ab":
        annotation(folder / f"text/{name}.json", [item(f"{name}.mp4"), item(f"{name}.mp4", "How?")])
    return folder


@pytest.mark.parametrize("name", ["video-reasoning", "daft"])
def test_options_reach_the_environment(name: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    splits = (
        "--train",
        source / "text/a.json",
        "--val",
        source / "text/b.json",
        "--media-root",
        source / "videos",
    )
    train = ("--train-mode", "think", "--train-stride", "2", "--train-limit", "1", "--val-offset", "1")
    done = command(
        name, "--out-root", out, *splits, *train, "--system-prompt", "Be brief.", "--format", "json"
    )
    assert done.exit_code == 0, done.output
    base = out / "video_reasoning"
    expected = {
        "COSMOS_VIDEO_TRAIN_ANNOTATIONS": str(base / "train/a.json"),
        "COSMOS_VIDEO_TRAIN_MEDIA_ROOTS": str(base / "train/media/001"),
        "COSMOS_VIDEO_TRAIN_RESPONSE_MODE": "think",
        "COSMOS_VIDEO_TRAIN_SAMPLE_STRIDE": "2",
        "COSMOS_VIDEO_TRAIN_SAMPLE_OFFSET": "0",
        "COSMOS_VIDEO_TRAIN_LIMIT": "1",
        "COSMOS_VIDEO_VAL_ANNOTATIONS": str(base / "val/b.json"),
        "COSMOS_VIDEO_VAL_MEDIA_ROOTS": str(base / "val/media/001"),
        "COSMOS_VIDEO_VAL_RESPONSE_MODE": "answer",
        "COSMOS_VIDEO_VAL_SAMPLE_STRIDE": "1",
        "COSMOS_VIDEO_VAL_SAMPLE_OFFSET": "1",
        "COSMOS_VIDEO_SYSTEM_PROMPT": "Be brief.",
    }
    given = env(out, consumer="video_reasoning_sft")
    assert {key: value for key, value in given.variables.items() if key.startswith("COSMOS")} == expected
    assert not any("not there" in remark for remark in given.remarks)


def test_one_split_alone_says_which_is_lacking(source: Path, tmp_path: Path) -> None:
    done = command(
        "daft", "--out-root", tmp_path, "--val", source / "text/b.json", "--val-media-root", source / "videos"
    )
    assert done.exit_code == 0
    given = env(tmp_path / "video_reasoning/val")
    assert any("not there: video_reasoning/train" in remark for remark in given.remarks)


def test_the_other_split_is_found_beside_it(source: Path, tmp_path: Path) -> None:
    splits = ("--train", source / "text/a.json", "--val", source / "text/b.json")
    command("daft", "--out-root", tmp_path, *splits, "--media-root", source / "videos")
    given = env(tmp_path / "video_reasoning/val")
    assert not any("not there" in remark for remark in given.remarks)


def test_figures_for_programs(source: Path, tmp_path: Path) -> None:
    done = command(
        "daft",
        *("--out-root", tmp_path, "--train", source / "text/a.json", "--train", source / "text/b.json"),
        *("--media-root", source / "videos", "--global-batch", "3", "--dry-run", "--format", "json"),
    )
    (result,) = json.loads(done.stdout)
    assert (result["rows"], result["consumption"]["samples"]) == (4, 8)
    assert "a pass takes 3 steps of 3 samples" in result["notes"]
    assert list(tmp_path.iterdir()) == [source]


def test_missing_videos_end_with_status_one(source: Path, tmp_path: Path) -> None:
    done = command(
        "daft", "--out-root", tmp_path / "out", "--train", source / "text/a.json", "--format", "json"
    )
    assert done.exit_code == 1
    (result,) = json.loads(done.stdout)
    assert "tried" in result["findings"][0]["message"]
    assert not (tmp_path / "out").exists()


def test_several_annotation_files_become_a_json_array(source: Path, tmp_path: Path) -> None:
    files = [source / "text/a.json", source / "text/b.json"]
    command(
        "daft",
        "--out-root",
        tmp_path,
        *(x for f in files for x in ("--train", f)),
        "--media-root",
        source / "videos",
    )
    variables = env(tmp_path / "video_reasoning/train").variables
    assert json.loads(variables["COSMOS_VIDEO_TRAIN_ANNOTATIONS"]) == [
        str(tmp_path / "video_reasoning/train" / path.name) for path in files
    ]
    assert variables["COSMOS_VIDEO_TRAIN_MEDIA_ROOTS"] == str(tmp_path / "video_reasoning/train/media/001")


def test_two_prompts_cannot_be_one_environment(source: Path, tmp_path: Path) -> None:
    for split, name, prompt in (("train", "a", "One."), ("val", "b", "Two.")):
        given = (f"--{split}", source / f"text/{name}.json", f"--{split}-system-prompt", prompt)
        assert (
            command("daft", "--out-root", tmp_path, *given, "--media-root", source / "videos").exit_code == 0
        )
    with pytest.raises(UsageError, match="would set COSMOS_VIDEO_SYSTEM_PROMPT"):
        env(tmp_path)
