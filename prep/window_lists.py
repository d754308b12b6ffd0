"""Questions to a window index, and lists of windows by identity that hold across machines.

A list is a parquet file with the columns `dataset` (the root's name), `episode_index` and
`frame` (from the episode's start). It names the same windows on every machine and under every
filter, where flat indices do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prep.errors import PrepError, UsageError
from prep.files import disk_errors, write_whole
from prep.windows import Identity, WindowIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

__all__ = [
    "Found",
    "episode_spans",
    "exclude",
    "filter_path",
    "hold_out",
    "index_parameters",
    "open_index",
    "parse_episode",
    "parse_identity",
    "read_list",
    "write_list",
]

WINDOWS_FOLDER = "windows"
FILTER_FOLDER = "filters"
_COLUMNS = ("dataset", "episode_index", "frame")
_BITS = 27  # of an episode's number and of a frame, in the key of a window
_MOST = 1 << _BITS


@dataclass(frozen=True, slots=True)
class Found:
    """An index and the file that it was opened from."""

    path: Path
    index: WindowIndex

    @property
    def roots(self) -> list[str]:
        """The names of the roots, by dataset index."""
        return list(self.index.parameters.get("roots", ()))


def open_index(directory: Path, name: str | None = None) -> Found:
    """Open the index of a prepared dataset; `name` is its file's name, or the beginning of it.

    Raises UsageError if there is none, or several and no name; PrepError if its inputs changed.
    """
    folder = directory / WINDOWS_FOLDER
    if directory.is_file():
        return Found(directory, WindowIndex.open(directory, inputs_below=directory.parent.parent))
    names = sorted(path.name for path in folder.glob("*.arrow")) if folder.is_dir() else []
    exact = [each for each in names if name in (each, each.removesuffix(".arrow"))]
    matching = exact or [each for each in names if name is None or each.startswith(name)]
    if len(matching) != 1:
        wanted = f" whose names begin with {name!r}" if name else ""
        raise UsageError(
            f"{directory} has {len(matching) or 'no'} window indices{wanted}.",
            remedy=f"Name one with --index: {', '.join(names)}."
            if names
            else "There is none yet: run the prepare command first.",
        )
    path = folder / matching[0]
    return Found(path, WindowIndex.open(path, inputs_below=directory))


def index_parameters(directory: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The indices of a dataset with what each was built with; raises PrepError for a damaged one."""
    folder = directory / WINDOWS_FOLDER
    for path in sorted(folder.glob("*.arrow")) if folder.is_dir() else ():
        yield path, WindowIndex.open(path).parameters


def filter_path(sha256: str) -> str:
    """Where, in a dataset's directory, a filter stands in upstream's form."""
    return f"{FILTER_FOLDER}/keep_ranges-{sha256[:12]}.json"


def parse_identity(text: str, roots: Sequence[str]) -> Identity:
    """An identity as people write it: `ROOT:EPISODE:FRAME`, or `EPISODE:FRAME` with one root."""
    parts = text.rsplit(":", 2)
    if len(parts) == 2 and len(roots) == 1:
        parts = [roots[0], *parts]
    try:
        root, episode, frame = parts
        place = roots.index(root) if root in roots else int(root)
        return Identity(place, int(episode), int(frame))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a window's identity.",
            remedy=f"Write ROOT:EPISODE:FRAME; roots: {', '.join(root or '0' for root in roots) or '0'}.",
        ) from error


def parse_episode(text: str, roots: Sequence[str]) -> tuple[int, int]:
    """An episode as people write it: `ROOT:EPISODE`, or `EPISODE` with one root; (dataset index, episode)."""
    try:
        root, episode, _ = parse_identity(f"{text}:0", roots)
    except UsageError as error:
        raise UsageError(
            f"{text!r} is not an episode.",
            remedy=f"Write ROOT:EPISODE; roots: {', '.join(root or '0' for root in roots) or '0'}.",
        ) from error
    return root, episode


def episode_spans(found: Found, dataset_index: int, episode: int) -> Iterator[dict[str, int]]:
    """Each span of an episode: its frames and its flat indices, ends exclusive."""
    spans = found.index.spans
    for span in found.index.spans_of(dataset_index, episode):
        length, end = int(spans["length"][span]), int(spans["cumulative_end"][span])
        first = int(spans["first_frame"][span])
        yield {
            "first_frame": first,
            "end_frame": first + length,
            "first_index": end - length,
            "end_index": end,
        }


def hold_out(count: int, total: int, seed: int) -> Numbers:
    """`count` of `total` places, drawn without repetition by `seed`, ascending."""
    if not total:
        raise UsageError("No window is left to draw from.", remedy="Give another list to --exclude.")
    if not 0 < count <= total:
        raise UsageError(f"{count} windows cannot be drawn from {total}.", remedy=f"Give 1 to {total}.")
    # The legacy generator's stream is frozen: the same windows are drawn under every version of numpy.
    drawn: Numbers = np.sort(np.random.RandomState(seed).permutation(total)[:count]).astype(np.int64)
    return drawn


def exclude(found: Found, path: Path) -> Numbers:
    """The flat indices that are left when the windows of a list are taken out."""
    listed = read_list(path, found.roots)
    windows = found.index.resolve_many(np.arange(len(found.index)))
    own = _keys(windows.dataset_index, windows.episode_index, windows.frame)
    # What no key can hold names no window; folded into a key it might name another.
    fits = np.logical_and.reduce([(part >= 0) & (part < _MOST) for part in listed[1:]])
    keys = _keys(*(part[fits] for part in listed))
    left: Numbers = np.flatnonzero(~np.isin(own, keys)).astype(np.int64)
    return left


def _keys(dataset: Numbers, episode: Numbers, frame: Numbers) -> Numbers:
    return (dataset << np.int64(2 * _BITS)) | (episode << np.int64(_BITS)) | frame


def write_list(found: Found, indices: Numbers, path: Path) -> None:
    """Write the windows at these flat indices as a list by identity."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    windows = found.index.resolve_many(indices)
    builder: Any = pa.lib.StringBuilder()
    builder.append_values(found.roots)
    names = pa.DictionaryArray.from_arrays(
        _int64(windows.dataset_index), builder.finish()
    ).dictionary_decode()
    table = pa.Table.from_arrays(
        [names, _int64(windows.episode_index), _int64(windows.frame)], names=_COLUMNS
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, buffer.getvalue())


def _int64(values: Numbers) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def read_list(path: Path, roots: Sequence[str]) -> tuple[Numbers, Numbers, Numbers]:
    """A list's windows as (dataset index, episode, frame), each int64; raises PrepError for another file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from prep.layouts.lerobot import int64_column

    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise _no_list(path, f"it has no column {missing[0]}")
            table = file.read(columns=list(_COLUMNS))
    except FileNotFoundError as error:
        raise UsageError(f"There is no list {path}.", remedy="Write one with --export.") from error
    except (OSError, pa.ArrowException) as error:
        raise _no_list(path, str(error).splitlines()[0].rstrip(".")) from error
    names = table["dataset"].to_pylist()
    unknown = [name for name in names if name not in roots]
    if unknown:
        raise PrepError(
            f"{path}: {unknown[0]!r} is no root of the index.",
            remedy=f"Its roots: {', '.join(root or 'the only one' for root in roots)}.",
        )
    dataset = np.fromiter((roots.index(name) for name in names), np.int64, len(names))
    return dataset, int64_column(table, "episode_index"), int64_column(table, "frame")


def _no_list(path: Path, why: str) -> PrepError:
    return PrepError(f"{path}: not a list of windows: {why}.", remedy="Write one with --export.")
