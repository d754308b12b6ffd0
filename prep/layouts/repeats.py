"""What repeats across records: ids, media and texts, found by sorting 64-bit hashes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from prep.findings import PLACES_KEPT, Finding, found
from prep.layouts.conversations import META

if TYPE_CHECKING:
    from prep.layouts.conversations_checks import Scanned

__all__ = ["THRESHOLDS", "common_texts", "repeated_ids", "repeated_media", "repeated_positions"]

THRESHOLDS: Final[Mapping[str, float]] = {
    "common_text_share": 0.2,
    "common_text_records": 20,
    "prompt_texts": 10,
}
"""REC010: a text on more than this share of at least so many records. A dataset with at most
`prompt_texts` other texts has prompts that are chosen from a list, which is no fault."""

Entries = Callable[[Iterable[int]], Mapping[int, Mapping[str, Any]]]
_SHOWN = 80
_NAMED = 5


def repeated_positions(hashes: array[int]) -> list[list[int]]:
    """The positions, from 0, of each value that is there more than once; 0 stands for no value."""
    import numpy as np

    values = np.frombuffer(hashes, np.int64) if len(hashes) else np.empty(0, np.int64)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(values) else order
    lengths = np.diff(np.append(starts, len(values)))
    many = np.flatnonzero(lengths > 1)
    spans = [(starts[at], starts[at] + lengths[at]) for at in many if ordered[starts[at]] != 0]
    return sorted(order[start:end].tolist() for start, end in spans)


def repeated_ids(seen: Scanned, entries: Entries) -> Iterator[Finding]:
    """REC001, one for each record whose id another record before it has."""
    groups = repeated_positions(seen.ids)
    named = entries(group[0] for group in groups[:PLACES_KEPT])
    for group in groups:
        name = named.get(group[0], {}).get("id", "the same")
        for position in group[1:]:
            message = f"record {position + 1} has the id {name!r} of record {group[0] + 1}"
            yield found("REC001", META, message, place=f"/{position}/id")


def repeated_media(seen: Scanned, entries: Entries) -> Iterator[Finding]:
    """FIL017, one for each media file that several records name."""
    groups = repeated_positions(seen.media)
    named = entries(group[0] for group in groups[:PLACES_KEPT])
    for group in groups:
        path = named.get(group[0], {}).get("media", META)
        rows = ", ".join(str(position + 1) for position in group[:_NAMED])
        more = " …" if len(group) > _NAMED else ""
        yield found("FIL017", path, f"{len(group)} records name it ({rows}{more}); expected 1")


def common_texts(
    seen: Scanned, entries: Entries, question: Callable[[Mapping[str, Any]], str]
) -> Iterator[Finding]:
    """REC010, one for each question that stands on a large share of records while others differ."""
    total = len(seen.questions) - seen.questions.count(0)
    if total < THRESHOLDS["common_text_records"]:
        return
    groups = repeated_positions(seen.questions)
    common = [group for group in groups if len(group) > THRESHOLDS["common_text_share"] * total]
    singles = total - sum(map(len, groups))
    others = singles + len(groups) - len(common)
    if not common or others <= THRESHOLDS["prompt_texts"]:
        return
    named = entries(group[0] for group in common)
    for group in common:
        entry = named[group[0]]
        message = (
            f"{len(group)} of {total} records ({len(group) / total:.0%}) have the question "
            f"{_end(question(entry))!r}; the others have {others} texts"
        )
        yield found("REC010", entry["conversation"], message)


def _end(text: str) -> str:
    """The end of a text, where a caption stands behind the prompt."""
    plain = text.strip()
    return plain if len(plain) <= _SHOWN else f"… {plain[-_SHOWN:]}"
