"""One sample as text and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from prep.errors import PrepError, UsageError
from prep.resources import data_folder
from prep.robots import RobotOptions, prepare_robots
from prep.show import show
from prep.snapshots import SnapshotOptions, prepare_snapshots
from tests.clips import make_clip
from tests.commands import prep, told
from tests.llava import parquet, row
from tests.reasoning import annotation, clips, item
from tests.reasoning import run as reasoning
from tests.robot_scenes import libero_scenes
from tests.sft_trees import build, source
from tests.trees import PROMPT, make_tree, prove


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "videophy2_val", 3, manifest=True)


def test_the_text_has_the_id_the_media_and_the_turns(tree: Path) -> None:
    lines = show(tree, 2).splitlines()
    size = (tree / "media" / "video_0003.mp4").stat().st_size
    assert "conversation_0003" in lines[0]
    assert lines[1] == f"video_0: {size} bytes, {tree / 'media' / 'video_0003.mp4'}"
    assert lines[2:] == ["user: <video video_0>", f"user: {PROMPT}", "assistant: 4"]


def test_a_turn_may_be_a_plain_text(tree: Path) -> None:
    text = tree / "text" / "conversation_0001.json"
    text.write_text(text.read_text().replace('[{"type": "text", "text": "2"}]', '"two"'))
    assert show(tree, 0).splitlines()[-1] == "assistant: two"


@pytest.mark.parametrize(
    ("frames", "rate", "size", "sheet"),
    [(49, 8, (64, 48), (1280, 240)), (3, 30, (64, 48), (160, 120)), (40, 2, (48, 64), (1280, 852))],
)
def test_the_picture_holds_the_frames_that_training_takes(
    frames: int, rate: int, size: tuple[int, int], sheet: tuple[int, int], tmp_path: Path
) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 1)
    make_clip(tree / "media" / "video_0001.mp4", frames=frames, rate=rate, width=size[0], height=size[1])
    prove(tree)
    show(tree, 0, png=tmp_path / "new" / "folder" / "a.png")
    with Image.open(tmp_path / "new" / "folder" / "a.png") as picture:
        assert picture.size == sheet
        assert picture.format == "PNG"
        assert len(picture.getcolors(1 << 24) or ()) > 10


def test_an_index_outside_is_refused_with_the_last_one(tree: Path) -> None:
    with pytest.raises(UsageError) as error:
        show(tree, 3)
    assert error.value.remedy == "The last index is 2."


def test_a_picture_that_cannot_be_written_ends_with_3(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told(prep("show", tree, "--png", tmp_path / "file" / "a.png"), 3)


def test_a_broken_clip_is_one_sentence(tree: Path, tmp_path: Path) -> None:
    (tree / "media" / "video_0001.mp4").write_bytes(b"nothing")
    with pytest.raises(PrepError, match=r"video_0001\.mp4"):
        show(tree, 0, png=tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_the_command_prints_it_on_stdout(tree: Path, tmp_path: Path) -> None:
    done = prep("show", tree, "--index", "1", "--png", tmp_path / "a.png")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "conversation_0002" in done.stdout
    assert (tmp_path / "a.png").is_file()


# --- the other kinds -----------------------------------------------------------------------


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    (tmp_path / "rows.parquet").write_bytes(parquet([row(0), row(1)]))
    options = SnapshotOptions(source=str(tmp_path / "rows.parquet"))
    (result,) = prepare_snapshots("llava_ov", tmp_path / "data", subsets=["default"], options=options)
    return result.root


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    media = clips(tmp_path / "media", "a.mp4", "b.mp4")
    path = annotation(media / "qa.json", [item("a.mp4"), item("b.mp4", "Where?")])
    reasoning(tmp_path / "data", [path], mode="answer")
    return tmp_path / "data/video_reasoning/train"


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    return build(tmp_path / "data", **source(tmp_path / "source", ["first"])).root


def test_a_row_of_a_snapshot_is_shown_and_its_picture_written_as_it_is(
    snapshot: Path, tmp_path: Path
) -> None:
    text = show(snapshot, 1, png=tmp_path / "a.png")
    assert text.splitlines()[0] == "sample 1 of 0 to 1: row 1"
    assert "image_0: " in text
    assert "uint8 [16, 24, 3]" in text
    assert "assistant: It is 1." in text
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (24, 16)
        assert picture.getpixel((0, 0)) == (1, 0, 77)


def test_a_reasoning_item_is_shown_with_the_frames_of_its_video(questions: Path, tmp_path: Path) -> None:
    text = show(questions, 1, png=tmp_path / "a.png")
    assert "user: Where?" in text
    assert "b.mp4" in text
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] % 160 == 0


def test_a_reasoning_item_without_its_video_is_one_sentence(questions: Path, tmp_path: Path) -> None:
    for path in tmp_path.rglob("a.mp4"):
        path.unlink()
    with pytest.raises(PrepError, match=r"a\.mp4: cannot be read"):
        show(questions, 0, png=tmp_path / "a.png")


def test_an_sft_record_is_shown_with_its_frames(captioned: Path, tmp_path: Path) -> None:
    assert "Take first." in show(captioned, 0, png=tmp_path / "a.png")
    assert (tmp_path / "a.png").is_file()


def test_a_robot_window_is_shown_with_its_frames(tmp_path: Path) -> None:
    text = show(libero_scenes(tmp_path), 0, png=tmp_path / "a.png")
    assert "action: float32" in text
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] == 8 * 160


def test_a_robot_recipe_without_a_consumer_gets_one_by_the_remedy(tmp_path: Path) -> None:
    libero_scenes(tmp_path / "made")
    text = (data_folder("recipes") / "libero_10.toml").read_text()
    kept = [line for line in text.splitlines() if not line.startswith("consumers")]
    recipe, options = tmp_path / "mine.toml", RobotOptions(root=tmp_path / "made/tree", update=True)
    recipe.write_text("\n".join(kept))
    (result,) = prepare_robots(str(recipe), tmp_path / "data", options=options)
    with pytest.raises(UsageError, match="names no consumer") as error:
        show(result.root, 0)
    assert 'consumers = ["NAME"]' in error.value.remedy
    assert "action_policy_libero_10_nano" in error.value.remedy
    assert "--update" in error.value.remedy
    recipe.write_text(text)
    prepare_robots(str(recipe), tmp_path / "data", options=options)
    assert "action: float32" in show(result.root, 0)
