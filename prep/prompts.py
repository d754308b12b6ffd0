"""The prompt of a recipe: upstream's own text, our words, a file, or a column of the table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep.errors import EnvironmentLacksError, UsageError
from prep.upstream.checkout import installed_root, load_lock, locked_bytes
from prep.upstream.literals import string_constant

__all__ = ["Prompt", "expected_prompt", "resolve_prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text and where it is from; `column` names the table's column instead of a text."""

    origin: str
    text: str = ""
    column: str | None = None
    sha256: str | None = None

    def facts(self) -> dict[str, Any]:
        """What the manifest keeps: never where on this machine the text lay."""
        if self.column is not None:
            return {"origin": self.origin, "column": self.column}
        return {"origin": self.origin, "characters": len(self.text), "sha256": self.sha256}


def _prompt(origin: str, text: str) -> Prompt:
    return Prompt(origin, text, sha256=hashlib.sha256(text.encode()).hexdigest())


def resolve_prompt(
    rule: Mapping[str, Any], choice: str, *, upstream: Path | None = None, offline: bool = False
) -> Prompt:
    """The prompt that a recipe's rule and the user's choice (`auto`, `builtin` or a file) give.

    Raises EnvironmentLacksError if upstream's text cannot be had, UsageError for a wrong choice.
    """
    if choice == "builtin" and "builtin" in rule:
        return _prompt("builtin", rule["builtin"].strip() + "\n")
    if not choice:
        raise UsageError("--prompt is empty.", remedy="Give `auto`, `builtin` or the path of a text file.")
    if choice not in ("auto", "builtin"):
        return _prompt("file", _read(Path(choice)))
    if "column" in rule:
        return Prompt("column", column=rule["column"])
    if "text" in rule:
        return _prompt("recipe", rule["text"])
    return _from_upstream(rule, upstream, offline)


def expected_prompt(rule: Mapping[str, Any], choice: str, upstream: Path | None = None) -> str:
    """The sha256 of the prompt that a run would use, or `column:NAME`; asks no network.

    The locked file can only be the one whose figures the recipe states.
    """
    try:
        prompt = resolve_prompt(rule, choice, upstream=upstream, offline=True)
    except EnvironmentLacksError:
        return str(rule["sha256"])
    return prompt.sha256 or f"column:{prompt.column}"


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(
            f"There is no prompt file {str(path)!r}.",
            remedy="Give `auto`, `builtin` or the path of a text file.",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"The prompt file {path} cannot be read: {reason}.", remedy="Give a text file in UTF-8."
        ) from error
    if not text.strip():
        raise UsageError(f"The prompt file {path} is empty.", remedy="Write the question into it.")
    return text


def _from_upstream(rule: Mapping[str, Any], upstream: Path | None, offline: bool) -> Prompt:
    path = rule["upstream_file"]
    if upstream is not None:
        return _literal(rule, _checkout_bytes(upstream, path), str(upstream))
    installed = installed_root()
    if installed is not None and (installed / path).is_file():
        return _literal(rule, (installed / path).read_bytes(), "the installed cosmos_framework")
    try:
        data, origin = locked_bytes(path, offline=offline)
    except EnvironmentLacksError as error:
        url = load_lock().repository
        raise EnvironmentLacksError(
            f"Upstream's prompt is not to be had here. {error.message}",
            remedy="Take `--prompt builtin` (our own words) or `--prompt FILE`, give `--upstream DIR`, "
            f"or run `prep vendor sync --from {url}` on a connected machine.",
        ) from error
    return _literal(rule, data, origin)


def _checkout_bytes(upstream: Path, path: str) -> bytes:
    try:
        return (upstream / path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{upstream / path}: {error.strerror}.", remedy="Give the top folder of a checkout of upstream."
        ) from error


def _literal(rule: Mapping[str, Any], source: bytes, origin: str) -> Prompt:
    return _prompt("upstream", string_constant(source, rule["upstream_constant"], origin))
