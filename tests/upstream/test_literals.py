"""Strings read from a module's source without running it."""

from __future__ import annotations

import pytest

from prep.errors import PrepError
from prep.upstream.literals import string_constant


@pytest.mark.parametrize(
    "source",
    [
        'TEXT = "one"',
        'TEXT: str = "one"',
        'OTHER = TEXT = "one"',
        'import nowhere\nTEXT = "o" "ne"',
        'raise SystemExit(1)\nTEXT = """one"""',
        '# coding: latin-1\nTEXT = "one"\nOTHER = "\xe9"',
    ],
)
def test_a_string_at_the_top_level_is_read(source: str) -> None:
    assert string_constant(source.encode("latin-1"), "TEXT", "here") == "one"


def test_letters_and_escapes_are_those_that_python_would_read() -> None:
    source = 'TEXT = """\\\n“Würde” \\u00e9\\n\ttab"""\n'
    assert string_constant(source.encode(), "TEXT", "here") == "“Würde” é\n\ttab"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "TEXT = 1",
        'TEXT = f"one {2}"',
        'TEXT = "one".upper()',
        'def f():\n    TEXT = "one"',
        'class A:\n    TEXT = "one"',
        'TEXT += "one"',
        "TEXT: str",
    ],
)
def test_what_is_no_literal_of_the_top_level_is_refused(source: str) -> None:
    with pytest.raises(PrepError, match="here: has no string constant TEXT"):
        string_constant(source.encode(), "TEXT", "here")


@pytest.mark.parametrize("source", [b"TEXT = (", b"\xff\xfe", b"TEXT = '\0'"])
def test_what_is_no_python_is_refused(source: bytes) -> None:
    with pytest.raises(PrepError, match="not a Python file"):
        string_constant(source, "TEXT", "here")
