"""One sample as text and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from prep.errors import PrepError, UsageError
from prep.show import show
from tests.clips import make_clip
from tests.commands import prep, told
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
