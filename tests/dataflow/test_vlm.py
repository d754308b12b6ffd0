"""The padding collator of reasoner training, beside upstream's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from prep.dataflow.vlm import VLMCollator  # noqa: E402
from tests.dataflow.batch_digests import batch_digest  # noqa: E402

# batch_digest of what upstream's VLMCollator gave at commit 5eee9ed for the groups of `groups(seed)`.
UPSTREAM = {
    0: "c2f7dc6663b2b07f59c3c0cc222336c479cd37c77d2c825211cc7d9d225d7e2e",
    1: "246f6e75c8b192a0befc7bf8b17592d4181279bb383ac134394e0e61d04793f5",
    2: "d92a029ccd9b87980bd60010655741a312050ae66bcf011f7822653c197a9cca",
}


def reasoner_sample(draw: np.random.RandomState) -> dict[str, Any]:
    length = draw.randint(1, 60)

    def tensor(*shape: int) -> Any:
        return torch.from_numpy(draw.randint(0, 9, shape))

    sample: dict[str, Any] = {
        "input_ids": tensor(length).to(torch.int32 if draw.randint(4) == 0 else torch.int64),
        "token_mask": tensor(length) > 4,
        "attention_mask": torch.ones(length, dtype=torch.int64 if draw.randint(2) else torch.bool),
        "labels": torch.where(tensor(length) > 4, tensor(length), -100),
        "pad_token_id": int(draw.randint(5)),
        "ignore_index": -100,
        "id": "an id",
        "score": 1.5,
    }
    if draw.randint(2):
        sample |= {"pixel_values": tensor(draw.randint(1, 9), 6), "image_grid_thw": tensor(1, 3)}
    if draw.randint(2):
        sample |= {"pixel_values_videos": tensor(4, 6), "second_per_grid_ts": tensor(1)}
    if draw.randint(2):
        sample["raw_image"] = tensor(3, 4, 4) if draw.randint(2) else tensor(3, 2, 4, 4)
    if draw.randint(2):
        sample["raw_video"] = tensor(3, 2, 4, 4) if draw.randint(2) else [tensor(3, 2, 4, 4)]
    return sample


def groups(seed: int) -> list[list[dict[str, Any]]]:
    draw = np.random.RandomState(seed)
    return [[reasoner_sample(draw) for _ in range(1 + draw.randint(5))] for _ in range(30)]


def text(length: int, **others: Any) -> dict[str, Any]:
    ids = torch.arange(1, length + 1)
    ones = torch.ones(length, dtype=torch.bool)
    return {"input_ids": ids, "labels": ids, "token_mask": ones, "attention_mask": ones, **others}


@pytest.mark.parametrize("seed", sorted(UPSTREAM))
def test_the_batches_are_upstreams(seed: int) -> None:
    assert batch_digest([VLMCollator().collate(group) for group in groups(seed)]) == UPSTREAM[seed]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5))
def test_rows_are_the_sequences_and_padding_to_a_multiple_of_16(lengths: list[int]) -> None:
    batch = VLMCollator(pad_token_id=77, ignore_index=-5).collate([text(length) for length in lengths])
    width = batch["input_ids"].shape[1]
    assert width % 16 == 0
    assert 0 <= width - max(lengths) < 16
    for row, length in enumerate(lengths):
        own = list(range(1, length + 1))
        assert batch["input_ids"][row].tolist() == own + [77] * (width - length)
        assert batch["labels"][row].tolist() == own + [-5] * (width - length)
        assert batch["attention_mask"][row].tolist() == [True] * length + [False] * (width - length)
        assert batch["token_mask"][row].tolist() == [True] * length + [False] * (width - length)
    assert batch["collated"] is True
    assert batch["sample_index"].tolist() == [0] * len(lengths)


def test_a_samples_own_padding_comes_before_that_of_the_collator() -> None:
    batch = VLMCollator(9).collate([text(15, pad_token_id=4, ignore_index=-1)])
    assert batch["input_ids"][0, -1] == 4
    assert batch["labels"][0, -1] == -1


def test_vision_is_joined_from_those_that_have_it() -> None:
    samples = [text(3, pixel_values=torch.zeros(4, 6)), text(3), text(3, pixel_values=torch.ones(2, 6))]
    assert VLMCollator(0).collate(samples)["pixel_values"][:, 0].tolist() == [0, 0, 0, 0, 1, 1]


def test_a_batch_is_not_collated_twice() -> None:
    batch = VLMCollator(0).collate([text(3)])
    assert VLMCollator(0).collate([batch]) is batch


def test_more_sequences_are_padded_where_they_are_named() -> None:
    samples = [text(3, mm_token_type_ids=torch.ones(3)), text(5, mm_token_type_ids=torch.ones(5))]
    with pytest.raises(ValueError, match=r"'mm_token_type_ids'.*\[\[3\], \[5\]\].*extra_fills"):
        VLMCollator(0).collate(samples)
    batch = VLMCollator(0, extra_fills={"mm_token_type_ids": 0}).collate(samples)
    assert batch["mm_token_type_ids"].sum(dim=1).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([text(3), {"input_ids": torch.ones(3)}], "'token_mask' of sample 1 is missing"),
        ([text(3) | {"labels": torch.ones(1, 3)}], r"'labels' of sample 0 has the shape \[1, 3\]"),
        ([text(3) | {"labels": [1, 2, 3]}], "'labels' of sample 0 is no tensor"),
        (
            [text(3) | {"labels": torch.ones(2)}],
            "'labels' of sample 0 has 2 tokens, but its input_ids have 3",
        ),
        ([text(3, score=1), text(3)], "'score' is missing in sample 1"),
    ],
)
def test_an_unsound_sample_is_named(samples: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        VLMCollator(0).collate(samples)


def test_padding_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pad_token_id=tokenizer\.pad_token_id"):
        VLMCollator().collate([text(3)])
