"""The JSON Schemas of the project, compiled once; a broken document becomes findings."""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prep.findings import Finding, found
from prep.resources import data_folder

if TYPE_CHECKING:
    import jsonschema_rs

__all__ = ["broken", "errors", "is_valid", "schema"]

_SHOWN = 120


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """The schema `schemas/<name>.schema.json` as a dictionary."""
    path = data_folder("schemas") / f"{name}.schema.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


@functools.cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(schema(name))


def is_valid(name: str, document: object) -> bool:
    """Whether `document` obeys the schema; the quick way when it mostly does."""
    return bool(_validator(name).is_valid(document))


def errors(name: str, document: object) -> Iterator[tuple[str, str]]:
    """For each breach of the schema: the JSON pointer, and what was expected and found."""
    for error in _validator(name).iter_errors(document):
        pointer = "/" + "/".join(str(part) for part in error.instance_path)
        if (lacks := _alternatives(error)) is not None:
            yield pointer, _shortened(lacks)
            continue
        found_here = json.dumps(error.instance)
        is_told = found_here in error.message or isinstance(error.instance, dict | list)
        yield pointer, _shortened(error.message if is_told else f"{error.message}; found {found_here}")


def _alternatives(error: jsonschema_rs.ValidationError) -> str | None:
    """What an object lacks that has the keys of none of several forms; None for any other breach.

    A key that is spelt nearly as a missing one is told, and then that one alone.
    """
    if error.kind.name not in ("oneOf", "anyOf") or not isinstance(error.instance, dict):
        return None
    forms = [
        [each.kind.property for each in form if each.kind.name == "required"]
        for form in getattr(error.kind, "context", ())
    ]
    if not forms or not all(forms):
        return None
    for key in (key for form in forms for key in form):
        if near := difflib.get_close_matches(key, map(str, error.instance), n=1, cutoff=0.8):
            return f"no {key} (it has {near[0]!r})"
    has = ", ".join(map(repr, error.instance)) or "no keys"
    return f"{', and '.join('no ' + ' or '.join(form) for form in forms)} (it has {has})"


def broken(name: str, document: object, path: str, *, code: str = "TXT005", place: str = "") -> list[Finding]:
    """The breaches as findings of `code`; `place` (such as an entry) goes before the pointer."""
    if is_valid(name, document):
        return []
    # The pointer to the whole document adds nothing to that of an entry.
    return [
        found(
            code,
            path,
            f"{message} (schema {name})",
            place=place if pointer == "/" and place.startswith("/") else f"{place}{pointer}",
        )
        for pointer, message in errors(name, document)
    ]


def _shortened(message: str) -> str:
    return message if len(message) <= 2 * _SHOWN else f"{message[:_SHOWN]} … {message[-_SHOWN:]}"
