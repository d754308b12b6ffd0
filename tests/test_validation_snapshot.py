"""The check of snapshots: a sound one is clean, and each planted defect is found once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from prep.findings import Report
from prep.layouts.arrow_snapshot import Form
from prep.proof import load_proof
from prep.snapshots import SnapshotOptions, prepare_snapshots
from prep.validation_snapshot import Level, SnapshotCheck, find_snapshots, is_snapshot
from tests.llava import FEATURES, parquet, picture, row


def made(tmp_path: Path, rows: list[dict[str, Any]], form: Form = "arrow") -> Path:
    source = tmp_path / "rows.parquet"
    source.write_bytes(parquet(rows))
    options = SnapshotOptions(source=str(source), form=form, shard_bytes=2000, on_bad_image="drop")
    [result] = prepare_snapshots("llava_ov", tmp_path / "data", subsets=["default"], options=options)
    return result.root


def foreign(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    """A snapshot that `datasets` itself has saved, of any rows."""
    root = tmp_path / "foreign"
    datasets.Dataset.from_list(rows, features=FEATURES).save_to_disk(str(root))
    return root


def checked(root: Path, level: Level = "deep", sample: int | None = None) -> Report:
    report = Report(str(root), level=level)
    proof = load_proof(root, report.add)
    SnapshotCheck(root, proof, level, 2, report, report.add, sample).run()
    return report


def counts(report: Report) -> dict[str, int]:
    return {group.code: group.count for group in report.ordered()}


@pytest.mark.parametrize("form", ["arrow", "hub"])
@pytest.mark.parametrize("level", ["quick", "standard", "deep"])
def test_a_sound_snapshot_is_clean(tmp_path: Path, form: Form, level: Level) -> None:
    report = checked(made(tmp_path, [row(n) for n in range(30)], form), level)
    assert counts(report) == {}
    assert report.checked["records"] == 30
    assert report.checked.get("images decoded") == (None if level == "quick" else 30)


def test_a_saved_dataset_of_another_tool_is_clean_too(tmp_path: Path) -> None:
    root = foreign(tmp_path, [row(n) for n in range(30)])
    assert is_snapshot(root)
    assert find_snapshots(tmp_path) == ["foreign"]
    assert counts(checked(root)) == {}


def _cut(root: Path) -> None:
    shard = sorted(root.glob("*.arrow"))[1]
    shard.write_bytes(shard.read_bytes()[:-300])


def _flip(root: Path) -> None:
    shard = sorted(root.glob("*.arrow"))[1]
    data = bytearray(shard.read_bytes())
    data[data.index(b"made")] ^= 1
    shard.write_bytes(bytes(data))


def _state(root: Path, **changes: Any) -> None:
    path = root / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


DEFECTS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "a cut shard": (_cut, {"FIL003", "SNP002", "SNP003"}),
    "a flipped bit": (_flip, {"FIL004"}),
    "a missing shard": (lambda root: sorted(root.glob("*.arrow"))[0].unlink(), {"FIL005", "SNP003"}),
    "an empty shard": (
        lambda root: sorted(root.glob("*.arrow"))[0].write_bytes(b""),
        {"FIL002", "SNP002", "SNP003"},
    ),
    "no state": (lambda root: (root / "state.json").unlink(), {"SNP001", "FIL005", "SNP003"}),
    "broken state": (
        lambda root: (root / "state.json").write_text("{"),
        {"SNP001", "FIL003", "SNP003", "SNP004"},
    ),
    "no info": (lambda root: (root / "dataset_info.json").unlink(), {"SNP001", "FIL005"}),
    "info without features": (
        lambda root: (root / "dataset_info.json").write_text("{}"),
        {"SNP001", "FIL003"},
    ),
    "another fingerprint": (lambda root: _state(root, _fingerprint="0" * 16), {"SNP004", "FIL003"}),
    "a shard elsewhere": (
        lambda root: _state(root, _data_files=[{"filename": "../x.arrow"}]),
        {"FIL011", "FIL003", "SNP003"},
    ),
    "a stray": (lambda root: (root / "notes.bin").write_bytes(b"x"), {"FIL006"}),
    "a leftover": (lambda root: (root / ".data.partial").write_bytes(b"x"), {"FIL007"}),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_of_the_tree(tmp_path: Path, name: str) -> None:
    root = made(tmp_path, [row(n) for n in range(30)])
    break_it, codes = DEFECTS[name]
    break_it(root)
    assert set(counts(checked(root))) == codes


def test_caches_of_datasets_in_the_folder_are_no_strays(tmp_path: Path) -> None:
    root = made(tmp_path, [row(n) for n in range(30)])
    datasets.load_from_disk(str(root)).filter(lambda x: x["id"] == "row 3")
    assert [path.name for path in root.glob("cache-*")]
    assert counts(checked(root)) == {}


def talk(*turns: tuple[str | None, str | None]) -> list[dict[str, str | None]]:
    return [{"from": speaker, "value": text} for speaker, text in turns]


ROWS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "no image": ({"image": None}, {"SNP005": 1}),
    "one turn": ({"conversations": talk(("human", "Hm?"))}, {"SNP005": 1, "REC007": 1}),
    "no turns": ({"conversations": None}, {"SNP005": 1}),
    "a turn without text": ({"conversations": talk(("human", None), ("gpt", "a"))}, {"SNP006": 1}),
    "a turn of nobody": ({"conversations": talk((None, "a"), ("gpt", "a"))}, {"SNP006": 1}),
    "no human": ({"conversations": talk(("gpt", "a"), ("gpt", "b"))}, {"SNP007": 1, "REC006": 1}),
    "gpt first": ({"conversations": talk(("gpt", "a"), ("human", "b"))}, {"REC006": 1}),
    "two in a row": ({"conversations": talk(("human", "a"), ("human", "b"))}, {"REC006": 1}),
    "two images": ({"conversations": talk(("human", "<image><image>?"), ("gpt", "b"))}, {"REC003": 1}),
    "a video": ({"conversations": talk(("human", "<video>?"), ("gpt", "b"))}, {"REC003": 1}),
    "a special token": ({"conversations": talk(("human", "<|image_pad|>?"), ("gpt", "b"))}, {"REC003": 1}),
    "an image in the answer": ({"conversations": talk(("human", "?"), ("gpt", "<image> b"))}, {"REC004": 1}),
    "an empty question": ({"conversations": talk(("human", "<image> "), ("gpt", "b"))}, {"REC005": 1}),
    "an empty answer": ({"conversations": talk(("human", "?"), ("gpt", ""))}, {"REC005": 1}),
    "nan": ({"conversations": talk(("human", "?"), ("gpt", "nan"))}, {"REC009": 1}),
    "a cut image": ({"image": {"bytes": picture(1)[:-40], "path": "1.png"}}, {"IMG004": 1}),
    "an empty image": ({"image": {"bytes": b"", "path": "1.png"}}, {"IMG002": 1}),
    "a path": ({"image": {"bytes": None, "path": "1.png"}}, {"IMG001": 1}),
    "a page": ({"image": {"bytes": b"<html></html>", "path": "1.png"}}, {"IMG003": 1}),
    "a wrong name": ({"image": {"bytes": picture(1, kind="JPEG"), "path": "1.png"}}, {"IMG005": 1}),
    "grey": ({"image": {"bytes": picture(1, mode="L"), "path": "1.png"}}, {"IMG006": 1}),
    "a strip": ({"image": {"bytes": picture(1, (900, 2)), "path": "1.png"}}, {"IMG007": 1}),
}


@pytest.mark.parametrize("name", ROWS)
def test_defects_of_a_row(tmp_path: Path, name: str) -> None:
    values, expected = ROWS[name]
    source = tmp_path / "s"
    source.mkdir()
    (source / "train-00000-of-00001.parquet").write_bytes(
        parquet([row(0), row(1, **values), *(row(n) for n in range(2, 9))])
    )
    saved = datasets.Dataset.from_parquet(
        str(source / "train-00000-of-00001.parquet"), cache_dir=str(tmp_path / "cache")
    )
    root = tmp_path / "foreign"
    saved.save_to_disk(str(root)) if name != "a path" else _save_raw(root, values)
    report = checked(root, "standard")
    assert counts(report) == expected
    places = {finding.place for group in report.ordered() for finding in group.findings}
    assert all(place.startswith("row 1") for place in places)


def _save_raw(root: Path, values: dict[str, Any]) -> None:
    """Save a row that names a path: `datasets` itself would embed the file."""
    import pyarrow as pa

    from prep.layouts.arrow_snapshot import info_json, state_json

    root.mkdir()
    schema = FEATURES.arrow_schema
    table = pa.Table.from_pylist([row(0), row(1, **values), row(2)], schema=schema)
    with pa.OSFile(str(root / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table)
    (root / "state.json").write_bytes(state_json("0" * 16, "train", ["a.arrow"]))
    (root / "dataset_info.json").write_bytes(info_json(FEATURES.to_dict()))


def test_repeats(tmp_path: Path) -> None:
    rows = [row(n) for n in range(60)]
    rows[7]["id"] = "row 3"
    for at in range(20, 40):
        rows[at]["conversations"][0]["value"] = "<image>\nDescribe it."
    rows[9]["image"] = rows[8]["image"]
    report = checked(made(tmp_path, rows), "quick")
    assert counts(report) == {"REC001": 1, "REC010": 1, "FIL017": 1}
    assert report.errors == 0


def test_a_sample_decodes_so_many(tmp_path: Path) -> None:
    report = checked(made(tmp_path, [row(n) for n in range(60)]), "standard", sample=7)
    assert report.checked["images decoded"] == 7


def test_the_card_of_the_hub_layout(tmp_path: Path) -> None:
    root = made(tmp_path, [row(n) for n in range(30)], "hub")
    card = root.parents[1] / "README.md"
    card.write_text(card.read_text().replace("00001-of", "00077-of"))
    assert set(counts(checked(root))) == {"SNP008"}
    card.unlink()
    assert set(counts(checked(root))) == {"SNP008"}
