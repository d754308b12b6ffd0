"""The costly parts of a check: decoding media, hashing files, and the same content under two names."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from prep.files import sha256_of, size_of
from prep.findings import PLACES_KEPT, Finding, found
from prep.layouts.conversations_turns import IMAGES
from prep.layouts.repeats import repeated_positions
from prep.pool import interruptible, map_threads
from prep.progress import progress
from prep.proof import Proof
from prep.rules import guarded

__all__ = ["Digests", "Work", "check_content", "check_leakage", "check_same_content"]

Emit = Callable[[Finding], None]
_NAMED = 5


@dataclass(slots=True)
class Digests:
    """The sha256 and size that a manifest states for each path: flat arrays, 48 bytes a file."""

    paths: Any
    values: Any
    sizes: Any

    @classmethod
    def of(cls, proof: Proof | None) -> Digests:
        """The stated digests of a manifest; none without one."""
        import numpy as np

        paths, sizes, values = array("q"), array("q"), bytearray()
        for columns in proof.columns("files", "path", "size", "sha256") if proof else ():
            for name, size, digest in zip(*columns, strict=True):
                if digest:
                    paths.append(hash(name))
                    sizes.append(size)
                    values += bytes.fromhex(digest)
        hashes = np.array(paths, np.int64)
        order = np.argsort(hashes)
        digests = np.frombuffer(bytes(values), np.uint8).reshape(-1, 32)
        return cls(hashes[order], digests[order], np.array(sizes, np.int64)[order])

    def get(self, path: str) -> tuple[str, int] | None:
        """The stated sha256 of a path, 64 hex digits, and its size in bytes."""
        import numpy as np

        at = int(np.searchsorted(self.paths, hash(path)))
        if at == len(self.paths) or self.paths[at] != hash(path):
            return None
        return bytes(self.values[at]).hex(), int(self.sizes[at])


@dataclass(frozen=True, slots=True)
class Work:
    """How much is to be done: decode media at `level`, hash files, with so many threads."""

    root: Path
    level: Literal["standard", "deep"]
    jobs: int
    digests: Digests
    quiet: bool = True


@dataclass(slots=True)
class _Outcome:
    findings: list[Finding] = field(default_factory=list)
    digest: str | None = None


def check_content(work: Work, media: Iterable[str], files: Iterable[str], emit: Emit) -> list[str]:
    """Check media by decoding and, at level "deep", media and other files by their sha256.

    Findings come in the order of the items, whatever `jobs` is. Returns, at level "deep", a path
    and a digest of each media file in turn, as one flat list.
    """
    items = [(path, True) for path in media] + [(path, False) for path in files]
    computed: list[str] = []
    with interruptible(ends=False) as cancel, progress("checking", len(items), quiet=work.quiet) as shown:
        results = map_threads(
            lambda item: _check(work, *item[1]), enumerate(items), jobs=work.jobs, cancel=cancel
        )
        for (_, (path, is_media)), outcome in _in_order(results):
            for finding in outcome.findings:
                emit(finding)
            if is_media and outcome.digest:
                computed += (path, outcome.digest)
            shown.advance()
    return computed


Item = TypeVar("Item")
Result = TypeVar("Result")


def _in_order(
    results: Iterable[tuple[tuple[int, Item], Result]],
) -> Iterator[tuple[tuple[int, Item], Result]]:
    """Results by their number; those that come early wait."""
    waiting: dict[int, tuple[tuple[int, Item], Result]] = {}
    due = 0
    for result in results:
        waiting[result[0][0]] = result
        while due in waiting:
            yield waiting.pop(due)
            due += 1


def _check(work: Work, path: str, is_media: bool) -> _Outcome:
    outcome = _Outcome()
    if is_media and not path.lower().endswith(IMAGES):
        outcome.findings += guarded("check_video", path, lambda: _video(work, path))
    if work.level == "deep":
        outcome.findings += guarded("sha256", path, lambda: _hashed(work, path, outcome))
    return outcome


def _video(work: Work, path: str) -> list[Finding]:
    from prep.media import check_video

    _, findings = check_video(work.root / path, level=work.level)
    return [replace(finding, path=path) for finding in findings]


def _hashed(work: Work, path: str, outcome: _Outcome) -> Iterator[Finding]:
    stated = work.digests.get(path)
    try:
        outcome.digest = sha256_of(work.root / path)
    except FileNotFoundError:
        return  # FIL005 or FIL010 has said so
    except OSError as error:
        yield found("FIL014", path, f"{error.strerror or error}")
        return
    # A file of another size is FIL003's, an empty one FIL002's: one fault, one finding.
    if stated and stated[0] != outcome.digest and stated[1] == size_of(work.root / path):
        yield found("FIL004", path, f"the sha256 is {outcome.digest}; the manifest states {stated[0]}")


def check_same_content(pairs: Callable[[], Iterator[tuple[str, str]]]) -> Iterator[Finding]:
    """FIL008: one for each content that stands under several names; `pairs` gives (path, sha256) anew."""
    keys = array("q", (_key(digest) for _, digest in pairs()))
    groups = repeated_positions(keys)
    wanted = {position for group in groups[:PLACES_KEPT] for position in group[:_NAMED]}
    names = {at: path for at, (path, _) in enumerate(pairs()) if at in wanted} if wanted else {}
    for group in groups:
        paths = [names[position] for position in group[:_NAMED] if position in names]
        others = ", ".join(paths[1:]) + (" …" if len(group) > _NAMED else "")
        yield found(
            "FIL008", paths[0] if paths else "", f"{len(group)} files hold these bytes, also {others}"
        )


def _key(digest: str) -> int:
    return int(digest[:16], 16) - (1 << 63)


def check_leakage(proofs: list[tuple[str, Proof]]) -> Iterator[Finding]:
    """FIL009: each media content that two datasets of different splits both hold.

    Two datasets of one split may well share media: one with other answers, say.
    """
    import numpy as np

    if len(proofs) < 2:
        return
    held = [(below, proof, np.unique(_media_keys(proof))) for below, proof in proofs]
    for at, (below, proof, keys) in enumerate(held):
        for other_below, other, other_keys in held[at + 1 :]:
            if proof.document.get("split") == other.document.get("split"):
                continue
            shared = set(np.intersect1d(keys, other_keys, assume_unique=True).tolist())
            if shared:
                yield from _leaks((below, proof), (other_below, other), shared)


def _leaks(one: tuple[str, Proof], two: tuple[str, Proof], shared: set[int]) -> Iterator[Finding]:
    first = dict(_media_of(two[1], shared))
    for key, media in _media_of(one[1], shared):
        splits = f"{one[1].document.get('split')} and {two[1].document.get('split')}"
        path, other = f"{one[0]}/{media}".lstrip("/"), f"{two[0]}/{first[key]}".lstrip("/")
        yield found("FIL009", path, f"the same bytes as {other}: in {splits}")


def _media_of(proof: Proof, keys: set[int]) -> Iterator[tuple[int, str]]:
    for paths, digests in proof.columns("records", "media", "media_sha256"):
        for path, digest in zip(paths, digests, strict=True):
            if digest and _key(digest) in keys:
                yield _key(digest), path


def _media_keys(proof: Proof) -> array[int]:
    return array(
        "q",
        (
            _key(digest)
            for (digests,) in proof.columns("records", "media_sha256")
            for digest in digests
            if digest
        ),
    )
