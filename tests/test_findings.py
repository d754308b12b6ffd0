"""Findings, the report that groups them, and the catalogue that names them."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from prep import schemas
from prep.errors import UsageError
from prep.findings import PLACES_KEPT, Report, catalogue, explain, found, listing
from tests.commands import PROJECT


def filled(count: int, code: str = "FIL005", **options: tuple[str, ...]) -> Report:
    report = Report(subject="data", level="quick", **options)
    report.extend(found(code, f"media/{number}.mp4", "not there") for number in range(count))
    return report


def test_a_finding_takes_what_its_code_says_unless_it_is_given() -> None:
    entry = catalogue()["VID003"]
    plain = found("VID003", "a.mp4", "10 frames; the container states 12", place="frame 10")
    assert (plain.severity, plain.claim, plain.remedy) == (entry.severity, entry.claim, entry.remedy)
    assert plain.at() == "a.mp4:frame 10"
    other = found("VID003", "a.mp4", "10 frames", severity="warning", remedy="Look.")
    assert (other.severity, other.remedy, other.at()) == ("warning", "Look.", "a.mp4")


def test_a_group_counts_all_and_keeps_the_first_places() -> None:
    (group,) = filled(PLACES_KEPT + 5).ordered()
    assert group.count == PLACES_KEPT + 5
    assert [item.path for item in group.findings] == [f"media/{number}.mp4" for number in range(PLACES_KEPT)]


def test_memory_is_bounded_however_many_findings_there_are() -> None:
    filled(100)
    tracemalloc.start()
    report = filled(100_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.errors == 100_000
    assert peak < 200_000


def test_errors_come_first_then_the_codes_in_order() -> None:
    report = Report(subject="data")
    for code in ("TXT001", "FIL006", "FIL005", "MAN004"):
        report.add(found(code, "a", "b"))
    assert [group.code for group in report.ordered()] == ["FIL005", "TXT001", "FIL006", "MAN004"]
    assert (report.errors, report.warnings, report.exit_status) == (2, 2, 1)


def test_one_code_may_be_an_error_here_and_a_warning_there() -> None:
    report = Report(subject="data")
    report.extend([found("FIL005", "a", "b"), found("FIL005", "a", "b", severity="warning")])
    assert [(group.severity, group.count) for group in report.ordered()] == [("error", 1), ("warning", 1)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"select": ("FIL",)}, 1),
        ({"select": ("FIL006", "TXT")}, 0),
        ({"ignore": ("FIL005",)}, 0),
        ({"ignore": ("TXT",)}, 1),
        ({"select": ("FIL",), "ignore": ("FIL005",)}, 0),
    ],
)
def test_codes_are_selected_and_ignored_by_their_first_letters(
    options: dict[str, tuple[str, ...]], expected: int
) -> None:
    assert filled(1, **options).errors == expected


def test_an_accepted_finding_is_counted_with_its_reason_and_is_no_error() -> None:
    report = Report(subject="data", accepted={"FIL005": "they are on the other disk"})
    report.extend(found("FIL005", str(number), "not there") for number in range(3))
    assert report.exit_status == 0
    assert report.as_dict()["accepted"] == [
        {"code": "FIL005", "count": 3, "reason": "they are on the other disk"}
    ]


def test_paths_are_put_below_a_dataset() -> None:
    report = Report(subject="data")
    report.extend([found("FIL005", "media/a.mp4", "gone"), found("MAN004", "", "none")], below="val")
    assert [group.findings[0].path for group in report.ordered()] == ["val/media/a.mp4", "val"]


def test_the_report_is_what_its_schema_says() -> None:
    report = filled(3)
    report.add(found("FIL006", "a", "b", place="/x"))
    report.skip("pixels", "level quick")
    report.skip("pixels", "level quick")
    report.count("records", 2)
    report.count("records")
    document = {**report.as_dict(), "thresholds": {}, "environment": {}}
    assert list(schemas.errors("report", document)) == []
    assert document["not_checked"] == [{"what": "pixels", "why": "level quick"}]
    assert document["checked"] == {"records": 3}
    assert list(schemas.errors("report", {**document, "status": 7})) != []


def test_the_catalogue_has_the_codes_that_the_code_base_reports_and_no_others() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (PROJECT / "prep").rglob("*.py")]
    reported = {code for text in sources for code in re.findall(r'"([A-Z]{3}\d{3})"', text)}
    by_reason = {code for code, entry in catalogue().items() if entry.reasons}
    assert reported
    assert reported | by_reason == catalogue().keys()


@pytest.mark.parametrize("code", catalogue())
def test_every_entry_reads_as_a_title_two_sentences_and_no_more(code: str) -> None:
    entry = catalogue()[code]
    assert re.fullmatch(r"[A-Z]{3}\d{3}", code)
    assert entry.severity in ("error", "warning")
    assert entry.claim in ("defect", "risk")
    assert len(entry.title) <= 70
    assert not entry.title.endswith(".")
    assert entry.why.endswith(".")
    assert entry.remedy.endswith(".")
    assert "  " not in entry.why + entry.remedy


def test_codes_of_a_family_stand_together_in_order() -> None:
    codes = list(catalogue())
    families = list(dict.fromkeys(code[:3] for code in codes))
    assert codes == [code for family in families for code in sorted(codes) if code.startswith(family)]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_an_explanation_keeps_to_its_width_and_loses_no_word(width: int) -> None:
    for code, entry in catalogue().items():
        text = explain(code.lower(), width=width)
        assert max(map(len, text.splitlines())) <= width
        for part in (entry.title, entry.why, entry.remedy):
            assert " ".join(part.split()) in " ".join(text.split())


@pytest.mark.parametrize(("given", "meant"), [("VID3", "VID003"), ("vid-3", "VID003"), ("FIL0005", "FIL005")])
def test_an_unknown_code_is_refused_with_the_near_one(given: str, meant: str) -> None:
    with pytest.raises(UsageError) as error:
        explain(given)
    assert meant in error.value.remedy


def test_the_letters_of_a_family_list_its_codes() -> None:
    lines = explain("lay").splitlines()
    assert [line.split()[0] for line in lines] == [code for code in catalogue() if code.startswith("LAY")]
    assert lines


def test_the_list_has_a_line_for_each_code() -> None:
    assert [line.split()[0] for line in listing().splitlines()] == list(catalogue())


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("http_404", "FET001"),
        ("http_403", "FET001"),
        ("http_429", "FET002"),
        ("http_503", "FET002"),
        ("stalled", "FET002"),
        ("not_media", "FET003"),
        ("wrong_bytes", "FET004"),
        ("bad_bytes", "TAB002"),
        ("not_an_integer", "TAB006"),
        ("no_answer", "TAB005"),
    ],
)
def test_the_reason_of_a_failed_row_is_explained(reason: str, code: str) -> None:
    assert explain(reason).startswith(code)
