"""Rows of frame tables by their place in a root, read by row group; and where an episode's videos lie.

A root's rows are counted through its frame tables. Only the row groups that a window touches are read,
from their beginning and no further than the window, only the columns that are wanted, and what was
read last is kept up to a limit.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from prep.errors import PrepError
from prep.layouts.lerobot import Root, int64_column, numbered_files
from prep.layouts.lerobot_columns import series

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Columns = dict[str, NDArray[Any]]

__all__ = ["ROW_BYTES", "EpisodeRoutes", "FrameRows", "Shot"]

ROW_BYTES: Final = 96 << 20
"""Bytes of rows that a reader keeps, beside those of the window."""
_ROWS_AT_ONCE: Final = 16_384
"""Rows of a row group that are read at once; whole groups have up to a million."""
_KNOWN_FILES: Final = 64
"""Frame tables of which the footers are kept."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One camera's video of an episode: the file, and the second at which the episode begins in it."""

    path: Path
    start: float


class EpisodeRoutes:
    """The episode table of a root, as far as it says where rows and videos are; read when first asked."""

    def __init__(self, root: Root, cameras: Sequence[str]) -> None:
        self.root = root
        self.cameras = tuple(cameras)

    @cached_property
    def _columns(self) -> dict[str, NDArray[Any]]:
        names = ["episode_index", "dataset_from_index", "data/chunk_index", "data/file_index"]
        times = []
        for camera in self.cameras:
            names += [f"videos/{camera}/chunk_index", f"videos/{camera}/file_index"]
            times.append(f"videos/{camera}/from_timestamp")
        table = self.root.episode_table([*names, *times])
        columns: dict[str, NDArray[Any]] = {name: _whole_numbers(table, name) for name in names}
        for name in times:
            columns[name] = _numbers(series(table[name], name).values, name).astype(np.float64)
        return columns

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {number: at for at, number in enumerate(self._columns["episode_index"].tolist())}

    def position(self, episode: int) -> int:
        """Where an episode stands in the table; raises PrepError if it has no row."""
        if episode not in self._positions:
            raise PrepError(
                f"{self.root.path}: the episode table has no episode {episode}.",
                remedy="`prep validate` lists rows without an episode.",
            )
        return self._positions[episode]

    def table_of(self, episode: int) -> str:
        """The frame table that holds an episode's rows, relative to the root."""
        chunk, file = self._file("data", self.position(episode))
        return self.root.data_file(chunk, file)

    def first_row(self, episode: int) -> int:
        """The first row of the frame table that holds an episode's rows."""
        chunks, files = self._columns["data/chunk_index"], self._columns["data/file_index"]
        chunk, file = self._file("data", self.position(episode))
        return int(self._columns["dataset_from_index"][(chunks == chunk) & (files == file)].min())

    def shot(self, episode: int, camera: str) -> Shot:
        """One camera's video of an episode."""
        at = self.position(episode)
        chunk, file = self._file(f"videos/{camera}", at)
        start = float(self._columns[f"videos/{camera}/from_timestamp"][at])
        return Shot(self.root.path / self.root.video_file(camera, chunk, file), start)

    def _file(self, stem: str, at: int) -> tuple[int, int]:
        return int(self._columns[f"{stem}/chunk_index"][at]), int(self._columns[f"{stem}/file_index"][at])


class FrameRows:
    """Rows of one root. With `sorted_rows` a row's place is that among the rows of all frame tables
    sorted by `index`, orphans included; else each episode's rows are in the file that its entry names.
    """

    def __init__(self, root: Root, routes: EpisodeRoutes, columns: Sequence[str], *, sorted_rows: bool):
        self.root, self.routes, self.columns = root, routes, tuple(columns)
        self.sorted_rows = sorted_rows
        self._groups: OrderedDict[tuple[str, int], _Group] = OrderedDict()
        self._bounds: OrderedDict[str, Numbers] = OrderedDict()

    def take(self, first: int, count: int, episode: int) -> Columns:
        """Rows `first` to `first + count - 1` of a root; each column [count] or [count, dimensions].

        Raises PrepError if they cannot be read, or are not rows of `episode` one after another.
        """
        parts = [
            part
            for path, start, length in self._runs(first, count, episode)
            for part in self._run(path, start, length)
        ]
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._check(rows, first, episode)
        return rows

    def _runs(self, first: int, count: int, episode: int) -> Iterator[tuple[str, int, int]]:
        """The rows as runs of one file: (file, row in it, length)."""
        if not self.sorted_rows:
            yield self.routes.table_of(episode), first - self.routes.first_row(episode), count
            return
        files, file, row = self._sorted
        if not 0 <= first <= first + count <= len(file):
            raise PrepError(
                f"{self.root.path}: rows {first} to {first + count - 1} are wanted, there are {len(file)}."
            )
        file, row = file[first : first + count], row[first : first + count]
        cuts = np.flatnonzero((np.diff(file) != 0) | (np.diff(row) != 1)) + 1
        for low, high in itertools.pairwise([0, *cuts.tolist(), count]):
            yield files[int(file[low])], int(row[low]), high - low

    def _run(self, path: str, start: int, length: int) -> Iterator[Columns]:
        """A run of rows of one file, by row group."""
        bounds = self._bounds_of(path)
        if not 0 <= start <= start + length <= bounds[-1]:
            raise PrepError(
                f"{self.root.path / path}: rows {start} to {start + length - 1} are wanted, "
                f"it has {bounds[-1]}.",
                remedy="`prep validate` says which rows are missing.",
            )
        group = int(np.searchsorted(bounds, start, side="right")) - 1
        while bounds[group] < start + length:
            low, high = max(start, bounds[group]), min(start + length, bounds[group + 1])
            try:
                held = self._group(path, group, int(bounds[group + 1] - bounds[group]))
                yield from held.rows(int(low - bounds[group]), int(high - bounds[group]))
            except PrepError:
                self._groups.pop((path, group))  # what began to read it cannot go on
                raise
            self._let_go(path, group)
            group += 1

    @cached_property
    def _sorted(self) -> tuple[list[str], NDArray[np.int32], Numbers]:
        """The files of all frame tables, and for each row by `index` its file and its place in it."""
        files = numbered_files(self.root.path, "data", ".parquet")
        parts = [int64_column(self._read(path, ["index"]), "index") for path in files]
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *parts]), kind="stable")
        lengths = [len(part) for part in parts]
        file = np.repeat(np.arange(len(files), dtype=np.int32), lengths)
        row = np.concatenate([np.empty(0, np.int64), *(np.arange(length) for length in lengths)])
        return files, file[order], row[order]

    def _check(self, rows: Columns, first: int, episode: int) -> None:
        """The reference takes rows by their place; what stands there must be what the place promises."""
        index, owner = rows["index"], rows["episode_index"]
        placed = self.sorted_rows or (index == np.arange(first, first + len(index))).all()
        if not (placed and (owner == episode).all()):
            raise PrepError(
                f"{self.root.path}: where the rows {first} to {first + len(index) - 1} of episode {episode} "
                f"belong, index is {index[0]} to {index[-1]} and the episode {owner[0]} to {owner[-1]}.",
                remedy="`prep validate` names the rows.",
            )

    def _bounds_of(self, path: str) -> Numbers:
        """The rows at which the row groups of a file begin, and its end."""
        if path not in self._bounds:
            import pyarrow.parquet as pq

            with _reading(self.root.path / path), pq.ParquetFile(self.root.path / path) as file:
                meta = file.metadata
                sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
            self._bounds[path] = np.cumsum([0, *sizes], dtype=np.int64)
            while len(self._bounds) > _KNOWN_FILES:
                self._bounds.popitem(last=False)
        return self._bounds[path]

    def _group(self, path: str, group: int, count: int) -> _Group:
        key = path, group
        if key not in self._groups:
            self._groups[key] = _Group(partial(_parts, self.root.path / path, group, self.columns), count)
        self._groups.move_to_end(key)
        return self._groups[key]

    def _let_go(self, path: str, group: int) -> None:
        """Forget the groups least lately used beyond the limit; of this one alone its first rows."""
        held = sum(each.bytes_held for each in self._groups.values())
        while held > ROW_BYTES and len(self._groups) > 1:
            held -= self._groups.popitem(last=False)[1].bytes_held
        self._groups[path, group].shrink(ROW_BYTES)

    def _read(self, path: str, columns: Sequence[str]) -> Any:
        import pyarrow.parquet as pq

        full = self.root.path / path
        with _reading(full), pq.ParquetFile(full, memory_map=True) as file:
            _check_columns(full, file.schema_arrow.names, columns)
            return file.read(columns=list(columns))


def _parts(path: Path, group: int, columns: Sequence[str]) -> Generator[Columns]:
    """A row group's columns, some rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _reading(path), pq.ParquetFile(path, memory_map=True) as file:
        _check_columns(path, file.schema_arrow.names, columns)
        batches = file.iter_batches(
            _ROWS_AT_ONCE, row_groups=[group], columns=list(columns), use_threads=False
        )
        for batch in batches:
            table = pa.Table.from_batches([batch])  # `pa.table` imports pandas
            yield {name: _numbers(series(table[name], name).values, name) for name in columns}


class _Group:
    """A row group of `count` rows as far as it was read: parts by their first row, and what reads on."""

    def __init__(self, begin: Callable[[], Generator[Columns]], count: int) -> None:
        self._begin, self._count = begin, count
        self._starts = [0]
        self._parts: dict[int, Columns] = {}
        self._rest = begin()
        self.bytes_held = 0

    def rows(self, low: int, high: int) -> Iterator[Columns]:
        """Rows `low` to `high - 1` of the group, in one part or more."""
        while low < high:
            start, part = self._part_of(low)
            end = min(high, start + _length(part))
            yield {name: each[low - start : end - start] for name, each in part.items()}
            low = end

    def shrink(self, most: int) -> None:
        """Forget parts, the first read first, down to `most` bytes; the last read is kept."""
        while self.bytes_held > most and len(self._parts) > 1:
            self.bytes_held -= _bytes_of(self._parts.pop(next(iter(self._parts))))

    def _part_of(self, row: int) -> tuple[int, Columns]:
        """The part that holds a row, and its first row."""
        while row >= self._starts[-1]:
            self._read_on()
        start = self._starts[bisect_right(self._starts, row) - 1]
        if start not in self._parts:
            self._starts, self._rest = [0], self._begin()
            self._parts, self.bytes_held = {}, 0
            return self._part_of(row)
        return start, self._parts[start]

    def _read_on(self) -> None:
        start = self._starts[-1]
        part = next(self._rest, None)
        if part is None:
            raise PrepError(f"A row group ends after {start} rows, of {self._count} that its file tells.")
        self._parts[start] = part
        self._starts.append(start + _length(part))
        self.bytes_held += _bytes_of(part)
        if self._starts[-1] >= self._count:
            self._rest.close()  # and with it the file: there may be thousands of small groups


def _length(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _bytes_of(columns: Columns) -> int:
    return sum(each.nbytes for each in columns.values())


def _check_columns(path: Path, present: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in present]
    if missing:
        raise PrepError(f"{path}: has no column {missing[0]}.", remedy="Take a complete tree.")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        why = str(getattr(error, "strerror", None) or error).partition("\n")[0].rstrip(".")
        raise PrepError(
            f"{path}: cannot be read: {why}.", remedy="`prep validate` says what is wrong."
        ) from error


def _numbers(values: NDArray[Any], name: str) -> NDArray[Any]:
    if not len(values):
        raise PrepError(
            f"The column {name} holds empty cells, or no numbers of one width.",
            remedy="`prep validate` says where.",
        )
    return values


def _whole_numbers(table: pa.Table, name: str) -> Numbers:
    """`int64_column`, without its cast where there is nothing to cast: that imports a tenth of a second."""
    column = table[name]
    if str(column.type) != "int64" or column.null_count:
        return int64_column(table, name)
    return series(column, name).values
