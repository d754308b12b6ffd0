"""Stacked batches, and the lists of packed generator training, beside upstream's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from prep.dataflow.collators import DefaultBatchCollator, VFMListCollator  # noqa: E402
from tests.dataflow.batch_digests import batch_digest  # noqa: E402

# batch_digest of what upstream's VFMListCollator gave at commit 5eee9ed for the groups of `groups(seed)`.
UPSTREAM = {
    0: "57ef32548a0865cda7a9e4e3f5b6352f22ebda8992efab9c5f7ba7ac5c5fa7e5",
    1: "7b020433b3573c7b371ed96f3b55cdd26e8326b7c3f3ee6b8804713bf6026b56",
    2: "2b05919f829ca8ab0edf426ba89994ba6afa41315ff04673eb1af9aa297d3330",
}


class Plan:
    def __repr__(self) -> str:
        return "Plan()"


def generator_sample(draw: np.random.RandomState) -> dict[str, Any]:
    def tensor(*shape: int) -> Any:
        return torch.from_numpy(draw.randint(0, 99, shape))

    sample: dict[str, Any] = {
        "text_token_ids": [tensor(5)] if draw.randint(2) else [1, 2, 3],
        "video": tensor(3, 2, 4, 4),
    }
    optional: dict[str, Any] = {
        "images": [tensor(3, 4, 4), tensor(3, 2, 2)],
        "action": tensor(4, 2),
        "sound": [tensor(1, 9)],
        "domain_id": torch.tensor(3),
        "sequence_plan": Plan(),
        "raw_action_dim": 7,
        "image_size": [tensor(2), tensor(2)] if draw.randint(2) else tensor(2),
        "fps": 24.5,
        "mask": tensor(3),
        "array": np.arange(3, dtype=np.int16),
        "caption": "a caption",
        "names": ["a", "b"],
        "numbers": [1, 2, 3],
        "flag": True,
        "_sample_time": draw.randint(9) / 8,
        "_aug_time": draw.randint(9) / 8,
        "_pre_aug_time": 0.125,
        "_aug_step_times": {"resize": draw.randint(9) / 8},
    }
    for key, value in optional.items():
        chance = draw.randint(10)
        if chance < 6:
            sample[key] = value
        elif chance < 8 and not key.startswith("_"):
            sample[key] = None
    return sample


def groups(seed: int) -> list[list[dict[str, Any]]]:
    draw = np.random.RandomState(seed)
    return [[generator_sample(draw) for _ in range(1 + draw.randint(5))] for _ in range(30)]


@pytest.mark.parametrize("seed", sorted(UPSTREAM))
def test_the_lists_are_upstreams(seed: int) -> None:
    batches = [VFMListCollator().collate(group) for group in groups(seed)]
    assert batch_digest(batches) == UPSTREAM[seed]


def test_media_are_lists_of_lists_and_the_rest_are_lists() -> None:
    clips = [torch.zeros(3, 5, 8, 8), torch.ones(3, 2, 4, 4)]
    plans = [Plan(), Plan()]
    batch = VFMListCollator().collate(
        [
            {"video": clips[0], "text_token_ids": [torch.arange(3)], "sequence_plan": plans[0], "fps": 24},
            {"video": clips[1], "text_token_ids": torch.arange(2), "sequence_plan": plans[1], "fps": 30},
        ]
    )
    assert [len(each) for each in batch["video"]] == [1, 1]
    assert all(inner[0] is clip for inner, clip in zip(batch["video"], clips, strict=True))
    assert [each[0].tolist() for each in batch["text_token_ids"]] == [[0, 1, 2], [0, 1]]
    assert batch["sequence_plan"] == plans
    assert [each.tolist() for each in batch["fps"]] == [[24], [30]]
    assert batch["_worker_id"] == 0


def test_sound_keeps_its_place_where_there_is_none() -> None:
    sound = torch.zeros(1, 10)
    batch = VFMListCollator().collate([{"sound": None, "action": None}, {"sound": sound, "action": None}])
    assert batch["sound"] == [[None], [sound]]
    assert "action" not in batch


def test_image_sizes_are_joined_and_the_samples_stay_as_they_are() -> None:
    samples = [{"image_size": [torch.tensor([4, 4])]}, {"image_size": [torch.tensor([2, 2])] * 2}]
    batch = VFMListCollator().collate(samples)
    assert [each.tolist() for each in batch["image_size"]] == [[4, 4], [2, 2], [2, 2]]
    assert [len(sample["image_size"]) for sample in samples] == [1, 2]


def test_a_mapping_is_collated_where_upstream_fails() -> None:
    batch = VFMListCollator().collate([{"camera": {"fov": 0.5}}])
    assert batch["camera"] == [{"fov": torch.tensor([0.5], dtype=torch.float64)}]


def test_what_torch_cannot_collate_is_named() -> None:
    with pytest.raises(TypeError, match="'plan' of a sample is Plan"):
        VFMListCollator().collate([{"plan": Plan()}])


def test_the_default_is_torchs_own() -> None:
    samples = [
        {"pixels": torch.full((2, 2), index), "label": index, "name": str(index), "box": np.arange(4)}
        for index in range(3)
    ]
    batch = DefaultBatchCollator().collate(samples)
    assert batch_digest([batch]) == batch_digest([torch.utils.data.default_collate(samples)])
    assert batch["pixels"].shape == (3, 2, 2)
    assert batch["name"] == ["0", "1", "2"]


def test_the_default_refuses_unlike_shapes() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        DefaultBatchCollator().collate([{"x": torch.zeros(2)}, {"x": torch.zeros(3)}])
