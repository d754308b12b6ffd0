"""The snapshot layout (contracts, section 3): a saved-to-disk `datasets` folder, or parquet with a card.

    DIRECTORY/SUBSET/SPLIT/data-00000-of-00002.arrow  state.json  dataset_info.json      form "arrow"
    OWNER/NAME/README.md  OWNER/NAME/SUBSET/SPLIT/SPLIT-00000-of-00002.parquet            form "hub"

A shard is an Arrow stream, as `load_from_disk` maps it, or a parquet file. Nothing here imports `datasets`.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from prep.errors import PrepError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ENDINGS",
    "INFO",
    "STATE_FILE",
    "Form",
    "Shards",
    "features_of",
    "fingerprint_of",
    "info_json",
    "messages",
    "safe_name",
    "shard_batches",
    "shard_name",
    "state_json",
    "with_features",
]

STATE_FILE: Final = "state.json"
INFO: Final = "dataset_info.json"
ENDINGS: Final = {"arrow": "arrow", "hub": "parquet"}
Form = Literal["arrow", "hub"]

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")
_LIKE_CHANGED = re.compile(r".*-[0-9a-f]{8}")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?")  # no file of Windows may be called so
_OPEN_SHARDS = 8
_METADATA = b"huggingface"


def safe_name(subset: str) -> str:
    """A directory name for a subset, on any file system, in a shell and in an override of Hydra.

    A name of small letters, digits and `_ - .` is kept; any other is cleaned and gets eight digits of
    its own sha256, so that no two subsets share a directory, upper and lower case taken as one.
    """
    plain = _PLAIN.fullmatch(subset) and not _RESERVED.fullmatch(subset) and not subset.endswith(".")
    if plain and not _LIKE_CHANGED.fullmatch(subset):
        return subset
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "_", subset).strip("_.-")[:60] or "subset"
    return f"{cleaned}-{hashlib.sha256(subset.encode()).hexdigest()[:8]}"


def shard_name(form: Form, split: str, number: int, count: int) -> str:
    """The name of shard `number`, from 0, of `count`, as `datasets` and the Hub name them."""
    start = "data" if form == "arrow" else split
    return f"{start}-{number:05d}-of-{count:05d}.{ENDINGS[form]}"


def fingerprint_of(facts: Mapping[str, Any]) -> str:
    """The 16 hex digits by which `datasets` names the snapshot's caches; the same for the same facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def state_json(fingerprint: str, split: str, shards: Sequence[str]) -> bytes:
    """`state.json`, which names the shards in order."""
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in shards],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    return json.dumps(state, indent=2, sort_keys=True).encode() + b"\n"


def info_json(features: Mapping[str, Any]) -> bytes:
    """`dataset_info.json`, which declares the columns."""
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    return json.dumps(info, indent=2).encode() + b"\n"


def features_of(schema: pa.Schema, image: str) -> dict[str, Any]:
    """The columns as `datasets` declares them: those that the table states, else derived from its types.

    `image` is the column of images, a struct of `bytes` and `path`. Raises PrepError for a type that
    has no plain counterpart.
    """
    stated = (schema.metadata or {}).get(_METADATA)
    features = json.loads(stated).get("info", {}).get("features") if stated else None
    if isinstance(features, dict) and set(features) == set(schema.names):
        return {name: features[name] for name in schema.names}
    return {field.name: {"_type": "Image"} if field.name == image else _feature(field) for field in schema}


def _feature(field: pa.Field) -> Any:
    import pyarrow as pa

    kind = field.type
    if pa.types.is_struct(kind):
        return {inner.name: _feature(inner) for inner in kind}
    if pa.types.is_list(kind):
        return [_feature(kind.value_field)]
    plain = (pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean, pa.types.is_binary)
    if any(test(kind) for test in plain) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        names = {"double": "float64", "float": "float32", "halffloat": "float16"}
        return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}
    raise PrepError(
        f"The column {field.name!r} has the type {kind}, for which no feature is stated.",
        remedy="Write the parquet with `datasets`, which states the features in it.",
    )


def with_features(schema: pa.Schema, features: Mapping[str, Any]) -> pa.Schema:
    """The schema with the features in its metadata, where `datasets` looks for them, and nothing else."""
    return schema.with_metadata({_METADATA: json.dumps({"info": {"features": features}}).encode()})


def messages(turns: Sequence[Mapping[str, str]], image: str | None) -> list[dict[str, Any]]:
    """The messages that upstream makes of turns: the first human one gets the image block.

    "human" is the user, anyone else the assistant; `<image>` is taken out of every text. `image` is
    what the block names, None for a record without one.
    """
    made: list[dict[str, Any]] = []
    for turn in turns:
        role = "user" if turn["from"] == "human" else "assistant"
        text = turn["value"].replace("<image>", "").strip()
        content: Any = text
        if role == "user" and image is not None:
            content, image = [{"type": "image", "image": image}, {"type": "text", "text": text}], None
        made.append({"role": role, "content": content})
    return made


def shard_batches(path: Path, *, rows: int = 64) -> Iterator[pa.RecordBatch]:
    """The rows of a shard in batches; raises OSError or ArrowException for one that is broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield from file.iter_batches(batch_size=rows)
        return
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
        yield from stream


class Shards:
    """The rows of several shards by position; opens a shard when it is first used, few at a time.

    `names` and `rows` are the shards' files, relative to `root`, and how many rows each holds.
    """

    def __init__(self, root: Path, names: Sequence[str], rows: Sequence[int]) -> None:
        self.root, self.names = root, list(names)
        self.ends = list(itertools.accumulate(rows))
        self._open: dict[str, _Shard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def row(self, index: int) -> dict[str, Any]:
        """The row at `index`, 0 to len - 1; raises PrepError for a shard that cannot be read."""
        import pyarrow as pa

        at = bisect.bisect_right(self.ends, index)
        name = self.names[at]
        try:
            return self._shard(name).row(index - (self.ends[at - 1] if at else 0))
        except (OSError, pa.ArrowException, IndexError) as error:
            raise PrepError(
                f"{self.root / name}: row {index} cannot be read: {str(error).splitlines()[0]}.",
                remedy="`prep validate` says what is wrong.",
            ) from error

    def _shard(self, name: str) -> _Shard:
        if name not in self._open:
            while len(self._open) >= _OPEN_SHARDS:
                self._open.pop(next(iter(self._open)))
            self._open[name] = _Shard(self.root / name)
        return self._open[name]


@dataclass(slots=True)
class _Part:
    """So many rows of a shard, up to row `end` of it, that are had together."""

    end: int
    batch: Any


class _Shard:
    """One open shard: an Arrow stream by memory map, or the last row group read of a parquet file."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._parquet = pq.ParquetFile(path, pre_buffer=False) if path.suffix == ".parquet" else None
        if self._parquet is None:
            sizes = [(len(batch), batch) for batch in shard_batches(path)]
        else:
            metadata = self._parquet.metadata
            groups = range(metadata.num_row_groups)
            sizes = [(metadata.row_group(group).num_rows, group) for group in groups]
        ends = itertools.accumulate(size for size, _ in sizes)
        self._parts = [_Part(end, batch) for end, (_, batch) in zip(ends, sizes, strict=True)]
        self._group = functools.lru_cache(maxsize=1)(self._read_group)

    def row(self, index: int) -> dict[str, Any]:
        at = bisect.bisect_right([part.end for part in self._parts], index)
        first = self._parts[at - 1].end if at else 0
        part = self._parts[at]
        table = part.batch if self._parquet is None else self._group(part.batch)
        return {
            name: table.column(name).slice(index - first, 1).to_pylist()[0]
            for name in table.schema.names
        }  # fmt: skip

    def _read_group(self, group: int) -> pa.Table:
        assert self._parquet is not None
        return self._parquet.read_row_group(group)
