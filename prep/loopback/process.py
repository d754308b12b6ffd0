"""The loopback server in a process of its own, so that a benchmark does not share its interpreter lock."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from prep.loopback.repositories import RepositoryType
from prep.loopback.server import LoopbackHub

__all__ = ["RepositorySpec", "loopback_process"]

_START_SECONDS = 60.0


@dataclass(frozen=True)
class RepositorySpec:
    """The arguments of `LoopbackHub.add_repo`."""

    name: str
    files: Mapping[str, bytes | Path]
    repo_type: RepositoryType = "dataset"
    lfs: Sequence[str] = ("*.mp4", "*.zip")
    gated: bool = False


@contextmanager
def loopback_process(
    files: Mapping[str, bytes | Path] | None = None,
    *,
    repositories: Sequence[RepositorySpec] = (),
    root: Path | None = None,
) -> Iterator[str]:
    """Serve plain files and repositories from another process; yields the endpoint.

    `file_url(endpoint, name)` gives the URL of a plain file. The process ends with the block, or
    with its parent. It is spawned, so a script that calls this needs `if __name__ == "__main__"`.
    Raises RuntimeError if it does not start.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, dict(files or {}), tuple(repositories), root)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        yield _endpoint_from(ours)
    finally:
        ours.close()
        process.join()


def _endpoint_from(pipe: Connection) -> str:
    if not pipe.poll(_START_SECONDS):
        raise RuntimeError(f"the loopback server did not start within {_START_SECONDS:.0f} s")
    try:
        return str(pipe.recv())
    except EOFError as error:
        raise RuntimeError("the loopback server ended at its start; see its traceback above") from error


def _serve(
    pipe: Connection,
    files: Mapping[str, bytes | Path],
    repositories: Sequence[RepositorySpec],
    root: Path | None,
) -> None:
    with LoopbackHub(root) as hub:
        for name, source in files.items():
            hub.add_file(name, source)
        for spec in repositories:
            hub.add_repo(spec.name, spec.files, spec.repo_type, spec.lfs, spec.gated)
        pipe.send(hub.endpoint)
        try:
            pipe.recv()
        except EOFError:
            return  # the other end closed: the block is over
