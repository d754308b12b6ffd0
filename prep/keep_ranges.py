"""The keep-ranges filter of DROID: which frames of which episode may be trained on (contracts, section 4).

A JSON object. A key names an episode, either by its id alone or as
`<P>/<id>/recordings/MP4--<P>/<id>/trajectory.h5` with one prefix P; the value is a list of
half-open ranges `[start, end)` of frames, counted from 0 at the episode's start.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from prep.errors import PrepError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from prep.windows import Episodes

    Numbers = NDArray[np.int64]

__all__ = ["UPSTREAM_PREFIX", "KeepRanges", "RangeCensus", "load_keep_ranges", "upstream_key"]

UPSTREAM_PREFIX = "gs://xembodiment_data/r2d2/r2d2-data-full"
"""The only prefix that upstream's reader looks for at the locked commit."""
_BETWEEN = "/recordings/MP4--"
_LAST = "/trajectory.h5"
_REMEDY = "Correct the filter; nothing was indexed."


def upstream_key(episode_id: str) -> str:
    """The key under which upstream's reader looks for an episode."""
    head = f"{UPSTREAM_PREFIX}/{episode_id}"
    return f"{head}{_BETWEEN}{head}{_LAST}"


@dataclass(frozen=True, slots=True)
class KeepRanges:
    """The filter as columns: episode k has the ranges `offsets[k]` to `offsets[k + 1]`, in file order.

    `ids` are strings [episodes]; `offsets` int64 [episodes + 1]; `starts`, `ends` int64 [ranges].
    """

    prefix: str | None
    ids: pa.Array
    offsets: Numbers
    starts: Numbers
    ends: Numbers

    def __len__(self) -> int:
        return len(self.ids)

    def match(self, episodes: Episodes) -> Numbers:
        """For each episode the position of its entry, or -1; int64 [episodes]."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if episodes.ids is None:
            raise PrepError(
                "The episode table has no column episode_id, so a filter can match nothing.",
                remedy="Index without --keep-ranges, or use a tree whose episodes have ids.",
            )
        try:
            names = episodes.ids.cast(pa.string())
        except pa.ArrowException as error:
            raise PrepError(
                f"The column episode_id has the type {episodes.ids.type}; text is needed to match a filter."
            ) from error
        # By buffers: `fill_null` and `np.asarray` import pandas, a quarter of a second.
        absent = pa.py_buffer(np.full(len(names), -1, np.int32))
        absent = pa.Array.from_buffers(pa.int32(), len(names), [None, absent])
        found = pc.coalesce(pc.index_in(names, value_set=self.ids), absent)
        return np.frombuffer(found.buffers()[1], np.int32, len(found), found.offset * 4).astype(np.int64)

    def spread(self, episodes: Episodes, order: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The ranges of the episodes in `order`: for each its episode's position, start and end."""
        entry = self.match(episodes)[order]
        order, entry = order[entry >= 0], entry[entry >= 0]
        counts = self.offsets[entry + 1] - self.offsets[entry]
        first = np.repeat(self.offsets[entry] - (np.cumsum(counts) - counts), counts)
        which = first + np.arange(len(first), dtype=np.int64)
        return np.repeat(order, counts), self.starts[which], self.ends[which]

    def rekeyed(self) -> Iterator[bytes]:
        """The filter in upstream's own key form, as JSON, piece by piece."""
        starts, ends = self.starts.tolist(), self.ends.tolist()
        offsets = self.offsets.tolist()
        yield b"{"
        for place, episode_id in enumerate(self.ids.to_pylist()):
            ranges = [[starts[at], ends[at]] for at in range(offsets[place], offsets[place + 1])]
            yield b"," * (place > 0) + orjson.dumps(upstream_key(episode_id)) + b":" + orjson.dumps(ranges)
        yield b"}"


@dataclass(frozen=True, slots=True)
class RangeCensus:
    """What upstream bears in a filter, counted; `overlap` names an episode whose windows count twice."""

    negative_starts: int
    past_the_end: int
    empty: int
    unsorted: int
    overlapping: int
    overlap: str | None

    @classmethod
    def of(cls, ranges: KeepRanges, episodes: Episodes) -> RangeCensus:
        """Count over the episodes of one root."""
        order = np.arange(len(episodes.numbers), dtype=np.int64)
        place, start, end = ranges.spread(episodes, order)
        same = place[1:] == place[:-1]
        overlapping = _overlapping(place, np.maximum(start, 0), np.minimum(end, episodes.lengths[place]))
        first = (
            None
            if not len(overlapping) or episodes.ids is None
            else episodes.ids[int(overlapping[0])].as_py()
        )
        return cls(
            negative_starts=int((start < 0).sum()),
            past_the_end=int((end > episodes.lengths[place]).sum()),
            empty=int((end == start).sum()),
            unsorted=int((same & (start[1:] < start[:-1])).sum()),
            overlapping=len(overlapping),
            overlap=first,
        )


def _overlapping(place: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """The places whose ranges overlap inside the episode, each once; ranges are cut to it."""
    filled = end > start
    place, start, end = place[filled], start[filled], end[filled]
    by = np.lexsort((start, place))
    place, start, end = place[by], start[by], end[by]
    # The farthest end so far within an episode; the offset keeps episodes apart.
    apart = place * (int(end.max(initial=0)) + 1)
    reach = np.maximum.accumulate(end + apart)
    hit = (place[1:] == place[:-1]) & (start[1:] + apart[1:] < reach[:-1])
    found: Numbers = np.unique(place[1:][hit])
    return found


def load_keep_ranges(path: Path, *, example_id: str, prefix: str | None = None) -> KeepRanges:
    """Read and check a filter file.

    `example_id` is an episode id of the dataset: how many parts it has tells where a key's prefix
    ends. `prefix` is the prefix that the user names. Raises UsageError if the file is not there,
    PrepError in one sentence for everything that would select the wrong windows.
    """
    document = _document(path)
    found_prefix, ids = _ids(path, list(document), example_id, prefix)
    offsets, flat = _flat_ranges(path, document)
    try:
        pairs = np.array(flat, dtype=np.int64).reshape(-1, 2)
    except OverflowError as error:
        raise PrepError(f"{path}: {max(flat)} is no frame number.", remedy=_REMEDY) from error
    backwards = np.flatnonzero(pairs[:, 1] < pairs[:, 0])
    if len(backwards):
        at = int(backwards[0])
        key = ids[int(np.searchsorted(offsets, at, side="right")) - 1]
        raise PrepError(
            f"{path}: {key}: the range {pairs[at].tolist()} ends before it starts.", remedy=_REMEDY
        )
    return KeepRanges(found_prefix, _strings(ids), offsets, pairs[:, 0].copy(), pairs[:, 1].copy())


def _strings(values: list[str]) -> pa.Array:
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no filter file {path}.", remedy="Give the keep-ranges JSON file."
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.", remedy="Give a file that can be read.") from error
    except orjson.JSONDecodeError as error:
        raise PrepError(f"{path}: not valid JSON, or cut short: {error}.", remedy=_REMEDY) from error
    if not isinstance(document, dict):
        raise PrepError(
            f"{path}: holds a {type(document).__name__}; expected an object of episode → list of ranges.",
            remedy=_REMEDY,
        )
    if not document:
        raise PrepError(f"{path}: names no episode.", remedy=_REMEDY)
    return document


def _flat_ranges(path: Path, document: Mapping[str, Any]) -> tuple[Numbers, list[int]]:
    flat: list[int] = []
    offsets = [0]
    for key, ranges in document.items():
        if not isinstance(ranges, list):
            raise PrepError(
                f"{path}: {key}: {reprlib.repr(ranges)} is not a list of [start, end].", remedy=_REMEDY
            )
        for pair in ranges:
            # `type(...) is int` and not isinstance: a truth value is no frame.
            if (
                type(pair) is not list
                or len(pair) != 2
                or type(pair[0]) is not int
                or type(pair[1]) is not int
            ):
                raise PrepError(
                    f"{path}: {key}: {reprlib.repr(pair)} is not a pair of whole numbers.", remedy=_REMEDY
                )
            flat += pair
        offsets.append(len(flat) // 2)
    return np.array(offsets, dtype=np.int64), flat


def _ids(path: Path, keys: list[str], example_id: str, prefix: str | None) -> tuple[str | None, list[str]]:
    composite = [key for key in keys if _BETWEEN in key]
    if not composite:
        return None, keys
    if len(composite) < len(keys):
        bare = next(key for key in keys if _BETWEEN not in key)
        raise PrepError(
            f"{path}: some keys are full paths ({composite[0]}) and some are bare ids ({bare}).",
            remedy=_REMEDY,
        )
    wanted = _prefix_of(composite[0], example_id) if prefix is None else prefix
    if not composite[0].startswith(f"{wanted}/"):
        wanted = wanted.rstrip("/")
    ids = []
    for key in keys:
        head, _, tail = key.partition(_BETWEEN)
        if not head.startswith(f"{wanted}/") or tail != head + _LAST:
            raise PrepError(
                f"{path}: the key {key} is no episode's path with the prefix {wanted!r} "
                f"(an episode of the dataset: {example_id}).",
                remedy="Give the prefix of the keys with --source-prefix or DROID_FILTER_SOURCE_PREFIX.",
            )
        ids.append(head[len(wanted) + 1 :])
    return wanted, ids


def _prefix_of(key: str, example_id: str) -> str:
    """What stands before the episode id, which has as many parts as `example_id`; "" if nothing does."""
    head = key.partition(_BETWEEN)[0]
    before, *episode = head.rsplit("/", example_id.count("/") + 1)
    return before if len(episode) == example_id.count("/") + 1 else ""
