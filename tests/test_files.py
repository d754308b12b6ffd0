"""Files written whole, linked or copied, moved, and kept below their root."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prep.errors import IncompleteError, PrepError
from prep.files import (
    disk_errors,
    free_space,
    is_partial,
    link_or_copy,
    move,
    resolve_below,
    sha256_of,
    write_whole,
)

in_one_folder = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@in_one_folder
@given(old=st.none() | st.binary(max_size=64), pieces=st.lists(st.binary(max_size=64), max_size=5))
def test_a_file_is_written_whole(tmp_path: Path, old: bytes | None, pieces: list[bytes]) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    if old is not None:
        path.write_bytes(old)
    write_whole(path, iter(pieces))
    assert path.read_bytes() == b"".join(pieces)
    write_whole(path, b"".join(pieces) + b"!")
    assert path.read_bytes() == b"".join(pieces) + b"!"
    assert names(tmp_path) == ["file"]


@in_one_folder
@given(st.lists(st.binary(max_size=64), max_size=5))
def test_a_failure_half_way_leaves_the_old_file(tmp_path: Path, pieces: list[bytes]) -> None:
    def fails() -> Iterator[bytes]:
        yield from pieces
        raise ZeroDivisionError

    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        write_whole(tmp_path / "file", fails())
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_partial_file_of_a_killed_run_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".file.partial").write_bytes(b"much longer than what comes now")
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("name", [".a.mp4.partial", ".x.partial"])
def test_a_partial_file_is_known_by_its_name(name: str) -> None:
    assert is_partial(name)
    assert not is_partial(name[1:])
    assert not is_partial(name.removesuffix("partial"))


@pytest.mark.parametrize("target_is", ["absent", "another file", "the same file", "cut by a kill"])
def test_a_link_or_copy(tmp_path: Path, target_is: str) -> None:
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_bytes(b"content")
    target.parent.mkdir()
    if target_is == "another file":
        target.write_bytes(b"other")
    elif target_is == "the same file":
        target.hardlink_to(source)
    elif target_is == "cut by a kill":
        (target.parent / ".target.partial").hardlink_to(source)
    assert link_or_copy(source, target) in ("reflink", "hard link")
    assert target.read_bytes() == source.read_bytes() == b"content"
    assert names(target.parent) == ["target"]


def test_a_link_to_a_link_is_one_to_the_file(tmp_path: Path) -> None:
    """As those in the Hub's cache, which may be cleared away."""
    (tmp_path / "blob").write_bytes(b"content")
    (tmp_path / "link").symlink_to("blob")
    link_or_copy(tmp_path / "link", tmp_path / "target")
    (tmp_path / "blob").unlink()
    assert (tmp_path / "target").read_bytes() == b"content"


def test_another_file_system_gets_a_copy(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    (tmp_path / "source").write_bytes(b"content")
    target = other / f"prep-test-{os.getpid()}" / "target"
    try:
        assert link_or_copy(tmp_path / "source", target) == "copy"
        assert target.read_bytes() == b"content"
        assert names(target.parent) == ["target"]
    finally:
        target.unlink()
        target.parent.rmdir()


def test_a_failed_link_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "absent", tmp_path / "target")
    assert names(tmp_path) == []


@pytest.mark.parametrize("linked", [False, True])
def test_a_move_onto_another_name(tmp_path: Path, linked: bool) -> None:
    """rename(2) does nothing between two links of one file; a move leaves one name all the same."""
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    source.write_bytes(b"content")
    target.parent.mkdir()
    if linked:
        target.hardlink_to(source)
    move(source, target)
    assert target.read_bytes() == b"content"
    assert names(tmp_path) == ["folder"]


def test_a_move_onto_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    move(tmp_path / "file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_new_files_get_the_mode_of_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask


@given(
    st.text(max_size=12)
    | st.lists(st.sampled_from(["..", ".", "", "a", "b c", "~"]), max_size=5).map("/".join)
)
def test_no_path_leaves_its_root(relative: str) -> None:
    root = Path("/data/set")
    try:
        path = resolve_below(root, relative)
    except PrepError:
        return
    assert os.path.normpath(path).startswith("/data/set")
    assert PurePosixPath(path).is_relative_to(root)


@pytest.mark.parametrize("relative", ["", "..", "../x", "a/../../x", "a/..", "/etc/passwd", "//x", "a\0b"])
def test_a_path_that_leaves_is_refused(relative: str) -> None:
    with pytest.raises(PrepError, match="leaves"):
        resolve_below(Path("/data/set"), relative)


@pytest.mark.parametrize("relative", ["a", "a/b", "./a", "a..b", "...", "~root/x", "C:\\x", "ä ö"])
def test_a_path_that_stays_is_taken(relative: str) -> None:
    assert resolve_below(Path("set"), relative) == Path("set") / relative


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO]
)
def test_an_error_of_the_disk_is_one_sentence(number: int) -> None:
    with pytest.raises(IncompleteError) as caught, disk_errors(Path("some/file")):
        raise OSError(number, os.strerror(number))
    assert caught.value.message == f"some/file: {os.strerror(number)}."
    assert caught.value.remedy
    assert caught.value.exit_status == 3


def test_the_hash_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_of(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_free_space_of_a_folder_to_be_made(tmp_path: Path) -> None:
    assert free_space(tmp_path / "not" / "yet").bytes > 0
