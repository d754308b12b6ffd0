"""Disks that are full, read-only or forbidden, and the modes of what is written.

Each fault ends a run with status 3 and one sentence; mended, the same command goes on.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from prep.loopback import Fault, FaultKind, LoopbackHub
from tests.runs import (
    NAME,
    THOROUGH,
    Clip,
    World,
    assert_clean,
    assert_one_failure,
    digests,
    ended,
    finished_sources,
    wait_for,
    whole_tree,
)

CLIPS = [*(Clip(f"clip {n}.mp4", n) for n in range(10)), Clip("twin.mp4", 3)]
MEGABYTE = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and give files away")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with LoopbackHub() as hub:
        made = World(hub, tmp_path)
        made.publish(CLIPS)
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The tree that a run without any fault makes of CLIPS."""
    return whole_tree(CLIPS, tmp_path_factory.mktemp("undisturbed"))


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory at `folder`; skips where none may be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def check_mended(world: World, out: Path, expected: dict[str, str], *options: str, **more: Any) -> None:
    """The same command ends well now, and as an undisturbed one does."""
    root = world.complete(out, *options, **more)
    assert_clean(root)
    assert digests(root) == expected


@as_root
def test_a_disk_too_small_is_told_before_anything_is_fetched(
    world: World, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    with mounted(tmp_path / "disk", "size=4m") as out:
        world.hub.clear_requests()
        assert "free" in assert_one_failure(*world.run(out))
        assert world.fetched() == []
        remount(out, "size=200m")
        check_mended(world, out, undisturbed)


@as_root
def test_a_disk_that_fills_up_while_fetching(world: World, tmp_path: Path) -> None:
    world.publish(CLIPS, pad=8 * MEGABYTE)
    with mounted(tmp_path / "disk", "size=70m") as out:  # passes the check: few clips are not asked for sizes
        assert "No space left" in assert_one_failure(*world.run(out, "--jobs", "4"))
        assert not (out / NAME / "manifest.json").exists()
        finished = finished_sources(out / NAME)
        assert finished
        remount(out, "size=400m")
        world.hub.clear_requests()
        assert_clean(world.complete(out))
        assert finished.isdisjoint(world.fetched())


@as_root
@pytest.mark.parametrize("left", [0, 4, 12, 64] if THOROUGH else [0, 12])
def test_a_disk_that_fills_up_before_publishing(
    world: World, tmp_path: Path, undisturbed: dict[str, str], left: int
) -> None:
    """`left` kilobytes remain for the conversations, the records and the manifest."""
    with mounted(tmp_path / "disk", "size=80m") as out:
        world.complete(out, "--download-only")
        fill(out / "filler", left)
        assert "No space left" in assert_one_failure(*world.run(out))
        assert not (out / NAME / "manifest.json").exists()
        (out / "filler").unlink()
        check_mended(world, out, undisturbed)


def fill(path: Path, left: int) -> None:
    """Take all blocks of a disk but so many kilobytes."""
    free = os.statvfs(path.parent)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left * 1024)


@as_root
def test_a_full_disk_leaves_a_finished_dataset(world: World, tmp_path: Path) -> None:
    """An update that cannot be fetched changes nothing of what is there."""
    with mounted(tmp_path / "disk", "size=80m") as out:
        root = world.complete(out)
        before = digests(root)
        world.publish([*CLIPS, Clip("new.mp4", 20)])
        fill(out / "filler", 0)
        assert_one_failure(*world.run(out, "--update", "--refresh"))
        assert before.items() <= digests(root).items()
        (out / "filler").unlink()
        assert_clean(world.complete(out, "--update", "--refresh"))


@as_root
def test_too_few_inodes_are_told_before_anything_is_fetched(
    world: World, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    with mounted(tmp_path / "disk", "size=200m,nr_inodes=16") as out:
        world.hub.clear_requests()
        assert "files can still be made" in assert_one_failure(*world.run(out))
        assert world.fetched() == []
        remount(out, "size=200m,nr_inodes=4k")
        check_mended(world, out, undisturbed)


@as_root
@pytest.mark.parametrize("left", range(16) if THOROUGH else [0, 2, 7])
def test_the_inodes_are_used_up_before_publishing(
    world: World, tmp_path: Path, undisturbed: dict[str, str], left: int
) -> None:
    """`left` files can still be made; 0 leaves no room for the lock."""
    with mounted(tmp_path / "disk", "size=200m,nr_inodes=200") as out:
        world.complete(out, "--download-only")
        (out / "filler").mkdir()
        for number in range(os.statvfs(out).f_favail - left):
            (out / "filler" / str(number)).touch()
        assert "No space left" in assert_one_failure(*world.run(out))
        assert not (out / NAME / "manifest.json").exists()
        shutil.rmtree(out / "filler")
        check_mended(world, out, undisturbed)


@as_root
def test_a_read_only_file_system(world: World, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    with mounted(tmp_path / "disk", "size=200m,ro") as out:
        status, said = world.run(out)
        assert_one_failure(status, said)
        assert "read-only" in said
        remount(out, "rw")
        check_mended(world, out, undisturbed)


def small_files(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


@pytest.mark.parametrize("limit", [0, 64, 1500, 4096] if THOROUGH else [64, 4096])
def test_a_limit_on_the_size_of_files(
    world: World, tmp_path: Path, undisturbed: dict[str, str], limit: int
) -> None:
    """The nearest to a full disk that a user may make: every write beyond the limit fails.

    64 bytes hold no line of the ledger, 1500 no clip, and 4096 not the tables.
    """
    world.complete(tmp_path / "other")  # fills the Hub's cache, whose files the limit would hit first
    assert_one_failure(*world.run(tmp_path / "out", preexec_fn=lambda: small_files(limit)))
    check_mended(world, tmp_path / "out", undisturbed)


def be_bound_by_permissions() -> None:
    """Take from root what lets it pass over the modes of its own files (prctl 24 is PR_CAPBSET_DROP)."""
    if os.geteuid() == 0:
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if LIBC.prctl(24, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "the capability cannot be dropped")


def test_an_out_root_that_may_not_be_written(
    world: World, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o555)
    assert "ermission" in assert_one_failure(*world.run(out, preexec_fn=be_bound_by_permissions))
    assert list(out.iterdir()) == []
    out.chmod(0o755)
    check_mended(world, out, undisturbed, preexec_fn=be_bound_by_permissions)


@pytest.mark.parametrize("folder", [".prep/incoming", ".prep", "."])
def test_a_folder_that_may_no_longer_be_written(
    world: World, tmp_path: Path, undisturbed: dict[str, str], folder: str
) -> None:
    out = tmp_path / "out"
    world.complete(out, "--download-only")
    closed = out / NAME / folder
    closed.chmod(0o555)
    assert "ermission" in assert_one_failure(*world.run(out, preexec_fn=be_bound_by_permissions))
    closed.chmod(0o755)
    check_mended(world, out, undisturbed, preexec_fn=be_bound_by_permissions)


@pytest.mark.parametrize("folder", [".prep/incoming", ".prep"])
def test_a_folder_that_is_closed_during_a_run(
    world: World, tmp_path: Path, undisturbed: dict[str, str], folder: str
) -> None:
    """The lock, too, may have to stay behind; its process is dead then."""
    world.hub.faults.set(".mp4", Fault(FaultKind.SLOW, seconds=0.1))
    out = tmp_path / "out"
    process = world.start(out, "--jobs", "1", preexec_fn=be_bound_by_permissions)
    wait_for(lambda: len(finished_sources(out / NAME)) >= 2, process)
    closed = out / NAME / folder
    closed.chmod(0o555)
    assert "ermission" in assert_one_failure(*ended(process))
    closed.chmod(0o755)
    world.hub.faults.clear()
    check_mended(world, out, undisturbed, preexec_fn=be_bound_by_permissions)


def test_a_finished_dataset_that_may_not_be_written(world: World, tmp_path: Path) -> None:
    """It is confirmed, and nothing is written."""
    out = tmp_path / "out"
    root = world.complete(out)
    for path in (*root.rglob("*"), root, out):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = states(out)
    status, said = world.run(out, preexec_fn=be_bound_by_permissions)
    assert status == 0, said
    assert "nothing to do" in said
    assert states(out) == before
    for path in (out, root, *(path for path in root.rglob("*") if path.is_dir())):
        path.chmod(0o755)  # so that it can be cleared away


def states(folder: Path) -> dict[str, tuple[int, ...]]:
    """What would tell of any write: the inode, size and times of each file and folder."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        state = path.lstat()
        found[str(path)] = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_mode)
    return found


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_modes_are_those_of_the_umask(world: World, tmp_path: Path, mask: int) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o2775)
    root = world.complete(out, umask=mask)
    for path in (root, *root.rglob("*")):
        mode = path.stat().st_mode
        if path.is_dir():
            assert stat.S_IMODE(mode) == 0o2777 & ~mask, path
        else:
            assert stat.S_IMODE(mode) == 0o666 & ~mask, path


@as_root
def test_files_belong_to_the_folders_group(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, 0, 4242)
    out.chmod(0o2775)
    root = world.complete(out)
    assert {path.stat().st_gid for path in (root, *root.rglob("*"))} == {4242}


@pytest.mark.parametrize("where", ["the same file system", "another"])
def test_reuse_links_or_copies(world: World, tmp_path: Path, undisturbed: dict[str, str], where: str) -> None:
    """Linked where that is possible, copied where not; the same tree either way."""
    world.complete(tmp_path / "first")
    world.hub.clear_requests()
    with ExitStack() as stack:
        out = tmp_path / "second"
        if where == "another":
            out = stack.enter_context(mounted(out, "size=200m"))
        check_mended(world, out, undisturbed, "--reuse", str(tmp_path / "first"))
    assert world.fetched() == []
