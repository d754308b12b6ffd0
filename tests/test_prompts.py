"""Where a prompt comes from: a literal of upstream, our words, a file, a column, the recipe."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from prep.errors import EnvironmentLacksError, PrepError, UsageError
from prep.prompts import expected_prompt, resolve_prompt
from prep.upstream.checkout import load_lock, local_copy

TEXT = "How plausible is it?\nAnswer “1” to 5."
RULE = {
    "upstream_file": "cosmos_framework/scripts/prepare.py",
    "upstream_constant": "PROMPT_TEMPLATE",
    "sha256": hashlib.sha256(TEXT.encode()).hexdigest(),
    "builtin": "\nOur own words.\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose file would fail if it were run."""
    path = tmp_path / "checkout" / RULE["upstream_file"]
    path.parent.mkdir(parents=True)
    path.write_text(f"raise SystemExit\nPROMPT_TEMPLATE: str = {TEXT!r}\n", encoding="utf-8")
    return tmp_path / "checkout"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_upstreams_text_is_read_from_a_checkout_without_running_it(checkout: Path) -> None:
    prompt = resolve_prompt(RULE, "auto", upstream=checkout)
    assert (prompt.text, prompt.sha256, prompt.origin) == (TEXT, RULE["sha256"], "upstream")


def test_what_the_manifest_keeps_names_no_place_on_this_machine(checkout: Path) -> None:
    facts = resolve_prompt(RULE, "auto", upstream=checkout).facts()
    assert facts == {"origin": "upstream", "characters": len(TEXT), "sha256": RULE["sha256"]}


def test_our_own_words_end_with_one_line_break() -> None:
    assert resolve_prompt(RULE, "builtin").text == "Our own words.\n"


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"  Why?\n\n")
    prompt = resolve_prompt(RULE, str(tmp_path / "prompt.txt"))
    assert (prompt.text, prompt.origin) == ("  Why?\n\n", "file")


@pytest.mark.parametrize(
    ("rule", "text", "column"), [({"text": "Why?"}, "Why?", None), ({"column": "question"}, "", "question")]
)
def test_a_recipe_may_hold_the_text_or_name_a_column(
    rule: dict[str, Any], text: str, column: str | None
) -> None:
    prompt = resolve_prompt(rule, "auto")
    assert (prompt.text, prompt.column) == (text, column)


def test_a_file_goes_before_the_recipes_own_text(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Mine.")
    assert resolve_prompt({"text": "Why?"}, str(tmp_path / "prompt.txt")).text == "Mine."


def test_a_prompt_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no prompt file 'bultin'"):
        resolve_prompt(RULE, "bultin")
    with pytest.raises(UsageError):
        resolve_prompt(RULE, str(tmp_path))
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(UsageError):
        resolve_prompt(RULE, str(tmp_path / "latin"))


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        resolve_prompt(RULE, "auto", upstream=tmp_path)
    assert "checkout" in error.value.remedy


def test_a_checkout_without_the_constant_is_refused(checkout: Path) -> None:
    (checkout / RULE["upstream_file"]).write_text("OTHER = 'x'\n")
    with pytest.raises(PrepError, match="PROMPT_TEMPLATE"):
        resolve_prompt(RULE, "auto", upstream=checkout)


def locked_rule() -> dict[str, str]:
    lock = load_lock()
    if local_copy(lock, lock.files[0].path) is not None:
        pytest.skip("upstream's file is on this machine")
    return {**RULE, "upstream_file": lock.files[0].path}


def test_what_cannot_be_had_offline_names_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rule = locked_rule()
    with pytest.raises(EnvironmentLacksError) as error:
        resolve_prompt(rule, "auto", offline=True)
    for way in ("--prompt builtin", "--prompt FILE", "--upstream DIR", "prep vendor sync --from https://"):
        assert way in error.value.remedy


def test_a_finished_dataset_is_compared_without_the_text(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert expected_prompt(locked_rule(), "auto") == RULE["sha256"]
    assert expected_prompt(RULE, "auto", checkout) == RULE["sha256"]
    assert expected_prompt(RULE, "builtin") == sha256("Our own words.\n")
    assert expected_prompt({"column": "question"}, "auto") == "column:question"
