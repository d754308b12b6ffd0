"""The reasoning stage: what is written for each way of the media, what is refused, what is told."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from prep.errors import HeldError, UsageError, WouldChangeError
from prep.files import sha256_of
from prep.manifest import Manifest
from prep.workspace import Workspace
from tests.reasoning import annotation, check, clips, codes, item, run
from tests.runs import digests


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files of two videos each for train, one of another video for val."""
    folder = clips(tmp_path / "source", "videos/a.mp4", "videos/b.mp4", "videos/c.mp4")
    annotation(folder / "a.json", [item("videos/a.mp4"), item("videos/b.mp4")])
    annotation(
        folder / "b.json", [item("videos/a.mp4", "How?"), item("videos/b.mp4", "How?", reasoning=None)]
    )
    annotation(folder / "c.json", [item("videos/c.mp4")])
    return folder


def train(source: Path) -> list[Path]:
    return [source / "a.json", source / "b.json"]


def listing(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir() or path.is_symlink()
    )


TABLES = [".prep/files.parquet", ".prep/records.parquet"]
VIEWS = ["a.json", "b.json", "manifest.json"]


@pytest.mark.parametrize(
    ("media", "others", "known"),
    [
        ("link", [".prep/location.json", "media/001"], {"computed", "external"}),
        ("copy", ["media/001/videos/a.mp4", "media/001/videos/b.mp4"], {"computed"}),
        ("reference", [".prep/location.json"], {"computed"}),
    ],
)
def test_what_is_written(
    media: str, others: list[str], known: set[str], source: Path, tmp_path: Path
) -> None:
    before = digests(source)
    trained, validated = run(tmp_path / "out", train(source), [source / "c.json"], media=media)
    assert (trained.outcome, validated.outcome) == ("complete", "complete")
    root = tmp_path / "out/video_reasoning/train"
    assert listing(root) == sorted([*TABLES, *VIEWS, *others])
    assert [(root / path.name).read_bytes() for path in train(source)] == [
        path.read_bytes() for path in train(source)
    ]
    manifest = Manifest.load(root)
    assert manifest is not None
    assert {row.known for row in manifest.files()} == known
    assert str(tmp_path) not in (root / "manifest.json").read_text()
    assert [row.id for row in manifest.records()] == [f"{n}.json/items/{i}" for n in "ab" for i in (0, 1)]
    assert codes(check(root, "deep")) == {"REA005": 1}
    assert digests(source) == before


def test_copies_are_whole_and_hashed(source: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", train(source), media="copy")
    manifest = Manifest.load(tmp_path / "out/video_reasoning/train")
    assert manifest is not None
    rows = {row.path: row.sha256 for row in manifest.files() if row.role == "payload"}
    assert rows == {f"media/001/videos/{n}.mp4": sha256_of(source / f"videos/{n}.mp4") for n in "ab"}
    assert [row.media_sha256 for row in manifest.records()] == [*rows.values(), *rows.values()]


@pytest.mark.parametrize("media", ["link", "copy", "reference"])
def test_the_dataset_id_does_not_depend_on_the_place(media: str, source: Path, tmp_path: Path) -> None:
    (first,) = run(tmp_path / "one", train(source), media=media)
    moved = source.rename(tmp_path / "elsewhere")
    (second,) = run(tmp_path / "two", train(moved), media=media)
    assert first.dataset_id == second.dataset_id
    assert (tmp_path / "one/video_reasoning/train/manifest.json").read_bytes() == (
        tmp_path / "two/video_reasoning/train/manifest.json"
    ).read_bytes()


@pytest.mark.parametrize("media", ["link", "copy", "reference"])
def test_a_second_run_writes_nothing(media: str, source: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", train(source), media=media)
    states = {path: path.lstat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    (again,) = run(tmp_path / "out", train(source), media=media)
    assert again.outcome == "unchanged"
    assert {path: path.lstat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == states


def test_a_change_is_refused_and_made_with_update(source: Path, tmp_path: Path) -> None:
    out, root = tmp_path / "out", tmp_path / "out/video_reasoning/train"
    (first,) = run(out, train(source))
    with pytest.raises(WouldChangeError, match='response_mode: "hybrid" → "think"'):
        run(out, train(source), mode="think")
    with pytest.raises(WouldChangeError, match=r"1 files gone \(b\.json\)"):
        run(out, [source / "a.json"])
    (changed,) = run(out, [source / "a.json"], mode="think", update=True)
    assert changed.dataset_id != first.dataset_id
    assert not (root / "b.json").exists()
    assert codes(check(root)) == {}
    (copied,) = run(out, [source / "a.json"], mode="think", update=True, media="copy")
    assert not (root / "media/001").is_symlink()
    assert (copied.outcome, codes(check(root, "deep"))) == ("complete", {})


def test_a_mode_is_no_part_of_the_id(source: Path, tmp_path: Path) -> None:
    (first,) = run(tmp_path / "one", train(source))
    (second,) = run(tmp_path / "two", train(source), mode="answer", limit=4)
    assert first.dataset_id == second.dataset_id


def test_several_roots(source: Path, tmp_path: Path) -> None:
    other = clips(tmp_path / "other", "d.mp4")
    annotation(other / "a.json", [item("d.mp4")], media_root=None)
    run(tmp_path / "out", [source / "a.json", other / "a.json", source / "b.json"])
    root = tmp_path / "out/video_reasoning/train"
    assert {path.name: path.resolve() for path in (root / "media").iterdir()} == {
        "001": source.resolve(),
        "002": other.resolve(),
    }
    assert sorted(path.name for path in root.glob("*.json")) == [
        "001-a.json",
        "002-a.json",
        "b.json",
        "manifest.json",
    ]
    manifest = Manifest.load(root)
    assert manifest is not None
    assert [entry["root"] for entry in manifest.document["details"]["annotations"]] == [0, 1, 0]


def test_what_a_pass_takes_is_told(source: Path, tmp_path: Path) -> None:
    (result,) = run(
        tmp_path / "out", train(source), stride=1, offset=1, limit=5, global_batch=2, dry_run=True
    )
    assert (result.rows, result.outcome) == (4, "planned")
    assert result.consumption == {
        "items": 4,
        "selected": 3,
        "samples": 5,
        "answers": {"answer": 3, "think": 2},
        "left_out": {
            "items before the offset": 1,
            "items between strides": 0,
            "samples beyond the limit": 1,
        },
    }
    told = " / ".join(result.notes)
    assert "a pass takes 3 steps of 2 samples" in told
    assert "the limit is odd" in told
    assert not (tmp_path / "out").exists()


def test_hybrid_counts_the_answers_in_place_of_reasoning(source: Path, tmp_path: Path) -> None:
    (result,) = run(tmp_path / "out", train(source), dry_run=True)
    assert result.consumption["answers"] == {"answer": 4, "think": 3, "answer for want of reasoning": 1}
    assert [finding.code for finding in result.findings] == ["REA005"]


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"stride": 0}, "COSMOS_VIDEO_TRAIN_SAMPLE_STRIDE"),
        ({"offset": -1}, "COSMOS_VIDEO_TRAIN_SAMPLE_OFFSET"),
        ({"limit": 0}, "COSMOS_VIDEO_TRAIN_LIMIT"),
        ({"mode": "both"}, "COSMOS_VIDEO_TRAIN_RESPONSE_MODE"),
        ({"media_roots": ["nowhere"]}, "COSMOS_VIDEO_TRAIN_MEDIA_ROOTS"),
        ({"media_roots": [".", ".", "."]}, "COSMOS_VIDEO_TRAIN_MEDIA_ROOTS has 3 roots for 2 files"),
        ({"train": []}, "COSMOS_VIDEO_TRAIN_ANNOTATIONS and COSMOS_VIDEO_VAL_ANNOTATIONS"),
        ({"train": [], "stride": 2}, "COSMOS_VIDEO_TRAIN_ANNOTATIONS would be empty"),
        ({"train": ["nowhere.json"]}, "COSMOS_VIDEO_TRAIN_ANNOTATIONS: nowhere.json is not there"),
        ({"system_prompt": "Hm.", "val": ["c.json"]}, "COSMOS_VIDEO_SYSTEM_PROMPT is one text"),
        ({"ignore": ("REA002",)}, "REA002 cannot be accepted"),
    ],
)
def test_wrong_usage_names_upstream_s_variable(
    given: dict[str, object], variable: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    asked = {"train": train(source), **given}
    for key in ("media_roots", "train", "val"):
        asked[key] = [Path(name) for name in asked.get(key, ())]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=variable):
        run(tmp_path / "out", **asked)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"offset": 4}, "REA008"),
        ({"media_roots": [Path("/")]}, "FIL005"),
    ],
)
def test_an_error_writes_nothing(given: dict[str, object], code: str, source: Path, tmp_path: Path) -> None:
    (result,) = run(tmp_path / "out", train(source), **given)
    assert (result.outcome, result.exit_status) == ("failed", 1)
    assert code in {finding.code for finding in result.findings}
    assert not (tmp_path / "out").exists()


def test_an_image_item_is_refused_by_name(source: Path, tmp_path: Path) -> None:
    annotation(
        source / "a.json", [item("videos/a.mp4"), {"image_id": "x.jpg", "question": "Q", "answer": "A"}]
    )
    (result,) = run(tmp_path / "out", [source / "a.json"])
    (found,) = result.findings
    assert (found.code, found.at()) == ("REA002", "a.json:/items/1")
    assert "x.jpg" in found.message


def test_an_accepted_finding_does_not_hinder(source: Path, tmp_path: Path) -> None:
    (source / "videos/b.mp4").write_bytes(b"")
    (refused,) = run(tmp_path / "out", train(source))
    assert [finding.code for finding in refused.findings] == ["FIL002", "REA005"]
    (accepted,) = run(tmp_path / "out", train(source), ignore=("FIL002",))
    assert accepted.outcome == "complete"


def test_a_video_in_train_and_val_is_leakage(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (source / "videos/d.mp4").symlink_to("a.mp4")
    annotation(source / "d.json", [item("videos/d.mp4")])
    first, second = run(out, train(source), [source / "d.json"])
    assert (first.outcome, second.outcome) == ("complete", "failed")
    assert [finding.code for finding in second.findings] == ["FIL009"]
    (later,) = run(out, val=[source / "d.json"])  # a run of its own meets what the first has made
    assert [finding.code for finding in later.findings] == ["FIL009"]


def test_a_file_of_the_dataset_is_no_source_for_it(source: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", train(source))
    with pytest.raises(UsageError, match="stands in"):
        run(tmp_path / "out", [tmp_path / "out/video_reasoning/train/a.json"])


def test_a_recipe_names_files_roots_and_sampling(source: Path, tmp_path: Path) -> None:
    from prep.reasoning import prepare_video_reasoning

    (source / "mine.toml").write_text(
        """
name = "mine"
kind = "reasoning_qa"
media = "reference"
[splits.train]
directory = "mine/train"
[inputs.train]
annotations = ["a.json", "b.json"]
media_roots = "."
[sampling.train]
response_mode = "think"
sample_stride = 3
"""
    )
    (result,) = prepare_video_reasoning(source / "mine.toml", tmp_path / "out")
    assert result.root == tmp_path / "out/mine/train"
    assert (result.consumption["samples"], result.consumption["selected"]) == (2, 2)
    assert json.loads((result.root / ".prep/location.json").read_text()) == {"media_roots": [str(source)]}


@pytest.mark.parametrize("damaged", ["a.json", "media/001/videos/a.mp4"])
def test_what_was_damaged_is_made_anew(damaged: str, source: Path, tmp_path: Path) -> None:
    run(tmp_path / "out", train(source), media="copy")
    before = digests(tmp_path / "out")
    path = tmp_path / "out/video_reasoning/train" / damaged
    data = bytearray(path.read_bytes())
    path.unlink()  # the copy may be a hard link
    path.write_bytes(data[:-5] + b"?" + data[-4:])
    (result,) = run(tmp_path / "out", train(source), media="copy", update=True)
    assert result.outcome == "complete"
    assert digests(tmp_path / "out") == before


def test_one_writer_at_a_time(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "out/video_reasoning/train"
    with Workspace(root), pytest.raises(HeldError):
        run(tmp_path / "out", train(source))
    (result,) = run(tmp_path / "out", train(source))
    assert result.outcome == "complete"


def test_what_finished_while_it_waited_is_not_changed(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "out/video_reasoning/train"
    refused: list[BaseException] = []

    def wait() -> None:
        try:
            run(tmp_path / "out", train(source), wait=True)
        except WouldChangeError as error:
            refused.append(error)

    run(tmp_path / "other", train(source), stride=2)
    with Workspace(root):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(1.0)
        shutil.copytree(tmp_path / "other", tmp_path / "out", symlinks=True, dirs_exist_ok=True)
        before = (root / "manifest.json").read_bytes()
    waiting.join(60)
    assert "sample_stride: 2 → 1" in str(refused[0])
    assert (root / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("jobs", [1, 7])
def test_the_same_bytes_whatever_the_jobs(jobs: int, source: Path, tmp_path: Path) -> None:
    run(tmp_path / "one", train(source), media="copy")
    run(tmp_path / "two", train(source), media="copy", jobs=jobs)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


# --- killed at any moment -------------------------------------------------------------------

_CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.symlink"}


def killed(at: int, source: Path, out: Path, media: str) -> bool:
    """Run in a forked child that ends just before its `at`th change below `out`; whether it was met."""
    child = os.fork()
    if child == 0:
        numbers = itertools.count(1)

        def on_event(event: str, values: tuple[object, ...]) -> None:
            if event in _CHANGES and str(values[0]).startswith(str(out)) and next(numbers) == at:
                os._exit(9)

        sys.addaudithook(on_event)
        try:
            run(out, train(source), [source / "c.json"], media=media)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("media", ["link", "copy"])
def test_killed_before_any_change(media: str, source: Path, tmp_path: Path) -> None:
    run(tmp_path / "whole", train(source), [source / "c.json"], media=media)
    expected = digests(tmp_path / "whole")
    for at in itertools.count(1):
        out = tmp_path / f"out{at}"
        met = killed(at, source, out, media)
        results = run(out, train(source), [source / "c.json"], media=media)
        assert {result.outcome for result in results} <= {"complete", "unchanged"}
        assert digests(out) == expected, at
        if not met:
            break
    assert at > 20
