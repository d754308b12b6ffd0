"""The roles that make messages: which frames and images stand in them, and how a processor is called."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import prep
from prep.clip_frames import chosen_frames, sampled_frames
from prep.dataflow.base import RawItemProcessor
from prep.dataflow.roles import ReasoningMessages, ShareGPTToMessages, VideoPhy2Frames
from prep.errors import PrepError, UsageError
from prep.readers.conversations import frame_indices
from prep.snapshots import SnapshotOptions, prepare_snapshots
from tests.clips import make_clip, make_sound
from tests.llava import parquet, picture, row
from tests.reasoning import annotation, clips, item, run
from tests.trees import conversation, make_tree

# By hand: `_decode_video_to_pil_frames` of cosmos-framework at 5eee9ed5 with torchcodec 0.17 (FFmpeg 5.1):
# frames, width and height, the rate it reports, digest of all pixels.
UPSTREAM = {
    "gradio/world.mp4": (32, (480, 270), 2.0, "5a878df0a7f83a0c"),
    "gradio/b.avi": (10, (480, 270), 1.9867549668874174, "26dba8d8e41a97c9"),
    "nvidia_cosmos/robolab_example_rollout.mp4": (19, (864, 480), 1.875, "deee3c234c99bdfc"),
    "nvidia_cosmos/physical_plausibility.mp4": (13, (280, 280), 2.0, "3cd327e7dbb3adfe"),
    "torchcodec/nasa_13013_rotated.mp4": (2, (270, 480), 1.998001998001998, "b0b023413a12a207"),
    "torchcodec/h265_10bits.mp4": (2, (200, 200), 2.0, "051859cfbcdd1a0a"),
    "torchcodec/testsrc2_odd_height_and_width_mpeg2.mp4": (
        1,
        (121, 81),
        2.0833333333333335,
        "f39013fda1bd81ac",
    ),
    "torchcodec/testsrc2_odd_height_and_width_vp9.mp4": (
        3,
        (321, 241),
        2.0833333333333335,
        "2cfb2f15adfc7f44",
    ),
    "torchcodec/discard_first_keyframe.mp4": (3, (64, 64), 2.0833333333333335, "6b7a8931aa59889f"),
    "torchcodec/testsrc2_hdr.mp4": (4, (320, 180), 2.0, "82772cde41eebda1"),
}


class Chat:
    """A processor in upstream's form: words are numbered as they come, and what it is given is kept."""

    def __init__(self, **output: Any) -> None:
        self.words: dict[str, int] = {}
        self.seen: list[Any] = []
        self.output = output
        self.pad_token_id = 7

    def apply_chat_template(self, messages: Any, **keywords: Any) -> dict[str, Any]:
        import torch

        self.seen.append((messages, keywords))
        ids = []
        for message in messages:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            message["content"] = blocks  # upstream's processors change what they are given
            texts = [f"<{message['role']}>", *(block.get("text", "<media>") for block in blocks), "<end>"]
            ids += [self.words.setdefault(w, len(self.words) + 10) for text in texts for w in text.split()]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.ones(len(ids)).long(), **self.output}

    def add_assistant_tokens_mask(self, ids: Any) -> Any:
        inside, mask = False, []
        for each in ids.tolist():
            mask.append(inside)
            inside = (inside or each == self.words["<assistant>"]) and each != self.words["<end>"]
        import torch

        return torch.tensor(mask)


# --- frames ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UPSTREAM)
def test_frames_and_their_rate_are_upstreams_to_the_byte(name: str, real_data: Path) -> None:
    data = (real_data / "video" / name).read_bytes()
    clip = sampled_frames(data, max_frames=32, fps=2.0, name=name)
    digest = hashlib.sha256(b"".join(np.asarray(frame).tobytes() for frame in clip.frames)).hexdigest()
    assert (len(clip.frames), clip.frames[0].size, clip.fps, digest[:16]) == UPSTREAM[name]


@given(st.integers(0, 3000), st.floats(0.1, 1000))
def test_the_indices_are_the_readers_rule(total: int, rate: float) -> None:
    assert chosen_frames(total, rate, 32, 2.0)[0] == frame_indices(total, rate)[0]


@given(st.integers(1, 3000), st.floats(0.1, 1000), st.integers(1, 70), st.floats(0.2, 30))
def test_other_limits_keep_their_promise(total: int, rate: float, most: int, fps: float) -> None:
    indices, step = chosen_frames(total, rate, most, fps)
    assert step == max(1, round(rate / fps))
    assert indices[0] == 0
    assert indices[-1] < total
    assert indices == sorted(set(indices))
    assert len(indices) == min(most, -(-total // step))


def test_fewer_frames_and_another_rate(tmp_path: Path) -> None:
    data = make_clip(tmp_path / "clip.mp4", frames=40, rate=8, width=32, height=32).read_bytes()
    assert sampled_frames(data, max_frames=32, fps=2.0, name="").indices == [
        0,
        4,
        8,
        12,
        16,
        20,
        24,
        28,
        32,
        36,
    ]
    thinned = sampled_frames(data, max_frames=4, fps=2.0, name="")
    assert thinned.indices == [0, 8, 20, 28]
    assert (thinned.fps, thinned.true_fps) == (2.0, pytest.approx(4 / 40 * 8))
    assert sampled_frames(data, max_frames=32, fps=1.0, name="").indices == [0, 8, 16, 24, 32]


def test_what_is_no_clip_is_refused_by_name(tmp_path: Path) -> None:
    whole = make_clip(tmp_path / "clip.mp4", frames=30, options={"movflags": "faststart"}).read_bytes()
    sound = make_sound(tmp_path / "sound.mp4").read_bytes()
    for data in (b"", b"<html>", sound, whole[: len(whole) // 3]):
        with pytest.raises(PrepError, match=r"a\.mp4"):
            sampled_frames(data, max_frames=32, fps=2.0, name="a.mp4")


# --- VideoPhy-2 --------------------------------------------------------------------------


def test_videophy2_messages_hold_the_frames(tmp_path: Path) -> None:
    reader = prep.open(make_tree(tmp_path / "videophy2_val", 2, manifest=True))
    role = VideoPhy2Frames()
    assert isinstance(role, RawItemProcessor)
    (user, assistant) = role.process(dict(reader[0]))["messages"]
    video, text = user["content"]
    assert (video["type"], video["fps"], len(video["video"])) == ("video", 2.0, 1)
    assert isinstance(video["video"][0], Image.Image)
    assert text["type"] == "text"
    assert assistant == {"role": "assistant", "content": [{"type": "text", "text": "2"}]}
    assert reader[0]["texts"][0]["content"][0] == {"type": "video", "video": "video_0"}


def test_the_true_rate_is_a_choice(tmp_path: Path) -> None:
    data = make_clip(tmp_path / "clip.mp4", frames=40, rate=8, width=32, height=32).read_bytes()
    sample = {"id": "one", "texts": conversation("Why?", "3")["conversations"], "media": {"video_0": data}}

    def rate(role: VideoPhy2Frames) -> float:
        return float(role.process(sample)["messages"][0]["content"][0]["fps"])

    assert rate(VideoPhy2Frames(max_frames=5)) == 2.0
    assert rate(VideoPhy2Frames(max_frames=5, rate="true")) == 1.0


def test_images_and_plain_turns_pass_and_a_missing_key_is_told() -> None:
    texts = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "image", "image": "image_0"}, {"type": "text", "text": "What?"}],
        },
    ]
    system, user = VideoPhy2Frames().process({"texts": texts, "media": {"image_0": picture(3)}})["messages"]
    assert system == texts[0]
    assert user["content"][0]["image"].size == (24, 16)
    with pytest.raises(KeyError, match="image_0"):
        VideoPhy2Frames().process({"texts": texts, "media": {}})


def test_frames_that_are_there_already_stay() -> None:
    block = {"type": "video", "video": [Image.new("RGB", (8, 8))], "fps": 1.0}
    made = VideoPhy2Frames().process({"texts": [{"role": "user", "content": [block]}], "media": {}})
    assert made["messages"][0]["content"] == [block]


@pytest.mark.parametrize("wrong", [{"max_frames": 0}, {"fps": 0.0}, {"fps": -1.0}])
def test_wrong_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="max_frames is"):
        VideoPhy2Frames(**wrong)


# --- LLaVA-OneVision ---------------------------------------------------------------------


def test_rows_and_the_readers_samples_give_the_same_messages(tmp_path: Path) -> None:
    rows = [row(0), row(1, data=picture(1, mode="RGBA")), row(2, data=picture(2, mode="L"))]
    (tmp_path / "rows.parquet").write_bytes(parquet(rows))
    [made] = prepare_snapshots(
        "llava_ov",
        tmp_path / "data",
        subsets=["default"],
        options=SnapshotOptions(source=str(tmp_path / "rows.parquet")),
    )
    reader, role = prep.open(made.root), ShareGPTToMessages()
    for index, plain in enumerate(rows):
        ours, raw = role.process(dict(reader[index]))["messages"], role.process(plain)["messages"]
        block = ours[0]["content"][0]
        assert (block["type"], block["image"].mode, block["image"].size) == ("image", "RGB", (24, 16))
        assert ours[0]["content"][1] == {"type": "text", "text": f"What is number {index}?"}
        assert ours[1] == {"role": "assistant", "content": f"It is {index}."}
        assert raw[0]["content"][0]["image"].tobytes() == block["image"].tobytes()
        assert [raw[0]["content"][1], raw[1]] == [ours[0]["content"][1], ours[1]]


@pytest.mark.parametrize("form", ["decoded", "bytes", "array"])
def test_an_image_may_come_in_any_form(form: str) -> None:
    data = picture(5)
    decoded = Image.open(io.BytesIO(data))
    image = {"decoded": decoded, "bytes": data, "array": np.asarray(decoded)}[form]
    block = ShareGPTToMessages().process({**row(5), "image": image})["messages"][0]["content"][0]
    assert block["image"].tobytes() == decoded.tobytes()


def test_a_row_without_an_image_has_texts_only() -> None:
    made = ShareGPTToMessages().process({**row(1), "image": None})["messages"]
    assert made == [
        {"role": "user", "content": "What is number 1?"},
        {"role": "assistant", "content": "It is 1."},
    ]


def test_a_broken_image_is_an_error() -> None:
    with pytest.raises(PrepError, match="cannot be decoded"):
        ShareGPTToMessages().process(row(1, data=picture(1)[:40]))


# --- video reasoning ---------------------------------------------------------------------


def test_reasoning_messages_go_on_as_they_are(tmp_path: Path) -> None:
    source = annotation(clips(tmp_path / "in", "a.mp4") / "qa.json", [item("a.mp4"), item("a.mp4", "And?")])
    run(tmp_path / "data", [source])
    reader = prep.open(tmp_path / "data/video_reasoning/train")
    sample = dict(reader[1])
    made = ReasoningMessages().process(sample)["messages"]
    assert made == sample["messages"]
    assert made[-1]["content"] == "<think>\nLook.\n</think>\n\nSo."
    made[0]["content"][0]["video"] = "another"
    assert sample["messages"][0]["content"][0]["video"] != "another"


# --- the processor -----------------------------------------------------------------------


def test_a_processor_is_called_as_upstream_calls_it() -> None:
    torch = pytest.importorskip("torch")
    chat = Chat(pixel_values=torch.zeros(4, 3), image_grid_thw=torch.ones(1, 3).long(), strange=1)
    made = ShareGPTToMessages(chat).process(row(2))
    ((_, keywords),) = chat.seen
    assert keywords == {"tokenize": True, "add_generation_prompt": False}
    words = {number: word for word, number in chat.words.items()}
    text = [words[each] for each in made["input_ids"].tolist()]
    assert text == [
        "<user>",
        "<media>",
        "What",
        "is",
        "number",
        "2?",
        "<end>",
        "<assistant>",
        "It",
        "is",
        "2.",
        "<end>",
    ]
    assert [words[each] for each in made["input_ids"][made["token_mask"]].tolist()] == [
        "It",
        "is",
        "2.",
        "<end>",
    ]
    assert made["labels"].tolist() == [-100] * 8 + made["input_ids"][8:].tolist()
    assert (made["pad_token_id"], made["ignore_index"]) == (7, -100)
    assert set(made) == {
        *("input_ids", "labels", "token_mask", "attention_mask", "pad_token_id", "ignore_index"),
        *("pixel_values", "image_grid_thw"),
    }


def test_a_processor_that_changes_its_messages_changes_nobodys(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sample = {"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}
    role = ReasoningMessages(Chat(), ignore_index=-1)
    assert role.process(sample)["labels"].tolist()[:4] == [-1] * 4
    assert sample["messages"][0]["content"] == "Why?"


def test_a_batch_of_one_is_taken_apart_and_masks_may_come_with_the_ids() -> None:
    torch = pytest.importorskip("torch")

    class Plain:
        eos_token_id = 3
        pad_token_id = None

        def apply_chat_template(self, messages: Any, **keywords: Any) -> dict[str, Any]:
            return {"input_ids": [[5, 6, 7]], "assistant_masks": [[0, 0, 1]]}

    made = ReasoningMessages(Plain()).process({"messages": []})
    assert made["labels"].tolist() == [-100, -100, 7]
    assert made["attention_mask"].tolist() == [1, 1, 1]
    assert (made["pad_token_id"], made["token_mask"].dtype) == (3, torch.bool)


def test_without_a_mask_nothing_is_learnt_by_guess() -> None:
    pytest.importorskip("torch")

    class Ids:
        pad_token_id = 0

        def apply_chat_template(self, messages: Any, **keywords: Any) -> list[int]:
            return [1, 2]

    with pytest.raises(UsageError, match="Ids does not say which tokens"):
        ReasoningMessages(Ids()).process({"messages": []})


@pytest.mark.parametrize("role", [VideoPhy2Frames, ShareGPTToMessages, ReasoningMessages])
def test_what_cannot_be_called_is_refused_at_once(role: Any) -> None:
    class Template:
        def apply_chat_template(self, messages: Any) -> None: ...

    with pytest.raises(UsageError, match="neither a pad_token_id nor an eos_token_id"):
        role(Template())
    with pytest.raises(UsageError, match="int is no processor"):
        role(5)


def test_any_callable_makes_the_sample() -> None:
    made = ReasoningMessages(lambda messages: {"turns": len(messages)}).process(
        {"messages": [{"role": "user", "content": ""}]}
    )
    assert made == {"turns": 1}


def test_roles_pickle_for_spawned_workers() -> None:
    for role in (VideoPhy2Frames(len, 8, 1.0), ShareGPTToMessages(len), ReasoningMessages()):
        assert vars(pickle.loads(pickle.dumps(role))).keys() == vars(role).keys()
