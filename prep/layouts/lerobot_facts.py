"""What the checks of a LeRobot v3.0 root know: read once, then shared by every rule.

Metadata is read by column through buffers, so that the table of 57,000 episodes costs some tens of
milliseconds. What cannot be read becomes a finding, and the rules that need it have nothing to say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard

import numpy as np

from prep.errors import PrepError
from prep.findings import Finding, Severity, found
from prep.layouts.lerobot import Root, Tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Reals = NDArray[np.float64]

__all__ = [
    "EPISODES",
    "TASKS",
    "THRESHOLDS",
    "Facts",
    "Level",
    "Needed",
    "Reader",
    "gather",
    "int_values",
    "positive",
    "real_values",
]

Level = Literal["quick", "standard", "deep"]
Reader = Literal["lerobot", "upstream"]
Emit = Callable[[Finding], None]

EPISODES: Final = "meta/episodes"
TASKS: Final = "meta/tasks.parquet"

THRESHOLDS: Final[Mapping[str, float]] = {
    "timestamp_tolerance_seconds": 1e-4,
    "window_tolerance_frames": 0.5,
    "frozen_seconds": 2.0,
    "frozen_share": 0.5,
    "absurd_value": 1e6,
    "statistics_tolerance_share": 0.01,
    "still_grey_levels": 0.1,
    "cut_grey_levels": 4.0,
    "cut_ratio": 4.0,
    "border_frames": 3,
}
"""Limits of the checks. A feature or camera is frozen when it stands still for `frozen_seconds` and
for `frozen_share` of its episode; a picture stands still when it differs from the one before by
`still_grey_levels` in the mean, for an encoder does not repeat one to the bit. A change of scene is a
step of `cut_grey_levels` that is `cut_ratio` times its neighbours; it is looked for `border_frames`
around each border."""

ESSENTIAL: Final = ("episode_index", "length", "dataset_from_index", "dataset_to_index")
_DEEPEST: Final = 4
_META_ROUTE: Final = ("meta/episodes/chunk_index", "meta/episodes/file_index")


@dataclass(frozen=True, slots=True)
class Needed:
    """A file that episodes name: camera ("" for a frame table), relative path, episode positions."""

    camera: str
    path: str
    episodes: Numbers


@dataclass(slots=True)
class Facts:
    """One root as far as it could be read.

    `types` are the columns of the episode table. `numbers` (int64) and `seconds` (float64) hold those
    columns that are whole, each [episodes]; `task_lists` are the texts that episodes name. `files` are
    the sizes of the files below data/ and videos/, None where a link dangles; `broken` those that need
    not be opened, since a finding has said what is wrong with them.
    """

    root: Root
    reader: Reader = "lerobot"
    needs_ids: bool = False
    count: int = 0
    types: dict[str, pa.DataType] = field(default_factory=dict)
    numbers: dict[str, Numbers] = field(default_factory=dict)
    seconds: dict[str, Reals] = field(default_factory=dict)
    ids: pa.Array | None = None
    task_lists: pa.ListArray | None = None
    tasks: Tasks | None = None
    rows_per_file: dict[str, int] = field(default_factory=dict)
    files: dict[str, int | None] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    @property
    def usable(self) -> bool:
        """Whether the episodes' numbers and rows are known."""
        return all(name in self.numbers for name in ESSENTIAL)

    @property
    def fps(self) -> float | None:
        """Frames a second where the statement makes sense."""
        stated = self.root.fps
        return stated if stated is not None and 0 < stated < float("inf") else None

    def strict(self) -> Severity:
        """An error where lerobot reads the tree; a warning where upstream's own reader bears it."""
        return "error" if self.reader == "lerobot" else "warning"

    def route(self, camera: str) -> tuple[Numbers, Numbers] | None:
        """Chunk and file number of each episode; zeros where the table has no such columns.

        None where it has them and they cannot be used.
        """
        stem = f"videos/{camera}" if camera else "data"
        names = (f"{stem}/chunk_index", f"{stem}/file_index")
        if not any(name in self.types for name in names):
            return np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        if not all(name in self.numbers for name in names):
            return None
        return self.numbers[names[0]], self.numbers[names[1]]

    def needed(self, camera: str) -> list[Needed] | None:
        """The files that hold the episodes of a camera ("" for the frame tables); None if unknown."""
        route = self.route(camera)
        if route is None:
            return None
        key = (route[0] << np.int64(32)) | route[1]
        values, inverse = np.unique(key, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        bounds = np.searchsorted(inverse[order], np.arange(len(values) + 1))
        try:
            paths = [self._path(camera, value) for value in values.tolist()]
        except PrepError:
            return None  # LER004 says so
        if any(path.startswith("/") or ".." in path.split("/") for path in paths):
            return None  # FIL011 says so
        return [Needed(camera, path, order[bounds[at] : bounds[at + 1]]) for at, path in enumerate(paths)]

    def _path(self, camera: str, key: int) -> str:
        chunk, file = key >> 32, key & 0xFFFFFFFF
        return self.root.video_file(camera, chunk, file) if camera else self.root.data_file(chunk, file)

    def readable(self, camera: str) -> list[Needed]:
        """The needed files that are there and not yet known to be broken."""
        return [
            item
            for item in self.needed(camera) or ()
            if self.files.get(item.path) and item.path not in self.broken
        ]

    @property
    def lengths(self) -> Numbers | None:
        """Frames of each episode by its rows, from which readers cut windows; LER026 tells of `length`."""
        if not self.usable:
            return self.numbers.get("length")
        return self.numbers["dataset_to_index"] - self.numbers["dataset_from_index"]

    def windows(self, camera: str) -> tuple[Reals, Reals] | None:
        """Seconds at which each episode begins and ends in its camera's file."""
        first = self.seconds.get(f"videos/{camera}/from_timestamp")
        last = self.seconds.get(f"videos/{camera}/to_timestamp")
        return None if first is None or last is None else (first, last)

    def episode(self, position: int) -> str:
        """How findings name an episode."""
        numbers = self.numbers.get("episode_index")
        return f"episode {int(numbers[position]) if numbers is not None else position}"


def positive(shape: object) -> TypeGuard[list[int]]:
    """Whether a declared shape is a list of sizes of at least 1, and not empty."""
    return (
        isinstance(shape, list)
        and bool(shape)
        and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape)
    )


def gather(root: Root, reader: Reader, needs_ids: bool | None, emit: Emit) -> Facts:
    """Read the metadata and list the files below data/ and videos/."""
    facts = Facts(root, reader)
    names = root.features
    # Only datasets with end-effector poses beside joint commands are filtered by their episodes' names.
    filtered = {"observation.state.cartesian_position", "action.joint_position"} <= names.keys()
    facts.needs_ids = filtered if needs_ids is None else needs_ids
    _read_episodes(facts, emit)
    _read_tasks(facts, emit)
    for folder in ("data", "videos"):
        for path, size in _listed(root.path, folder):
            facts.files[path] = size
    return facts


def _read_episodes(facts: Facts, emit: Emit) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = facts.root
    if not root.episode_files:
        emit(found("LER020", EPISODES, "there is no chunk-*/file-*.parquet in it"))
        return
    for relative in root.episode_files:
        try:
            facts.rows_per_file[relative] = pq.read_metadata(root.path / relative).num_rows
        except (OSError, pa.ArrowException) as error:
            emit(found("LER020", relative, f"cannot be read: {_reason(error)}"))
    if len(facts.rows_per_file) < len(root.episode_files):
        return
    wanted = [name for name in root.episode_columns() if not name.startswith("stats/")]
    try:
        table = root.episode_table(wanted)
    except (PrepError, pa.ArrowException) as error:
        emit(found("LER024", EPISODES, f"its files cannot be joined: {_reason(error)}"))
        return
    facts.count = table.num_rows
    facts.types = {name: table.schema.field(name).type for name in wanted}
    for name in wanted:
        _take(facts, name, table[name], emit)


def _take(facts: Facts, name: str, column: pa.ChunkedArray, emit: Emit) -> None:
    """Keep a column that the checks use, if it is whole and of its type."""
    kind = _wanted_kind(name)
    if not kind:
        return
    message = _misfit(column, kind)
    if message:
        emit(
            found("LER024", EPISODES, f"column {name} is {column.type}; expected {kind}{message}", place=name)
        )
    if column.null_count and name != "episode_id":
        first = column.is_null().index(True).as_py()
        message = (
            f"column {name}: {column.null_count} of {len(column)} cells are empty, the first in row {first}"
        )
        emit(found("LER023", EPISODES, message, place=name))
    if message:
        return
    if kind == "whole numbers":
        facts.numbers[name] = int_values(column)
    elif kind == "numbers":
        facts.seconds[name] = real_values(column)
    elif kind == "text":
        facts.ids = column.combine_chunks()
    else:
        facts.task_lists = column.combine_chunks()


def _wanted_kind(name: str) -> str:
    if name in ESSENTIAL or name in _META_ROUTE or name.endswith(("/chunk_index", "/file_index")):
        return "whole numbers"
    if name.endswith(("/from_timestamp", "/to_timestamp")):
        return "numbers"
    return {"tasks": "lists of texts", "episode_id": "text"}.get(name, "")


def _misfit(column: pa.ChunkedArray, kind: str) -> str:
    """Why a column's type does not serve; empty where it does."""
    import pyarrow as pa

    test: dict[str, Callable[[pa.DataType], bool]] = {
        "whole numbers": pa.types.is_integer,
        "numbers": lambda of: pa.types.is_floating(of) or pa.types.is_integer(of),
        "text": _is_text,
        "lists of texts": lambda of: _is_list(of) and _is_text(of.value_type),
    }
    return "" if test[kind](column.type) else "; readers fill it into paths and rows as it is"


def _is_text(of: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(of) or pa.types.is_large_string(of))


def _is_list(of: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(of) or pa.types.is_large_list(of))


def int_values(column: pa.ChunkedArray) -> Numbers:
    """A column of whole numbers without empty cells as int64 [rows]."""
    import pyarrow as pa

    return _through_buffers(column.cast(pa.int64(), safe=False), np.int64)


def real_values(column: pa.ChunkedArray) -> Reals:
    """A column of numbers without empty cells as float64 [rows]."""
    import pyarrow as pa

    return _through_buffers(column.cast(pa.float64(), safe=False), np.float64)


def _through_buffers(column: pa.ChunkedArray, kind: type[Any]) -> NDArray[Any]:
    # Not `to_numpy`: that imports pandas, a quarter of a second, to look for its types.
    parts = [
        np.frombuffer(chunk.buffers()[1], kind, len(chunk), chunk.offset * 8)
        for chunk in column.chunks
        if len(chunk)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, kind), *parts])


def _read_tasks(facts: Facts, emit: Emit) -> None:
    try:
        read = facts.root.tasks()
    except PrepError as error:
        emit(found("LER032", TASKS, _reason(error).removeprefix(f"{facts.root.path}/")))
        return
    # Cells of other types are empty to the rules, which tell of them (LER034, LER035).
    facts.tasks = replace(
        read,
        texts=[text if isinstance(text, str) else None for text in read.texts],
        numbers=[number if type(number) is int else None for number in read.numbers],
    )


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _listed(root: Path, folder: str) -> Iterator[tuple[str, int | None]]:
    """Each file below a folder, with its size; links are followed, but not round and round."""
    if not (root / folder).is_dir() or folder.count("/") > _DEEPEST:
        return
    with os.scandir(root / folder) as entries:
        children = sorted(entries, key=lambda entry: entry.name)
    for entry in children:
        path = str(PurePosixPath(folder, entry.name))
        if entry.is_dir():
            yield from _listed(root, path)
        else:
            yield path, _size(entry)


def _size(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat().st_size
    except OSError:
        return None
