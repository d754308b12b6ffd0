"""The roles for sequential packing: the keys, forms and texts of a clip's and of a robot window's sample."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import prep
from prep.dataflow.roles import RobotWindow, SFTClip
from prep.dataflow.roles.tokens import token_ids
from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.upstream.checkout import load_lock
from tests.robot_scenes import droid_scenes, libero_scenes
from tests.sft_trees import build, source

OWN = ("Lasts {duration:.1f} at {fps:.0f}.", "Of {height} by {width}.")
# By hand: upstream's `process_one_sample` at 5eee9ed5 over such clips, with a tokenizer of words.
# Every key is equal, in value and type, but the two that are not given.
UPSTREAM = {
    "__key__",
    "__url__",
    "ai_caption",
    "chunk_index",
    "conditioning_fps",
    "fps",
    "frame_start",
    "image_size",
    "num_frames",
    "num_multiplier",
    "padding_mask",
    "sampled_caption_style",
    "text_token_ids",
    "video",
}


class Words:
    """A tokenizer of words, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> list[int]:
        return [self.numbers.setdefault(word, len(self.numbers) + 1) for word in text.split()]

    def text(self, ids: Any) -> str:
        words = {number: word for word, number in self.numbers.items()}
        return " ".join(words[int(each)] for each in ids)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    return build(folder / "data", **source(folder, ["a", "b"])).root


@pytest.fixture(scope="module")
def droid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return droid_scenes(tmp_path_factory.mktemp("droid"))


# --- tokens ------------------------------------------------------------------------------


def test_each_kind_of_tokenizer_is_called_in_its_way() -> None:
    class Template:
        def apply_chat_template(self, chat: Any, **keywords: Any) -> list[int]:
            assert chat == [{"role": "user", "content": "a b"}]
            assert keywords == {"tokenize": True, "add_generation_prompt": True, "return_dict": False}
            return [0, 1, 2]

        def encode(self, text: str) -> list[int]:
            return [9]

    assert token_ids(Template(), "a b") == [0, 1, 2]
    assert token_ids(Template().encode, "a b") == [9]
    assert token_ids(SimpleNamespace(encode=lambda text: SimpleNamespace(ids=[4, 5])), "a b") == [4, 5]
    assert token_ids(lambda text: {"input_ids": np.array([3, 4])}, "a b") == [3, 4]
    assert token_ids(Words(), "a b a") == [1, 2, 1]


def test_real_tokenizers_are_called_too() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "<user>": 3}, unk_token="[UNK]")
    plain = tokenizers.Tokenizer(words)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    assert token_ids(plain, "a b c") == [1, 2, 0]
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")
    fast.chat_template = "{% for turn in messages %}<{{ turn.role }}> {{ turn.content }}{% endfor %}"
    assert token_ids(fast, "a b") == [3, 1, 2]
    assert token_ids(fast.encode, "a b") == [1, 2]


@pytest.mark.parametrize("role", [SFTClip, RobotWindow])
def test_what_is_no_tokenizer_is_refused_at_once(role: Any) -> None:
    with pytest.raises(UsageError, match="dict is no tokenizer"):
        role({"a": 1})


# --- clips -------------------------------------------------------------------------------


def test_a_clip_has_upstreams_keys_and_forms(clips: Path) -> None:
    torch = pytest.importorskip("torch")
    words = Words()
    reader = prep.open(clips, frames=True)
    item = dict(reader[0])
    made = SFTClip(words, sentences=OWN).process(item)
    assert set(made) == UPSTREAM
    assert (made["video"].dtype, tuple(made["video"].shape)) == (torch.uint8, (3, 65, 256, 320))
    assert np.array_equal(made["video"].numpy(), item["video"])
    assert made["image_size"].tolist() == [256.0, 320.0, 256.0, 320.0]
    assert (made["image_size"].dtype, tuple(made["padding_mask"].shape)) == (torch.float32, (1, 256, 320))
    assert (made["fps"], made["conditioning_fps"], made["num_frames"]) == (8.0, 8.0, 65)
    assert (made["__key__"], made["chunk_index"], made["frame_start"]) == ("b_w0", 0, 0)
    assert made["ai_caption"] == "Take b. Lasts 8.1 at 8. Of 256 by 320."
    assert words.text(made["text_token_ids"]) == made["ai_caption"]
    assert made["text_token_ids"].dtype == torch.int64


def test_ids_are_cut_and_the_rate_may_be_another(clips: Path) -> None:
    pytest.importorskip("torch")
    item = dict(prep.open(clips, frames=True)[0])
    made = SFTClip(Words(), sentences=OWN, max_tokens=3, conditioning_fps=24).process(item)
    assert made["text_token_ids"].tolist() == [1, 2, 3]
    assert made["ai_caption"] == "Take b. Lasts 2.7 at 24. Of 256 by 320."
    assert SFTClip(Words(), sentences=()).process(item)["ai_caption"] == "Take b."


@pytest.mark.parametrize("key", ["caption_json", "caption"])
def test_a_structured_caption_gets_no_sentences(key: str, clips: Path) -> None:
    pytest.importorskip("torch")
    item = dict(prep.open(clips, frames=True)[0]) | {"caption_key": key, "caption": '{"subjects": []}'}
    assert SFTClip(Words(), sentences=OWN).process(item)["ai_caption"] == '{"subjects": []}'


def test_captions_are_left_out_by_pythons_random(clips: Path) -> None:
    pytest.importorskip("torch")
    item = dict(prep.open(clips, frames=True)[0])
    role = SFTClip(Words(), sentences=(), caption_dropout=0.5)

    def drawn(seed: int) -> list[int]:
        random.seed(seed)
        return [len(role.process(item)["text_token_ids"]) for _ in range(40)]

    assert drawn(1) == drawn(1)
    assert 5 < drawn(1).count(0) < 35


def test_an_item_without_frames_is_refused(clips: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="frames=True"):
        SFTClip(Words(), sentences=()).process(dict(prep.open(clips)[0]))


def test_upstreams_sentences_are_read_or_missed_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = load_lock()
    path = "cosmos_framework/data/generator/local_datasets/sft_dataset.py"
    copy = tmp_path / "cosmos-prep" / lock.commit / path
    assert lock.file(path).size > 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if (Path(prep.__file__).parents[1] / "vendor" / path).is_file():
        assert len(SFTClip(Words()).sentences) == 2
        return
    with pytest.raises(EnvironmentLacksError) as lacking:
        SFTClip(Words())
    assert "prep vendor sync" in lacking.value.remedy
    copy.parent.mkdir(parents=True)
    copy.write_text("_DURATION_TEMPLATE = 'not upstream'")
    with pytest.raises(PrepError):
        SFTClip(Words())


# --- robot windows -----------------------------------------------------------------------


@pytest.fixture
def policy(droid: Path) -> Any:
    return prep.open(droid, index="droid_policy-train-c32", instruction="first")


def test_a_window_and_its_model_input_give_the_same_sample(policy: Any) -> None:
    torch = pytest.importorskip("torch")
    words = Words()
    for index in (0, len(policy) - 1):
        given = policy.model_input(index)
        ours = RobotWindow(words, normalise=True).process(policy[index])
        theirs = RobotWindow(words).process(given)
        assert words.text(ours["text_token_ids"]).split() == given["task"].split()
        for key in ("text_token_ids", "video", "action", "state", "image_size"):
            assert torch.equal(ours[key], theirs[key]), key
            assert ours[key].dtype == theirs[key].dtype
        assert np.array_equal(ours["video"].numpy(), given["video"])
        assert ours["image_size"].tolist() == [*given["canvas_hw"], *given["content_hw"]]
        assert (ours["aspect_key"], ours["ai_caption"]) == (given["aspect_key"], given["task"])
        assert theirs["sample_id"] == given["sample_id"]
        assert (int(ours["domain_id"]), ours["mode"]) == (8, "wam")


def test_a_window_is_bytes_unless_asked_and_keeps_its_state_row_if_asked(policy: Any) -> None:
    torch = pytest.importorskip("torch")
    item = policy[0]
    plain, packed = RobotWindow(Words()).process(item), RobotWindow(Words(), state_row=True).process(item)
    assert (plain["video"].dtype, plain["video"].shape[:2]) == (torch.uint8, (3, 33))
    assert (tuple(plain["action"].shape), tuple(plain["state"].shape)) == ((32, 8), (8,))
    assert torch.equal(packed["action"], torch.from_numpy(item["action"]))
    assert np.array_equal(plain["state"].numpy(), item["action"][0])
    assert item["action"].shape == (33, 8)


def test_forward_dynamics_and_libero_have_no_state(droid: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    dynamics = prep.open(droid, index="droid_forward_dynamics-train-c16")
    libero = prep.open(libero_scenes(tmp_path))
    for reader, size in ((dynamics, 256), (libero, 192)):
        made = RobotWindow(Words(), state_row=True).process(reader[0])
        assert (tuple(made["action"].shape), made["state"].numel()) == ((16, 10), 0)
        assert made["image_size"][0] == size
    larger = RobotWindow(Words(), tier=480).process(libero[0])
    assert larger["video"].shape[-2:] == (480, 832)


def test_the_text_may_be_ones_own(policy: Any) -> None:
    pytest.importorskip("torch")

    class Longer(RobotWindow):
        def text(self, sample: Any) -> str:
            return f"{super().text(sample)} In {sample['viewpoint']}."

    made = Longer(Words()).process(policy[0])
    assert made["ai_caption"].endswith("In concat_view.")
    assert "task" not in made
    assert len(made["text_token_ids"]) == len(made["ai_caption"].split())


def test_a_tier_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="no tier"):
        RobotWindow(Words(), tier=300)


def test_the_samples_own_their_tensors(policy: Any) -> None:
    pytest.importorskip("torch")
    item = policy[0]
    made = RobotWindow(Words()).process(item)
    made["action"] += 1
    made["video"] += 1
    again = policy[0]
    assert np.array_equal(item["action"], again["action"])
    assert np.array_equal(item["video"], again["video"])


def test_roles_pickle_for_spawned_workers() -> None:
    clip = pickle.loads(pickle.dumps(SFTClip(len, sentences=OWN, max_tokens=5)))
    assert (clip.sentences, clip.max_tokens) == (OWN, 5)
    assert pickle.loads(pickle.dumps(RobotWindow(len, tier=480))).tier == "480"


def test_the_roles_import_without_torch() -> None:
    code = "import sys, prep.dataflow.roles; print('torch' in sys.modules, 'av' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
