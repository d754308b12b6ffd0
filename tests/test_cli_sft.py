"""`prep sft` and `prep bridge` as a user types them: what they print, and what each mistake is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prep.environment import env
from prep.errors import EnvironmentLacksError, UsageError
from prep.stages.sft_tokens import token_counter
from tests.commands import prep, told
from tests.sft_trees import bridge_tree, build, check, codes, lines, source

LINES = "train/video_dataset_file.jsonl"
CONSUMERS = ("vision_sft_nano", "vision_sft_super", "vision_sft_edge")


def test_own_clips_end_in_a_dataset_that_the_recipes_read(tmp_path: Path) -> None:
    source(tmp_path, ["ep1_clip000", "ep1_clip001", "ep2_clip000"])
    done = prep(
        *("sft", "--from-captions", "captions", "--videos", "videos", "--name", "mine"),
        *("--val-fraction", "0.34", "--seed", "1", "--format", "json", "-q"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    root = tmp_path / "data/mine"
    assert (result["outcome"], result["directory"]) == ("complete", "data/mine")
    assert {item["uuid"] for item in lines(root / "val/video_dataset_file.jsonl")} == {"ep2_clip000"}
    assert result["consumption"]["splits"]["train"]["captions"] == {"caption": 2}
    said = " ".join(done.stderr.split())
    assert "train: training keeps 2 of 2 records and 2 of 2 windows; captions: caption 2" in said
    for consumer in CONSUMERS:
        found = env(tmp_path / "data", consumer=consumer)
        assert found.variables["DATASET_PATH"] == str(root)
        assert not any("not there" in remark for remark in found.remarks)


def test_bridge_sets_the_directory_above_the_splits(tmp_path: Path) -> None:
    bridge_tree(tmp_path / "src")
    done = prep("bridge", "--source", "src", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = prep("env", "data", "--for", "vision_sft_nano", cwd=tmp_path).stdout
    directory = tmp_path / "data/BridgeData2-Subset-Synthetic-Captions/sft_dataset_bridge"
    assert f"export DATASET_PATH={directory}\n" in printed
    assert (directory / LINES).is_file()
    assert codes(check(directory)) == {}


def test_a_dry_run_shows_the_prompts_that_would_change(tmp_path: Path) -> None:
    bridge_tree(tmp_path / "src")
    done = prep("bridge", "--source", "src", "--align-prompts", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "prompts would be set to the structured caption: 2 of 2" in said
    assert "val/inference_prompt_i2v/ep2_clip000.json: the prompt would be set" in said
    assert not (tmp_path / "data").exists()


def test_faults_end_with_status_1_and_are_listed(tmp_path: Path) -> None:
    given = source(tmp_path, ["a", "b"])
    (given["videos"] / "b.mp4").write_bytes(b"<!doctype html><html></html>")
    done = prep("sft", "--from-captions", "captions", "--videos", "videos", cwd=tmp_path)
    assert done.returncode == 1
    assert "failed row 2 (ffprobe_error): b.mp4: " in done.stderr
    (given["videos"] / "b.mp4").unlink()
    done = prep("sft", "--from-captions", "captions", "--videos", "videos", cwd=tmp_path)
    assert done.returncode == 1
    assert "failed row 2 (missing_video): b: no b{" in done.stderr
    assert "missing_video" in done.stderr
    listed = prep("failures", "data/sft_dataset", cwd=tmp_path)
    assert "missing_video" in listed.stdout
    accepted = prep(
        "sft", "--from-captions", "captions", "--videos", "videos", "--min-coverage", "0.5", cwd=tmp_path
    )
    assert accepted.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sft"], "names no source"),
        (["sft", "--from-captions", "captions"], "needs the videos"),
        (["sft", "--from-curator", "nowhere"], "is not a directory"),
        (["sft", "--source", "captions", "--from-curator", "captions"], "are given"),
        (["sft", "--recipe", "videophy2"], "is of the kind conversations"),
        (["sft", "--val-fraction", "1"], "--val-fraction"),
        (["bridge", "--source", "captions"], "holds no train/video_dataset_file.jsonl"),
        (["bridge", "--source", "captions", "--num-video-frames", "0"], "is 0 or below -1"),
    ],
)
def test_a_mistake_is_one_sentence_and_the_next_step(arguments: list[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "captions").mkdir()
    assert says in told(prep(*arguments, cwd=tmp_path), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["captions"]


def test_a_recipe_of_ones_own_names_its_folders(tmp_path: Path) -> None:
    source(tmp_path / "mine", ["ep1_clip000", "ep2_clip000"])
    (tmp_path / "mine/recipe.toml").write_text(
        'name = "mine"\nkind = "sft_jsonl"\n[datasets.mine]\ndirectory = "mine"\n'
        '[source]\ncaptions = "captions"\nvideos = "videos"\n'
        "[build]\nval_fraction = 0.5\nseed = 3\n[loader]\nnum_video_frames = 64\n"
    )
    done = prep("sft", "--recipe", "mine/recipe.toml", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for split in ("train", "val"):
        assert len(lines(tmp_path / f"data/mine/{split}/video_dataset_file.jsonl")) == 1
    text = (tmp_path / "mine/recipe.toml").read_text()
    (tmp_path / "mine/recipe.toml").write_text(text.replace("val_fraction", "val_share"))
    assert "val_share" in told(prep("sft", "--recipe", "mine/recipe.toml", cwd=tmp_path), 2)


def test_counting_tokens_without_its_package_or_its_files_says_so(tmp_path: Path) -> None:
    given = source(tmp_path / "src", ["a"])
    with pytest.raises(UsageError, match=r"holds no tokenizer\.json"):
        build(tmp_path / "data", **given, tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    try:
        import transformers  # noqa: F401
    except ImportError:
        with pytest.raises(EnvironmentLacksError, match="transformers"):
            token_counter(tmp_path)
        with pytest.raises(EnvironmentLacksError, match="transformers"):
            build(tmp_path / "data", **given, tokenizer=tmp_path)
        assert not (tmp_path / "data").exists()
    else:
        with pytest.raises(UsageError, match="no usable tokenizer"):
            token_counter(tmp_path)
