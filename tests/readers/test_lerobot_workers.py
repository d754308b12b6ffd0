"""Robot windows in the workers of torch's DataLoader: the same bytes as read directly."""

from __future__ import annotations

import gc
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prep
from tests.robot_fixture import digest
from tests.robot_trees import run
from tests.robots import DROID, LIBERO, make_root

torch = pytest.importorskip("torch", reason="workers are those of torch's DataLoader")

WINDOWS = 200
PATIENCE = 60
"""Seconds after which a worker that gives nothing hangs: torch then raises, where it would wait for ever."""
STARTS = [(0, None), (1, "fork"), (1, "spawn"), (2, "fork"), (2, "spawn")]


def droid(folder: Path) -> Path:
    """Two roots; one camera's file holds other episodes than the next one's, and files end amid a split."""
    shape = replace(
        DROID,
        lengths=(86, 70, 60, 92, 88),
        packing=((2, 3), (1, 4), (3, 2)),
        data_files=(3, 2),
        meta_files=(3, 2),
        tasks=("open it | open the drawer | pull", "close it"),
        size=(32, 24),
        codec="mpeg4",
        row_group=17,
    )
    for kind in ("success", "failure"):
        make_root(folder / "tree" / kind, shape)
    return run(folder / "out", "droid_policy", root=folder / "tree", chunk_length=8).root


def libero(folder: Path) -> Path:
    """Pictures of 256 pixels, which are taken as they are: resizing would take most of the time."""
    pytest.importorskip("scipy", reason="LIBERO's actions need the extra [robot]")
    shape = replace(
        LIBERO,
        lengths=(90, 85, 70, 80),
        packing=((2, 2), (4,)),
        data_files=(1, 2, 1),
        meta_files=(4,),
        tasks=("put it | put the bowl on the plate", " lift "),
        size=(256, 256),
        codec="mpeg4",
        row_group=11,
    )
    make_root(folder / "tree" / "libero_10", shape)
    return run(folder / "out", "libero_10", root=folder / "tree", chunk_length=4).root


@pytest.fixture(scope="module", params=[droid, libero], ids=["droid", "libero"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = request.param(tmp_path_factory.mktemp("workers"))
    return place


def opened(place: Path) -> Any:
    (index,) = (place / "windows").glob("*-train-*.arrow")
    return prep.open(place, index=index.stem)


def digests(sample: Mapping[str, Any]) -> dict[str, str]:
    """sha256 of every field, its type and shape included."""
    return {
        name: digest(value.numpy() if isinstance(value, torch.Tensor) else value)
        for name, value in sample.items()
    }


@pytest.fixture(scope="module")
def direct(made: Path) -> dict[int, dict[str, str]]:
    """Two hundred windows from all over the index, read one by one in its order."""
    reader = opened(made)
    places = np.random.RandomState(5).choice(len(reader), WINDOWS, replace=False)
    return {place: digests(reader[place]) for place in sorted(places.tolist())}


class Reordered:
    """A sampler of the same places, in another order each time; `order` is the last one given out."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = list(places)
        self.order: list[int] = []
        self._random = np.random.RandomState(0)

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[int]:
        self.order = self._random.permutation(self.places).tolist()
        return iter(self.order)


def open_paths(made: Path) -> Counter[str]:
    """Videos and frame tables of a dataset that this process holds open or mapped, by how often."""
    folder = next(parent for parent in made.parents if parent.name == "out").parent.resolve()
    maps = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    held = [*descriptors().values(), *maps]
    return Counter(path for path in held if str(folder) in path and path.endswith((".mp4", ".parquet")))


def descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink():  # the listing's own is closed by now
            found[entry.name] = str(entry.readlink())
    return found


def tasks() -> list[str]:
    """The threads of this process."""
    return sorted(each.name for each in Path("/proc/self/task").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start"), STARTS)
def test_two_hundred_windows_twice_are_the_same_bytes(
    made: Path, direct: dict[int, dict[str, str]], workers: int, start: str | None
) -> None:
    reader, sampler = opened(made), Reordered(list(direct))
    loader = torch.utils.data.DataLoader(
        reader,
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context=start,
        persistent_workers=start == "spawn",  # forks of the second time inherit a reader in use
        timeout=PATIENCE if workers else 0,
    )
    orders = []
    for _ in range(2):
        read = [digests(sample) for sample in loader]
        order = sampler.order
        assert len(read) == WINDOWS
        assert [place for place, found in zip(order, read, strict=True) if found != direct[place]] == []
        assert digests(reader[order[0]]) == direct[order[0]]
        orders.append(order)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_window_of_a_batch_keeps_its_own_pictures(
    made: Path, direct: dict[int, dict[str, str]], workers: int
) -> None:
    """A batch holds more windows at once than the arrays that a reader uses again."""
    places = list(direct)[::7]
    loader = torch.utils.data.DataLoader(
        opened(made),
        batch_size=6,
        sampler=places,
        num_workers=workers,
        timeout=PATIENCE if workers else 0,
    )
    found = [
        digests({name: values[at] for name, values in batch.items()})
        for batch in list(loader)
        for at in range(len(batch["ai_caption"]))
    ]
    assert found == [direct[place] for place in places]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
def test_nothing_is_open_before_the_workers_read(made: Path) -> None:
    opened(made)  # what a first import opens is not the reader's
    gc.collect()
    before, threads, paths = descriptors(), tasks(), open_paths(made)
    reader = opened(made)
    loader = torch.utils.data.DataLoader(
        reader, batch_size=None, sampler=[3, 40, 9], num_workers=1, timeout=PATIENCE
    )
    assert (descriptors(), tasks()) == (before, threads)
    assert open_paths(made) == paths
    assert len(list(loader)) == 3
    assert open_paths(made) == paths
    reader[3]
    assert any(path.endswith(".mp4") for path in open_paths(made) - paths)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
def test_a_reader_pickles_small_before_and_after_use(made: Path) -> None:
    reader = opened(made)
    fresh = pickle.dumps(reader)
    for place in (0, len(reader) // 2, len(reader) - 1):
        reader[place]
        reader.model_input(place)
    used = pickle.dumps(reader)
    assert max(len(fresh), len(used)) < 10_000
    before = descriptors()
    copies = [pickle.loads(fresh), pickle.loads(used)]
    assert descriptors().items() <= before.items()  # fewer where a reader of another test is collected
    assert all(digests(copy[5]) == digests(reader[5]) for copy in copies)
