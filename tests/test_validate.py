"""`validate`: manifests, levels, several datasets, other layouts, crashed rules."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep import schemas
from prep.errors import UsageError
from prep.findings import Report
from prep.layouts import conversations_checks
from prep.manifest import FileRow, RecordRow, column_names, rows_digest, write_table
from prep.proof import table_digest
from prep.recipe import canonical_json, load_recipe
from prep.validation import validate
from prep.workspace import Lock, ledger_path
from tests.trees import clip_bytes, edit_json, make_tree, prove

MEDIA = "media/video_0001.mp4"


def codes(report: Report) -> list[str]:
    return [group.code for group in report.ordered()]


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}


@pytest.fixture
def proved(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "videophy2_val", manifest=True)


@pytest.mark.parametrize("level", ["quick", "standard", "deep"])
def test_a_prepared_dataset_is_clean_and_untouched(proved: Path, level: Any) -> None:
    before = snapshot(proved)
    for path in (proved, *proved.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    report = validate(proved, level=level)
    assert (codes(report), report.exit_status, report.checked["records"]) == ([], 0, 3)
    assert snapshot(proved) == before
    assert report.datasets[0]["dataset_id"].startswith("videophy2_val@")
    schemas_errors = list(schemas.errors("report", report.as_dict()))
    assert schemas_errors == []


def test_a_level_says_what_it_leaves_out(proved: Path) -> None:
    said = {
        level: {entry["what"] for entry in validate(proved, level=level).not_checked} for level in _levels()
    }
    assert said == {"quick": {"pixels", "sha256"}, "standard": {"every frame", "sha256"}, "deep": set()}


def _levels() -> tuple[Any, ...]:
    return ("quick", "standard", "deep")


def test_the_decoder_is_named_where_it_ran(proved: Path) -> None:
    assert validate(proved, level="quick").as_dict()["environment"] == {}
    assert "PyAV" in validate(proved).as_dict()["environment"]["decoder"]


def test_a_bare_tree_is_checked_with_a_warning(tmp_path: Path) -> None:
    report = validate(make_tree(tmp_path / "val"))
    assert (codes(report), report.exit_status, report.checked["videos"]) == (["MAN004"], 0, 3)


def test_one_meta_file_and_one_conversation(proved: Path) -> None:
    assert validate(proved / "meta.json").checked["records"] == 3
    assert validate(proved / "manifest.json").checked["records"] == 3
    (proved / "text/conversation_0001.json").write_text("{", encoding="ascii")
    report = validate(proved / "text/conversation_0001.json")
    assert codes(report) == ["TXT003"]
    assert codes(validate(proved / "text/conversation_0002.json")) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"level": "slow"}, "level"),
        ({"sample": 0}, "sample"),
        ({"select": ["FIL999"]}, "FIL999"),
        ({"envelope": "v2"}, "envelope"),
    ],
)
def test_options_that_mean_nothing(proved: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        validate(proved, **change)


def test_a_missing_path_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing at"):
        validate(tmp_path / "nowhere")


def test_select_and_ignore(proved: Path) -> None:
    (proved / MEDIA).write_bytes(b"")
    (proved / "stray.mp4").write_bytes(b"x")
    assert codes(validate(proved, level="quick")) == ["FIL002", "FIL006"]
    assert codes(validate(proved, level="quick", select=["FIL006"])) == ["FIL006"]
    assert codes(validate(proved, level="quick", ignore=["FIL002", "FIL006"])) == []


def test_size_against_the_manifest(proved: Path) -> None:
    with (proved / MEDIA).open("ab") as file:
        file.write(b"\x00\x00\x00\x08free")
    report = validate(proved, level="quick")
    size = (proved / MEDIA).stat().st_size
    (group,) = report.ordered()
    assert group.code == "FIL003"
    assert group.findings[0].message == f"{size} bytes; the manifest states {size - 8}"


@pytest.mark.parametrize("name", [MEDIA, "text/conversation_0001.json"])
def test_another_size_is_told_once_and_not_by_its_hash_too(proved: Path, name: str) -> None:
    with (proved / name).open("ab") as file:
        file.write(b"\n")
    report = validate(proved, level="deep", select=["FIL003", "FIL004"])
    assert [(group.code, group.count) for group in report.ordered()] == [("FIL003", 1)]


def test_same_size_and_other_bytes_need_a_hash(proved: Path) -> None:
    (proved / MEDIA).write_bytes(clip_bytes(77))
    assert codes(validate(proved)) == []
    report = validate(proved, level="deep")
    assert [(group.code, group.findings[0].path) for group in report.ordered()] == [("FIL004", MEDIA)]


def test_a_changed_view_of_the_same_size_needs_a_hash(proved: Path) -> None:
    path = proved / "text/conversation_0001.json"
    path.write_text(path.read_text(encoding="ascii").replace('"2"', '"4"'), encoding="ascii")
    assert codes(validate(proved)) == []
    assert codes(validate(proved, level="deep")) == ["FIL004"]


def test_a_file_that_only_the_manifest_names(proved: Path) -> None:
    entries = json.loads((proved / "meta.json").read_bytes())
    (proved / "meta.json").write_text(json.dumps(entries[:2]), encoding="ascii")
    (proved / "media/video_0003.mp4").unlink()
    report = validate(proved, level="quick")
    assert codes(report) == ["FIL003", "FIL005", "MAN003"]


def test_a_cut_video_is_found_by_opening_it(proved: Path) -> None:
    (proved / MEDIA).write_bytes((proved / MEDIA).read_bytes()[:900])
    prove(proved)
    assert codes(validate(proved, level="quick")) == []
    report = validate(proved)
    assert report.errors == 1
    assert report.ordered()[0].findings[0].path == MEDIA


@pytest.mark.parametrize("level", ["quick", "standard", "deep"])
@pytest.mark.parametrize(
    ("code", "data"),
    [
        (
            "FIL001",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n",
        ),
        ("FIL002", b""),
    ],
)
def test_one_fault_of_media_is_one_finding_at_any_level(
    tmp_path: Path, code: str, data: bytes, level: Any
) -> None:
    tree = make_tree(tmp_path / "val")
    (tree / MEDIA).write_bytes(data)
    report = validate(tree, level=level, ignore=["MAN004"])
    assert [(group.code, group.count, group.findings[0].path) for group in report.ordered()] == [
        (code, 1, MEDIA)
    ]


def test_a_page_in_place_of_a_video_is_seen_by_opening_it(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val")
    (tree / MEDIA).write_bytes(b"<!doctype html><html><body>Not found</body></html>" * 20)
    assert codes(validate(tree, ignore=["MAN004"])) == ["FIL013"]


def test_a_table_that_names_a_file_outside(proved: Path) -> None:
    outside = proved.parent / "secret"
    outside.write_bytes(b"x")
    manifest = prove(proved)
    files = [*manifest.files(), FileRow("../secret", 2, "0" * 64, "computed", "view")]
    write_table(proved / ".prep/files.parquet", files, FileRow)
    edit_json(proved / "manifest.json", "tables", "files", "rows", value=len(files))
    edit_json(proved / "manifest.json", "tables", "files", "sha256", value=rows_digest(files, FileRow))
    assert codes(validate(proved, level="deep")) == ["FIL011", "MAN001"]


def test_findings_come_in_one_order_whatever_the_jobs(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val", 12)
    for row in range(1, 13):
        (tree / f"media/video_{row:04d}.mp4").write_bytes(b"no video at all " * (600 if row == 1 else 40))
    reports = [validate(tree, jobs=jobs).as_dict() for jobs in (1, 4)]
    assert reports[0] == reports[1]
    assert reports[0]["errors"] == 12


def test_a_sample_is_chosen_by_its_seed_and_stated(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val", 10)
    for row in range(1, 11):
        (tree / f"media/video_{row:04d}.mp4").write_bytes(b"no video at all " * 40)
    first, again, other = (validate(tree, sample=3, seed=seed) for seed in (1, 1, 2))
    assert first.as_dict() == again.as_dict()
    assert first.errors == other.errors == 3
    assert first.as_dict()["groups"] != other.as_dict()["groups"]
    assert {"what": "7 of 10 media files in .", "why": "sampled 3 of 10, seed 1"} in first.not_checked


MANIFEST_FAULTS: list[tuple[list[str], list[str | int], Any]] = [
    (["MAN001"], ["kind"], "films"),
    (["MAN001"], ["dataset_id"], "videophy2_val@" + "0" * 64),
    (["MAN001"], ["recipe", "title"], "another"),
    (["MAN002"], ["tables", "files", "rows"], 1),
    (["MAN003"], ["counts", "failed"], 1),
    (["MAN003"], ["drops"], {"http_404": 2}),
    (["MAN005"], ["details", "prompt"], {"sha256": "1" * 64}),
    (["MAN006"], ["schema"], "prep-manifest/2"),
    ([], ["prep_version"], "99.0"),
    (["REC008"], ["request", "score_field"], "joint"),
]


@pytest.mark.parametrize(("expected", "steps", "value"), MANIFEST_FAULTS)
def test_manifest_faults(proved: Path, expected: list[str], steps: list[str | int], value: Any) -> None:
    edit_json(proved / "manifest.json", *steps, value=value)
    assert codes(validate(proved, level="quick")) == expected


def test_a_manifest_without_our_version_still_reads(proved: Path) -> None:
    document = json.loads((proved / "manifest.json").read_bytes())
    del document["prep_version"]
    (proved / "manifest.json").write_text(json.dumps(document), encoding="ascii")
    (proved / MEDIA).write_bytes(b"x" * 600)
    assert codes(validate(proved, level="quick")) == ["FIL003", "MAN001"]


def test_a_cut_manifest_and_a_cut_table(proved: Path) -> None:
    table = proved / ".prep/files.parquet"
    whole = table.read_bytes()
    table.unlink()
    (finding,) = validate(proved, level="quick").ordered()[0].findings
    assert finding.at() == ".prep/files.parquet"
    assert finding.message == "there is no such file; the manifest names it"
    table.write_bytes(whole[:-20])
    report = validate(proved, level="quick")
    assert codes(report) == ["MAN002"]
    (proved / "manifest.json").write_text('{"schema": "prep', encoding="ascii")
    report = validate(proved, level="quick")
    assert codes(report) == ["MAN001"]
    assert report.ordered()[0].findings[0].place.startswith("line 1")


def test_a_manifest_of_another_tool_is_none_of_ours(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val")
    (tree / "manifest.json").write_text('{"name": "app", "icons": []}', encoding="ascii")
    assert codes(validate(tree, level="quick")) == ["MAN004"]


def test_accepted_findings_are_counted_with_their_reason(proved: Path) -> None:
    recipe = {**load_recipe("videophy2").document, "accepted": {"FIL006": "notes of the annotators"}}
    digest = hashlib.sha256(canonical_json(recipe)).hexdigest()
    prove(proved, recipe=recipe, recipe_sha256=digest)
    (proved / "notes.txt").write_text("x", encoding="ascii")
    report = validate(proved, level="quick")
    assert codes(report) == []
    assert report.as_dict()["accepted"] == [
        {"code": "FIL006", "count": 1, "reason": "notes of the annotators"}
    ]


def test_what_one_dataset_accepts_the_other_does_not(tmp_path: Path) -> None:
    recipe = {**load_recipe("videophy2").document, "accepted": {"FIL006": "meant"}}
    digest = hashlib.sha256(canonical_json(recipe)).hexdigest()
    for name, facts in (("a", {"recipe": recipe, "recipe_sha256": digest}), ("b", {})):
        prove(make_tree(tmp_path / name), **facts)
        (tmp_path / name / "notes.txt").write_text("x", encoding="ascii")
    report = validate(tmp_path, level="quick")
    assert [group.findings[0].path for group in report.ordered()] == ["b/notes.txt"]
    assert report.accepted_counts == {"FIL006": 1}


def test_the_same_clip_in_train_and_in_val(tmp_path: Path) -> None:
    make_tree(tmp_path / "train", 4, manifest=True, split="train")
    make_tree(tmp_path / "val", 2, manifest=True, split="val", first_clip=4)
    report = validate(tmp_path, level="quick")
    (group,) = report.ordered()
    assert (group.code, group.count) == ("FIL009", 1)
    assert (group.findings[0].path, "val/media/video_0001.mp4" in group.findings[0].message) == (
        "train/media/video_0004.mp4",
        True,
    )


def test_clips_of_one_split_with_other_answers_are_no_leak(tmp_path: Path) -> None:
    make_tree(tmp_path / "pc", manifest=True)
    make_tree(tmp_path / "sa", manifest=True, answer=lambda row: "1")
    assert codes(validate(tmp_path, level="quick")) == []


@pytest.mark.parametrize(("manifest", "level"), [(True, "quick"), (False, "deep")])
def test_the_same_content_under_two_names(tmp_path: Path, manifest: bool, level: Any) -> None:
    tree = make_tree(tmp_path / "val")
    shutil.copy(tree / MEDIA, tree / "media/video_0003.mp4")
    if manifest:
        prove(tree)
    groups = {group.code: group for group in validate(tree, level=level).ordered()}
    assert groups["FIL008"].findings[0].message == "2 files hold these bytes, also media/video_0003.mp4"


def test_datasets_are_found_at_any_depth_with_odd_names(tmp_path: Path) -> None:
    make_tree(tmp_path / "a [1]" / "deep*" / "val", manifest=True)
    make_tree(tmp_path / "bare")
    report = validate(tmp_path, level="quick")
    assert [entry["path"] for entry in report.datasets] == ["a [1]/deep*/val", "bare"]
    assert codes(report) == ["MAN004"]


def test_a_link_to_a_dataset_is_that_dataset_once(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    make_tree(elsewhere / "val", manifest=True)
    make_tree(data / "b", manifest=True)
    (data / "val").symlink_to(elsewhere / "val")
    (data / "a").symlink_to("b")
    (data / "circle").symlink_to("circle")
    (data / "up").symlink_to(tmp_path)
    assert [entry["path"] for entry in validate(data, level="quick").datasets] == ["b", "val"]


def test_an_unfinished_run_and_one_that_goes_on(proved: Path) -> None:
    ledger_path(proved).write_bytes(b"")
    assert codes(validate(proved, level="quick")) == ["LAY003"]
    lock = Lock(proved / ".prep/lock")
    lock.acquire(wait=False)
    try:
        assert codes(validate(proved, level="quick")) == ["LAY003", "LAY004"]
    finally:
        lock.release()


def test_notes_without_a_manifest_are_an_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "val/.prep").mkdir(parents=True)
    report = validate(tmp_path, level="quick")
    assert (codes(report), report.exit_status) == (["LAY003"], 1)


def test_a_rule_that_crashes_is_a_finding_and_the_others_go_on(
    proved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(turns: Any) -> Any:
        raise ZeroDivisionError("one too many")

    monkeypatch.setattr(conversations_checks, "RULES", (broken, *conversations_checks.RULES))
    edit_json(proved / "text/conversation_0002.json", "conversations", 1, "content", 0, "text", value="99")
    groups = {group.code: group for group in validate(proved, level="quick", ignore=["FIL003"]).ordered()}
    assert sorted(groups) == ["REC008", "RUL001"]
    assert "ZeroDivisionError: one too many" in groups["RUL001"].findings[0].message
    assert groups["RUL001"].findings[0].path == "text/conversation_0002.json"


LAYOUTS: dict[str, tuple[dict[str, str], str, str]] = {
    "hub cache": (
        {"datasets--videophysics--videophy2_test/snapshots/abc/videophy2_test.csv": "x"},
        "Hub's cache",
        "prep videophy2 --split val",
    ),
    "saved datasets": ({"dataset_dict.json": '{"splits": ["train"]}'}, "train", "load_from_disk"),
    "parquet": ({"data/train-00000-of-00001.parquet": "PAR1"}, "parquet", "prep prepare"),
    "table": ({"videophy2_training.csv": "a\n"}, "videophy2_training.csv", "prep videophy2 --split train"),
    "own table": ({"mine.csv": "a\n"}, "mine.csv", "prep prepare"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_another_layout_is_named(tmp_path: Path, name: str) -> None:
    files, message, remedy = LAYOUTS[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="ascii")
    (group,) = validate(tmp_path, level="quick").ordered()
    assert group.code == "LAY001"
    assert message in group.findings[0].message
    assert remedy in group.findings[0].remedy


@pytest.mark.parametrize("files", [(), ("notes.txt",), ("state.json",), ("meta/info.json",)])
def test_nothing_that_can_be_checked(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}", encoding="ascii")
    assert codes(validate(tmp_path)) == ["LAY002"]


def test_a_real_tree_of_the_old_robot_format_is_refused(real_data: Path) -> None:
    report = validate(real_data / "g1_lerobot_v21", level="quick")
    assert codes(report) == ["LER001", "MAN004"]
    assert "prep lerobot --root" in report.ordered()[1].findings[0].remedy, "adopt takes conversations only"


def test_images_are_said_not_to_be_decoded(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val", 1)
    (tree / MEDIA).rename(tree / "media/a.png")
    edit_json(tree / "meta.json", 0, "media", value="media/a.png")
    block = {"type": "image", "image": "image_0"}
    edit_json(tree / "text/conversation_0001.json", "conversations", 0, "content", 0, value=block)
    report = validate(tree)
    assert codes(report) == ["MAN004"]
    assert "pixels of 1 image in ." in {entry["what"] for entry in report.not_checked}


words = st.text(st.characters(codec="utf-8"), max_size=12)


@given(st.lists(st.tuples(words, st.integers(0, 1 << 40), st.none() | words), max_size=8))
def test_the_digest_of_a_file_is_that_of_its_rows(tmp_path_factory: Any, values: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("table")
    files = [FileRow(path, size, digest, "computed", "view") for path, size, digest in values]
    records = [
        RecordRow(size, path, "val", "kept", "", digest or "", path, digest, None, None)
        for path, size, digest in values
    ]
    for name, rows, kind in (("files", files, FileRow), ("records", records, RecordRow)):
        write_table(folder / name, rows, kind)
        assert table_digest(folder / name, column_names(kind)) == (len(rows), rows_digest(rows, kind))


def test_a_tree_that_another_user_owns_is_read_only(proved: Path) -> None:
    before = sorted((proved / ".prep").iterdir())
    validate(proved, level="deep")
    assert sorted((proved / ".prep").iterdir()) == before
