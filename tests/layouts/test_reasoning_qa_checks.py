"""The checks of annotation files: each fault by its code, and the verdict of nvidia-tao-daft beside ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prep.findings import Finding, Report
from prep.layouts.reasoning_qa import Sampling
from prep.layouts.reasoning_qa_checks import Scan, format_of
from tests.reasoning import annotation, clips, item

Document = dict[str, Any]


def sound() -> Document:
    return {
        "format": "tao-vl-reason-v1.0",
        "metadata": {"type": "annotation", "license": "Apache-2.0", "task": "bcq"},
        "media_root": None,
        "items": [item("v/a.mp4"), item("v/b.mp4", "How?", reasoning=None)],
    }


def tree(folder: Path, document: Document) -> Path:
    (folder / "v").mkdir(parents=True)
    for name, size in (("a", 600), ("b", 600), ("zero", 0)):
        (folder / f"v/{name}.mp4").write_bytes(b"x" * size)
    (folder / "x.json").write_text(json.dumps(document), encoding="utf-8")
    return folder / "x.json"


def scanned(path: Path, sampling: Sampling | None = None, root: Path | None = None) -> list[Finding]:
    findings: list[Finding] = []
    Scan(findings.append, sampling).run([(path, path.name, root)])
    return findings


def at(*keys: Any, value: Any) -> Callable[[Document], object]:
    """A change: set the value at the end of the keys; None for `...` removes it."""

    def change(document: Document) -> None:
        place: Any = document
        for key in keys[:-1]:
            place = place[key]
        if value is ...:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value

    return change


# What `TaoVlReasonV1_0Validator` of nvidia-tao-daft 7.0.0 says of each: "ok", "error", or "skip" for a
# file that it passes over. The second is our verdict, the third the codes of ours.
VARIANTS: dict[str, tuple[Callable[[Document], object], str, str, set[str]]] = {
    "sound": (at("media_root", value=None), "ok", "ok", set()),
    "no metadata": (at("metadata", value=...), "error", "error", {"TXT005"}),
    "no license": (at("metadata", "license", value=...), "error", "error", {"TXT005"}),
    "another type": (at("metadata", "type", value="index"), "error", "error", {"TXT005"}),
    "metadata with more": (at("metadata", "version", value=1), "error", "error", {"TXT005"}),
    "a key more": (at("extra", value=1), "error", "error", {"TXT005"}),
    "no items": (at("items", value=...), "error", "error", {"TXT005"}),
    "items no list": (at("items", value={}), "error", "error", {"TXT005"}),
    "no question": (at("items", 0, "question", value=...), "error", "error", {"TXT005"}),
    "no answer": (at("items", 0, "answer", value=...), "error", "error", {"TXT005"}),
    "answer a number": (at("items", 0, "answer", value=3), "error", "error", {"TXT005"}),
    "answer null": (at("items", 0, "answer", value=None), "error", "error", {"TXT005"}),
    "reasoning null": (at("items", 0, "reasoning", value=None), "error", "error", {"TXT005"}),
    "reasoning a list": (at("items", 0, "reasoning", value=["x"]), "error", "error", {"TXT005"}),
    "two media": (at("items", 0, "image_id", value="v/a.jpg"), "error", "error", {"TXT005"}),
    "no media": (at("items", 0, "video_id", value=...), "error", "error", {"TXT005"}),
    "video null": (at("items", 0, "video_id", value=None), "error", "error", {"TXT005"}),
    "video empty": (at("items", 0, "video_id", value=""), "error", "error", {"TXT005"}),
    "index a number": (at("items", 0, "item_index", value=1), "error", "error", {"TXT005"}),
    "root a number": (at("media_root", value=4), "error", "error", {"TXT005"}),
    "root a list": (at("media_root", value=["v"]), "error", "error", {"TXT005"}),
    "tags a text": (at("metadata", "tags", value="a"), "error", "error", {"TXT005"}),
    "tags numbers": (at("metadata", "tags", value=[1]), "error", "error", {"TXT005"}),
    "item a text": (at("items", 0, value="x"), "error", "error", {"TXT005"}),
    "item with more": (at("items", 0, "other", value=1), "ok", "ok", set()),
    "video missing": (at("items", 1, "video_id", value="v/none.mp4"), "error", "error", {"FIL005"}),
    "root missing": (at("media_root", value="nowhere"), "error", "error", {"FIL005", "REA006"}),
    # Here the verdicts are meant to differ.
    "no item": (at("items", value=[]), "ok", "error", {"REA008"}),
    "zero bytes": (at("items", 1, "video_id", value="v/zero.mp4"), "ok", "error", {"FIL002"}),
    "climbs": (at("items", 1, "video_id", value="../tree/v/a.mp4"), "ok", "error", {"FIL011"}),
    "twice": (at("items", value=[item("v/a.mp4"), item("v/a.mp4")]), "ok", "ok", {"REA004"}),
    "index twice": (
        at("items", value=[item("v/a.mp4", item_index="7"), item("v/b.mp4", item_index="7")]),
        "ok",
        "error",
        {"REC001"},
    ),
    "an image": (
        at("items", 0, value={"image_id": "v/a.mp4", "question": "Q", "answer": "A"}),
        "ok",
        "error",
        {"REA002"},
    ),
    "another format": (at("format", value="tao-vl-reason-v2.0"), "skip", "error", {"REA001"}),
    "the other name": (at("format", value="cosmos-video-reasoning-v1.0"), "skip", "ok", set()),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant(name: str, tmp_path: Path) -> None:
    change, _, verdict, wanted = VARIANTS[name]
    document = sound()
    change(document)
    findings = scanned(tree(tmp_path / "tree", document))
    assert {finding.code for finding in findings} == wanted
    assert ("error" if any(each.severity == "error" for each in findings) else "ok") == verdict


def test_tao_daft_says_the_same_of_the_variants_when_it_is_installed(tmp_path: Path) -> None:
    validator = pytest.importorskip(
        "nvidia_tao_daft.validators.tao_vl_reason_v1_0.validator",
        reason="the reference extra is not installed",
    )
    said = {}
    for name, (change, _, _, _) in VARIANTS.items():
        document = sound()
        change(document)
        folder = tree(tmp_path / name / "tree", document).parent
        try:
            result = validator.TaoVlReasonV1_0Validator().validate_dataset(folder)
        except TypeError:  # it joins a root with no video: an empty video_id ends it
            said[name] = "error"
            continue
        said[name] = "error" if result.errors else "ok" if result.files_checked else "skip"
    assert said == {name: verdict for name, (_, verdict, _, _) in VARIANTS.items()}


def test_all_real_files_have_only_the_faults_that_are_known(real_data: Path) -> None:
    told: dict[str, dict[str, int]] = {}
    files = 0
    for folder in sorted((real_data / "daft/tao-vl-reason-v1.0").iterdir()):
        if folder.is_dir():
            report = Report(folder.name)
            paths = sorted(folder.glob("*.json"))
            scan = Scan(report.add, Sampling("hybrid"))
            scan.run([(path, path.name, None) for path in paths])
            files += len(scan.annotations)
            told[folder.name] = {group.code: group.count for group in report.ordered()}
    # Their media have zero bytes on purpose; one item is about an image.
    assert files == 23
    assert told == {
        "its_anomaly": {"FIL002": 2, "REA002": 1, "REA005": 1},
        "its_collision": {"FIL002": 2, "REA005": 3},
        "its_collision_no_copy_media": {"FIL002": 2, "REA005": 3, "REA006": 10, "REA007": 10},
    }


def test_sibling_formats_are_told_apart(real_data: Path) -> None:
    found = {path: format_of(path) for path in sorted((real_data / "daft").rglob("*.json"))}
    ours = [path for path, stated in found.items() if stated == "tao-vl-reason-v1.0"]
    assert len(ours) == 23
    assert {path.parts[-3] for path in ours} == {"tao-vl-reason-v1.0"}
    assert "" not in found.values()


@pytest.mark.parametrize(
    "relative",
    [
        "daft/metropolis-v3.0/its_collision/scene_its_collision_001/task/collision_bcq.json",
        "daft/cosmos-reason-v1.0/its_collision/meta.json",
    ],
)
def test_a_real_file_of_another_format_is_refused(relative: str, real_data: Path) -> None:
    assert [finding.code for finding in scanned(real_data / relative)][:1] == ["REA001"]


def test_bare_items_are_taken_and_unknown_keys_named(tmp_path: Path) -> None:
    clips(tmp_path, "a.mp4")
    path = annotation(tmp_path / "bare.json", [item("a.mp4")], note="mine")
    assert format_of(path) == ""
    assert [(each.code, each.at()) for each in scanned(path)] == [("TXT007", "bare.json:/note")]


@pytest.mark.parametrize(
    ("more", "code", "place"),
    [
        ({"question": "What is in <video>?"}, "REC003", "/items/0/question"),
        ({"answer": "<|video_pad|> shows it."}, "REC004", "/items/0/answer"),
        ({"reasoning": "<think>I see."}, "REA003", "/items/0/reasoning"),
        ({"answer": "</think> Yes."}, "REA003", "/items/0/answer"),
        ({"answer": "nan"}, "REC009", "/items/0/answer"),
        ({"question": " "}, "REC005", "/items/0"),
    ],
)
def test_a_text_that_is_none(more: dict[str, str], code: str, place: str, tmp_path: Path) -> None:
    clips(tmp_path, "a.mp4")
    (found,) = scanned(annotation(tmp_path / "a.json", [item("a.mp4", **more)]))
    assert found.code == code
    assert found.place.startswith(place)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "FIL002"),
        (b'{"items": [', "TXT003"),
        (b'\xef\xbb\xbf{"items": []}', "TXT002"),
        (b"[]", "REA001"),
        (b'{"version": "metropolis-v3.0", "metadata": {}}', "REA001"),
    ],
)
def test_a_file_that_cannot_be_used(data: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    assert [finding.code for finding in scanned(path)] == [code]


def test_a_missing_video_lists_what_was_tried(tmp_path: Path) -> None:
    clips(tmp_path / "text", "videos/a.mp4")
    (tmp_path / "given").mkdir()
    path = annotation(tmp_path / "text/a.json", [item("a.mp4")], media_root="videos")
    (found,) = scanned(path, root=tmp_path / "given")
    assert found.code == "FIL005"
    assert f"{tmp_path}/given/a.mp4 (No such file or directory)" in found.message
    assert f"{tmp_path}/text/videos/a.mp4 (the file's own media_root: it is there)" in found.message
    assert f"{tmp_path}/text/a.mp4 (the file's folder, as nvidia-tao-daft: not there either)" in found.message


def test_the_two_readers_are_named_where_they_differ(tmp_path: Path) -> None:
    clips(tmp_path, "videos/a.mp4")
    path = annotation(tmp_path / "text/a.json", [item("a.mp4")], media_root="../videos")
    differs, climbs = scanned(path)
    assert differs.code == "REA006"
    assert f"Cosmos Framework takes {tmp_path}/text/../videos" in differs.message
    assert f"nvidia-tao-daft's reader takes {tmp_path}/text" in differs.message
    assert (climbs.code, climbs.message) == ("REA007", f"media_root '../videos' is {tmp_path}/videos")
    assert scanned(path, root=tmp_path / "videos") == []


def test_a_video_is_looked_at_only_where_training_sees_its_item(tmp_path: Path) -> None:
    clips(tmp_path, "a.mp4")
    image = {"image_id": "b.jpg", "question": "Q", "answer": "A"}
    path = annotation(tmp_path / "a.json", [item("a.mp4"), item("none.mp4"), item("a.mp4", "How?"), image])
    assert [each.code for each in scanned(path)] == ["REA002", "FIL005"]
    every_second = scanned(path, Sampling(stride=2))
    assert [(each.code, each.severity) for each in every_second] == [("REA002", "warning")]


def test_items_without_reasoning_count_where_their_think_form_is_shown(tmp_path: Path) -> None:
    clips(tmp_path, "a.mp4")
    path = annotation(tmp_path / "a.json", [item("a.mp4", str(at), reasoning=None) for at in range(3)])
    assert scanned(path, Sampling("answer")) == []
    (hybrid,) = scanned(path, Sampling("hybrid", limit=5))  # the third item's think form is cut off
    assert (hybrid.code, hybrid.message.split()[0]) == ("REA005", "2")


def test_a_pointer_and_a_dangling_link(tmp_path: Path) -> None:
    oid = "0" * 64
    (tmp_path / "a.mp4").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 9\n")
    (tmp_path / "b.mp4").symlink_to(tmp_path / "gone.mp4")
    path = annotation(tmp_path / "a.json", [item("a.mp4"), item("b.mp4")])
    pointer, link = scanned(path)
    assert (pointer.code, link.code) == ("FIL001", "FIL010")
    assert oid in pointer.message


def test_a_question_asked_twice_over_two_files_is_one_finding(tmp_path: Path) -> None:
    clips(tmp_path, "a.mp4")
    files = [
        annotation(tmp_path / name, [item("a.mp4", answer=answer)])
        for name, answer in (("a.json", "So."), ("b.json", "No."))
    ]
    findings: list[Finding] = []
    Scan(findings.append).run([(path, path.name, None) for path in files])
    (found,) = findings
    assert (found.code, found.at()) == ("REA004", "a.json:/items/0")
    assert "2 different answers; also b.json item 0" in found.message
