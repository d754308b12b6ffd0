"""Collators: stacked tensors, and the lists that packed training reads. torch is imported on use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prep.dataflow.base import BatchCollator

__all__ = ["DefaultBatchCollator", "VFMListCollator"]

# Contracts, section 7. Each sample's value stands in a list of its own in the batch ...
_LISTS = frozenset({"text_token_ids", "images", "video", "action", "sound"})
# ... or bare, one after another. Those of `_EXTENDED` are joined where they are lists.
_BARE = frozenset({"domain_id", "sequence_plan", "raw_action_dim", "image_size"})
_EXTENDED = frozenset({"image_size"})
# None is a value of these: a plan beside it counts on the place.
_SPARSE = frozenset({"sound"})
# Seconds that a sample took: a batch has those of the first sample that tells, under other names.
_TIMES = frozenset({"_sample_time", "_aug_time", "_pre_aug_time", "_aug_step_times"})


class DefaultBatchCollator(BatchCollator):
    """What a plain torch DataLoader does: tensors and numbers are stacked, strings listed."""

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch. Raises what torch's `default_collate` raises, such as for unlike shapes."""
        from torch.utils.data import default_collate

        batch: dict[str, Any] = default_collate(samples)
        return batch


class VFMListCollator(BatchCollator):
    """The batch of packed generator training: values stay apart, each key a list over the samples.

    Text, media, actions and sound are lists of lists of tensors; `sequence_plan`, `domain_id`,
    `raw_action_dim` and `image_size` lists of the values; other tensors and numbers a list of tensors
    with a first axis of 1. Of a list under any other key only the first element is kept, as
    upstream does. A key whose value is None is left out for that sample, but not `sound`.
    """

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch. Raises TypeError, with the key, for a value that torch cannot collate."""
        batch: dict[str, Any] = {}
        for sample in samples:
            for key, value in sample.items():
                if key not in _TIMES and (value is not None or key in _SPARSE):
                    batch.setdefault(key, []).extend(_entries(key, value))
        for sample in reversed(samples):
            batch.update(_times(sample))
        return batch | {"_worker_id": _worker()}


def _entries(key: str, value: Any) -> list[Any]:
    """What a sample's value adds to the batch's list."""
    if key in _LISTS:
        return [value if isinstance(value, list) else [value]]
    if key in _BARE:
        return value if key in _EXTENDED and isinstance(value, list) else [value]
    return [_alone(key, value)]


def _alone(key: str, value: Any) -> Any:
    """The value as a batch of one; of what torch gives as a list, the first element."""
    from torch.utils.data import default_collate

    try:
        batched = default_collate([value])
    except TypeError as error:
        raise TypeError(
            f"{key!r} of a sample is {type(value).__name__}, which torch cannot collate; "
            "leave it out or convert it in the processor"
        ) from error
    return batched[0] if isinstance(batched, list) and batched else batched


def _times(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured for a sample, as the trainer's timing callbacks name it."""
    times: dict[str, Any] = {}
    if "_sample_time" in sample:
        times["_worker_batch_time"] = sample["_sample_time"]
    if "_aug_time" in sample:
        times["_worker_aug_time"] = sample["_aug_time"]
        if "_sample_time" in sample:
            times["_worker_io_time"] = sample["_sample_time"] - sample["_aug_time"]
    if "_aug_step_times" in sample:
        times["_worker_aug_step_times"] = dict(sample["_aug_step_times"])
    return times


def _worker() -> int:
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return 0 if worker is None else int(worker.id)
