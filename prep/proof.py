"""The manifest of a dataset held against its schema, its tables, and the files on disk."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from prep import schemas
from prep.documents import BrokenDocumentError, parse
from prep.files import size_of
from prep.findings import Finding, Report, found
from prep.manifest import MANIFEST, SCHEMA, FileRow, RecordRow, column_names, tables_digest
from prep.recipe import canonical_json
from prep.table_digest import TableDigest

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "DatasetCheck",
    "Proof",
    "check_sizes",
    "holds_content_twice",
    "leaves",
    "load_proof",
    "table_batches",
    "table_digest",
]

_TABLES: Final = {"files": column_names(FileRow), "records": column_names(RecordRow)}
_BATCH: Final = 1 << 16

Emit = Callable[[Finding], None]
TableName = Literal["files", "records"]


@dataclass(slots=True)
class Proof:
    """A manifest as far as it can be read. `usable` are the tables whose digest agrees."""

    root: Path
    document: dict[str, Any]
    usable: set[str] = field(default_factory=set)

    @property
    def dataset_id(self) -> str | None:
        """The name and digest that the manifest states."""
        stated = self.document.get("dataset_id")
        return stated if isinstance(stated, str) else None

    def part(self, key: str) -> dict[str, Any]:
        """An object of the document; empty where it is absent or no object."""
        value = self.document.get(key)
        return value if isinstance(value, dict) else {}

    def columns(self, table: TableName, *names: str) -> Iterator[tuple[list[Any], ...]]:
        """Some columns of a usable table, some thousand rows at a time; nothing of another."""
        if table in self.usable:
            for batch in table_batches(self.root / _table_path(self, table), names):
                yield tuple(batch.column(name).to_pylist() for name in names)


@dataclass(slots=True)
class DatasetCheck:
    """What the check of a dataset is given, whatever its kind.

    The dataset at `root`, its manifest if it has one, how deep to look, how many threads may work, and
    where findings and counts go. `sample` takes so many media for the costly parts, chosen by `seed`.
    """

    root: Path
    proof: Proof | None
    level: Literal["quick", "standard", "deep"]
    jobs: int
    report: Report
    emit: Emit
    sample: int | None = None
    seed: int = 0


def load_proof(root: Path, emit: Emit) -> Proof | None:
    """Check the manifest of a directory with its tables; None where there is none of ours.

    A manifest that breaks its schema is reported and used as far as it goes; one of a newer
    version is reported and not used.
    """
    try:
        document = parse((root / MANIFEST).read_bytes(), MANIFEST)
    except FileNotFoundError:
        return None
    except BrokenDocumentError as error:
        for finding in error.findings:
            emit(found("MAN001", MANIFEST, finding.message, place=finding.place))
        return Proof(root, {})
    except OSError as error:
        emit(found("FIL014", MANIFEST, f"{error.strerror}"))
        return Proof(root, {})
    if not _is_ours(document):
        return None
    version = re.fullmatch(r"prep-manifest/(\d+)", str(document.get("schema")))
    if version and int(version[1]) > int(SCHEMA.rpartition("/")[2]):
        emit(found("MAN006", MANIFEST, f"its schema is {version[0]}; this version reads up to {SCHEMA}"))
        return Proof(root, {"dataset_id": document.get("dataset_id")})
    for finding in schemas.broken("manifest", document, MANIFEST, code="MAN001"):
        emit(finding)
    proof = Proof(root, document)
    for finding in (
        *_check_tables(proof),
        *_check_identity(proof),
        *_check_counts(proof),
        *_check_prompt(proof),
    ):
        emit(finding)
    return proof


def _is_ours(document: Any) -> bool:
    """Other tools write a `manifest.json` too."""
    if not isinstance(document, dict):
        return False
    return (
        str(document.get("schema", "")).startswith("prep-manifest")
        or {"dataset_id", "tables"} <= document.keys()
    )


def _table_path(proof: Proof, table: str) -> str:
    entry = proof.part("tables").get(table)
    path = entry.get("path") if isinstance(entry, dict) else None
    return (
        path
        if isinstance(path, str) and ".." not in path and not path.startswith("/")
        else f".prep/{table}.parquet"
    )


def _check_tables(proof: Proof) -> Iterator[Finding]:
    import pyarrow as pa

    # Arrow and sha256 release the lock, so that the two tables take the time of one.
    with ThreadPoolExecutor(len(_TABLES)) as threads:
        digests = {
            table: threads.submit(table_digest, proof.root / _table_path(proof, table), columns)
            for table, columns in _TABLES.items()
        }
    for table, computed in digests.items():
        entry = proof.part("tables").get(table)
        stated = entry if isinstance(entry, dict) else {}
        path = _table_path(proof, table)
        try:
            rows, digest = computed.result()
        except FileNotFoundError:
            yield found("MAN002", path, "there is no such file; the manifest names it")
            continue
        except (OSError, pa.ArrowException) as error:
            yield found(
                "MAN002", path, f"cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"
            )
            continue
        if (rows, digest) == (stated.get("rows"), stated.get("sha256")):
            proof.usable.add(table)
        else:
            message = f"{rows} rows with the digest {digest}; expected {stated.get('rows')} with"
            yield found("MAN002", path, f"{message} {stated.get('sha256')}")


def _check_identity(proof: Proof) -> Iterator[Finding]:
    tables = proof.part("tables")
    entries = (tables.get(name) for name in ("files", "records"))
    stated = [str(entry.get("sha256") or "") if isinstance(entry, dict) else "" for entry in entries]
    digest = tables_digest(*stated)
    given = proof.dataset_id
    if given is not None and all(stated) and given.rpartition("@")[2] != digest:
        yield found("MAN001", MANIFEST, f"its id is {given}; its tables give …@{digest}", place="/dataset_id")
    recipe, named = proof.document.get("recipe"), proof.document.get("recipe_sha256")
    if isinstance(recipe, dict) and isinstance(named, str):
        computed = hashlib.sha256(canonical_json(recipe)).hexdigest()
        if computed != named:
            message = f"the recipe has the digest {computed}; the manifest states {named}"
            yield found("MAN001", MANIFEST, message, place="/recipe_sha256")


def _check_counts(proof: Proof) -> Iterator[Finding]:
    counts = proof.part("counts")
    numbers = [counts.get(key) for key in ("rows", "kept", "failed")]
    if not all(isinstance(number, int) for number in numbers):
        return  # MAN001 has said so
    rows, kept, failed = (int(number) for number in numbers if number is not None)
    drops = sum(number for number in proof.part("drops").values() if isinstance(number, int))
    if rows != kept + failed or drops != failed:
        message = f"{rows} rows, {kept} kept, {failed} failed, {drops} drops with a reason"
        yield found(
            "MAN003", MANIFEST, f"{message}; expected rows = kept + failed, failed = drops", place="/counts"
        )
    if "records" not in proof.usable:
        return
    states: Counter[str] = Counter()
    for (status,) in proof.columns("records", "status"):
        states.update(status)
    if (states["kept"], states.total()) != (kept, rows):
        message = (
            f"the records table has {states['kept']} kept of {states.total()}; expected {kept} of {rows}"
        )
        yield found("MAN003", MANIFEST, message, place="/counts")


def _check_prompt(proof: Proof) -> Iterator[Finding]:
    prompt = proof.part("recipe").get("prompt")
    wanted = prompt.get("sha256") if isinstance(prompt, dict) else None
    used = proof.part("details").get("prompt")
    given = used.get("sha256") if isinstance(used, dict) else None
    if wanted and given and wanted != given:
        message = f"the prompt's sha256 is {given}; upstream's is {wanted}"
        yield found("MAN005", MANIFEST, message, place="/details/prompt")


def table_batches(path: Path, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of a parquet table in batches, so that a million of them are never all in memory."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as table:
        yield from table.iter_batches(batch_size=_BATCH, columns=list(columns))


def table_digest(path: Path, columns: tuple[str, ...]) -> tuple[int, str]:
    """The number of rows of a table, and the digest over them (`prep.table_digest`).

    Raises OSError, or ArrowInvalid for a table without these columns.
    """
    import pyarrow as pa

    digest = TableDigest(columns)
    for batch in table_batches(path, columns):
        if set(batch.schema.names) != set(columns):
            raise pa.ArrowInvalid(f"columns {batch.schema.names}; expected {list(columns)}")
        digest.update([batch.column(name) for name in columns])
    return digest.rows, digest.hexdigest()


def check_sizes(proof: Proof, seen: array[int], sizes: array[int], emit: Emit) -> tuple[array[int], set[str]]:
    """FIL003 and FIL005: each file of the table is there with its size.

    Returns the hashes of the table's paths, and the paths that stand outside the dataset.

    `seen` and `sizes` are the files that a scan looked at: hashes of their paths, and bytes (-1
    where there is none, which the scan has reported, as it has empty files).
    """
    import numpy as np

    hashes, order = np.unique(
        np.frombuffer(seen, np.int64) if len(seen) else np.empty(0, np.int64), return_index=True
    )
    known = (np.frombuffer(sizes, np.int64) if len(sizes) else np.empty(0, np.int64))[order]
    listed = array("q")
    external: set[str] = set()
    for paths, stated, how in proof.columns("files", "path", "size", "known"):
        for path in filter(leaves, paths):
            emit(found("FIL011", MANIFEST, f"its files table names {path!r}, outside the directory"))
        wanted = np.fromiter(map(hash, paths), np.int64, len(paths))
        listed.frombytes(wanted.tobytes())
        if "external" in how:
            external.update(path for path, known_by in zip(paths, how, strict=True) if known_by == "external")
        found_at = np.searchsorted(hashes, wanted).clip(max=max(len(hashes) - 1, 0))
        was_seen = hashes[found_at] == wanted if len(hashes) else np.zeros(len(paths), bool)
        actual = np.where(was_seen, known[found_at], 0) if len(hashes) else np.zeros(len(paths), np.int64)
        agrees = was_seen & ((actual == np.array(stated, np.int64)) | (actual <= 0))
        for at in np.flatnonzero(~agrees).tolist():
            if leaves(paths[at]):
                continue
            size = int(actual[at]) if was_seen[at] else size_of(proof.root / paths[at])
            _compare(paths[at], size, stated[at], how[at], emit)
    return listed, external


def leaves(path: str) -> bool:
    """Whether a path of a table leaves the dataset's directory; judged on the text."""
    return path.startswith("/") or (".." in path and ".." in path.split("/"))


def holds_content_twice(proof: Proof) -> bool:
    """Whether two files of the table have one sha256; costs little where none do, as is usual."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "files" not in proof.usable:
        return False
    batches = table_batches(proof.root / _table_path(proof, "files"), ("sha256",))
    digests = pa.chunked_array([batch.column(0) for batch in batches], pa.string()).drop_null()
    return bool(pc.count_distinct(digests).as_py() < len(digests))


def _compare(path: str, size: int | None, stated: int, how: str, emit: Emit) -> None:
    if size is None:
        what = " (it stands outside the dataset)" if how == "external" else ""
        emit(found("FIL005", path, f"there is no such file{what}; the manifest lists it with {stated} bytes"))
    elif size != stated:
        emit(found("FIL003", path, f"{size} bytes; the manifest states {stated}"))
