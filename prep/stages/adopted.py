"""Adopting a tree that another tool made: what passes is kept, the rest is fetched.

A clip is taken for that of its row if it stands under the row's name, its container is
whole, and its size is the one that the server states now, where the server can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prep.container import check_structure
from prep.errors import FetchError, PrepError, WouldChangeError
from prep.files import sha256_of
from prep.findings import Finding, found
from prep.manifest import Manifest
from prep.pool import map_threads
from prep.progress import progress
from prep.stages import payload
from prep.stages.conversations_run import Job
from prep.stages.conversations_views import changed_views
from prep.workspace import Content

__all__ = ["Adoption"]

_LEFTOVERS = (".part", ".partial", ".incomplete", ".tmp")
_LEFTOVER_NAMES = frozenset((".build_progress.json",))


@dataclass(slots=True)
class Adoption:
    """One adoption; call it with the job, then read what it found.

    `kept` counts clips, `unverified` those whose size no server could confirm, `broken` the
    clips that will be fetched again, by path.
    """

    kept: int = 0
    unverified: int = 0
    broken: list[Finding] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    def __call__(self, job: Job) -> None:
        """Tell the ledger of `job` which clips of its tree are good."""
        self._refuse_other_views(job)
        self._find_leftovers(job)
        with _Sizes(job) as size_of:
            self._judge_all(job, size_of)
        job.workspace.ledger.sync()

    def _refuse_other_views(self, job: Job) -> None:
        changed = changed_views(job)
        if changed and not job.run.options.update:
            raise WouldChangeError(
                f"{job.run.root}: {len(changed)} conversation files hold another text than the recipe gives, "
                f"the first {changed[0]}.",
                remedy="Give the options it was made with (--score-field, --include-caption, --prompt), "
                "or --update to write the recipe's text.",
            )

    def _find_leftovers(self, job: Job) -> None:
        for relative in payload.walk_files(job.run.root):
            name = Path(relative).name
            if name.endswith(_LEFTOVERS) or name in _LEFTOVER_NAMES:
                self.leftovers.append(relative)
                if job.run.options.prune:
                    (job.run.root / relative).unlink()

    def _judge_all(self, job: Job, size_of: Callable[[str], int | None]) -> None:
        known = _manifest_hashes(job)
        rows = [row for row in job.plan.rows if not row.reason]
        options = job.run.options

        def judge(number: int) -> tuple[Content | None, bool, list[Finding]]:
            relative = job.run.layout.media(number)
            source = sources[number]
            return _judge(job, relative, known.get(relative), lambda: size_of(source))

        sources = {row.number: row.source for row in rows}
        label = f"checking {job.run.split.directory}"
        with progress(label, len(rows), quiet=options.quiet) as bar:
            judged = map_threads(judge, list(sources), jobs=options.jobs, cancel=options.cancel)
            for number, (content, verified, findings) in judged:
                bar.advance()
                self.broken.extend(findings)
                if content is not None:
                    path = job.run.root / job.run.layout.media(number)
                    job.workspace.ledger.fetched(sources[number], content, path)
                    self.kept += 1
                    self.unverified += not verified


class _Sizes:
    """Asks servers for the size of a source; a context manager over one pool of connections."""

    def __init__(self, job: Job) -> None:
        self._address = job.run.address(job.source)
        self._offline = job.run.options.offline
        self._fetcher = payload.fetcher_for(
            job.run.options, job.run.options.jobs, local=job.source.local_media(), attempts=1
        )

    def __enter__(self) -> Callable[[str], int | None]:
        return self._size

    def __exit__(self, *_: object) -> None:
        self._fetcher.close()

    def _size(self, source: str) -> int | None:
        if self._offline:
            return None
        try:
            return self._fetcher.size(self._address(source))
        except FetchError:
            return None  # the clip stays, counted as unverified


def _judge(
    job: Job, relative: str, known: str | None, stated: Callable[[], int | None]
) -> tuple[Content | None, bool, list[Finding]]:
    path = job.run.root / relative
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


def _manifest_hashes(job: Job) -> Mapping[str, str]:
    """What an earlier manifest says of each file; nothing if it has none that can be read."""
    try:
        manifest = Manifest.load(job.run.root)
        files = manifest.files() if manifest is not None else []
    except PrepError:
        return {}  # a broken manifest is the reason to adopt: the tree is judged without it
    return {row.path: row.sha256 for row in files if row.sha256 is not None}
