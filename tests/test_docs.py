"""The documentation: generated pages are current, commands in it exist, links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from prep.findings import catalogue, explain
from tests.commands import PROJECT, check_line, leaves, prep_lines

PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(PROJECT)) for page in PAGES]
GENERATED: dict[str, str] = runpy.run_path(str(PROJECT / "docs" / "generate.py"))["pages"]()


@pytest.mark.parametrize("name", GENERATED)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    page = PROJECT / "docs" / "reference" / name
    assert page.read_text(encoding="utf-8") == GENERATED[name], "run `make docs`"


def test_every_command_and_every_code_has_its_section() -> None:
    for name, _ in leaves():
        assert f"\n## prep {name}\n" in GENERATED["cli.md"]
    for code in catalogue():
        assert f"\n### {code} " in GENERATED["findings.md"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_command_line_parses(page: Path) -> None:
    for line in prep_lines(page.read_text(encoding="utf-8")):
        check_line(line)


def test_commands_are_found_wherever_they_stand_in_a_page() -> None:
    text = """\
Run `prep doctor` first.

    prep validate data/   # all
    $ prep env x > y

    eval "$(prep env data/)"
    prep: an error
prep turns
"""
    assert prep_lines(text) == ["prep doctor", "prep validate data/   # all", "prep env x", "prep env data/"]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_to_a_file_and_its_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", linked.read_text(encoding="utf-8"))
            assert anchor in [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_names_a_place_of_the_machine_it_was_written_on(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/(work|root|home)/|/tmp/(?!prep-)", text)


def test_the_readme_leads_to_every_page() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    for page in (PROJECT / "docs").rglob("*.md"):
        assert f"({page.relative_to(PROJECT)})" in text


def test_codes_and_explanations_in_the_pages_are_those_of_the_catalogue() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"\b[A-Z]{3}\d{3}\b", text)) <= catalogue().keys()
    shown = (PROJECT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").replace("\n    ", "\n")
    assert explain("VID003") in shown
