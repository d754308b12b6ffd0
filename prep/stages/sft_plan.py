"""What an SFT run is going to make: its clips, in order, and why some of them are dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prep.clip_header import ClipHeader
from prep.errors import FetchError
from prep.findings import Finding
from prep.layouts.sft_jsonl import parsed, record_line

__all__ = ["FILTERS", "Clip", "Plan"]

FILTERS: Final = frozenset(
    ("duration_too_long", "too_few_frames", "short_edge_too_small", "no_valid_window", "no_frame_count")
)
"""Reasons that are rules of the training loader, no faults: such a clip would never be trained on."""


@dataclass(slots=True)
class Clip:
    """One source record. `reason` is empty as long as it may be kept.

    `row` counts from 1; `source` names its video within the source; `media` is the video's path
    below the split's folder; `line` is the record as the source has it, if it is kept as it is, and
    `record` is then empty, so that a million of them fit into memory.
    """

    row: int
    uuid: str
    split: str
    source: str = ""
    media: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    line: bytes | None = None
    reason: str = ""
    detail: str = ""
    group: str = ""
    header: ClipHeader | None = None

    @property
    def path(self) -> str:
        """The video's path in the dataset; empty for one that is named by a URI."""
        return f"{self.split}/{self.media}" if self.media else ""

    def data(self) -> dict[str, Any]:
        """The record itself; only of a clip that is kept."""
        return parsed(self.line) if self.line is not None else self.record

    def text(self) -> bytes:
        """The record's line in the JSONL, with its newline."""
        return self.line + b"\n" if self.line is not None else record_line(self.record)

    def drop(self, reason: str, detail: str) -> Clip:
        """The same clip, dropped."""
        self.reason, self.detail = reason, detail
        return self


Locate = Callable[[str], Path]


@dataclass(slots=True)
class Plan:
    """The clips of a run, and where their content is.

    `locate` gives the file of a source's name, fetching it if need be; it raises FetchError.
    `extras` are other files of a tree: path in the dataset → name in the source. `facts` are the
    manifest's sources; `hashes` the sha256 of each name for which the source lists it. `is_verified`
    is false where the Hub could not be asked which files there are. `notes` are what a user should know.
    """

    form: str
    clips: list[Clip]
    facts: list[dict[str, Any]]
    locate: Locate
    extras: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    sizes: Mapping[str, int] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    is_far: bool = False
    is_verified: bool = True
    summary: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)

    def kept(self) -> list[Clip]:
        """The clips that are records."""
        return [clip for clip in self.clips if not clip.reason]

    def drops(self) -> dict[str, int]:
        """How many clips are dropped, by reason."""
        return dict(sorted(Counter(clip.reason for clip in self.clips if clip.reason).items()))

    def faults(self) -> int:
        """How many are dropped for a fault, not by a rule of the training loader."""
        return sum(count for reason, count in self.drops().items() if reason not in FILTERS)

    def fail(self, failures: Mapping[str, FetchError]) -> None:
        """Drop the clips whose video could not be had."""
        for clip in self.clips:
            error = failures.get(clip.source)
            if error is not None and not clip.reason:
                clip.drop(error.reason, error.message)
