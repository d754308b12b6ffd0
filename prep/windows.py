"""Training windows of robot episodes, as spans: built by array operations, opened by memory map.

A window of chunk length C that starts at frame f of an episode reads rows f to f + C: C + 1
observations and C actions. Windows that follow one another in one episode (or in one kept
range of it) make a span; the flat index 0 to len - 1 runs through the spans in order and is
resolved by bisecting their cumulative ends (contracts, sections 4 and 5).
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from prep.errors import PrepError, UsageError
from prep.files import write_whole

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from prep.keep_ranges import KeepRanges

    Numbers = NDArray[np.int64]

__all__ = ["COLUMNS", "Episodes", "Identity", "Window", "WindowIndex", "Windows", "join_spans", "root_spans"]

COLUMNS = ("dataset_index", "episode_index", "first_row", "first_frame", "length", "cumulative_end")
_METADATA = b"prep.windows"
_SCHEMA = "prep-windows/1"
_EPISODE_BITS = 40  # of a lookup key; the dataset's index stands above them
_MOST_EPISODES = 1 << _EPISODE_BITS
_MOST_DATASETS = 1 << (63 - _EPISODE_BITS)


class Identity(NamedTuple):
    """What names a window on every machine: root, episode, frame from the episode's start."""

    dataset_index: int
    episode_index: int
    frame: int


class Window(NamedTuple):
    """A window: its identity, the global row of its first frame, and the span that it is in."""

    dataset_index: int
    episode_index: int
    frame: int
    row: int
    span: int

    @property
    def identity(self) -> Identity:
        """The part that holds across machines and filters."""
        return Identity(self.dataset_index, self.episode_index, self.frame)


class Windows(NamedTuple):
    """Many windows at once; each field int64 [count]."""

    dataset_index: Numbers
    episode_index: Numbers
    frame: Numbers
    row: Numbers
    span: Numbers


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes of one root: numbers, lengths in frames and first rows, each int64 [count].

    `ids` are the episodes' own names, where the dataset has them, for the filter.
    """

    numbers: Numbers
    lengths: Numbers
    first_rows: Numbers
    ids: pa.Array | None = None


def root_spans(
    episodes: Episodes,
    order: Numbers,
    chunk_length: int,
    *,
    dataset_index: int = 0,
    ranges: KeepRanges | None = None,
) -> dict[str, Numbers]:
    """The spans of one root: int64 columns of equal length, without `cumulative_end`.

    `order` holds positions in `episodes`. Without `ranges` an episode of L frames gives one span of
    L - C windows. With them each range [start, end) gives one of the windows that lie wholly inside
    it; episodes that it does not name, and empty spans, are left out.
    """
    if chunk_length < 1:
        raise UsageError(f"The chunk length {chunk_length} is less than 1.")
    if ranges is None:
        place, first = order, np.zeros(len(order), np.int64)
        count = episodes.lengths[order] - chunk_length
    else:
        place, start, end = ranges.spread(episodes, order)
        # Both are cut to the episode: a number near 2**63 would wrap round in the subtraction.
        length = episodes.lengths[place]
        first = np.clip(start, 0, length)
        count = np.clip(end, 0, length) - chunk_length - first
    kept = count > 0
    place, first, count = place[kept], first[kept], count[kept]
    return {
        "dataset_index": np.full(len(place), dataset_index, np.int64),
        "episode_index": episodes.numbers[place],
        "first_row": episodes.first_rows[place] + first,
        "first_frame": first,
        "length": count,
    }


def join_spans(parts: Sequence[Mapping[str, Numbers]]) -> dict[str, Numbers]:
    """The spans of several roots one after another, with their cumulative ends."""
    names = COLUMNS[:-1]
    empty = np.empty(0, np.int64)
    spans = {name: np.concatenate([empty, *(part[name] for part in parts)]) for name in names}
    spans["cumulative_end"] = np.cumsum(spans["length"], dtype=np.int64)
    return spans


class WindowIndex:
    """The windows of one recipe and split: `len`, `resolve`, `resolve_many`, `index_of`, blocks.

    `parameters` say what it was built with, `inputs` from which files (path, size, sha256).
    """

    def __init__(self, spans: Mapping[str, Numbers], parameters: Mapping[str, Any]) -> None:
        self.spans = {name: spans[name] for name in COLUMNS}
        self.parameters = dict(parameters)
        self._ends = self.spans["cumulative_end"]
        # Memoryviews give Python's own integers, several times faster than numpy's scalars.
        self._views = tuple(self.spans[name].data for name in COLUMNS)
        self._lookup: tuple[Numbers, Numbers] | None = None
        self._coarse: tuple[int, Numbers] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.spans, self.parameters)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def resolve(self, index: int) -> Window:
        """The window at a flat index.

        Raises IndexError outside 0 to len - 1, negatives included, and TypeError for what is no
        whole number; a truth value is none.
        """
        if isinstance(index, bool):
            raise TypeError("a window's index is a whole number, not a truth value")
        place = operator.index(index)
        if not 0 <= place < len(self):
            raise IndexError(f"window {place}: the index has {len(self)}")
        dataset, episode, row, frame, length, ends = self._views
        span = bisect_right(ends, place)
        offset = place - ends[span] + length[span]
        return Window(dataset[span], episode[span], frame[span] + offset, row[span] + offset, span)

    def resolve_many(self, indices: Sequence[int] | Numbers) -> Windows:
        """The windows at many flat indices, in their order; raises what `resolve` raises."""
        places = np.asarray(indices)
        if places.ndim != 1:
            raise TypeError(f"windows' indices are one list, not {places.ndim}-dimensional")
        if places.dtype.kind not in "iu" and places.size:
            raise TypeError(f"windows' indices are whole numbers, not {places.dtype}")
        if places.size and not (places.min() >= 0 and places.max() < len(self)):
            outside = places[(places < 0) | (places >= len(self))][0]
            raise IndexError(f"window {outside}: the index has {len(self)}")
        places = places.astype(np.int64, copy=False)
        span = self._spans_at(places)
        offset = places - (self._ends - self.spans["length"])[span]
        return Windows(
            self.spans["dataset_index"][span],
            self.spans["episode_index"][span],
            self.spans["first_frame"][span] + offset,
            self.spans["first_row"][span] + offset,
            span,
        )

    def _spans_at(self, places: Numbers) -> Numbers:
        """The span of each flat index: bisected over the ends, but ten times faster for many."""
        if self._coarse is None:
            self._coarse = _coarse_table(self._ends, len(self))
        shift, table = self._coarse
        span: Numbers = table[places >> shift]
        behind = np.flatnonzero(self._ends[span] <= places)
        while len(behind):
            span[behind] += 1
            behind = behind[self._ends[span[behind]] <= places[behind]]
        return span

    def index_of(self, identity: Identity | tuple[int, int, int]) -> int:
        """The flat index of an identity; raises KeyError if no window has it.

        Where ranges overlap, a window stands twice; the first is given.
        """
        dataset, episode, frame = identity
        for span in self.spans_of(dataset, episode):
            offset = frame - int(self.spans["first_frame"][span])
            if 0 <= offset < int(self.spans["length"][span]):
                return int(self._ends[span] - self.spans["length"][span]) + offset
        raise KeyError(f"no window of dataset {dataset}, episode {episode} starts at frame {frame}")

    def spans_of(self, dataset_index: int, episode_index: int) -> list[int]:
        """The spans of an episode, in order."""
        if not (0 <= dataset_index < _MOST_DATASETS and 0 <= episode_index < _MOST_EPISODES):
            return []
        if self._lookup is None:
            self._lookup = _lookup_table(self.spans)
        keys, order = self._lookup
        key = _span_key(np.int64(dataset_index), np.int64(episode_index))
        low, high = keys.searchsorted([key, key + 1])
        return sorted(int(span) for span in order[low:high])

    def blocks(self) -> Iterator[tuple[int, int]]:
        """For each span its first flat index and its length: what a shuffle keeps together."""
        lengths = self.spans["length"]
        yield from zip((self._ends - lengths).tolist(), lengths.tolist(), strict=True)

    def save(self, path: Path) -> None:
        """Write the index, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The index as an Arrow file of one uncompressed record batch; equal indices give equal bytes."""
        import pyarrow as pa

        metadata = {
            _METADATA: orjson.dumps({"schema": _SCHEMA, **self.parameters}, option=orjson.OPT_SORT_KEYS)
        }
        schema = pa.schema([(name, pa.int64()) for name in COLUMNS], metadata=metadata)
        columns = [
            pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
            for values in self.spans.values()
        ]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        data: bytes = sink.getvalue().to_pybytes()
        return data

    @classmethod
    def open(cls, path: str | Path, *, inputs_below: Path | None = None) -> WindowIndex:
        """Open a saved index by memory map; with `inputs_below` its inputs' sizes are compared first.

        Raises UsageError if there is none, PrepError if it is damaged or its inputs changed.
        """
        path = Path(path)
        batch = _opened(path)
        parameters = _parameters(path, batch.schema)
        if inputs_below is not None:
            _refuse_changed_inputs(path, parameters, inputs_below)
        spans = {name: np.frombuffer(batch[name].buffers()[1], np.int64, batch.num_rows) for name in COLUMNS}
        if (spans["length"] < 1).any() or (spans["length"].cumsum() != spans["cumulative_end"]).any():
            raise _no_index(path, "its cumulative ends are not those of its lengths")
        return cls(spans, parameters)


def _span_key(dataset_index: Numbers | np.int64, episode_index: Numbers | np.int64) -> Any:
    return (dataset_index << np.int64(_EPISODE_BITS)) | episode_index


def _coarse_table(ends: Numbers, windows: int) -> tuple[int, Numbers]:
    """For every 2**shift-th flat index its span, at four to eight entries a span; with that shift."""
    shift = max(0, (windows // max(1, 4 * len(ends))).bit_length() - 1)
    marks = np.arange(0, windows, 1 << shift, dtype=np.int64)
    return shift, ends.searchsorted(marks, side="right").astype(np.int64)


def _lookup_table(spans: Mapping[str, Numbers]) -> tuple[Numbers, Numbers]:
    keys = _span_key(spans["dataset_index"], spans["episode_index"])
    order = np.argsort(keys, kind="stable")
    return keys[order], order


def _opened(path: Path) -> pa.RecordBatch:
    """The only record batch of an index, mapped; its columns are those of an index."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            if reader.schema != pa.schema([(name, pa.int64()) for name in COLUMNS]):
                raise _no_index(path, "it has other columns")
            if reader.num_record_batches != 1:
                raise _no_index(path, f"it has {reader.num_record_batches} record batches")
            batch = reader.get_batch(0)
            batch.validate()
            return batch
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no window index {path}.", remedy="Run the prepare command first."
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise _no_index(path, str(error).partition("\n")[0].rstrip(".")) from error


def _parameters(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """What the index was built with; raises PrepError if it is none, or of another version."""
    try:
        parameters = orjson.loads((schema.metadata or {}).get(_METADATA, b"null"))
    except orjson.JSONDecodeError as error:
        raise _no_index(path, f"its parameters are no JSON: {error}") from error
    if not isinstance(parameters, dict) or parameters.pop("schema", None) != _SCHEMA:
        raise _no_index(path, f"its parameters are not {_SCHEMA}")
    return parameters


def _no_index(path: Path, why: str) -> PrepError:
    return PrepError(
        f"{path}: not a whole window index: {why}.", remedy="Build it again with the prepare command."
    )


def _refuse_changed_inputs(path: Path, parameters: Mapping[str, Any], below: Path) -> None:
    for entry in parameters.get("inputs", ()):
        source = below / entry["path"]
        size = source.stat().st_size if source.is_file() else None
        if size != entry["size"]:
            found = "is not there" if size is None else f"has {size} bytes"
            raise PrepError(
                f"{path}: was built from {entry['path']} of {entry['size']} bytes, which {found} now.",
                remedy="Run the prepare command with --update to build it again.",
            )
