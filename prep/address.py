"""Where a file named by a URL in a source is to be fetched from.

URLs in sources are text that people typed: they hold spaces, commas and letters of any script.
httpx encodes what must be encoded and keeps `%XX` as it is. What is left to do here: a `%` that
stands alone, which servers refuse, and a check that there is a host to ask at all. A mirror
rewrites the start of a URL and may lead to a local folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from prep.errors import FetchError

__all__ = ["Address", "resolve_url"]

_LONE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Address:
    """`url` is what messages name; `path` is set where a mirror leads to a local file."""

    url: str
    path: Path | None = None


def resolve_url(text: str, mirrors: Sequence[tuple[str, str]] = ()) -> Address:
    """Apply the first mirror whose start matches, and check the result.

    Raises `FetchError` ("bad_url", permanent) for no or another scheme than http and https, no
    host, a bad port, or control characters. `file://` is taken from a mirror only, never from data.
    """
    stripped = text.strip()
    for start, target in mirrors:
        if stripped.startswith(start):
            rest = stripped[len(start) :]
            if target.startswith("file://"):
                _check(text, _local_fault(rest))
                return Address(target + rest, _local(target + rest))
            stripped = target + rest
            break
    _check(text, _fault(stripped))
    path, question, query = stripped.partition("?")
    return Address(_LONE_PERCENT.sub("%25", path) + question + query)


def _check(text: str, fault: str | None) -> None:
    if fault:
        message = f"{text!r} is no URL to fetch: {fault}; expected http:// or https://, a host and a path."
        raise FetchError("bad_url", message, transient=False)


def _local_fault(rest: str) -> str | None:
    """Data may name files below a mirror's folder, and no others."""
    decoded = unquote(rest)
    if ".." in decoded.split("/"):
        return "it leaves the mirror's folder"
    return "it holds a zero byte" if "\0" in decoded else None


def _fault(url: str) -> str | None:
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in url):
        return "it holds a control character"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return str(error)
    if not parts.scheme or "://" not in url:
        return "it has no scheme"
    if parts.scheme.lower() not in ("http", "https"):
        return f"its scheme is {parts.scheme!r}"
    if not parts.hostname:
        return "it names no host"
    return f"its host is {parts.hostname!r}" if " " in parts.hostname else None


def _local(url: str) -> Path:
    """The file that a file:// URL means: percent-decoded, unless only the literal name exists."""
    name = url.removeprefix("file://").removeprefix("localhost")
    decoded, literal = Path(unquote(name)), Path(name)
    # `os.access` is False, not an error, below a folder that may not be entered.
    return literal if os.access(literal, os.F_OK) and not os.access(decoded, os.F_OK) else decoded
