"""The index's file: what is saved opens as it was, by memory map; what is damaged or stale is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from prep.errors import PrepError, UsageError
from prep.windows import COLUMNS, Episodes, Identity, WindowIndex, join_spans, root_spans

PARAMETERS = {"recipe": "droid_policy", "chunk_length": 2, "roots": ["success"], "filter": None, "inputs": []}


def saved(index: WindowIndex, path: Path, parameters: Mapping[str, Any] = PARAMETERS) -> Path:
    WindowIndex(index.spans, parameters).save(path)
    return path


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(PrepError) as caught:
        WindowIndex.open(path, **options)
    assert (caught.value.exit_status, "\n" in str(caught.value)) == (1, False)
    assert "prepare command" in caught.value.remedy
    return caught.value.message


@pytest.fixture
def small() -> WindowIndex:
    """Chunk 2; the episodes 7 of 6 frames and 8 of 5: windows 0 to 3 and 4 to 6."""
    lengths = np.array([6, 5], np.int64)
    episodes = Episodes(np.array([7, 8], np.int64), lengths, np.cumsum(lengths) - lengths)
    return WindowIndex(join_spans([root_spans(episodes, np.array([0, 1]), 2)]), {})


def test_saved_index_opens_as_it_was(small: WindowIndex, tmp_path: Path) -> None:
    opened = WindowIndex.open(saved(small, tmp_path / "new" / "folder" / "one.arrow"))
    assert opened.parameters == PARAMETERS
    assert list(opened.spans) == list(COLUMNS)
    assert all((opened.spans[name] == small.spans[name]).all() for name in COLUMNS)
    assert (len(opened), list(opened.blocks())) == (len(small), list(small.blocks()))


def test_same_index_is_the_same_bytes_and_plain_arrow(small: WindowIndex, tmp_path: Path) -> None:
    path = saved(small, tmp_path / "a.arrow")
    backwards = dict(reversed(list(PARAMETERS.items())))
    assert saved(small, tmp_path / "b.arrow", backwards).read_bytes() == path.read_bytes()
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table.schema.names == list(COLUMNS)
    assert set(table.schema.types) == {pa.int64()}
    assert table["cumulative_end"].to_pylist() == [4, 7]
    assert json.loads(table.schema.metadata[b"prep.windows"]) == {"schema": "prep-windows/1", **PARAMETERS}


def test_empty_index(tmp_path: Path) -> None:
    index = WindowIndex(join_spans([]), {})
    opened = WindowIndex.open(saved(index, tmp_path / "none.arrow"))
    for empty in (index, opened):
        assert (len(empty), list(empty.blocks()), empty.spans_of(0, 0)) == (0, [], [])
        with pytest.raises(IndexError, match="window 0: the index has 0"):
            empty.resolve(0)
        with pytest.raises(IndexError, match="window 0: the index has 0"):
            empty.resolve_many([0])
        with pytest.raises(KeyError):
            empty.index_of(Identity(0, 0, 0))


def test_read_only_file_is_mapped_twice_and_outlives_its_name(small: WindowIndex, tmp_path: Path) -> None:
    path = saved(small, tmp_path / "index.arrow")
    path.chmod(0o444)
    first, second = WindowIndex.open(path), WindowIndex.open(str(path))
    assert not first.spans["length"].flags.writeable
    assert not first.spans["length"].flags.owndata
    path.unlink()
    for opened in (first, second, pickle.loads(pickle.dumps(first))):
        assert opened.resolve(6) == small.resolve(6)
        assert opened.index_of((0, 7, 3)) == 3


def test_index_that_is_not_there_is_a_wrong_argument(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no window index") as caught:
        WindowIndex.open(tmp_path / "none.arrow")
    assert caught.value.exit_status == 2


def test_index_cut_short_anywhere_is_refused(small: WindowIndex, tmp_path: Path) -> None:
    whole = saved(small, tmp_path / "index.arrow").read_bytes()
    short = tmp_path / "short.arrow"
    for length in range(0, len(whole), 7):
        short.write_bytes(whole[:length])
        assert f"{short}: not a whole window index: " in refused(short)


def test_damaged_lengths_and_ends_are_refused(tmp_path: Path) -> None:
    lengths = np.arange(1, 41, dtype=np.int64) * 1_000_003
    part = dict.fromkeys(COLUMNS, np.zeros(40, np.int64)) | {"length": lengths}
    path = saved(WindowIndex(join_spans([part]), {}), tmp_path / "index.arrow")
    whole = path.read_bytes()
    for column in (lengths, np.cumsum(lengths)):
        at = whole.index(column.tobytes())
        for damage in (bytes(320), column[::-1].tobytes()):
            path.write_bytes(whole[:at] + damage + whole[at + 320 :])
            assert refused(path).endswith("its cumulative ends are not those of its lengths.")


def other_file(kind: str) -> bytes:
    """An Arrow or other file that is no index, though most have an index's columns."""
    names = list(COLUMNS)
    metadata = {"prep.windows": json.dumps({"schema": "prep-windows/1"})}
    values = pa.array([1], pa.int64())
    schema = pa.schema([(name, pa.int64()) for name in names], metadata=metadata)
    batch = pa.record_batch([values] * 6, schema=schema)
    if kind == "text":
        return b"no arrow file at all\n" * 9
    sink = pa.BufferOutputStream()
    if kind == "stream":
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())
    changes: dict[str, Callable[[], list[pa.RecordBatch]]] = {
        "columns": lambda: [pa.record_batch([values], names=["length"])],
        "order": lambda: [batch.select(names[::-1])],
        "types": lambda: [pa.record_batch([values.cast(pa.int32())] * 6, names=names)],
        "no batch": list,
        "two batches": lambda: [batch, batch],
        "no metadata": lambda: [batch.replace_schema_metadata(None)],
        "no json": lambda: [batch.replace_schema_metadata({"prep.windows": "{"})],
        "no object": lambda: [batch.replace_schema_metadata({"prep.windows": "[]"})],
        "version": lambda: [batch.replace_schema_metadata({"prep.windows": '{"schema": "prep-windows/2"}'})],
    }
    batches = changes[kind]()
    with pa.ipc.new_file(sink, batches[0].schema if batches else schema) as writer:
        for one in batches:
            writer.write_batch(one)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("text", "not a whole window index"),
        ("stream", "not a whole window index"),
        ("columns", "it has other columns"),
        ("order", "it has other columns"),
        ("types", "it has other columns"),
        ("no batch", "it has 0 record batches"),
        ("two batches", "it has 2 record batches"),
        ("no metadata", "its parameters are not prep-windows/1"),
        ("no json", "its parameters are no JSON"),
        ("no object", "its parameters are not prep-windows/1"),
        ("version", "its parameters are not prep-windows/1"),
    ],
)
def test_other_file_is_refused(tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "other.arrow"
    path.write_bytes(other_file(kind))
    assert words in refused(path)


def test_folder_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path) in refused(tmp_path)


def test_index_whose_inputs_changed_is_refused(small: WindowIndex, tmp_path: Path) -> None:
    source = tmp_path / "success" / "meta" / "info.json"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"{}")
    entry = {"path": "success/meta/info.json", "size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    path = saved(small, tmp_path / "windows" / "index.arrow", {"inputs": [entry]})
    assert len(WindowIndex.open(path, inputs_below=tmp_path)) == 7
    source.write_bytes(b"{ }")
    assert len(WindowIndex.open(path)) == 7
    message = refused(path, inputs_below=tmp_path)
    assert message.endswith("was built from success/meta/info.json of 2 bytes, which has 3 bytes now.")
    source.unlink()
    assert refused(path, inputs_below=tmp_path).endswith("of 2 bytes, which is not there now.")


def test_opening_and_resolving_import_no_pandas(small: WindowIndex, tmp_path: Path) -> None:
    path = saved(small, tmp_path / "index.arrow")
    program = (
        "import sys; from prep.windows import WindowIndex; index = WindowIndex.open(sys.argv[1]);"
        "index.resolve_many([0, 6]); index.index_of(index.resolve(3).identity);"
        "print(sorted({'pandas', 'torch', 'datasets'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
