"""Upstream's DROID and LIBERO readers (contracts, sections 4 and 5), with the identities of our windows."""

from __future__ import annotations

import operator
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from prep.comparison import Side
from prep.layouts.lerobot import Root
from prep.manifest import Manifest
from prep.readers.lerobot import LeRobotReader
from prep.upstream.adapters.draws import Draws
from prep.upstream.adapters.frame_times import OurFrameTimes, UpstreamFrameTimes
from prep.upstream.adapters.requirements import MODEL_INPUT, ROBOT, require
from prep.upstream.loading import import_upstream, upstream_errors
from prep.window_lists import Found, filter_path

__all__ = ["CosmosWindows", "OurWindows", "open_side", "our_side", "spans_of"]

_DATASETS = "cosmos_framework.data.generator.action.datasets"
_DROID = (f"{_DATASETS}.droid_lerobot_dataset", "DROIDLeRobotDataset")
_MERGED = (f"{_DATASETS}.droid_merged_lerobot_dataset", "DROIDMergedLeRobotDataset")
_LIBERO = (f"{_DATASETS}.libero_lerobot_dataset", "LIBEROLeRobotDataset")

_LIBERO_CAMERAS = {"concat_view": "concat_view", "wrist_view": "wrist_image", "third_person_view": "image"}
"""Upstream's LIBERO class names a view by its camera."""

Span = tuple[int, int, int, int]


def our_side(manifest: Manifest, *, index: str | None = None, model_input: bool = False) -> Side:
    """Our reader of the windows, its candidate instructions beside each sample; or what it gives a model."""
    from prep.upstream.adapters.model_input import OurModelInputs

    reader = LeRobotReader(manifest, index=index)
    facts = {"dataset_id": manifest.dataset_id, "index": reader.found.path.name, "decoder": reader.decoder}
    return Side("ours", OurModelInputs(reader) if model_input else OurWindows(reader), facts)


class OurWindows:
    """`LeRobotReader` with spans, and the keys `instruction_candidates`, `frame_files`, `frame_seconds`."""

    def __init__(self, reader: LeRobotReader) -> None:
        self.reader = reader
        self.times = OurFrameTimes(reader)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> dict[str, Any]:
        candidates = self.reader.instructions(index)
        return {**self.reader[index], "instruction_candidates": candidates, **self.times.of(index)}

    def identity(self, index: int) -> tuple[int, int, int]:
        """(dataset index, episode, frame from the episode's start)."""
        return self.reader.identity(index)

    def spans(self) -> Iterator[Span]:
        """(dataset index, episode, first row, windows), in order."""
        return spans_of(self.reader.found)


def open_side(manifest: Manifest, *, index: str | None = None, ours: Any = None) -> Side:
    """Upstream's reader over the same windows as ours, augmentation and normalisation off.

    Beside `OurModelInputs` it gives a model's input as well. Raises EnvironmentLacksError if upstream
    cannot be had, UsageError if the dataset has no such index.
    """
    from prep.upstream.adapters.model_input import CosmosModelInputs, OurModelInputs

    is_input = isinstance(ours, OurModelInputs)
    require("cosmos", MODEL_INPUT if is_input else ROBOT)
    reader = ours.reader if isinstance(ours, OurWindows) else LeRobotReader(manifest, index=index)
    if reader.form.robot == "libero":
        (name, kind), options = _LIBERO, _libero_options(reader)
    else:
        name, kind = _MERGED if reader.action_space == "ee_pose" else _DROID
        options = _droid_options(reader)
    module, upstream = import_upstream(name)
    drawing, _ = import_upstream(_LIBERO[0] if kind == _LIBERO[1] else _DROID[0])
    with upstream_errors(f"open {manifest.root}"):
        dataset = getattr(module, kind)(**options)
    facts = {**upstream.facts(), "reader": f"{name}.{kind}", "options": options, "decoder": _decoder()}
    facts["torch_threads"] = 1
    windows = CosmosWindows(dataset, drawing, _first_rows(reader.found), reader.root)
    return Side("cosmos", CosmosModelInputs.beside_reader(windows, reader) if is_input else windows, facts)


def _droid_options(reader: LeRobotReader) -> dict[str, Any]:
    parameters = reader.index.parameters
    sha256 = parameters["filter"]
    filtered = {} if sha256 is None else {"filter_dict_path": str(reader.root / filter_path(sha256))}
    return {
        "root": str(reader.root),
        "chunk_length": reader.chunk_length,
        "split": parameters["split"],
        "action_space": reader.action_space,
        "use_state": reader.use_state,
        "mode": reader.form.mode,
        "viewpoint": reader.view,
        "use_success_only": all(name.split("/")[0] == "success" for name in reader.found.roots),
        "use_filter_dict": sha256 is not None,
        **filtered,
    }


def _libero_options(reader: LeRobotReader) -> dict[str, Any]:
    parameters = reader.index.parameters
    windows = parameters["recipe_document"]["windows"]
    return {
        "root": str(reader.root),
        "chunk_length": reader.chunk_length,
        "split": parameters["split"],
        "mode": reader.form.mode,
        "camera_mode": _LIBERO_CAMERAS[reader.view],
        "seed": windows["seed"],
        "val_ratio": windows["validation_share"],
        "action_normalization": None,
    }


def _decoder() -> str:
    """The decoder that lerobot takes when none is named."""
    from lerobot.datasets.video_utils import get_safe_default_codec

    return str(get_safe_default_codec())


def _first_rows(found: Found) -> list[Mapping[int, int]]:
    """For each root the first row of each episode, by its number."""
    folder = found.path.parent.parent
    tables = (Root.open(folder / name).episodes() for name in found.roots)
    return [dict(zip(table.numbers.tolist(), table.first_rows.tolist(), strict=True)) for table in tables]


def spans_of(found: Found) -> Iterator[Span]:
    """The spans of one of our indices: (dataset index, episode, first row, windows), in order."""
    columns = ("dataset_index", "episode_index", "first_row", "length")
    yield from zip(*(found.index.spans[name].tolist() for name in columns), strict=True)


class CosmosWindows:
    """A dataset class of upstream as a map-style reader of windows.

    Its tensors become arrays and its keys stay. What it would draw is handed over: the instruction is
    ours where ours is a candidate. Beside a sample of ours that has them, `instruction_candidates`
    (upstream's list), `frame_files` (below `root`) and `frame_seconds` are given.
    """

    def __init__(
        self,
        dataset: Any,
        module: ModuleType,
        first_rows: Sequence[Mapping[int, int]],
        root: Path = Path(),
    ) -> None:
        self._dataset = dataset
        self._module = module
        self._first_rows = first_rows
        self._draws = Draws()
        self._times = UpstreamFrameTimes(root)
        self._records = list(_records(dataset))
        self._ends = list(accumulate(record[3] for record in self._records))

    def __len__(self) -> int:
        return len(self._dataset)

    def spans(self) -> Iterator[Span]:
        """Upstream's spans: (dataset index, episode, first row, windows), in its order."""
        return iter(self._records)

    def identity(self, index: int) -> tuple[int, int, int]:
        """(dataset index, episode, frame from the episode's start), from the span that upstream reads."""
        place = bisect_right(self._ends, operator.index(index))
        dataset, episode, row, count = self._records[place]
        offset = index - (self._ends[place] - count)
        return dataset, episode, row + offset - self._first_rows[dataset][episode]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The sample at `index`, 0 to len - 1, with the first instruction that upstream could draw."""
        return self.beside(index, {})

    def beside(self, index: int, ours: Mapping[str, Any]) -> dict[str, Any]:
        """The sample at `index` with our instruction.

        Raises IndexError outside 0 to len - 1, PrepError if upstream cannot read it.
        """
        place = operator.index(index)
        if not 0 <= place < len(self):
            raise IndexError(f"window {place}: there are {len(self)}")
        with self._draws.hand_over(self._module, ours.get("ai_caption")), self._times.heard():
            sample = {key: _plain(value) for key, value in self._read(place).items()}
        if "instruction_candidates" in ours:
            sample["instruction_candidates"] = [text for texts in self._draws.candidates for text in texts]
        if "frame_seconds" in ours:
            sample |= self._times.last
        return sample

    def _read(self, place: int) -> Mapping[str, Any]:
        with upstream_errors(f"read window {place}"), _one_thread():
            sample: Mapping[str, Any] = self._dataset[place]
        return sample


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch on one thread, as in the workers of a DataLoader: on several it sums resized pixels otherwise."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _records(dataset: Any) -> Iterator[Span]:
    """The spans as the class keeps them; both kinds name them otherwise."""
    if hasattr(dataset, "_episode_records"):
        for root, row, count, episode in dataset._episode_records:
            yield int(root), int(episode), int(row), int(count)
        return
    counts = zip(
        dataset._ep_vals.tolist(), dataset._ep_starts.tolist(), dataset._valid_cum.tolist(), strict=True
    )
    before = 0
    for episode, row, end in counts:
        if end > before:
            yield 0, episode, row, end - before
        before = end


def _plain(value: Any) -> Any:
    """A tensor as the array that shares its memory; anything else as it is."""
    return value.numpy() if hasattr(value, "numpy") else value
