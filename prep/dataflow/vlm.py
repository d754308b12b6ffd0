"""The collator of reasoner training: sequences padded on the right, vision tensors joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prep.dataflow.base import BatchCollator

__all__ = ["VLMCollator"]

_MULTIPLE = 16
"""Padded lengths are multiples of this, for FP8."""

# The model finds these by the placeholders in the text, not by the place in the batch.
_JOINED = frozenset(
    {
        "image_grid_thw",
        "image_sizes",
        "pixel_values",
        "pixel_values_videos",
        "second_per_grid_ts",
        "video_grid_thw",
    }
)


class VLMCollator(BatchCollator):
    """Pads and stacks samples of any lengths (contracts, section 7).

    A sample has `input_ids`, `token_mask`, `attention_mask` and `labels`, each [tokens]; the batch has
    them as [sample, length], where length is the longest rounded up to a multiple of 16. Ids are padded
    with the sample's own `pad_token_id`, or else with the one given here; masks with False; labels with
    the sample's own `ignore_index` or the one given. `extra_fills` names more such sequences, each with
    what it is padded with. Tensors of vision are concatenated on axis 0; `raw_image` and `raw_video` are
    lists of each sample's items; all else is collated by torch. `collated` is True, and the stamps
    `sample_worker_id`, `sample_epoch` and `sample_index` are there for the loader to fill in.
    """

    def __init__(
        self,
        pad_token_id: int | None = None,
        ignore_index: int = -100,
        extra_fills: Mapping[str, int | bool] | None = None,
    ) -> None:
        self.pad_token_id = pad_token_id
        self.ignore_index = ignore_index
        self.extra_fills = dict(extra_fills or {})

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch; a sample that is a batch already (`collated`) is given as it is.

        Raises ValueError for a sequence that is missing, has more than one axis or another length than
        its `input_ids`, for ids without anything to pad them with, and for other values of unlike shapes.
        """
        if samples and samples[0].get("collated"):
            return samples[0]
        fills = self._fills(samples)
        length = _checked_length(samples, fills)
        batch = {key: _padded([sample[key] for sample in samples], fills[key], length) for key in fills}
        for key in dict.fromkeys(key for sample in samples for key in sample):
            if key not in batch:
                batch[key] = _collated(samples, key)
        return batch | {"collated": True} | _stamps(len(samples))

    def _fills(self, samples: list[dict[str, Any]]) -> dict[str, list[int | bool]]:
        """What each sequence of each sample is padded with."""
        count = len(samples)
        return {
            "input_ids": [self._pad_token_id(sample) for sample in samples],
            "token_mask": [False] * count,
            "attention_mask": [False] * count,
            "labels": [sample.get("ignore_index", self.ignore_index) for sample in samples],
            **{key: [fill] * count for key, fill in self.extra_fills.items()},
        }

    def _pad_token_id(self, sample: Mapping[str, Any]) -> int:
        found: int | None = sample.get("pad_token_id", self.pad_token_id)
        if found is None:
            raise ValueError(
                "nothing says with what to pad input_ids: a sample has no pad_token_id, and VLMCollator "
                "was given none. Give pad_token_id=tokenizer.pad_token_id"
            )
        return found


def _checked_length(samples: list[dict[str, Any]], keys: Iterable[str]) -> int:
    """The padded length, once every sequence is known to be sound."""
    longest = 0
    for place, sample in enumerate(samples):
        lengths = {key: _length(sample, key, place) for key in keys}
        own = lengths["input_ids"]
        for key, length in lengths.items():
            if length != own:
                raise ValueError(
                    f"{key!r} of sample {place} has {length} tokens, but its input_ids have {own}; "
                    "make them of one length in the processor"
                )
        longest = max(longest, own)
    return -(-longest // _MULTIPLE) * _MULTIPLE


def _length(sample: Mapping[str, Any], key: str, place: int) -> int:
    shape = getattr(sample.get(key), "shape", None)
    if shape is None or len(shape) != 1:
        found = "is missing" if key not in sample else "is no tensor"
        if shape is not None:
            found = f"has the shape {list(shape)}"
        raise ValueError(
            f"{key!r} of sample {place} {found}; VLMCollator needs a tensor of shape [tokens] in each "
            "sample. Make it in the processor"
        )
    return int(shape[0])


def _padded(sequences: list[Any], fills: list[int | bool], length: int) -> Any:
    """[sample, length]: the sequences, each with its own fill on the right.

    The type is the wider of theirs and the fill's (int64 or bool): masks of integers stay so.
    """
    import torch

    kind = torch.bool if isinstance(fills[0], bool) else torch.int64
    parts: list[Any] = []
    for sequence, fill in zip(sequences, fills, strict=True):
        parts += sequence, torch.full((length - len(sequence),), fill, dtype=kind)
    return torch.cat(parts).view(len(sequences), length)


def _collated(samples: list[dict[str, Any]], key: str) -> Any:
    import torch
    from torch.utils.data import default_collate

    if key == "raw_image":
        return [_images(sample.get(key, [])) for sample in samples]
    if key == "raw_video":
        return [_videos(sample.get(key, [])) for sample in samples]
    if key in _JOINED:
        return torch.cat([sample[key] for sample in samples if key in sample], dim=0)
    lacking = [place for place, sample in enumerate(samples) if key not in sample]
    if lacking:
        raise ValueError(
            f"{key!r} is missing in sample {lacking[0]} of a batch where others have it; "
            "add it to every sample, or leave it out, in the processor"
        )
    try:
        return default_collate([sample[key] for sample in samples])
    except RuntimeError as error:
        shapes = [list(getattr(sample[key], "shape", ())) for sample in samples]
        raise ValueError(
            f"{key!r} cannot be stacked, the samples' shapes are {shapes}; if it has one value a token, "
            f"give VLMCollator extra_fills={{{key!r}: 0}}"
        ) from error


def _images(value: Any) -> Any:
    """A list of images [channel, 1, height, width], of [channel, height, width] or with one axis more."""
    if not hasattr(value, "ndim"):
        return value
    stacked = value[:, None] if value.ndim == 3 else value
    return [stacked[:, place : place + 1] for place in range(stacked.shape[1])]


def _videos(value: Any) -> Any:
    return [value] if hasattr(value, "ndim") else value


def _stamps(samples: int) -> dict[str, Any]:
    """Zeros, but for the worker; a loader that knows the position overwrites them."""
    import torch
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return {
        "sample_worker_id": torch.tensor([0 if worker is None else worker.id] * samples),
        "sample_epoch": torch.tensor([0] * samples),
        "sample_index": torch.tensor([0] * samples),
    }
