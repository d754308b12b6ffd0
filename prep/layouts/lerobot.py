"""The LeRobot v3.0 layout: metadata by column, frame tables and videos only named (contracts, section 4).

A root holds `meta/info.json`, `meta/tasks.parquet`, `meta/episodes/chunk-*/file-*.parquet`,
`data/chunk-*/file-*.parquet` (one row a frame) and, per camera, `videos/<key>/chunk-*/file-*.mp4`
with several episodes in one file.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.errors import PrepError
from prep.windows import Episodes

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

__all__ = ["INFO", "Root", "Tasks", "frame_episodes", "int64_column", "numbered_files", "version_of"]

INFO = "meta/info.json"
_EPISODE_FOLDER = "meta/episodes"
_TASKS = "meta/tasks.parquet"
_NUMBERED = re.compile(r"chunk-(\d+)/file-(\d+)\.[a-z0-9]+")
_CONVERT = "python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=OWNER/NAME"

# Templates in the wild name the same two numbers differently.
_CHUNK_NAMES = ("chunk_index", "episode_chunk", "chunk")
_FILE_NAMES = ("file_index", "episode_file", "file")


def version_of(root: Path) -> str | None:
    """The format version that a tree states, such as "v3.0"; None if it is no LeRobot tree.

    A tree without info.json is told by its v2 files.
    """
    try:
        document = json.loads((root / INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        has_v2 = (root / "meta/episodes.jsonl").is_file() or (root / "meta/tasks.jsonl").is_file()
        return "v2.x" if has_v2 else None
    version = document.get("codebase_version") if isinstance(document, dict) else None
    return str(version) if version is not None else None


def numbered_files(root: Path, folder: str, ending: str) -> list[str]:
    """The files `chunk-*/file-*` of a folder, relative to `root`, in the order of their numbers."""
    found = []
    base = root / folder
    for chunk in base.iterdir() if base.is_dir() else ():
        for file in chunk.iterdir() if chunk.is_dir() else ():
            match = _NUMBERED.fullmatch(f"{chunk.name}/{file.name}")
            if match is not None and file.suffix == ending:
                found.append(((int(match[1]), int(match[2])), f"{folder}/{chunk.name}/{file.name}"))
    return [relative for _, relative in sorted(found)]


@dataclass(frozen=True, slots=True)
class Tasks:
    """The task table: texts by position, the stored numbers, and which column the text came from.

    `column` is `task` or `__index_level_0__` where the text is the table's index (what lerobot
    reads), or `task` with `is_index` false where it is a plain column.
    """

    texts: Sequence[str | None]
    numbers: Sequence[int | None]
    column: str
    is_index: bool


@dataclass(frozen=True)
class Root:
    """One v3.0 root whose `info.json` has been read; everything else is read when asked for."""

    path: Path
    info: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Root:
        """Read `meta/info.json`; raises PrepError for another version, or none, with the way out."""
        version = version_of(path)
        if version is None:
            raise PrepError(
                f"{path}: no LeRobot tree (there is no {INFO}).",
                remedy="Give the folder that holds meta/, data/ and videos/.",
            )
        if version != "v3.0":
            raise PrepError(
                f"{path}: LeRobot format {version}; v3.0 is needed.", remedy=f"Convert it: {_CONVERT}"
            )
        return cls(path, json.loads((path / INFO).read_text(encoding="utf-8")))

    @property
    def fps(self) -> float | None:
        """Frames a second as stated."""
        value = self.info.get("fps")
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def features(self) -> Mapping[str, Mapping[str, Any]]:
        """The declared features by name; those that are no objects are left out."""
        declared = self.info.get("features")
        if not isinstance(declared, dict):
            return {}
        return {name: value for name, value in declared.items() if isinstance(value, dict)}

    @property
    def cameras(self) -> list[str]:
        """The names of the video features, in order."""
        return [name for name, feature in self.features.items() if feature.get("dtype") == "video"]

    @functools.cached_property
    def episode_files(self) -> list[str]:
        """The files of the episode table, in order."""
        return numbered_files(self.path, _EPISODE_FOLDER, ".parquet")

    def episode_columns(self) -> list[str]:
        """The columns that every file of the episode table has."""
        import pyarrow.parquet as pq

        shared: list[str] | None = None
        for relative in self.episode_files:
            names = pq.read_schema(self.path / relative).names
            shared = names if shared is None else [name for name in shared if name in names]
        return shared or []

    def episode_table(self, columns: Sequence[str]) -> pa.Table:
        """Columns of the whole episode table; raises PrepError if a file or column is missing."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self.episode_files:
            raise PrepError(
                f"{self.path}: no episode table ({_EPISODE_FOLDER}/chunk-*/file-*.parquet).",
                remedy="Fetch the whole meta/ folder.",
            )
        parts = []
        for relative in self.episode_files:
            try:
                with pq.ParquetFile(self.path / relative) as file:
                    missing = [name for name in columns if name not in file.schema_arrow.names]
                    if missing:
                        raise PrepError(
                            f"{self.path / relative}: the episode table has no column {missing[0]}.",
                            remedy="Take a complete v3.0 tree.",
                        )
                    parts.append(file.read(columns=list(columns)))
            except (OSError, pa.ArrowException) as error:
                raise PrepError(
                    f"{self.path / relative}: not a parquet file: {str(error).splitlines()[0]}.",
                    remedy="Fetch it again.",
                ) from error
        return pa.concat_tables(parts, promote_options="permissive")

    def episodes(self) -> Episodes:
        """The episodes as the window index needs them, in table order.

        Lengths are taken from the row numbers, as upstream takes them.
        """
        wanted = ["episode_index", "dataset_from_index", "dataset_to_index"]
        has_ids = "episode_id" in self.episode_columns()
        table = self.episode_table([*wanted, "episode_id"] if has_ids else wanted)
        number, first, end = (int64_column(table, name) for name in wanted)
        ids = table["episode_id"].combine_chunks().cast("string") if has_ids else None
        return Episodes(number, end - first, first, ids)

    def tasks(self) -> Tasks:
        """The task table, in either spelling; raises PrepError if there is none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path / _TASKS
        try:
            with pq.ParquetFile(path) as file:
                table = file.read()
        except (OSError, pa.ArrowException) as error:
            raise PrepError(
                f"{path}: cannot be read: {str(error).splitlines()[0]}.",
                remedy="Fetch the whole meta/ folder.",
            ) from error
        index = _index_columns(table.schema)
        column = next((name for name in ("__index_level_0__", "task") if name in table.column_names), None)
        if column is None:
            raise PrepError(f"{path}: has no column of task texts.", remedy="Take a complete v3.0 tree.")
        numbers = table["task_index"].to_pylist() if "task_index" in table.column_names else []
        return Tasks(table[column].to_pylist(), numbers, column, column in index)

    def data_file(self, chunk: int, file: int) -> str:
        """The relative path of a frame table, by the tree's own template."""
        default = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        return _filled(str(self.info.get("data_path") or default), chunk, file)

    def video_file(self, camera: str, chunk: int, file: int) -> str:
        """The relative path of a camera's video, by the tree's own template."""
        default = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        return _filled(str(self.info.get("video_path") or default), chunk, file, camera)

    def needed_files(self) -> Iterator[tuple[str, str, Numbers]]:
        """Each data and video file that the episode table names: (camera or "", path, episode positions)."""
        columns = self.episode_columns()
        for camera in ("", *self.cameras):
            stem = f"videos/{camera}" if camera else "data"
            names = [f"{stem}/chunk_index", f"{stem}/file_index"]
            if not set(names) <= set(columns):
                continue
            table = self.episode_table(names)
            chunk, file = (int64_column(table, name) for name in names)
            key = (chunk << np.int64(32)) | file
            values, inverse = np.unique(key, return_inverse=True)
            order = np.argsort(inverse, kind="stable")
            bounds = np.searchsorted(inverse[order], np.arange(len(values) + 1))
            for place, value in enumerate(values.tolist()):
                path = (
                    self.video_file(camera, value >> 32, value & 0xFFFFFFFF)
                    if camera
                    else self.data_file(value >> 32, value & 0xFFFFFFFF)
                )
                yield camera, path, order[bounds[place] : bounds[place + 1]]


def int64_column(table: pa.Table, name: str) -> Numbers:
    """A column of whole numbers as int64 [rows]; raises PrepError if it has nulls or other values."""
    import pyarrow as pa

    column = table[name]
    if column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        what = f"{column.null_count} empty cells" if column.null_count else f"the type {column.type}"
        raise PrepError(f"The column {name} has {what}; whole numbers are needed.")
    try:
        whole = column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise PrepError(f"The column {name} has other values than whole numbers: {error}.") from error
    chunks = [_from_buffer(chunk) for chunk in whole.chunks]
    return np.concatenate(chunks) if chunks else np.empty(0, np.int64)


def _from_buffer(chunk: pa.Array) -> Numbers:
    # Through the buffer, not `to_numpy`: that imports pandas, a quarter of a second, to look for its types.
    return np.frombuffer(chunk.buffers()[1], np.int64, len(chunk), chunk.offset * 8)


def _index_columns(schema: pa.Schema) -> list[str]:
    """The columns that were the pandas index when the table was written."""
    stated = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    return [name for name in stated.get("index_columns", []) if isinstance(name, str)]


def _filled(template: str, chunk: int, file: int, camera: str = "") -> str:
    values: dict[str, Any] = {"video_key": camera}
    values.update((name, chunk) for name in _CHUNK_NAMES)
    values.update((name, file) for name in _FILE_NAMES)
    try:
        return template.format(**values)
    except (KeyError, ValueError, IndexError) as error:
        raise PrepError(
            f"The path template {template!r} cannot be filled in: {error}.",
            remedy="Templates know chunk_index, file_index and video_key.",
        ) from error


def frame_episodes(root: Root) -> Episodes | None:
    """The episodes by the rows of *all* frame tables, sorted by `index`, as LIBERO's reader sees them.

    None if no frame table is there. Raises PrepError if an episode's rows are not together.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = numbered_files(root.path, "data", ".parquet")
    if not files:
        return None
    parts = []
    for relative in files:
        try:
            with pq.ParquetFile(root.path / relative) as file:
                parts.append(file.read(columns=["index", "episode_index"]))
        except (OSError, pa.ArrowException) as error:
            raise PrepError(
                f"{root.path / relative}: cannot be read: {str(error).splitlines()[0]}.",
                remedy="Fetch it again.",
            ) from error
    table = pa.concat_tables(parts, promote_options="permissive")
    order = np.argsort(int64_column(table, "index"), kind="stable")
    episode = int64_column(table, "episode_index")[order]
    if len(episode) and (np.diff(episode) < 0).any():
        raise PrepError(
            f"{root.path}: the rows of an episode are not together when sorted by index.",
            remedy="`prep validate` names the rows.",
        )
    numbers, first, counts = np.unique(episode, return_index=True, return_counts=True)
    return Episodes(numbers, counts.astype(np.int64), first.astype(np.int64))
