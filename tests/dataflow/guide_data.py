"""Tiny data and roles with which the tests of the guide run its examples."""

from __future__ import annotations

import itertools

import torch

from prep.dataflow import BatchCollator, RawItemProcessor

WORDS = [
    "a",
    "robot",
    "puts",
    "the",
    "red",
    "cup",
    "on",
    "a",
    "shelf",
    "near",
    "the",
    "blue",
    "door",
    "and",
    "waits",
]


class Captions(torch.utils.data.Dataset):
    """Records of an image's path and a caption of 1 to 12 words; `fixed` gives all of them 4."""

    def __init__(self, count, fixed=False):
        self.records = [
            {"image_path": f"{n}.png", "caption": " ".join(WORDS[: 4 if fixed else n * 5 % 12 + 1])}
            for n in range(count)
        ]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        return self.records[i]


def tokenizer(text):
    return torch.tensor([WORDS.index(word) + 1 for word in text.split()])


def image_loader(path):
    return torch.full((3, 4, 6), float(path.split(".")[0]))


class CaptionProcessor(RawItemProcessor):
    def __init__(self, tokenizer, image_loader):
        self.tokenizer, self.image_loader = tokenizer, image_loader

    def process(self, item):
        return {
            "pixel_values": self.image_loader(item["image_path"]),
            "input_ids": self.tokenizer(item["caption"]),
        }


PROCESSOR = CaptionProcessor(tokenizer, image_loader)


class Padded(BatchCollator):
    """Captions of unlike lengths, padded with 0; images stacked."""

    def collate(self, samples):
        ids = [sample["input_ids"] for sample in samples]
        return {
            "input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
            "pixel_values": torch.stack([sample["pixel_values"] for sample in samples]),
        }


class Dims:
    def __init__(self, rank, world):
        self.dp_coord = (rank, world)


class Chunk:
    """Of a plain list of numbers."""

    def __init__(self, *numbers):
        self.samples = [{"n": number} for number in numbers]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def numbers(loader, most):
    return [batch["n"].tolist() for batch in itertools.islice(loader, most)]


def images(loader, most):
    return [batch["pixel_values"][:, 0, 0, 0].int().tolist() for batch in itertools.islice(loader, most)]


def clip(frames, high, wide, words):
    return {"video": torch.zeros(3, frames, high, wide), "text_token_ids": torch.arange(words)}
