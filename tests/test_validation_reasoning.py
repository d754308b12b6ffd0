"""The check of reasoning datasets: faults planted in finished ones, and trees that no manifest tells of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prep.findings import Report
from prep.proof import load_proof
from prep.validation_reasoning import (
    ReasoningCheck,
    check_annotation_file,
    find_reasoning_trees,
    shared_videos,
)
from tests.reasoning import annotation, check, clips, codes, item, run


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    source = clips(tmp_path / "source", "a.mp4", "b.mp4")
    files = [annotation(source / f"{name}.json", [item(f"{name}.mp4")]) for name in "ab"]
    run(tmp_path / "out", files, media="copy")
    return tmp_path / "out/video_reasoning/train"


def swap(path: Path) -> None:
    path.write_text(path.read_text().replace("Look.", "Loik."))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


FAULTS: dict[str, tuple[str, Callable[[Path], object], set[str]]] = {
    "another text of the same length": ("quick", lambda root: swap(root / "a.json"), {"FIL004"}),
    "an item more": (
        "quick",
        lambda root: annotation(root / "a.json", [item("a.mp4"), item("b.mp4")]),
        {"FIL003", "MAN003", "REA004"},
    ),
    "no annotation": ("quick", lambda root: (root / "a.json").unlink(), {"FIL014", "FIL005", "MAN003"}),
    "no video": ("quick", lambda root: (root / "media/001/a.mp4").unlink(), {"FIL005"}),
    "an empty video": (
        "quick",
        lambda root: (root / "media/001/a.mp4").write_bytes(b""),
        {"FIL002", "FIL003"},
    ),
    "a page for a video": (
        "standard",
        lambda root: (root / "media/001/a.mp4").write_text("<html>" + " " * 600),
        {"FIL003", "FIL013"},
    ),
    "a flipped bit": ("deep", lambda root: flip(root / "media/001/a.mp4"), {"FIL004"}),
    "a stray": ("quick", lambda root: (root / "media/001/c.mp4").write_text("x"), {"FIL006"}),
    "a leftover": ("quick", lambda root: (root / "media/001/c.mp4.part").write_text("x"), {"FIL007"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault(name: str, copied: Path) -> None:
    level, plant, wanted = FAULTS[name]
    assert codes(check(copied, "deep")) == {}
    plant(copied)
    assert codes(check(copied, level)).keys() == wanted  # type: ignore[arg-type]


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    source = clips(tmp_path / "source", "a.mp4")
    run(tmp_path / "out", [annotation(source / "a.json", [item("a.mp4")])])
    root = tmp_path / "out/video_reasoning/train"
    assert codes(check(root, "deep")) == {}
    source.rename(tmp_path / "elsewhere")
    assert codes(check(root)) == {"FIL005": 1, "FIL010": 1}


def test_a_lost_note_of_the_place(tmp_path: Path) -> None:
    source = clips(tmp_path / "source", "a.mp4")
    run(tmp_path / "out", [annotation(source / "a.json", [item("a.mp4")])], media="reference")
    root = tmp_path / "out/video_reasoning/train"
    (root / ".prep/location.json").unlink()
    report = check(root)
    assert codes(report) == {"FIL005": 1}
    assert [entry["what"] for entry in report.not_checked] == ["items and videos"]


def test_what_is_not_checked_is_said(tmp_path: Path) -> None:
    source = clips(tmp_path / "source", "a.mp4")
    path = annotation(source / "a.json", [item("a.mp4"), item("none.mp4")])
    run(tmp_path / "out", [path], mode="answer", limit=1)
    report = check(tmp_path / "out/video_reasoning/train", "quick")
    assert codes(report) == {}
    assert [entry["what"] for entry in report.not_checked] == [
        "videos of items that training is not shown",
        "pixels",
    ]


def test_a_sample_of_the_videos(tmp_path: Path) -> None:
    names = [f"{number}.mp4" for number in range(5)]
    folder = clips(tmp_path, *names)
    annotation(folder / "a.json", [item(name) for name in names])
    report = Report("x")
    ReasoningCheck(tmp_path, None, "standard", 1, report, report.add, sample=2, seed=1).run()
    assert report.checked["videos"] == 2
    assert report.not_checked[0]["why"] == "sampled 2 of 5, seed 1"


def test_a_foreign_tree(real_data: Path) -> None:
    report = check(real_data / "daft/tao-vl-reason-v1.0/its_collision_no_copy_media", "standard")
    assert report.checked["items"] == 26
    assert codes(report) == {"FIL002": 2, "REA006": 10, "REA007": 10}


def test_foreign_trees_are_found(real_data: Path, copied: Path) -> None:
    daft = real_data / "daft"
    assert [name.rpartition("/")[2] for name in find_reasoning_trees(daft)] == [
        "its_anomaly",
        "its_collision",
        "its_collision_no_copy_media",
    ]
    assert find_reasoning_trees(daft / "tao-vl-reason-v1.0/its_anomaly") == [""]
    assert find_reasoning_trees(daft / "metropolis-v3.0") == []
    assert find_reasoning_trees(copied.parent) == ["train"]


def test_one_file(real_data: Path) -> None:
    report = Report("x")
    check_annotation_file(real_data / "daft/tao-vl-reason-v1.0/its_anomaly/grounding.json", report)
    assert codes(report) == {"REA002": 1}
    assert report.checked["items"] == 1


@pytest.mark.parametrize("media", ["link", "copy", "reference"])
def test_a_video_that_two_splits_share(media: str, tmp_path: Path) -> None:
    source = clips(tmp_path / "source", "a.mp4", "b.mp4")
    train = annotation(source / "a.json", [item("a.mp4"), item("b.mp4")])
    val = annotation(source / "b.json", [item("b.mp4")])
    run(tmp_path / "out", [train], [val], media=media, ignore=("FIL009",))
    proofs = [
        (name, load_proof(tmp_path / "out/video_reasoning" / name, Report("x").add))
        for name in ("train", "val")
    ]
    found = list(shared_videos([(name, proof) for name, proof in proofs if proof is not None]))
    # Of copies the manifest has the digests, by which all datasets are compared.
    assert [finding.path for finding in found] == ([] if media == "copy" else ["val"])
    assert {finding.code for finding in found} <= {"FIL009"}


def test_a_manifest_that_states_no_files(copied: Path) -> None:
    document = json.loads((copied / "manifest.json").read_text())
    del document["details"]["annotations"]
    (copied / "manifest.json").write_text(json.dumps(document))
    assert codes(check(copied)) == {"MAN001": 1}
