"""Files of an SFT run that another prepared dataset has already: linked from there, not fetched again.

They are found by content alone: by the digests that the Hub lists, by those that the other manifest
states where both are of one commit, and for local sources by the digest of the source's own bytes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from prep.errors import UsageError
from prep.files import disk_errors, link_or_copy, sha256_of, size_of
from prep.manifest import Manifest
from prep.stages.payload import reused_manifest
from prep.stages.sft_plan import Plan
from prep.workspace import Content, Workspace

__all__ = ["Shared", "guard", "other_dataset"]

_GUARDS = tuple(threading.Lock() for _ in range(64))


def guard(sha256: str) -> threading.Lock:
    """What is held while a content is put into a run's folder: two names of it must not write at once."""
    return _GUARDS[int(sha256[:2], 16) % len(_GUARDS)]


def other_dataset(reuse: Path | None, name: str, kind: str) -> Manifest | None:
    """The dataset that `--reuse` names: DIR itself, or `name` below it; None where nothing is named.

    Raises UsageError where there is no finished dataset of this kind.
    """
    if reuse is None:
        return None
    manifest = Manifest.load(reuse) or reused_manifest(reuse / name)
    if manifest.document["kind"] != kind:
        raise UsageError(
            f"{manifest.root} is of the kind {manifest.document['kind']}, not {kind}.",
            remedy="Give --reuse a dataset of the same kind.",
        )
    return manifest


@dataclass(slots=True)
class Shared:
    """Payload of another dataset by sha256, and the sha256 of each source name of this run if it is known."""

    paths: dict[str, tuple[Path, int]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest | None, plan: Plan) -> Shared:
        """What a run with this plan may take from a dataset; nothing where there is none."""
        if manifest is None:
            return cls()
        files = [row for row in manifest.files() if row.role == "payload"]
        paths = {row.sha256: (manifest.root / row.path, row.size) for row in files if row.sha256 is not None}
        digests = dict(plan.hashes)
        if _is_one_commit(manifest, plan):
            media = ((row.source, row.media_sha256) for row in manifest.records())
            digests |= {name: sha256 for name, sha256 in media if sha256 is not None}
        return cls(paths, {name: sha256 for name, sha256 in digests.items() if sha256 in paths})

    def path(self, sha256: str) -> Path | None:
        """A whole file with this content, or None; its bytes are read."""
        path, size = self.paths.get(sha256, (Path(), 0))
        if sha256 in self.paths and size_of(path) == size and sha256_of(path) == sha256:
            return path
        return None

    def link(self, workspace: Workspace, name: str) -> bool:
        """Whether the content of a source's name is there now; what is damaged is left to be fetched."""
        sha256 = self.digests.get(name)
        path = self.path(sha256) if sha256 is not None else None
        if path is None or sha256 is None:
            return False
        target = workspace.stored(sha256)
        with guard(sha256), disk_errors(target):
            if not target.exists():
                link_or_copy(path, target)
        workspace.ledger.fetched(name, Content(sha256, self.paths[sha256][1]), target)
        return True


def _is_one_commit(manifest: Manifest, plan: Plan) -> bool:
    theirs, ours = manifest.document["sources"][0], plan.facts[0]
    keys = ("kind", "repo", "commit")
    return plan.is_far and all(theirs.get(key) == ours.get(key) for key in keys)
