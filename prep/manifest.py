"""The manifest: what a prepared dataset holds, and the two tables that prove it.

`manifest.json` stands in the dataset's own directory and is written last, by rename.
`.prep/files.parquet` has one row a file, `.prep/records.parquet` one row a source
record, kept or dropped. The digest over both tables' rows is the dataset id. Nothing in
them depends on the machine, the user, the time or the order of the work.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from prep import schemas
from prep.errors import PrepError
from prep.files import size_of, write_whole
from prep.table_digest import TableDigest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FILES_TABLE",
    "MANIFEST",
    "RECORDS_TABLE",
    "STATE",
    "FileRow",
    "Known",
    "Manifest",
    "RecordRow",
    "column_names",
    "read_rows",
    "rows_digest",
    "short_id",
    "tables_digest",
    "write_table",
]

MANIFEST = "manifest.json"
STATE = ".prep"
"""The folder of the two tables, and of a run's own notes while it lasts."""
FILES_TABLE = f"{STATE}/files.parquet"
RECORDS_TABLE = f"{STATE}/records.parquet"
SCHEMA = "prep-manifest/1"

_SHORT = 12


Known = Literal["computed", "hub_listing", "size_only", "external"]


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file of the dataset. `path` is relative to the dataset's directory, `size` in bytes."""

    path: str
    size: int
    sha256: str | None
    known: Known
    role: Literal["payload", "view", "source"]


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One source record, kept or failed.

    `row` counts from 1; `sha256` is that of the record's text as written; `source` is
    where its media came from; `reason` is empty for a kept record.
    """

    row: int
    id: str
    split: str
    status: Literal["kept", "failed"]
    reason: str
    detail: str
    source: str
    media: str | None
    media_sha256: str | None
    sha256: str | None


Row = TypeVar("Row", FileRow, RecordRow)

_COLUMNS: Mapping[type, Mapping[str, str]] = {
    FileRow: {"size": "int64"},
    RecordRow: {"row": "int64"},
}


def column_names(row_type: type) -> tuple[str, ...]:
    """The columns of a table, in order."""
    return tuple(item.name for item in fields(row_type))


def _arrow_schema(row_type: type) -> pa.Schema:
    import pyarrow as pa

    numbers = _COLUMNS[row_type]
    return pa.schema([(name, numbers.get(name, "string")) for name in column_names(row_type)])


def rows_digest(rows: Sequence[FileRow | RecordRow], row_type: type) -> str:
    """The digest over rows, as `prep.table_digest` defines it."""
    schema = _arrow_schema(row_type)
    digest = TableDigest(schema.names)
    digest.update(_columns(rows, schema))
    return digest.hexdigest()


def tables_digest(files: str, records: str) -> str:
    """The digest that a dataset goes by, from those over the rows of its two tables; 64 hex digits each."""
    return hashlib.sha256(f"{files}\n{records}\n".encode()).hexdigest()


def write_table(path: Path, rows: Sequence[FileRow | RecordRow], row_type: type) -> None:
    """Write rows as parquet, whole; equal rows give equal bytes."""
    _write_parts(path, [rows], row_type)


def _write_parts(
    path: Path, parts: Iterable[Sequence[FileRow | RecordRow]], row_type: type
) -> tuple[int, str]:
    """Write rows that come in parts, each a row group; how many they are, and the digest over them."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _arrow_schema(row_type)
    digest, buffer = TableDigest(schema.names), io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for rows in parts:
            columns = _columns(rows, schema)
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            digest.update(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())
    return digest.rows, digest.hexdigest()


def _columns(rows: Sequence[FileRow | RecordRow], schema: pa.Schema) -> list[pa.Array]:
    return [_column([getattr(row, item.name) for row in rows], item.type) for item in schema]


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    # `pa.array` would do, and imports pandas to look at what it is given: a quarter of a second.
    import pyarrow as pa

    if kind == pa.int64():
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array("q", values))])
    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


def read_rows(path: Path, row_type: type[Row]) -> list[Row]:
    """Read a table back; raises PrepError if it is absent, unreadable or of other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _arrow_schema(row_type)
    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema):
                raise _unusable(path, f"its columns are {', '.join(file.schema_arrow.names)}")
            # Column by column: a table's own rows would come through pandas.
            columns = [column.to_pylist() for column in file.read().columns]
    except (OSError, pa.ArrowException) as error:
        raise _unusable(path, str(error).splitlines()[0]) from error
    return [row_type(*values) for values in zip(*columns, strict=True)]


def _unusable(path: Path, why: str) -> PrepError:
    return PrepError(
        f"{path}: cannot be read as the manifest's table: {why}.",
        remedy="`prep adopt DIR` checks the tree and writes a new manifest.",
    )


def short_id(dataset_id: str) -> str:
    """The dataset id as people see it: the name and the first digits of the digest."""
    name, _, digest = dataset_id.rpartition("@")
    return f"{name}@{digest[:_SHORT]}"


@dataclass(slots=True)
class Manifest:
    """A manifest document and the directory that it describes."""

    root: Path
    document: dict[str, Any]

    @classmethod
    def load(cls, root: Path) -> Manifest | None:
        """The manifest of a directory, or None if it has none; raises PrepError if it is broken."""
        path = root / MANIFEST
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise PrepError(
                f"{path}: not valid JSON: {error}.",
                remedy="`prep adopt DIR` checks the tree and writes a new manifest.",
            ) from error
        for pointer, message in schemas.errors("manifest", document):
            raise PrepError(
                f"{path}: {pointer}: {message}.",
                remedy="`prep adopt DIR` checks the tree and writes a new manifest.",
            )
        return cls(root, document)

    @classmethod
    def write(
        cls, root: Path, facts: Mapping[str, Any], files: Sequence[FileRow], records: Sequence[RecordRow]
    ) -> Manifest:
        """Write both tables, then the manifest; `facts` are the rest of the document."""
        return cls.write_parts(root, facts, files, [records])

    @classmethod
    def write_parts(
        cls,
        root: Path,
        facts: Mapping[str, Any],
        files: Sequence[FileRow],
        records: Iterable[Sequence[RecordRow]],
    ) -> Manifest:
        """As `write`, with the records in parts, of which one is in memory at a time."""
        tables, digests = {}, []
        for name, path, parts, row_type in (
            ("files", FILES_TABLE, [files], FileRow),
            ("records", RECORDS_TABLE, records, RecordRow),
        ):
            rows, digest = _write_parts(root / path, parts, row_type)
            tables[name] = {"path": path, "rows": rows, "sha256": digest}
            digests.append(digest)
        document = {
            "schema": SCHEMA,
            **facts,
            "dataset_id": f"{facts['name']}@{tables_digest(*digests)}",
            "tables": tables,
        }
        write_whole(root / MANIFEST, json.dumps(document, indent=2, sort_keys=True).encode() + b"\n")
        return cls(root, document)

    @property
    def dataset_id(self) -> str:
        """Name and digest of what the dataset holds."""
        return str(self.document["dataset_id"])

    def files(self) -> list[FileRow]:
        """The rows of the files table, by path."""
        return read_rows(self.root / FILES_TABLE, FileRow)

    def records(self) -> list[RecordRow]:
        """The rows of the records table, by row number."""
        return read_rows(self.root / RECORDS_TABLE, RecordRow)

    def damaged_files(self, files: Iterable[FileRow]) -> list[FileRow]:
        """The files that are missing or of another size; costs one stat each."""
        return [row for row in files if size_of(self.root / row.path) != row.size]
