"""Content moved to its names: exchanged, doubled, freed, and never lost."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prep.errors import IncompleteError
from prep.stages.payload import Store, check_space, place, prune
from prep.workspace import Content, Workspace
from tests.commands import PROJECT

NAMES = [f"media/{letter}" for letter in "abcde"]


def sha256(number: int) -> str:
    return hashlib.sha256(bytes([number])).hexdigest()


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path) as made:
        yield made


def fetch(workspace: Workspace, *numbers: int) -> None:
    for number in numbers:
        path = workspace.stored(sha256(number))
        path.write_bytes(bytes([number]))
        workspace.ledger.fetched(str(number), Content(path.name, 1), path)


def arrange(workspace: Workspace, wanted: Mapping[str, int]) -> None:
    """Bring the tree to so that each name has the content of its number."""
    store = Store.look(workspace, lambda relative: relative in NAMES)
    place(workspace, {name: sha256(number) for name, number in wanted.items()}, store)


def tree(workspace: Workspace) -> dict[str, int]:
    media = workspace.root / "media"
    found = sorted(media.iterdir()) if media.exists() else []
    return {path.relative_to(workspace.root).as_posix(): path.read_bytes()[0] for path in found}


def unused(workspace: Workspace) -> list[int]:
    return (
        sorted(path.read_bytes()[0] for path in workspace.unused.iterdir())
        if workspace.unused.exists()
        else []
    )


Trees = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), min_size=1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees=st.lists(Trees, min_size=1, max_size=4))
def test_any_tree_becomes_any_other(
    tmp_path_factory: pytest.TempPathFactory, trees: list[dict[str, int]]
) -> None:
    """What is wanted has its name, nothing else has one, and no content is lost."""
    with Workspace(tmp_path_factory.mktemp("place")) as workspace:
        fetch(workspace, 0, 1, 2, 3)
        for wanted in trees:
            arrange(workspace, wanted)
            assert tree(workspace) == wanted
            assert unused(workspace) == sorted({0, 1, 2, 3} - set(wanted.values()))
            assert list(workspace.incoming.iterdir()) == []


def test_a_second_copy_of_what_has_its_name_goes(workspace: Workspace) -> None:
    fetch(workspace, 1)
    arrange(workspace, {"media/a": 1})
    fetch(workspace, 1)
    arrange(workspace, {"media/a": 1})
    assert tree(workspace) == {"media/a": 1}
    assert unused(workspace) == []


def test_what_a_killed_run_was_writing_goes(workspace: Workspace) -> None:
    """Under a name, too, that this run does not write."""
    fetch(workspace, 1)
    for name in ("media/.z.partial", "text/.z.json.partial", ".meta.json.partial"):
        path = workspace.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    arrange(workspace, {"media/a": 1})
    assert list(workspace.root.rglob("*.partial")) == []


def test_nothing_moves_once_the_lock_is_lost(workspace: Workspace) -> None:
    fetch(workspace, 1)
    workspace.lock.path.unlink()
    workspace.lock.lost.set()
    with pytest.raises(IncompleteError):
        arrange(workspace, {"media/a": 1})
    assert tree(workspace) == {}
    assert workspace.stored(sha256(1)).exists()


def test_pruning_says_how_much_before_and_after(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(workspace, 1, 2, 3)
    arrange(workspace, {"media/a": 1})
    assert prune(workspace, quiet=False) == "pruned 2 unused files, 2 B"
    assert capsys.readouterr().err == f"Deleting 2 unused files, 2 B, of {workspace.root}\n"
    assert unused(workspace) == []
    assert tree(workspace) == {"media/a": 1}


def test_lack_of_space_counts_what_is_to_spare(tmp_path: Path) -> None:
    with pytest.raises(IncompleteError, match=r"needed \(\d.* of files, 6\d.* to spare\)"):
        check_space(tmp_path, 1 << 60, 1)


_LIMITED = """
import resource, sys
from pathlib import Path
from prep.errors import IncompleteError
from prep.stages.payload import bring

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    bring(Path(sys.argv[1]), Path(sys.argv[2]))
except IncompleteError as error:
    print(error.message)
"""


def test_a_copy_that_finds_no_room_names_its_destination(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    with tempfile.TemporaryDirectory(dir=other) as folder:
        source, target = Path(folder) / "source.mp4", tmp_path / "target.mp4"
        source.write_bytes(b"x" * 100_000)
        done = subprocess.run(
            [sys.executable, "-c", _LIMITED, str(source), str(target)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == f"{target}: File too large.\n"
    assert list(tmp_path.iterdir()) == []
