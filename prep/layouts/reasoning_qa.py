"""The reasoning layout: question-and-answer items about videos, and what training makes of them.

Annotation files hold items; training concatenates the files in the order given, takes every Nth
item from an offset, expands each by the response mode, and cuts at a limit (contracts, section 6;
upstream's `reasoning_qa.py` and `qa_dataset.py`). An exposed sample is found by arithmetic alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from prep.errors import UsageError

__all__ = [
    "FORMATS",
    "MEDIA",
    "MODES",
    "MediaRoot",
    "Mode",
    "Sampling",
    "conversation",
    "media_folder",
    "media_root",
    "stored_names",
    "target",
    "variable",
]

FORMATS: Final = ("tao-vl-reason-v1.0", "cosmos-video-reasoning-v1.0")
"""The two names of the one format; a file without a name is trained on as well."""
MEDIA: Final = "media"
"""The folder of a prepared dataset in which its media stand, linked or copied."""

Mode = Literal["answer", "think", "hybrid"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_TAKEN: Final = frozenset(("manifest.json", MEDIA))
_OPTIONS: Final = {
    "RESPONSE_MODE": "mode",
    "SAMPLE_STRIDE": "stride",
    "SAMPLE_OFFSET": "offset",
    "LIMIT": "limit",
}


def variable(split: str, name: str) -> str:
    """Upstream's environment variable for a setting of a split, such as COSMOS_VIDEO_TRAIN_LIMIT."""
    return f"COSMOS_VIDEO_{split.upper()}_{name}"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which items of the concatenated files training exposes, and in which form.

    `stride` and `offset` count raw items from 0, before the expansion; `limit` caps exposed samples
    after it. `vision` is merged into each video block (upstream's `vision_kwargs`).
    """

    mode: Mode = "answer"
    stride: int = 1
    offset: int = 0
    limit: int | None = None
    system_prompt: str = ""
    vision: Mapping[str, Any] = field(default_factory=dict)

    def check(self, split: str) -> None:
        """Raise UsageError, naming upstream's variable, for a value that it refuses or misreads."""
        if self.mode not in MODES:
            _refuse(split, "RESPONSE_MODE", self.mode, f"one of {', '.join(MODES)}")
        if self.stride < 1:
            _refuse(split, "SAMPLE_STRIDE", self.stride, "1 or more")
        if self.offset < 0:
            _refuse(split, "SAMPLE_OFFSET", self.offset, "0 or more")
        if self.limit is not None and self.limit < 1:
            _refuse(split, "LIMIT", self.limit, "1 or more, or nothing for no limit")

    def selected(self, items: int) -> int:
        """How many of `items` raw items stride and offset select."""
        return 0 if self.offset >= items else (items - self.offset - 1) // self.stride + 1

    def exposed(self, items: int) -> int:
        """How many samples training sees in a pass over `items` raw items."""
        samples = self.selected(items) * (2 if self.mode == "hybrid" else 1)
        return samples if self.limit is None else min(samples, self.limit)

    def resolve(self, index: int) -> tuple[int, Literal["answer", "think"]]:
        """The raw item, from 0, and the form of the exposed sample at `index`, from 0; no bounds."""
        if self.mode == "hybrid":
            return self.offset + index // 2 * self.stride, "think" if index % 2 else "answer"
        return self.offset + index * self.stride, self.mode

    def touched(self, items: int) -> range:
        """The raw items, from 0, of which some sample is exposed; the cut by the limit is seen to."""
        each = 2 if self.mode == "hybrid" else 1
        count = -(-self.exposed(items) // each)
        return range(self.offset, self.offset + count * self.stride, self.stride)

    def thinks(self, items: int) -> range:
        """The raw items, from 0, of which the think form is exposed."""
        if self.mode == "answer":
            return range(0)
        exposed = self.exposed(items)
        count = exposed // 2 if self.mode == "hybrid" else exposed
        return range(self.offset, self.offset + count * self.stride, self.stride)

    def as_dict(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {
            "response_mode": self.mode,
            "sample_stride": self.stride,
            "sample_offset": self.offset,
            "limit": self.limit,
            "system_prompt": self.system_prompt,
            "vision": dict(self.vision),
        }

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Sampling:
        """From what a manifest keeps."""
        return cls(
            request["response_mode"],
            request["sample_stride"],
            request["sample_offset"],
            request["limit"],
            request["system_prompt"],
            request["vision"],
        )


def _refuse(split: str, name: str, value: object, expected: str) -> None:
    raise UsageError(
        f"{variable(split, name)} is {value!r}; expected {expected}.",
        remedy=f"Correct --{split}-{_OPTIONS[name]}.",
    )


def target(item: Mapping[str, Any], form: Literal["answer", "think"]) -> str:
    """What the model is trained to say: the answer, or the reasoning in tags and the answer."""
    answer, reasoning = str(item.get("answer", "")), item.get("reasoning")
    if form == "answer" or not reasoning:
        return answer
    return f"<think>\n{reasoning}\n</think>\n\n{answer}"


def conversation(
    item: Mapping[str, Any], video: str, form: Literal["answer", "think"], sampling: Sampling
) -> list[dict[str, Any]]:
    """The messages of one exposed sample, as upstream hands them to the chat template."""
    user = [
        {"type": "video", "video": video, **sampling.vision},
        {"type": "text", "text": item["question"]},
    ]
    system = [{"role": "system", "content": sampling.system_prompt}] if sampling.system_prompt else []
    return [
        *system,
        {"role": "user", "content": user},
        {"role": "assistant", "content": target(item, form)},
    ]


@dataclass(frozen=True, slots=True)
class MediaRoot:
    """Where an annotation file's media are looked for, and who says so.

    `path` is what upstream takes, and `own` what it would take if no root were given; `beside` is the
    file's folder, which the reader of nvidia-tao-daft takes in place of `own`. All are absolute.
    """

    path: Path
    own: Path
    beside: Path
    stated: Literal["given", "embedded", "beside"]
    embedded: str | None = None

    @property
    def differs(self) -> bool:
        """Whether the two readers would look in two places."""
        return self.stated == "embedded" and os.path.realpath(self.own) != os.path.realpath(self.beside)

    @property
    def climbs(self) -> bool:
        """Whether the embedded root leaves the annotation's folder."""
        return self.stated == "embedded" and ".." in Path(self.embedded or "").parts


def media_root(annotation: Path, embedded: str | None, given: Path | None) -> MediaRoot:
    """The root of an annotation file: the one given, else the embedded one, else the file's folder."""
    beside = _absolute(annotation).parent
    # Not normalised: behind a link, `..` is the link's parent to us and its target's to the system.
    own = beside / embedded if embedded else beside
    if given is not None:
        return MediaRoot(_absolute(given), own, beside, "given", embedded)
    return MediaRoot(own, own, beside, "embedded" if embedded else "beside", embedded)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links are kept, since the user knows the path by them


def media_folder(number: int) -> str:
    """Where the media of root `number`, from 0, stand in a prepared dataset."""
    return f"{MEDIA}/{number + 1:03d}"


def stored_names(names: Sequence[str]) -> list[str]:
    """Names for annotation files that come to stand in one folder, in the order given.

    A name that is taken, in any case of letters, gets the file's number, from 1, before it.
    """
    folded = [name.casefold() for name in names]
    free = [folded.count(name) == 1 and name not in _TAKEN for name in folded]
    numbered = [f"{number:03d}-{name}" for number, name in enumerate(names, start=1)]
    chosen = [name if free[at] else numbered[at] for at, name in enumerate(names)]
    return chosen if len({name.casefold() for name in chosen}) == len(chosen) else numbered
