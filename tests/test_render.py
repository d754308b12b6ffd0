"""The three forms of a report."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from prep import schemas
from prep.findings import Report, found
from prep.render import WIDTH, render_json, render_junit, render_text
from prep.validation import validate
from tests.commands import prep, told
from tests.trees import make_tree


@pytest.fixture
def report() -> Report:
    made = Report(subject="data/val", level="quick", accepted={"FIL017": "meant"})
    for number in range(30):
        made.add(found("FIL005", f"media/{number}.mp4", "there is no such file"))
    made.add(found("TXT003", "meta.json", "Expecting value", place="line 3, column 5"))
    made.add(found("FIL006", "a\x1b[31m\x00\udc80\u202e.mp4", "no record names it"))
    made.add(found("FIL017", "media/1.mp4", "2 records name it"))
    made.skip("pixels", "level quick")
    made.count("records", 40)
    return made


def test_text_names_codes_places_and_the_verdict(report: Report) -> None:
    text = render_text(report)
    assert "ERROR FIL005 File missing (30 times)\n  media/0.mp4: there is no such file\n" in text
    assert "  … and 25 more\n" in text
    assert "meta.json:line 3, column 5: Expecting value" in text
    assert "WARNING FIL006" in text
    assert "FIL017 1 time: meant" in text
    assert "pixels (level quick)" in text
    assert text.endswith("31 errors, 1 warning in data/val\n")
    assert text.count("Run `prep adopt DIR` to fetch what is missing") == 1


def test_text_is_bounded_and_free_of_control_characters(report: Report) -> None:
    report.add(found("TXT005", "meta.json", "word " * 400))
    text = render_text(report)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(letter == "\n" or letter.isprintable() for letter in text)
    text.encode("utf-8")


def test_one_of_a_kind_is_counted_in_the_singular() -> None:
    report = Report("data/val")
    for what, number in (
        ("files hashed", 1),
        ("frame tables", 1),
        ("records", 2),
        ("videos", 0),
        ("window indices", 1),
    ):
        report.count(what, number)
    assert "Checked: 1 file hashed, 1 frame table, 2 records, 1 window index\n" in render_text(report)


def test_text_of_a_clean_report(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val", 1, manifest=True)
    assert render_text(validate(tree, level="quick")).splitlines()[-1] == f"0 errors, 0 warnings in {tree}"


def test_json_obeys_its_schema(report: Report, tmp_path: Path) -> None:
    made = validate(make_tree(tmp_path / "val", 2), level="standard")
    for each in (report, made):
        document = json.loads(render_json(each))
        assert list(schemas.errors("report", document)) == []
    assert json.loads(render_json(made))["thresholds"]["common_text_share"] == 0.2
    assert render_json(report).isascii()


def test_junit_has_a_case_for_each_code(report: Report) -> None:
    suite = ET.fromstring(render_junit(report))
    names = [case.get("name", "") for case in suite]
    assert [name[:6] for name in names] == ["FIL005", "TXT003", "FIL006", "not ch"]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "2", "1")
    failure = suite[0].find("failure")
    assert failure is not None
    assert (failure.text or "").count("\n") == 19
    assert r"a\x1b[31m\x00\udc80\u202e.mp4" in (suite[2].findtext("system-out") or "")


def test_junit_of_a_clean_report_has_a_case_that_passes(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "val", 1, manifest=True)
    suite = ET.fromstring(render_junit(validate(tree, level="deep")))
    assert [(case.get("name"), len(case)) for case in suite] == [("no findings", 0)]


def test_the_audit_names_its_own_option_and_counts_in_the_singular(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 3, manifest=True)
    refused = told(prep("audit-loader", tree, "--ranks", "2", "--on-uneven", "error"), 2)
    assert "Use --on-uneven pad or drop, or" in refused
    assert "on_uneven" not in refused
    text = prep("audit-loader", tree, "--ranks", "1", "--workers", "1", "--resume-points", "1").stderr
    assert "1 (1 rank, 1 worker each)" in text
