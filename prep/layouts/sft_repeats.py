"""What repeats across the records of an SFT JSONL: uuids, clips and captions, found by their hashes."""

from __future__ import annotations

import codecs
import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prep.findings import PLACES_KEPT, Finding, found
from prep.layouts.repeats import THRESHOLDS, repeated_positions
from prep.layouts.sft_jsonl import read_lines

__all__ = ["Scanned", "repeats"]

_NAMED: Final = 5


@dataclass(slots=True)
class Scanned:
    """What a pass leaves behind: for each record, in order, hashes of its texts and its media's size.

    A size is in bytes, -1 where there is no file; a hash is 0 where there is no text. `complete` is
    false where the file could not be read to its end.
    """

    path: str
    records: int = 0
    complete: bool = True
    far: int = 0
    lines: array[int] = field(default_factory=lambda: array("q"))
    uuids: array[int] = field(default_factory=lambda: array("q"))
    media: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    captions: array[int] = field(default_factory=lambda: array("q"))
    sources: array[int] = field(default_factory=lambda: array("q"))


def repeats(root: Path, seen: Scanned) -> Iterator[Finding]:
    """REC001, FIL017 and REC010 on the records of one JSONL."""
    yield from _repeated_uuids(root, seen)
    yield from _repeated_media(root, seen)
    yield from _common_captions(seen)


def _named(root: Path, seen: Scanned, positions: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The records at some positions, read again."""
    wanted = {seen.lines[at]: at for at in positions}
    chosen: dict[int, dict[str, Any]] = {}
    if wanted:
        for line in read_lines(root / seen.path):
            if line.number in wanted:
                data = json.loads(line.data.removeprefix(codecs.BOM_UTF8))
                chosen[wanted[line.number]] = data if isinstance(data, dict) else {}
    return chosen


def _repeated_uuids(root: Path, seen: Scanned) -> Iterator[Finding]:
    """REC001: the ids of samples, and of upstream's order, are made of uuids."""
    groups = repeated_positions(seen.uuids)
    named = _named(root, seen, (group[0] for group in groups[:PLACES_KEPT]))
    for group in groups:
        uuid = named.get(group[0], {}).get("uuid", "the same")
        for at in group[1:]:
            message = f"the uuid {uuid!r} of line {seen.lines[group[0]]} again"
            yield found("REC001", seen.path, message, place=f"line {seen.lines[at]} /uuid")


def _repeated_media(root: Path, seen: Scanned) -> Iterator[Finding]:
    """FIL017: one clip under several records."""
    groups = repeated_positions(seen.media)
    named = _named(root, seen, (group[0] for group in groups[:PLACES_KEPT]))
    for group in groups:
        media = named.get(group[0], {}).get("vision_path", "a clip")
        lines = ", ".join(str(seen.lines[at]) for at in group[:_NAMED])
        more = " …" if len(group) > _NAMED else ""
        message = f"{len(group)} records name {media} (lines {lines}{more}); expected 1"
        yield found("FIL017", seen.path, message, place=f"line {seen.lines[group[0]]}")


def _common_captions(seen: Scanned) -> Iterator[Finding]:
    """REC010: one caption on a large share of the records."""
    total = len(seen.captions) - seen.captions.count(0)
    if total < THRESHOLDS["common_text_records"]:
        return
    for group in repeated_positions(seen.captions):
        if len(group) > THRESHOLDS["common_text_share"] * total:
            message = f"{len(group)} of {total} records ({len(group) / total:.0%}) have one caption"
            yield found("REC010", seen.path, message, place=f"line {seen.lines[group[0]]}")
