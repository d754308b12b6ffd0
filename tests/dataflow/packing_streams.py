"""Streams of samples for the batchers, the same on every machine, and what the tests ask of a batcher."""

from __future__ import annotations

import gc
import hashlib
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from prep.dataflow.base import SampleBatcher

Sample = dict[str, Any]
MODALITIES: tuple[Sample, ...] = ({}, {"pixel_values": 0}, {"pixel_values_videos": 0})


class Source:
    """Gives samples one by one and remembers those that were drawn."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = iter(samples)
        self.drawn: list[Sample] = []

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        self.drawn.append(next(self._samples))
        return self.drawn[-1]


def text_sample(index: int, size: int, modality: int = 0) -> Sample:
    return {"index": index, "input_ids": range(size), **MODALITIES[modality]}


def pool_stream(count: int, seed: int, most: int = 3000) -> list[Sample]:
    """Samples of 1 to `most` tokens, short ones more often, in the three modalities."""
    draw = np.random.RandomState(seed)
    sizes = 1 + draw.randint(0, most, count) * draw.randint(0, most, count) // most
    kinds = draw.randint(0, 3, count)
    pairs = zip(sizes.tolist(), kinds.tolist(), strict=True)
    return [text_sample(index, size, kind) for index, (size, kind) in enumerate(pairs)]


def blank(*shape: int) -> Any:
    """An array of any shape that takes no memory."""
    return np.broadcast_to(np.uint8(0), shape)


def media_stream(count: int, seed: int, tensor: Callable[..., Any] = blank) -> list[Sample]:
    """Clips and images of many sizes, some with actions or sound. `tensor(*shape)` makes an array."""
    draw = np.random.RandomState(seed)
    return [_media_sample(index, draw, tensor) for index in range(count)]


def _media_sample(index: int, draw: np.random.RandomState, tensor: Callable[..., Any]) -> Sample:
    words, high, wide, frames, steps, sound, kind = (
        int(draw.randint(low, end))
        for low, end in ((0, 300), (2, 16), (2, 16), (1, 62), (1, 33), (1, 200_000), (0, 60))
    )
    texts = (list(range(words)), tensor(words), tensor(1, words), [tensor(words)])
    sample: Sample = {"index": index, "text_token_ids": texts[kind % 4]}
    height, width = 30 * high, 34 * wide
    if kind % 3:
        sample["video"] = tensor(3, frames, height, width)
    else:
        sample["images"] = [tensor(3, height, width)] * (kind % 5)
    if kind % 2:
        sample["action"] = (tensor(steps, 7), None, [tensor(steps, 7), None])[kind % 3]
    if kind % 5 == 0:
        sample["sound"] = (tensor(1, sound), [tensor(2, sound)], None)[kind % 3]
    return sample


def indices(batcher: SampleBatcher, samples: Iterable[Sample]) -> list[list[int]]:
    return [[sample["index"] for sample in group] for group in batcher.batches(iter(samples))]


def digest(batches: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(batches, separators=(",", ":")).encode()).hexdigest()


def check_every_resume(make: Callable[[], SampleBatcher], samples: list[Sample]) -> None:
    """After each batch, a new batcher that is first given what was pending goes on undisturbed."""
    undisturbed = indices(make(), samples)
    batcher, gone = make(), set[int]()
    batcher._on_discard = lambda sample, reason: gone.add(sample["index"])
    source = Source(samples)
    for done, group in enumerate(batcher.batches(source), start=1):
        gone.update(sample["index"] for sample in group)
        pending = [sample for sample in source.drawn if sample["index"] not in gone]
        rest = samples[len(source.drawn) :]
        assert indices(make(), chain(pending, rest)) == undisturbed[done:]


class Weak(dict[str, Any]):
    """A sample that can be watched."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def check_nothing_is_held(batcher: SampleBatcher, sample_of: Callable[[int], Sample]) -> None:
    """While the next samples are made, a batch that was delivered is the receiver's alone."""
    alive: weakref.WeakSet[Weak] = weakref.WeakSet()
    delivered: set[int] = set()

    def samples() -> Iterator[Weak]:
        for index in range(12):
            gc.collect()
            assert delivered.isdisjoint(each["index"] for each in alive)
            sample = Weak(sample_of(index))
            alive.add(sample)
            yield sample
            del sample

    for group in batcher.batches(samples()):
        delivered.update(each["index"] for each in group)
        del group
    assert len(delivered) == 12
