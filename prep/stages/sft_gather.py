"""The files of an SFT run are brought into its own folder: linked, or fetched, each after a look at it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from prep.errors import FetchError
from prep.files import disk_errors, sha256_of, size_of, sync_folder
from prep.pool import map_threads
from prep.progress import progress
from prep.stages import payload
from prep.stages.sft_captions import probed
from prep.stages.sft_plan import Plan
from prep.stages.sft_publish import is_payload
from prep.stages.sft_reuse import Shared, guard
from prep.stages.sft_run import Run
from prep.workspace import Content, Workspace

__all__ = ["Gathered", "gather"]


@dataclass(slots=True)
class Gathered:
    """What came: so many files and bytes; and the failures that a rerun may mend."""

    files: int = 0
    bytes: int = 0
    transient: list[FetchError] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Bringing:
    """How one file is brought, by its name in the source."""

    plan: Plan
    workspace: Workspace
    shared: Shared
    videos: Collection[str]
    views: Collection[str]

    def one(self, name: str) -> int | FetchError | None:
        """The size in bytes of what was brought, None for what another dataset had, or why it was not."""
        if self.workspace.lock.lost.is_set():
            self.workspace.lock.check()
        try:
            if name in self.views:
                return self.plan.locate(name).stat().st_size
            if self.shared.link(self.workspace, name):
                return None
            return self._brought(name)
        except FetchError as error:
            return error

    def _brought(self, name: str) -> int:
        path = self.plan.locate(name)
        if name in self.videos:
            header = probed(path)
            if isinstance(header, str):
                raise FetchError("broken_media", f"{name}: {header}", transient=False)
        try:
            sha256, size = sha256_of(path), path.stat().st_size
        except OSError as error:
            raise FetchError("unreadable", f"{name}: {error.strerror}", transient=True) from error
        target = self.workspace.stored(sha256)
        with guard(sha256), disk_errors(target):
            if not target.exists():
                payload.bring(self.shared.path(sha256) or path, target)
            self.workspace.ledger.fetched(name, Content(sha256, size), target)
        return size


def gather(run: Run, plan: Plan, workspace: Workspace, shared: Shared) -> Gathered:
    """Bring each file that is not there into the run's folder; drop the clips whose video cannot be had."""
    videos = dict.fromkeys(clip.source for clip in plan.kept() if clip.media)
    # Prompts are views, read when they are written; of a far source they must be had by then.
    views = {name for path, name in plan.extras.items() if plan.is_far and not is_payload(path)}
    wanted = [*_missing(run, plan, workspace, videos), *sorted(views)]
    need = _bytes_needed(plan, workspace, [name for name in wanted if name not in shared.digests])
    payload.check_space(run.root, need, 2 * len(wanted) + 8)
    bringing = _Bringing(plan, workspace, shared, videos, views)
    gathered, failures = Gathered(), dict[str, FetchError]()
    with progress(run.root.name, len(wanted), quiet=run.options.quiet) as bar:
        for name, outcome in map_threads(
            bringing.one, wanted, jobs=run.options.jobs, cancel=run.options.cancel
        ):
            bar.advance()
            if isinstance(outcome, FetchError):
                failures[name] = outcome
            elif outcome is not None:
                bar.received(outcome)
                gathered.files, gathered.bytes = gathered.files + 1, gathered.bytes + outcome
    with disk_errors(workspace.incoming):
        sync_folder(workspace.incoming)
        workspace.ledger.sync()
    gathered.transient = _drop_lost(run, plan, failures)
    return gathered


def _bytes_needed(plan: Plan, workspace: Workspace, names: Sequence[str]) -> int:
    """The bytes that these files will take here: what another device holds is copied, the rest linked."""
    if plan.is_far:
        return sum(plan.sizes.get(name, 0) for name in names)
    device, need = workspace.root.stat().st_dev, 0
    for name in names:
        try:
            state = plan.locate(name).stat()
        except (FetchError, OSError):
            continue  # told with its reason when it is brought
        need += state.st_size if state.st_dev != device else 0
    return need


def _missing(run: Run, plan: Plan, workspace: Workspace, videos: Mapping[str, None]) -> list[str]:
    """The payload that is not on this disk yet, by its names in the source."""
    store = payload.Store.look(workspace, is_payload)
    there, known = store.contents(), workspace.ledger.sources
    if run.is_in_place:
        known.update(
            {name: Content(sha, size_of(run.root / name) or 0) for name, sha in store.placed.items()}
        )
    others = dict.fromkeys(name for path, name in plan.extras.items() if is_payload(path))
    return [name for name in {**videos, **others} if name not in known or known[name].sha256 not in there]


def _drop_lost(run: Run, plan: Plan, failures: Mapping[str, FetchError]) -> list[FetchError]:
    """Drop the clips and other files that are lost for good; the failures that a rerun may mend."""
    final = {name: error for name, error in failures.items() if not error.transient or run.options.give_up}
    plan.fail(final)
    plan.extras = {path: name for path, name in plan.extras.items() if name not in final}
    return [error for name, error in failures.items() if name not in final]
