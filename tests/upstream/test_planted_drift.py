"""Each kind of drift, planted into our own readers or into a tree, is found by the comparison.

Nothing of upstream and no torch is needed. `tests/test_comparison.py` has the same kinds on readers that
are worked out from nothing; here they are real windows of the committed trees.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from PIL import Image

from prep.comparison import Comparison, Side, compare, diff
from prep.manifest import Manifest
from prep.readers.lerobot import LeRobotReader
from prep.robots import RobotOptions, prepare_robots
from prep.upstream.adapters.lerobot import OurRows
from prep.upstream.adapters.robot import OurWindows
from tests.robot_fixture import FIXTURE
from tests.robots import edit_table

CHUNK = 8
INDEX = f"droid_policy-train-c{CHUNK}-filtered"
WINDOWS = ((0, 7, 4), (0, 7, 30), (0, 3, 5), (0, 0, 3), (0, 0, 40))
"""The last two are of the two spans of episode 0."""
LEFT, RIGHT = (f"observation.image.exterior_image_{number}_left" for number in (1, 2))
HALF_A_TOLERANCE = 1e-4

Sample = dict[str, Any]


def prepared(folder: Path, change: Callable[[Path], None] | None = None) -> Path:
    """The dataset of the committed tree, or of a changed copy of it."""
    tree = FIXTURE / "droid"
    if change is not None:
        tree = folder / "tree"
        shutil.copytree(FIXTURE / "droid", tree)
        change(tree / "success")
    options = RobotOptions(root=tree, keep_ranges=str(FIXTURE / "keep_ranges.json"), chunk_length=CHUNK)
    (result,) = prepare_robots("droid_policy", folder / "out", options=options)
    assert result.exit_status == 0, result.report
    return result.root


class Chosen:
    """A few windows of a reader, read once."""

    def __init__(self, reader: OurWindows) -> None:
        self.reader = reader
        identities = [reader.identity(at) for at in range(len(reader))]
        self.places = [identities.index(window) for window in WINDOWS]
        self.samples: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self.places)

    def identity(self, index: int) -> tuple[int, int, int]:
        return self.reader.identity(self.places[index])

    def __getitem__(self, index: int) -> Sample:
        if index not in self.samples:
            self.samples[index] = self.reader[self.places[index]]
        return self.samples[index]


class Planted(Chosen):
    """The windows of another reader with something done to each sample."""

    def __init__(self, chosen: Chosen, change: Callable[[Sample, int], Mapping[str, Any]]) -> None:
        super().__init__(chosen.reader)
        self.chosen, self.change = chosen, change

    def __getitem__(self, index: int) -> Sample:
        return dict(self.change(dict(self.chosen[index]), self.places[index]))


def opened(directory: Path, **options: Any) -> Chosen:
    manifest = Manifest.load(directory)
    assert manifest is not None
    return Chosen(OurWindows(LeRobotReader(manifest, index=INDEX, **options)))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def ours(directory: Path) -> Chosen:
    return opened(directory)


@pytest.fixture(scope="module")
def sides(directory: Path) -> LeRobotReader:
    """Both side cameras at full size, side by side: what the lower half is made of."""
    manifest = Manifest.load(directory)
    assert manifest is not None
    return LeRobotReader(manifest, index=INDEX, view="third_person_view")


def unlike(ours: Chosen, reference: Chosen, **options: Any) -> list[str]:
    """The fields and keys that differ; the status says the same."""
    found = compare(Side("ours", ours), Side("reference", reference), **options)
    assert found.samples == len(WINDOWS)
    names = [tally.name for tally in found.fields.values() if tally.outside]
    names += [lone.key for lone in found.lone.values()]
    assert found.exit_status == (1 if names or not found.order.is_clean else 0)
    return names


def test_a_copy_of_the_dataset_shows_nothing(ours: Chosen, tmp_path: Path) -> None:
    assert unlike(ours, opened(prepared(tmp_path, lambda root: None))) == []


# --- in the tree ----------------------------------------------------------------------------


def _episodes(root: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    for path in (root / "meta/episodes").rglob("*.parquet"):
        edit_table(path, change)


def _rows(root: Path, column: str, change: Callable[[Any], Any]) -> None:
    for path in (root / "data").rglob("*.parquet"):
        edit_table(path, lambda table: _replaced(table, column, change(table[column])))


def _replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), table.schema.field(name), values)


def one_frame_later(root: Path) -> None:
    """Episode 7 of the wrist's camera begins a frame later than it does."""
    name = "videos/observation.image.wrist_image_left/from_timestamp"

    def later(table: pa.Table) -> pa.Table:
        is_seven = pc.equal(table["episode_index"], 7)
        return _replaced(table, name, pc.add(table[name], pc.if_else(is_seven, 1 / 15, 0.0)))

    _episodes(root, later)


def sides_swapped(root: Path) -> None:
    left, right = root / "videos" / LEFT, root / "videos" / RIGHT
    left.rename(root / "videos/between")
    right.rename(left)
    (root / "videos/between").rename(right)

    def swapped(table: pa.Table) -> pa.Table:
        names = [
            name.replace(LEFT, "?").replace(RIGHT, LEFT).replace("?", RIGHT) for name in table.column_names
        ]
        return table.rename_columns(names).select(table.column_names)

    _episodes(root, swapped)


def gripper_not_flipped(root: Path) -> None:
    """What is stored as closed is what was open."""
    for column in ("action.gripper_position", "observation.state.gripper_position"):
        _rows(root, column, lambda values: pc.subtract(pa.scalar(1, pa.float32()), values))


def a_little_later(root: Path) -> None:
    _rows(root, "timestamp", lambda values: pc.add(values, pa.scalar(HALF_A_TOLERANCE, pa.float32())))


def test_a_frame_off_by_one_is_found(ours: Chosen, tmp_path: Path) -> None:
    other = opened(prepared(tmp_path, one_frame_later))
    found = compare(Side("ours", ours), Side("reference", other))
    assert [tally.name for tally in found.fields.values() if tally.outside] == ["video", "frame_seconds"]
    assert found.fields["video"].outside == 2  # those of episode 7
    assert found.fields["frame_seconds"].maximum == pytest.approx(1 / 15)
    # The wrist's pictures move up by one in time, the sides below stay.
    wrist, later = ours[0]["video"][:, :, :360], other[0]["video"][:, :, :360]
    np.testing.assert_array_equal(wrist[:, 1:], later[:, :-1])


def test_sides_that_are_swapped_are_found(ours: Chosen, tmp_path: Path) -> None:
    other = opened(prepared(tmp_path, sides_swapped))
    assert "video" in unlike(ours, other)
    np.testing.assert_array_equal(ours[0]["video"][:, :, 360:, :320], other[0]["video"][:, :, 360:, 320:])


def test_a_gripper_that_is_not_flipped_is_found(ours: Chosen, tmp_path: Path) -> None:
    other = opened(prepared(tmp_path, gripper_not_flipped))
    assert unlike(ours, other) == ["action"]
    np.testing.assert_array_equal(ours[0]["action"][:, :7], other[0]["action"][:, :7])


def test_half_a_tolerance_of_time_is_found_though_the_pictures_are_the_same(
    ours: Chosen, directory: Path, tmp_path: Path
) -> None:
    shifted = prepared(tmp_path, a_little_later)
    other = opened(shifted)
    assert unlike(ours, other) == ["frame_seconds"]
    assert unlike(ours, other, atol={"frame_seconds": 2e-4}) == []
    rows = [Side(name, OurRows([place / "success"])) for name, place in (("a", directory), ("b", shifted))]
    found = compare(*rows, samples=20)
    assert [tally.name for tally in found.fields.values() if tally.outside] == ["timestamp"]


# --- in a reader ----------------------------------------------------------------------------


def test_an_instruction_that_is_drawn_elsewhere_is_found(ours: Chosen, directory: Path) -> None:
    assert unlike(ours, opened(directory, seed=1)) == ["ai_caption"]


def test_a_span_keyed_by_its_episode_alone_is_found(ours: Chosen) -> None:
    spans = list(ours.reader.spans())
    survivor = {episode: row for _, episode, row, _ in spans}
    began = {row: (episode, count) for _, episode, row, count in spans}

    class ByEpisode(Chosen):
        def identity(self, index: int) -> tuple[int, int, int]:
            """Of two spans of one episode, the later one's start is taken for both."""
            dataset, episode, frame = super().identity(index)
            window = self.reader.reader.index.resolve(self.places[index])
            first = next(row for row, (_, count) in began.items() if row <= window.row < row + count)
            return dataset, episode, frame + survivor[episode] - first

    found: Comparison = compare(Side("ours", ours), Side("reference", ByEpisode(ours.reader)))
    assert found.exit_status == 1
    assert not any(tally.outside for tally in found.fields.values())
    # The window of the earlier span of episode 0 takes the later one's frames.
    assert found.order.differing == 1
    assert found.order.first == {"index": 3, "ours": "0:0:3", "reference": "0:0:40"}


def test_blue_for_red_is_found(ours: Chosen) -> None:
    planted = Planted(ours, lambda sample, place: sample | {"video": sample["video"][::-1]})
    assert unlike(ours, planted) == ["video"]


def test_a_dropped_key_is_found(ours: Chosen) -> None:
    planted = Planted(
        ours, lambda sample, place: {key: sample[key] for key in sample if key != "idle_frames"}
    )
    assert unlike(ours, planted) == ["idle_frames"]


def _halved(sides: LeRobotReader, half: Callable[[Any], Any]) -> Callable[[Sample, int], Sample]:
    """A sample whose lower half is made anew from the full side views by `half`."""

    def change(sample: Sample, place: int) -> Sample:
        full = sides[place]["video"]
        video = sample["video"].copy()
        for side in range(2):
            columns = slice(320 * side, 320 * (side + 1))
            pictures = full[..., 640 * side : 640 * (side + 1)]
            for frame in range(video.shape[1]):
                video[:, frame, 360:, columns] = half(pictures[:, frame])
        return sample | {"video": video}

    return change


def _mean(picture: Any) -> Any:
    """float32 [3, H / 2, W / 2] in bytes' range, each the mean of two by two, summed in torch's order."""
    scaled = picture / np.float32(255)
    total = scaled[:, ::2, ::2] + scaled[:, ::2, 1::2]
    total = total + scaled[:, 1::2, ::2]
    total = total + scaled[:, 1::2, 1::2]
    return total * np.float32(63.75)


def _antialiased(picture: Any) -> Any:
    image = Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))
    return np.asarray(image.resize((320, 180), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def test_the_lower_half_is_the_mean_cut_to_bytes(ours: Chosen, sides: LeRobotReader) -> None:
    """Made anew as it should be, nothing differs: the two tests below plant what they say, and no more."""
    planted = Planted(ours, _halved(sides, lambda picture: _mean(picture).astype(np.uint8)))
    assert unlike(ours, planted) == []


def test_rounding_instead_of_truncation_is_found(ours: Chosen, sides: LeRobotReader) -> None:
    planted = Planted(ours, _halved(sides, lambda picture: np.rint(_mean(picture)).astype(np.uint8)))
    found = compare(Side("ours", ours), Side("reference", planted))
    assert found.exit_status == 1
    assert (found.fields["video"].outside, found.fields["video"].maximum) == (len(WINDOWS), 1)


def test_an_antialiased_resize_is_found(ours: Chosen, sides: LeRobotReader) -> None:
    assert unlike(ours, Planted(ours, _halved(sides, _antialiased))) == ["video"]


# --- as a user compares ---------------------------------------------------------------------


def test_two_directories_are_compared_as_a_model_is_given_them(directory: Path, tmp_path: Path) -> None:
    other = prepared(tmp_path, gripper_not_flipped)
    same = diff(directory, directory, index=INDEX, samples=1, model_input=True)
    assert same.exit_status == 0
    assert set(same.fields) == {
        *("video", "action", "state", "task", "idle_frames", "canvas_hw", "content_hw", "aspect_key"),
        *("episode_index", "start", "draw_id", "sample_id", "additional_view_description"),
    }
    shape = same.fields["video"].ours
    assert shape is not None
    assert (shape.dtype, shape.shape) == ("float32", (3, CHUNK + 1, 544, 736))
    found = diff(directory, other, index=INDEX, samples=1, model_input=True)
    assert [tally.name for tally in found.fields.values() if tally.outside] == ["action", "state"]
