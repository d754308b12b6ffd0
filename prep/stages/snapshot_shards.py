"""Shards: written one after another, each sealed once; a run that was killed goes on behind the last one.

Where a shard ends, and how its rows are cut into record batches, follows from the rows alone, counted
from the shard's own first row. So the bytes are the same however often the work was broken off.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from prep.errors import IncompleteError
from prep.files import disk_errors, is_partial
from prep.layouts.arrow_snapshot import ENDINGS, Form, features_of, with_features
from prep.manifest import RecordRow, write_table
from prep.progress import Progress
from prep.stages.snapshot_files import SourceFiles
from prep.stages.snapshot_rows import Judged, Position, RowRule, judged_rows, schema_of
from prep.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Bounds", "Builder", "Sealed", "begin_again", "built_name", "records_part"]

_BATCH_BYTES = 8_000_000
_BATCH_ROWS = 1000
_NAMED = re.compile(r"\w+-(\d{5})-of-\d{5}\.\w+")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the work ends: so many source rows, so many kept ones; and the payload of a shard, in bytes."""

    limit: int | None
    max_samples: int | None
    shard_bytes: int


@dataclass(slots=True)
class Sealed:
    """A finished shard and the source rows that it was made from.

    `rows` are in the shard; `records` are the source rows from `start` up to `next`, of which `drops`
    counts those that are not. `first` is the number of the first of them, from 0 over all files.
    `name` is empty where no row was kept; `is_last` says that no shard follows.
    """

    number: int
    name: str
    start: Position
    first: int
    next: Position
    rows: int = 0
    records: int = 0
    size: int = 0
    sha256: str = ""
    is_last: bool = False
    drops: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Sealed:
        """From what the ledger keeps."""
        places = {key: Position(*facts[key]) for key in ("start", "next")}
        return cls(**{**facts, **places})


class _Sink:
    """A file that is written once, with the digest of its bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self.size, self.closed = file, hashlib.sha256(), 0, False
        self.is_given_up = False

    def write(self, data: bytes) -> int:
        if self.is_given_up:  # a writer that is thrown away still ends its file
            return len(data)
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class _BatchWriter(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def _batch_writer(form: Form, sink: _Sink, schema: pa.Schema) -> _BatchWriter:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = pa.PythonFile(sink, mode="w")
    writer: _BatchWriter = (
        pa.ipc.new_stream(target, schema) if form == "arrow" else pq.ParquetWriter(target, schema)
    )
    return writer


class _ShardFile:
    """One shard being written beside its place; a context manager that removes what is not sealed."""

    def __init__(self, path: Path, form: Form, schema: pa.Schema) -> None:
        self.path, self._schema = path, schema
        self._partial = path.with_name(f".{path.name}.partial")
        self._file = self._partial.open("wb")
        self._sink = _Sink(self._file)
        self._writer = _batch_writer(form, self._sink, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self.rows = self.weight = 0

    def __enter__(self) -> _ShardFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.is_given_up = True
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def add(self, row: pa.RecordBatch, weight: int) -> None:
        self._waiting.append(row)
        self._waiting_bytes += weight
        self.rows, self.weight = self.rows + 1, self.weight + weight
        if self._waiting_bytes >= _BATCH_BYTES or len(self._waiting) == _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            columns = zip(*(row.columns for row in self._waiting), strict=True)
            arrays = [pa.concat_arrays(list(parts)) for parts in columns]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
            self._waiting, self._waiting_bytes = [], 0

    def seal(self) -> tuple[int, str]:
        """Finish the file under its own name; its size in bytes and its sha256."""
        self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self.path)
        return self._sink.size, self._sink.hexdigest()


class Builder:
    """Makes the shards of one snapshot in `folder`, or finds those that an earlier run has sealed."""

    def __init__(
        self,
        workspace: Workspace,
        folder: Path,
        files: SourceFiles,
        rule: RowRule,
        *,
        form: Form,
        split: str,
        bounds: Bounds,
        jobs: int,
        cancel: threading.Event,
        shown: Progress,
    ) -> None:
        self.workspace, self.folder, self.files, self.rule = workspace, folder, files, rule
        self.form, self.split, self.bounds = form, split, bounds
        self._cancel, self._shown = cancel, shown
        # Each decodes an image at full size: more of them than processors only cost memory.
        self._threads = ThreadPoolExecutor(min(jobs, os.cpu_count() or 1), thread_name_prefix="prep-image")
        self._schema: pa.Schema | None = None
        self._rows: Iterator[tuple[Position, pa.RecordBatch, Judged]] = iter(())
        self._rows_at: Position | None = None

    def build(self) -> Iterator[Sealed]:
        """Each shard in order. Raises IncompleteError when told to stop, and as the source does."""
        number, position, first, kept = 0, Position(0, 0), 0, 0
        with self._threads:
            while True:
                sealed = self._sealed(number) or self._made(number, position, first, kept)
                yield sealed
                if sealed.is_last:
                    return
                number, position = number + 1, sealed.next
                first, kept = first + sealed.records, kept + sealed.rows

    def schema(self) -> pa.Schema:
        """The snapshot's columns with their features: those of the first file, kept for the run's length."""
        import pyarrow as pa

        if self._schema is None:
            pins = self.workspace.ledger.pins
            if "schema" not in pins:
                path = self.files.open(0)
                raw = schema_of(path, self.rule)
                plain = pa.schema([pa.field(item.name, item.type) for item in raw])
                schema = with_features(plain, features_of(raw, self.rule.image))
                encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
                self.workspace.ledger.pin("schema", {"arrow": encoded})
            buffer = pa.py_buffer(base64.b64decode(pins["schema"]["arrow"]))
            self._schema = pa.ipc.read_schema(buffer)
        return self._schema

    def _sealed(self, number: int) -> Sealed | None:
        """The shard if an earlier run has sealed it and its bytes are still those."""
        facts = self.workspace.ledger.pins.get(f"shard {number}")
        if facts is None:
            return None
        sealed = Sealed.of(facts)
        whole = records_part(self.workspace, number).is_file()
        path = self.folder / sealed.name
        if sealed.name:
            whole = whole and path.is_file() and self.workspace.ledger.content_of(path) == sealed.sha256
        return sealed if whole else None

    def _made(self, number: int, start: Position, first: int, kept: int) -> Sealed:
        name = built_name(self.form, number)
        sealed = Sealed(number, name, start, first, start)
        records: list[RecordRow] = []
        counts: tuple[Counter[str], ...] = (Counter(), Counter(), Counter())
        drops, modes, warnings = counts
        with (
            disk_errors(self.folder),
            _ShardFile(self.folder / name, self.form, self.schema()) as shard,
        ):
            while not shard.rows or shard.weight < self.bounds.shard_bytes:
                item = self._next(sealed, first + sealed.records, kept + shard.rows)
                if item is None:
                    sealed.is_last = True
                    break
                position, row, judged = item
                sealed.next, sealed.records = Position(position.file, position.row + 1), sealed.records + 1
                index = kept + shard.rows
                records.append(self._record(first + sealed.records, index, position, judged))
                if judged.reason:
                    drops[judged.reason] += 1
                    continue
                shard.add(row, judged.weight)
                modes[judged.mode] += 1
                warnings.update(judged.warnings)
                self._shown.received(judged.weight)
            sealed.rows = shard.rows
            sealed.drops, sealed.modes, sealed.warnings = (dict(sorted(each.items())) for each in counts)
            self._seal(sealed, shard, records)
        return sealed

    def _seal(self, sealed: Sealed, shard: _ShardFile, records: Sequence[RecordRow]) -> None:
        if sealed.rows:
            sealed.size, sealed.sha256 = shard.seal()
        else:
            sealed.name = ""
        with self.workspace.held():
            write_table(records_part(self.workspace, sealed.number), records, RecordRow)
            self.workspace.ledger.pin(f"shard {sealed.number}", asdict(sealed))
            self.workspace.ledger.sync()
        self.files.release(before=sealed.next.file)

    def _next(
        self, sealed: Sealed, records: int, kept: int
    ) -> tuple[Position, pa.RecordBatch, Judged] | None:
        """The next source row; None where the source, or what is asked for, ends."""
        bounds = self.bounds
        if records == bounds.limit or kept == bounds.max_samples:
            return None
        if self._rows_at != sealed.next:
            self._rows = self._read(sealed.next)
        item = next(self._rows, None)
        if item is not None:
            self._rows_at = Position(item[0].file, item[0].row + 1)
        return item

    def _read(self, start: Position) -> Iterator[tuple[Position, pa.RecordBatch, Judged]]:
        first = start.row
        for number in range(start.file, len(self.files)):
            path = self.files.open(number)
            rows = judged_rows(path, first, self.schema(), self.rule, self._threads_or_stop())
            for row, (batch, judged) in enumerate(rows, first):
                if self._cancel.is_set():
                    raise IncompleteError("Stopped as asked.", remedy="Run the same command again to go on.")
                yield Position(number, row), batch, judged
            self._shown.advance()
            first = 0

    def _threads_or_stop(self) -> Executor:
        if self.workspace.lock.lost.is_set():
            self.workspace.lock.check()
        return self._threads

    def _record(self, number: int, index: int, position: Position, judged: Judged) -> RecordRow:
        """The record of source row `number`, from 1, which is or would be sample `index`, from 0."""
        kept = not judged.reason
        return RecordRow(
            row=number,
            id=judged.id or f"row_{number:06d}",
            split=self.split,
            status="kept" if kept else "failed",
            reason=judged.reason,
            detail=judged.detail,
            source=f"{self.files.names[position.file]}#{position.row}",
            media=f"#{index}" if kept else None,
            media_sha256=judged.media_sha256,
            sha256=judged.sha256 if kept else None,
        )


def built_name(form: Form, number: int) -> str:
    """The name of a shard as long as it is not known how many there will be."""
    return f"shard-{number:05d}.{ENDINGS[form]}"


def begin_again(folder: Path, form: Form) -> None:
    """Give shards that a killed run had named their former names; remove what it was writing."""
    for path in sorted(folder.iterdir()):
        named = _NAMED.fullmatch(path.name)
        if named:
            path.replace(folder / built_name(form, int(named[1])))
        elif is_partial(path.name):
            path.unlink()


def records_part(workspace: Workspace, number: int) -> Path:
    """Where the records of a sealed shard wait."""
    return workspace.incoming / f"records-{number:05d}.parquet"
