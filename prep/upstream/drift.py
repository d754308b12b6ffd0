"""What another commit of upstream has otherwise, among the locked files and in their folders."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from prep.errors import UsageError
from prep.upstream.checkout import Lock, git, load_lock

__all__ = ["Drift", "drift"]


@dataclass(frozen=True, slots=True)
class Drift:
    """Paths, sorted: locked files that differ or are gone, and files that are new beside locked ones."""

    commit: str
    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """One line a path, then the counts."""
        kinds = {"changed": self.changed, "added": self.added, "removed": self.removed}
        for kind, paths in kinds.items():
            yield from (f"{kind:<8} {path}" for path in paths)
        counts = ", ".join(f"{len(paths)} {kind}" for kind, paths in kinds.items())
        yield f"{self.commit}: {counts} (added: new files beside locked ones)"


def drift(revision: str, source: str | None = None) -> Drift:
    """Compare the locked commit with `revision` (a commit, branch or tag) of a git repository.

    `source` is a git address, a checkout with its `.git`, or a bare repository; the lock's address if
    it is None. Raises UsageError if it lacks one of the two commits, EnvironmentLacksError without git.
    """
    lock = load_lock()
    with _repository(source or lock.repository, lock, revision) as (folder, asked):
        commit = _commit(folder, asked, revision)
        before, after = _blobs(folder, lock.commit), _blobs(folder, commit)
    locked = {entry.path for entry in lock.files}
    beside = {str(PurePosixPath(path).parent) for path in locked}
    return Drift(
        commit,
        changed=tuple(sorted(path for path in locked & after.keys() if after[path] != before.get(path))),
        added=tuple(
            sorted(path for path in after.keys() - before.keys() if str(PurePosixPath(path).parent) in beside)
        ),
        removed=tuple(sorted(locked - after.keys())),
    )


def _commit(folder: str, asked: str, revision: str) -> str:
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", f"{asked}^{{commit}}").decode().strip()
    except UsageError as error:
        raise UsageError(
            f"{folder} has no commit, branch or tag {revision!r}.", remedy="Fetch it, or name another."
        ) from error


@contextmanager
def _repository(source: str, lock: Lock, revision: str) -> Iterator[tuple[str, str]]:
    """A folder that has both commits, and the name of the other one in it."""
    if revision.startswith("-"):
        raise UsageError(f"{revision!r} is no revision.", remedy="Give a commit, a branch or a tag.")
    if Path(source).exists():
        yield source, revision
        return
    with tempfile.TemporaryDirectory() as temporary:
        git(temporary, "init", "--quiet", "--bare")
        fetch = ("fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "--", source)
        git(temporary, *fetch, lock.commit)
        git(temporary, *fetch, revision)
        yield temporary, "FETCH_HEAD"


def _blobs(folder: str, commit: str) -> dict[str, str]:
    """The git object of each file of a commit, by path."""
    listing = git(folder, "ls-tree", "-r", "-z", "--full-tree", commit).decode("utf-8", "surrogateescape")
    rows = (entry.partition("\t") for entry in listing.split("\0") if entry)
    return {path: facts.split()[2] for facts, _, path in rows}
