"""The comparison itself: every planted drift is found, and nothing is found where nothing differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from prep import schemas
from prep.comparison import Comparison, Side, compare, diff
from prep.comparison_report import as_dict, render_json, render_text
from prep.errors import UsageError
from prep.side_by_side import pictures_of, write_picture
from tests.drift_readers import DRIFTS, SPANS, WindowReader
from tests.trees import edit_json, make_tree, prove

TOTAL = sum(span[3] for span in SPANS)


def compared(drift: str = "", **options: Any) -> Comparison:
    sides = Side("ours", WindowReader(drift)), Side("reference", WindowReader())
    return compare(*sides, **{"subject": "windows", "samples": TOTAL, **options})


def unlike(found: Comparison) -> list[str]:
    """The fields and keys that make the status 1."""
    fields = [tally.name for tally in found.fields.values() if not tally.is_clean]
    return fields + [lone.key for lone in found.lone.values() if not lone.intended]


def checked_report(found: Comparison) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(render_json(found))
    assert list(schemas.errors("diff", document)) == []
    return document


def test_equal_readers_are_identical_in_every_field() -> None:
    found = compared()
    assert found.exit_status == 0
    assert found.samples == TOTAL
    report = checked_report(found)
    assert report["status"] == 0
    assert report["index"]["compared"] == TOTAL
    assert {each["field"] for each in report["fields"]} == set(WindowReader()[0])
    for each in report["fields"]:
        assert each["identical"] == each["compared"] == TOTAL
        assert each["max_abs_difference"] in (0, None)
        assert each["ours"] == each["reference"]


@pytest.mark.parametrize(("drift", "field"), [item for item in DRIFTS.items() if item[1]])
def test_each_planted_drift_is_found_in_its_field_alone(drift: str, field: str) -> None:
    found = compared(drift)
    assert found.exit_status == 1
    assert unlike(found) == [field]
    assert found.order.is_clean
    text = render_text(found)
    assert text.rstrip().endswith(f"DIFFERENT: {field}")
    checked_report(found)


def test_a_span_keyed_by_its_episode_alone_shows_in_the_identities_and_nowhere_else() -> None:
    found = compared("a span keyed by episode id alone")
    assert found.exit_status == 1
    assert unlike(found) == []
    # Both spans of episode 3 in the first root, 5 and 4 windows, take the last one's place.
    assert found.order.differing == 9
    first = checked_report(found)["index"]["first"]
    assert first == {"index": 0, "ours": "1:3:-15", "reference": "0:3:0"}


def test_the_first_difference_is_told_with_its_identity_and_its_values() -> None:
    found = compared("gripper not flipped")
    tally = found.fields["action"]
    first = tally.first
    assert first is not None
    assert (first.index, first.identity) == (0, "0:3:0")
    ours, reference = WindowReader("gripper not flipped")[0], WindowReader()[0]
    distances = [
        np.abs(WindowReader("gripper not flipped")[at]["action"] - WindowReader()[at]["action"]).max()
        for at in range(TOTAL)
    ]
    assert tally.maximum == pytest.approx(max(distances))
    place = int(first.place.strip("[]"))
    assert first.ours.startswith(str(ours["action"][place].item())[:6])
    assert first.reference.startswith(str(reference["action"][place].item())[:6])


def test_a_difference_within_the_tolerance_is_counted_and_not_refused() -> None:
    drift = "half a tolerance of time shift"
    found = compared(drift, atol={"timestamps": 2e-4})
    assert found.exit_status == 0
    tally = found.fields["timestamps"]
    assert (tally.outside, tally.differing) == (0, TOTAL)
    assert tally.maximum == pytest.approx(1e-4)
    assert compared(drift, atol={"timestamps": 0.9e-4}).exit_status == 1


def test_a_difference_that_the_recipe_declares_is_told_apart() -> None:
    why = "upstream's own frame"
    found = compared("BGR", intended={"video": why})
    assert found.exit_status == 0
    text = render_text(found)
    assert f"intended by the recipe: video, {TOTAL} of {TOTAL} differ: {why}" in text
    assert "DIFFERENT" not in text
    same = compared(intended={"video": why})
    assert "yet nothing differs" in render_text(same)
    dropped = compared("a dropped key", intended={"idle_frames": "not kept"})
    assert dropped.exit_status == 0
    assert checked_report(dropped)["only_one_side"] == [
        {"side": "reference", "key": "idle_frames", "samples": TOTAL, "intended": "not kept"}
    ]


def test_fields_that_were_not_asked_for_play_no_part() -> None:
    assert compared("BGR", fields=("action", "mode")).exit_status == 0
    assert compared("a dropped key", fields=("action",)).exit_status == 0
    assert compared("BGR", fields=("video",)).exit_status == 1


@pytest.mark.parametrize("options", [{"fields": ("vidoe",)}, {"atol": {"vidoe": 1.0}}])
def test_a_field_that_no_sample_has_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="vidoe") as refused:
        compared(**options)
    assert "video" in refused.value.remedy


def test_samples_are_drawn_by_the_seed_without_repetition() -> None:
    class Listening(WindowReader):
        def __getitem__(self, index: int) -> dict[str, Any]:
            asked.append(index)
            return super().__getitem__(index)

    asked: list[int] = []
    draws = []
    for seed in (0, 0, 1):
        asked.clear()
        compare(Side("ours", Listening()), Side("reference", WindowReader()), samples=7, seed=seed)
        draws.append(list(asked))
    assert draws[0] == draws[1] != draws[2]
    for drawn in draws:
        assert len(set(drawn)) == 7
        assert drawn == sorted(drawn)
        assert all(0 <= at < TOTAL for at in drawn)


def test_another_length_is_a_difference_and_what_both_have_is_compared() -> None:
    class Shorter(WindowReader):
        def __len__(self) -> int:
            return 6

    found = compare(Side("ours", WindowReader()), Side("reference", Shorter()))
    assert found.exit_status == 1
    assert found.samples == 6
    assert unlike(found) == []
    assert "length: 20 ours, 6 reference  DIFFERENT" in render_text(found)


def test_no_sample_at_all_is_refused() -> None:
    class Empty(WindowReader):
        def __len__(self) -> int:
            return 0

    with pytest.raises(UsageError, match="no sample to compare"):
        compare(Side("ours", WindowReader()), Side("reference", Empty()))


def test_spans_are_compared_whole_where_both_sides_have_them() -> None:
    class WithSpans(WindowReader):
        def __init__(self, spans: list[tuple[int, ...]]) -> None:
            super().__init__()
            self.given = spans

        def spans(self) -> list[tuple[int, ...]]:
            return self.given

    spans = list(SPANS)
    for other, same, first in (
        (spans, True, None),
        ([spans[1], spans[0], *spans[2:]], False, 0),
        (spans[:-1], False, 3),
    ):
        sides = Side("ours", WithSpans(spans)), Side("reference", WithSpans(other))
        found = compare(*sides, samples=1)
        report = checked_report(found)
        assert report["index"]["spans"]["same"] is same
        assert found.exit_status == (0 if same else 1)
        assert (report["index"]["spans"]["first"] or {"span": None})["span"] == first


def test_a_sample_that_cannot_be_read_is_listed_and_refused() -> None:
    for sides in (
        (Side("ours", WindowReader(broken=3)), Side("reference", WindowReader())),
        (Side("ours", WindowReader()), Side("reference", WindowReader(broken=3))),
    ):
        found = compare(*sides, samples=TOTAL)
        assert found.exit_status == 1
        assert found.samples == TOTAL - 1
        report = checked_report(found)
        assert report["unreadable"]["count"] == 1
        assert report["unreadable"]["places"][0]["index"] == 3
        assert "cannot be decoded" in render_text(found)


def test_a_reference_that_draws_is_handed_our_choice() -> None:
    class Drawing(WindowReader):
        def beside(self, index: int, ours: dict[str, Any]) -> dict[str, Any]:
            return {**self[index], "ai_caption": ours["ai_caption"]}

    ours = Side("ours", WindowReader("the instruction drawn elsewhere"))
    assert compare(ours, Side("reference", Drawing()), samples=TOTAL).exit_status == 0


def test_the_picture_shows_ours_the_reference_and_their_difference(tmp_path: Path) -> None:
    path = tmp_path / "new" / "drift.png"
    found = compared("BGR", png=path)
    assert str(path) in found.picture
    ours = WindowReader("BGR")[0]["video"]
    reference = WindowReader()[0]["video"]
    height, width = ours.shape[2:]
    sheet = np.asarray(Image.open(path))
    assert sheet.shape[0] == height
    first, second = sheet[:, :width], sheet[:, width + 8 : 2 * width + 8]
    assert any(np.array_equal(first, ours[:, at].transpose(1, 2, 0)) for at in range(ours.shape[1]))
    np.testing.assert_array_equal(second, first[..., ::-1])
    assert any(np.array_equal(second, reference[:, at].transpose(1, 2, 0)) for at in range(5))
    assert sheet[:, -width:].max() == 255


def test_what_a_model_is_given_is_drawn_as_the_bytes_that_it_was(tmp_path: Path) -> None:
    ours, reference = WindowReader("BGR")[0]["video"], WindowReader()[0]["video"]
    scaled = [video / np.float32(127.5) - np.float32(1) for video in (ours, reference)]
    assert write_picture(ours, reference, tmp_path / "bytes.png")
    assert write_picture(*scaled, tmp_path / "floats.png")
    assert (tmp_path / "floats.png").read_bytes() == (tmp_path / "bytes.png").read_bytes()
    for other in (scaled[0] * 2, scaled[0][0], np.full((3, 1, 4, 4), np.nan, np.float32)):
        assert pictures_of(other) is None


def test_no_picture_is_written_where_no_picture_differs(tmp_path: Path) -> None:
    for drift in ("", "gripper not flipped"):
        assert compared(drift, png=tmp_path / "a.png").picture == ""
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="PNG"):
        compared(png=tmp_path / "a.jpg")


# --- two prepared directories --------------------------------------------------------------


def test_a_dataset_beside_its_copy_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    first = make_tree(tmp_path / "a" / "videophy2_val", 5, manifest=True)
    second = make_tree(tmp_path / "b" / "videophy2_val", 5, manifest=True)
    found = diff(first, second)
    assert found.exit_status == 0
    assert {name: tally.identical for name, tally in found.fields.items()} == dict.fromkeys(
        ("id", "texts", "media", "path"), 5
    )
    report = as_dict(found)
    assert report["ours"]["facts"]["dataset_id"] == report["reference"]["facts"]["dataset_id"]
    assert report["environment"]["packages"]["numpy"] == np.__version__
    assert list(schemas.errors("diff", json.loads(render_json(found)))) == []


def test_another_file_of_the_same_dataset_is_found(tmp_path: Path) -> None:
    first = make_tree(tmp_path / "a" / "videophy2_val", 3, manifest=True)
    second = make_tree(tmp_path / "b" / "videophy2_val", 3, manifest=True, first_clip=2)
    found = diff(first, second)
    assert unlike(found) == ["media"]
    assert found.fields["media"].outside == 3


def test_one_changed_answer_in_another_dataset_is_found(tmp_path: Path) -> None:
    first = make_tree(tmp_path / "a" / "videophy2_val", 5, manifest=True)
    second = make_tree(tmp_path / "b" / "videophy2_val", 5)
    steps = ("conversations", 1, "content", 0, "text")
    edit_json(second / "text" / "conversation_0004.json", *steps, value="5 ")
    prove(second)
    found = diff(first, second, fields=("texts", "media"))
    assert unlike(found) == ["texts"]
    tally = found.fields["texts"]
    assert (tally.outside, tally.compared) == (1, 5)
    assert tally.first is not None
    assert (tally.first.index, tally.first.identity) == (3, "conversation_0004")
    assert tally.first.place == "/1/content/0/text"


def test_a_difference_declared_in_the_recipe_of_the_dataset_is_intended(tmp_path: Path) -> None:
    first = make_tree(tmp_path / "a" / "videophy2_val", 2, manifest=True)
    second = make_tree(tmp_path / "b" / "videophy2_val", 2, manifest=True, answer=lambda row: "3")
    assert diff(first, second).exit_status == 1
    manifest = json.loads((first / "manifest.json").read_text())
    recipe = {**manifest["recipe"], "differences": {"texts": "answers of another rater"}}
    prove(first, recipe=recipe)
    assert diff(first, second).exit_status == 0


def test_what_is_no_dataset_and_no_reference_is_refused(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 2, manifest=True)
    with pytest.raises(UsageError, match="no finished dataset"):
        diff(tmp_path, tree)
    with pytest.raises(UsageError, match="no finished dataset") as refused:
        diff(tree, "cosmo")
    assert "cosmos" in refused.value.remedy
    with pytest.raises(UsageError, match="no reference for datasets of the kind conversations"):
        diff(tree, "tao-daft")


def test_nothing_is_written_into_either_tree(tmp_path: Path) -> None:
    first = make_tree(tmp_path / "a" / "videophy2_val", 3, manifest=True)
    second = make_tree(tmp_path / "b" / "videophy2_val", 3, manifest=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    diff(first, second)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
