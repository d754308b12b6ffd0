"""Adopting a tree that another tool made: what passes is kept, the rest is fetched.

A clip is taken for that of its row if it stands under the row's name, its container is
whole, and its size is the one that the server states now, where the server can be asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from prep.container import check_structure
from prep.errors import FetchError, PrepError, WouldChangeError
from prep.files import disk_errors, sha256_of
from prep.findings import Finding, found
from prep.layouts.disk import is_leftover
from prep.manifest import Manifest
from prep.pool import map_threads
from prep.progress import counted, progress
from prep.stages import payload
from prep.stages.conversations_run import Reading, Run
from prep.stages.conversations_views import changed_views
from prep.workspace import Content, Ledger

__all__ = ["Adoption"]

_PATIENCE = 32
"""Failures in a row after which a host is not asked for sizes any more: each may cost a time-out."""


@dataclass(slots=True)
class Adoption:
    """One adoption; call it with the reading, then read what it found.

    `kept` counts clips, `unverified` those whose size no server could confirm, `broken` the
    clips that will be fetched again, `leftovers` what another tool left behind, `changed` the
    conversation files that hold another text, `unnamed` what belongs to no row; all by path.
    """

    kept: int = 0
    unverified: int = 0
    broken: list[Finding] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def __call__(self, reading: Reading, ledger: Ledger | None) -> set[str]:
        """Tell the ledger which clips of the tree are good; their sources. Without a ledger, only look."""
        self._compare(reading)
        self._find_leftovers(reading.run)
        with _Sizes(reading) as size_of:
            good = self._judge_all(reading, ledger, size_of)
        if ledger is not None:
            ledger.sync()
        return good

    def _compare(self, reading: Reading) -> None:
        """Look for what adopting would rewrite or take away; raises WouldChangeError if that is not asked."""
        run = reading.run
        self.changed = changed_views(reading)
        self.unnamed = list(_unnamed(reading))
        if run.options.update or run.options.dry_run:
            return
        if self.changed:
            raise WouldChangeError(
                f"{run.root} holds another text than the recipe gives in "
                f"{counted(len(self.changed), 'conversation file')}, the first {self.changed[0]}.",
                remedy="Give the options it was made with (--score-field, --include-caption, --prompt), "
                "or --update to write the recipe's text.",
            )
        if self.unnamed:
            raise WouldChangeError(
                f"{run.root} holds {counted(len(self.unnamed), 'file')} of no row that is read, "
                f"the first {self.unnamed[0]}.",
                remedy="Give the --source and --limit it was made with, or --update to take them out.",
            )

    def _find_leftovers(self, run: Run) -> None:
        for relative in payload.walk_files(run.root):
            if is_leftover(relative.rpartition("/")[2]):
                self.leftovers.append(relative)

    def remove_leftovers(self, root: Path) -> None:
        """Delete what another tool left behind; for `--prune`, when the dataset is finished."""
        for relative in self.leftovers:
            with disk_errors(root / relative):
                (root / relative).unlink(missing_ok=True)

    def _judge_all(
        self, reading: Reading, ledger: Ledger | None, size_of: Callable[[str], int | None]
    ) -> set[str]:
        run, known = reading.run, _manifest_hashes(reading.run.root)
        sources = {row.number: row.source for row in reading.plan.rows if not row.reason}
        good: set[str] = set()

        def judge(number: int) -> tuple[Content | None, bool, list[Finding]]:
            relative = run.layout.media(number)
            return _judge(run.root, relative, known.get(relative), lambda: size_of(sources[number]))

        label = f"checking {run.split.directory}"
        with progress(label, len(sources), quiet=run.options.quiet) as bar:
            judged = map_threads(judge, list(sources), jobs=run.options.jobs, cancel=run.options.cancel)
            for number, (content, verified, findings) in judged:
                bar.advance()
                self.broken.extend(findings)
                if content is not None:
                    good.add(sources[number])
                    self.kept += 1
                    self.unverified += not verified
                    if ledger is not None:
                        ledger.fetched(sources[number], content, run.root / run.layout.media(number))
        self.broken.sort(key=lambda finding: finding.path)
        return good


def _unnamed(reading: Reading) -> Iterator[str]:
    """The clips and conversations in the tree that no row of the table has, kept or failed."""
    layout = reading.run.layout
    named = {
        path
        for row in reading.plan.rows
        for path in (layout.media(row.number), layout.conversation(row.number))
    }
    for relative in payload.walk_files(reading.run.root):
        if relative not in named and (layout.is_media(relative) or layout.is_conversation(relative)):
            yield relative


class _Sizes:
    """Asks servers for the size of a source; a context manager over one pool of connections."""

    def __init__(self, reading: Reading) -> None:
        options, local = reading.run.options, reading.source.local_media()
        self._address = reading.run.address(reading.source)
        self._offline = options.offline
        self._silent: Counter[str] = Counter()
        self._fetcher = payload.fetcher_for(options, local=local, attempts=1)

    def __enter__(self) -> Callable[[str], int | None]:
        return self._size

    def __exit__(self, *_: object) -> None:
        self._fetcher.close()

    def _size(self, source: str) -> int | None:
        host = urlsplit(source).netloc
        if self._offline or self._silent[host] >= _PATIENCE:
            return None
        try:
            size = self._fetcher.size(self._address(source))
        except FetchError as error:
            # The clip stays, counted as unverified.
            self._silent[host] += error.transient
            return None
        self._silent[host] = 0
        return size


def _judge(
    root: Path, relative: str, known: str | None, stated: Callable[[], int | None]
) -> tuple[Content | None, bool, list[Finding]]:
    path = root / relative
    if not path.exists() and not path.is_symlink():
        return None, False, []
    errors = [item for item in check_structure(path) if item.severity == "error"]
    if errors:
        return None, False, [found(item.code, relative, item.message) for item in errors]
    size = path.stat().st_size
    expected = stated() if known is None else None
    if expected is not None and expected != size:
        return None, False, [found("FIL003", relative, f"{size} bytes, the server states {expected}")]
    sha256 = sha256_of(path)
    if known is not None and sha256 != known:
        return None, False, [found("FIL004", relative, f"sha256 {sha256}, the manifest says {known}")]
    return Content(sha256, size), known is not None or expected is not None, []


def _manifest_hashes(root: Path) -> Mapping[str, str]:
    """What an earlier manifest says of each file; nothing if it has none that can be read."""
    try:
        manifest = Manifest.load(root)
        files = manifest.files() if manifest is not None else []
    except PrepError:
        return {}  # a broken manifest is the reason to adopt: the tree is judged without it
    return {row.path: row.sha256 for row in files if row.sha256 is not None}
