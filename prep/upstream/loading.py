"""Upstream's package made importable: an installed copy wins, and the report says which one was loaded."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from prep.errors import EnvironmentLacksError, PrepError
from prep.log import logger
from prep.upstream.checkout import Lock, complete_root, installed_root, load_lock, verify

__all__ = ["Upstream", "import_upstream", "locate_upstream", "upstream_errors"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """The copy of upstream's package that is read: where it lies, and how it stands to the lock.

    `differing` are the locked files that an installed copy has otherwise or not at all; a vendored
    copy has none, since it is refused.
    """

    root: Path
    is_installed: bool
    commit: str
    differing: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Which copy this is, in one line."""
        if not self.is_installed:
            return f"the vendored copy of {self.commit[:12]} in {self.root}"
        if not self.differing:
            return f"the installed copy in {self.root}, its files those of {self.commit[:12]}"
        count = len(self.differing)
        return (
            f"the installed copy in {self.root}; {count} of the locked files differ, as {self.differing[0]}"
        )

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {
            "loaded": self.text,
            "installed": self.is_installed,
            "commit": self.commit,
            "differing": list(self.differing),
        }


def locate_upstream() -> Upstream:
    """Find the copy to read, and append its folder to `sys.path` unless it is installed.

    Every locked file of a vendored copy is hashed first: PrepError names one that differs. Raises
    EnvironmentLacksError if upstream is neither installed nor vendored.
    """
    lock = load_lock()
    installed = installed_root()
    if installed is not None:
        return Upstream(installed, True, lock.commit, tuple(_differing(lock, installed)))
    verify()
    root = complete_root(lock)
    if root is None:
        raise EnvironmentLacksError(
            "The files of upstream do not lie in one folder.",
            remedy=f"Run `prep vendor sync --from {lock.repository}`.",
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
        importlib.invalidate_caches()
    return Upstream(root, False, lock.commit)


def _differing(lock: Lock, root: Path) -> Iterator[str]:
    for entry in lock.files:
        path = root / entry.path
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
            yield entry.path


@contextlib.contextmanager
def upstream_errors(doing: str) -> Iterator[None]:
    """What code of others raises of data that it cannot read, as PrepError."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError, OSError, LookupError) as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise PrepError(
            f"The reference could not {doing}: {said}.", remedy="`prep validate` says what is wrong."
        ) from error


@contextlib.contextmanager
def _warnings_only() -> Iterator[None]:
    """Upstream reads its level from the environment once, when its log is imported."""
    given = os.environ.get("LOGURU_LEVEL")
    os.environ.setdefault("LOGURU_LEVEL", "WARNING")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop("LOGURU_LEVEL", None)


def import_upstream(name: str) -> tuple[ModuleType, Upstream]:
    """Import a module of upstream; raises EnvironmentLacksError if something that it imports is missing.

    Upstream logs to stdout from its import on: stderr is given to it instead, and only warnings, so
    that what machines read stays clean.
    """
    upstream = locate_upstream()
    logger.info("upstream is {}", upstream.text)
    with contextlib.redirect_stdout(sys.stderr), _warnings_only():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise EnvironmentLacksError(
                f"Upstream's {name} cannot be imported: {error}.",
                remedy=f"Install {error.name}." if error.name else "Install what it imports.",
            ) from error
    loaded = Path(str(module.__file__)).resolve()
    if not loaded.is_relative_to(upstream.root.resolve()):
        raise PrepError(
            f"{name} was already loaded from {loaded}, not from {upstream.root}.",
            remedy="Run the comparison in a process of its own.",
        )
    return module, upstream
