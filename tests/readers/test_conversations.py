"""The reader of conversations: what training gets, in which order, and what is refused."""

from __future__ import annotations

import itertools
import json
import pickle
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import prep
from prep.errors import PrepError, UsageError
from prep.readers.conversations import MAX_FRAMES, ConversationsReader, frame_indices
from tests.clips import make_clip
from tests.trees import conversation, make_tree, prove

RATES = st.none() | st.floats(0.1, 1000) | st.fractions(Fraction(1, 10), 1000, max_denominator=1001)


def literal_rule(frames: int, rate: float | None) -> list[int]:
    """Contracts, section 2, word for word: stride = max(1, round(fps/2)), indices 0, stride, …; cut at 32."""
    fps = 30 if rate is None else rate
    stride = max(1, round(fps / 2))
    indices = []
    index = 0
    while index < frames:
        indices.append(index)
        index += stride
    if len(indices) > 32:
        indices = [indices[int(i * len(indices) / 32)] for i in range(32)]
    return indices


@given(st.integers(0, 3000), RATES)
def test_frames_are_those_of_the_contract(frames: int, rate: Fraction | float | None) -> None:
    indices, reported, taken = frame_indices(frames, rate)
    known = 30.0 if rate is None else float(rate)
    assert indices == literal_rule(frames, None if rate is None else known)
    assert reported == known / max(1, round(known / 2))
    assert taken == pytest.approx(len(indices) * known / frames if frames else 0)


@given(st.integers(1, 3000), RATES)
def test_frames_ascend_within_the_clip_and_are_at_most_32(frames: int, rate: Fraction | float | None) -> None:
    indices, _, _ = frame_indices(frames, rate)
    assert indices[0] == 0
    assert indices[-1] < frames
    assert all(first < second for first, second in itertools.pairwise(indices))
    assert len(indices) <= MAX_FRAMES


@pytest.mark.parametrize(
    ("frames", "rate", "count", "last"),
    [
        (49, 8, 13, 48),
        (40, 5, 20, 38),
        (40, 7, 10, 36),
        (40, 1, 32, 38),
        (300, None, 20, 285),
        (1, 30, 1, 0),
        (0, 30, 0, None),
    ],
)
def test_frames_of_known_clips(frames: int, rate: float | None, count: int, last: int | None) -> None:
    indices, _, _ = frame_indices(frames, rate)
    assert (len(indices), indices[-1] if indices else None) == (count, last)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "videophy2_val", 4, manifest=True)


def opened(directory: Path) -> ConversationsReader:
    reader = prep.open(directory)
    assert isinstance(reader, ConversationsReader)
    return reader


def test_samples_come_in_the_order_of_meta_json_with_the_files_bytes(tree: Path) -> None:
    reader = opened(tree)
    assert len(reader) == 4
    for index, entry in enumerate(json.loads((tree / "meta.json").read_text())):
        sample = reader[index]
        assert sample["id"] == entry["id"]
        assert sample["media"] == {"video_0": (tree / entry["media"]).read_bytes()}
        assert sample["texts"] == json.loads((tree / entry["conversation"]).read_text())["conversations"]
        assert sample["path"] == str(tree / entry["media"])


def test_the_media_stands_under_the_key_that_the_conversation_names(tree: Path) -> None:
    document = conversation("Why?", "3")
    document["conversations"][0]["content"][0]["video"] = "clip"
    (tree / "text" / "conversation_0002.json").write_text(json.dumps(document))
    assert list(opened(tree)[1]["media"]) == ["clip"]


def test_a_reader_is_a_sequence_that_ends(tree: Path) -> None:
    assert [sample["id"] for sample in opened(tree)] == [f"conversation_000{row}" for row in (1, 2, 3, 4)]


@pytest.mark.parametrize("index", [-1, -4, 4, 1000])
def test_an_index_outside_is_refused(index: int, tree: Path) -> None:
    reader = opened(tree)
    with pytest.raises(IndexError, match="videophy2_val"):
        reader[index]
    with pytest.raises(IndexError):
        reader.frames(index)


def test_an_index_is_an_integer_of_any_kind_and_nothing_else(tree: Path) -> None:
    reader = opened(tree)
    assert reader[np.int64(1)]["id"] == reader[1]["id"]  # type: ignore[call-overload]
    for wrong in (1.0, "1", None, slice(0, 2)):
        with pytest.raises(TypeError):
            reader[wrong]  # type: ignore[index]


def open_files() -> int:
    """How many files this process has open; 0 where the system does not say."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def test_nothing_is_opened_before_the_first_use_and_nothing_kept_open_after(tree: Path) -> None:
    before = open_files()
    reader = opened(tree)
    (tree / "meta.json").rename(tree / "away")
    with pytest.raises(PrepError, match=r"meta\.json"):
        len(reader)
    (tree / "away").rename(tree / "meta.json")
    assert reader[0]["id"] == "conversation_0001"
    reader.frames(0)
    assert open_files() == before


def test_a_reader_pickles_small_before_and_after_use(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 300, manifest=True)
    reader = opened(tree)
    reader[0]
    data = pickle.dumps(reader)
    assert len(data) < 1000
    again = pickle.loads(data)
    assert len(again) == 300
    assert again[299] == reader[299]


def test_frames_are_those_of_the_decoded_clip(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 1)
    make_clip(tree / "media" / "video_0001.mp4", frames=49, rate=8)
    prove(tree)
    frames, indices, rate = opened(tree).frames(0)
    assert indices == list(range(0, 49, 4))
    assert rate == pytest.approx(13 / 49 * 8)
    with av.open(str(tree / "media" / "video_0001.mp4")) as container:
        every = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert frames.dtype == np.uint8
    assert frames.shape == (13, 48, 64, 3)
    assert np.array_equal(frames, np.stack([every[index] for index in indices]))


def test_a_long_clip_is_thinned_to_32_frames(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 1)
    make_clip(tree / "media" / "video_0001.mp4", frames=101, rate=2)
    prove(tree)
    frames, indices, _ = opened(tree).frames(0)
    assert len(frames) == len(indices) == 32
    assert indices == literal_rule(101, 2)


@pytest.mark.parametrize("damage", ["absent", "empty", "text", "sound"])
def test_a_clip_that_cannot_be_read_is_named(damage: str, tree: Path) -> None:
    clip = tree / "media" / "video_0002.mp4"
    if damage == "absent":
        clip.unlink()
    elif damage == "sound":
        from tests.clips import make_sound

        make_sound(clip)
    else:
        clip.write_bytes(b"" if damage == "empty" else b"no video at all" * 100)
    with pytest.raises(PrepError, match=r"video_0002\.mp4"):
        opened(tree).frames(1)


def test_a_conversation_that_cannot_be_read_is_named(tree: Path) -> None:
    text = tree / "text" / "conversation_0003.json"
    text.write_text("{")
    with pytest.raises(PrepError, match=r"conversation_0003\.json"):
        opened(tree)[2]
    text.write_text(json.dumps({"conversations": [{"role": "user", "content": "no media"}]}))
    with pytest.raises(PrepError, match="conversation_0003"):
        opened(tree)[2]


def test_only_a_finished_dataset_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no finished dataset"):
        prep.open(make_tree(tmp_path / "bare", 1))


def test_the_real_clips_give_13_frames_each(real_data: Path, tmp_path: Path) -> None:
    clips = sorted((real_data / "videophy2").rglob("*.mp4"))
    tree = make_tree(tmp_path / "videophy2_val", len(clips))
    for number, clip in enumerate(clips, 1):
        (tree / "media" / f"video_{number:04d}.mp4").unlink()
        (tree / "media" / f"video_{number:04d}.mp4").symlink_to(clip)
    prove(tree)
    reader = opened(tree)
    for index, clip in enumerate(clips):
        frames, indices, _ = reader.frames(index)
        with av.open(str(clip)) as container:
            stream = container.streams.video[0]
            expected = literal_rule(stream.frames, float(stream.average_rate or 30))
        assert (indices, len(frames)) == (expected, len(expected)), clip
