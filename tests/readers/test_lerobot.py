"""The reader of robot windows: what a sample holds, what is drawn, what is refused, and where it is read."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import prep
from prep.errors import EnvironmentLacksError, PrepError, UsageError
from tests.robot_scenes import DROID_LENGTHS, droid_scenes

POLICY = "droid_policy-train-c32"
KEYS = {
    "ai_caption",
    "video",
    "action",
    "conditioning_fps",
    "mode",
    "domain_id",
    "viewpoint",
    "idle_frames",
    "additional_view_description",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return droid_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture
def reader(made: Path) -> Any:
    return prep.open(made, index=POLICY)


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """A copy of the dataset that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / made.name))


def flat(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.tobytes() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in sample.items()
    }


def test_a_sample_has_the_keys_and_forms_of_upstream(reader: Any) -> None:
    sample = reader[0]
    assert set(sample) == KEYS
    assert (sample["video"].dtype, sample["video"].shape) == (np.uint8, (3, 33, 144, 128))
    assert (sample["action"].dtype, sample["action"].shape) == (np.float32, (33, 8))
    assert (sample["mode"], sample["viewpoint"], sample["domain_id"]) == ("wam", "concat_view", 8)
    assert sample["conditioning_fps"] == 15


def test_the_model_takes_thirteen_keys(reader: Any) -> None:
    sample, given = reader[5], reader.model_input(5)
    _, episode, frame = reader.identity(5)
    assert len(given) == 13
    assert given["canvas_hw"] == (256, 256)
    assert given["content_hw"] == (144, 128)
    assert (given["video"].dtype, given["video"].shape) == (np.float32, (3, 33, 256, 256))
    back = np.rint((given["video"][..., :144, :128] + 1) * 127.5)
    assert (back == sample["video"]).all()
    assert (given["action"] == sample["action"][1:]).all()
    assert (given["state"] == sample["action"][0]).all()
    assert given["task"] == sample["ai_caption"] == reader.instructions(5)[given["draw_id"]]
    assert (given["episode_index"], given["start"]) == (episode, frame)
    assert given["sample_id"] == f"success:{episode}:{frame}"
    assert given["aspect_key"] == "1,1"


def test_state_and_joints_are_the_rows(made: Path, reader: Any) -> None:
    rows = pa.concat_tables(
        pq.read_table(path) for path in sorted((made / "success/data").rglob("*.parquet"))
    )
    window = reader.index.resolve(11)
    part = rows.slice(window.row, 33)
    joints = np.array(part["action.joint_position"].to_pylist(), np.float32)
    grip = np.array(part["action.gripper_position"].to_pylist(), np.float32)
    action = reader[11]["action"]
    assert (action[1:, :7] == joints[:32]).all()
    assert (action[1:, 7] == 1 - grip[:32]).all()
    assert action[0, 0] == np.float32(part["observation.state.joint_positions"][0].as_py()[0])


def test_the_views(made: Path, reader: Any) -> None:
    both = prep.open(made, index=POLICY, view="third_person_view")[3]
    wrist = prep.open(made, index=POLICY, view="wrist_view")[3]
    assert both["video"].shape == (3, 33, 96, 256)
    assert "additional_view_description" in both
    assert (wrist["video"] == reader[3]["video"][:, :, :96]).all()
    assert "additional_view_description" not in wrist
    with pytest.raises(UsageError, match="no view 'top'"):
        prep.open(made, index=POLICY, view="top")


def test_the_draw_hangs_on_seed_and_identity_alone(made: Path, reader: Any) -> None:
    filtered: Any = prep.open(made, index=f"{POLICY}-filtered")
    for place in range(len(filtered)):
        same = reader.index.index_of(filtered.identity(place))
        if place % 5 == 0:
            assert filtered[place]["ai_caption"] == reader[same]["ai_caption"]
    several = [place for place in range(len(reader)) if reader.instructions(place)[0] == "open it"]
    drawn = Counter(reader.model_input(place)["draw_id"] for place in several[:12])
    assert len(drawn) > 1
    other: Any = prep.open(made, index=POLICY, seed=1)
    assert [other[at]["ai_caption"] for at in several[:8]] != [reader[at]["ai_caption"] for at in several[:8]]


def test_an_instruction_may_be_named(made: Path) -> None:
    index, space = "droid_forward_dynamics-train-c16", "joint_pos"  # its windows are of short episodes too
    first: Any = prep.open(made, index=index, action_space=space, instruction="first")
    second: Any = prep.open(made, index=index, action_space=space, instruction=2)
    several = next(at for at in range(len(first)) if first.instructions(at)[0] == "open it")
    single = next(at for at in range(len(first)) if len(first.instructions(at)) == 1)
    blank = next(at for at in range(len(first)) if first.instructions(at) == [""] * 3)
    assert first[several]["ai_caption"] == "open it"
    assert second[several]["ai_caption"] == "open the drawer"
    assert second[blank]["ai_caption"] == ""
    with pytest.raises(PrepError, match=rf"window {single} .*instruction 2 is wanted, the task has 1"):
        second[single]
    with pytest.raises(UsageError, match="0 chooses no instruction"):
        prep.open(made, index=POLICY, instruction="0")


def test_reading_in_order_decodes_each_frame_once(made: Path) -> None:
    reader: Any = prep.open(
        made, index="droid_forward_dynamics-train-c16", view="wrist_view", action_space="joint_pos"
    )
    for place in range(len(reader)):
        reader[place]
    assert reader.frames_decoded == 2 * sum(DROID_LENGTHS)


def test_places_outside_are_refused(reader: Any) -> None:
    for place in (-1, len(reader)):
        with pytest.raises(IndexError):
            reader[place]
        with pytest.raises(IndexError):
            reader.model_input(place)
    with pytest.raises(TypeError):
        reader[True]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_read_the_same(reader: Any, start: str) -> None:
    here = [flat(reader[place]) for place in (0, 20, 40)]  # its files are open before the fork
    with multiprocessing.get_context(start).Pool(2) as pool:
        there = pool.map(reader.__getitem__, [0, 20, 40])
    assert [flat(sample) for sample in there] == here


def test_a_reader_pickles_small(reader: Any) -> None:
    reader[0]
    data = pickle.dumps(reader)
    assert len(data) < 1500
    assert flat(pickle.loads(data)[7]) == flat(reader[7])


def test_what_is_returned_may_be_written_to(reader: Any) -> None:
    before = reader[1]["video"].copy()
    reader[1]["video"][:] = 0
    reader[0]["action"][:] = 0
    assert (reader[1]["video"] == before).all()
    assert reader[0]["action"].any()


def test_samples_that_are_held_stay_as_they_are(reader: Any) -> None:
    held = [reader[place]["video"] for place in range(6)]
    part = reader[6]["video"][:, 4:5, ::2]  # a view of a view holds the memory too
    copies = [video.copy() for video in (*held, part)]
    for place in (30, 31, 40):
        reader[place]
        reader.model_input(place)
    assert all((video == copy).all() for video, copy in zip((*held, part), copies, strict=True))
    assert not any(np.shares_memory(one, other) for one, other in itertools.pairwise(held))


def test_inputs_of_a_model_that_are_held_stay_as_they_are(reader: Any) -> None:
    held = [reader.model_input(place)["video"] for place in range(3)]
    copies = [video.copy() for video in held]
    reader.model_input(9)
    assert all((video == copy).all() for video, copy in zip(held, copies, strict=True))


def test_a_failed_window_leaves_the_next_whole(own: Path) -> None:
    reader: Any = prep.open(own, index=POLICY)
    expected = [reader[place]["video"].copy() for place in (0, 2)]
    videos = own / "success/videos/observation.image.exterior_image_2_left/chunk-000"
    hidden = videos.resolve().rename(own / "hidden")
    again: Any = prep.open(own, index=POLICY)
    with pytest.raises(PrepError, match="cannot be decoded"):
        again[0]
    hidden.rename(videos.resolve())
    assert (again[0]["video"] == expected[0]).all()
    assert (again[2]["video"] == expected[1]).all()


def test_without_a_name_the_recipes_own_training_index_is_taken(own: Path) -> None:
    with pytest.raises(UsageError, match=r"--index: .*droid_policy-train-c32-filtered"):
        prep.open(own)
    (own / "windows/droid_policy-train-c32-filtered.arrow").unlink()
    reader: Any = prep.open(own)
    assert reader.found.path.name == f"{POLICY}.arrow"


def test_unknown_options_are_refused(made: Path) -> None:
    with pytest.raises(UsageError, match="its reader has no option colour"):
        prep.open(made, colour="grey")
    with pytest.raises(UsageError, match="no decoder 'opencv'"):
        prep.open(made, index=POLICY, decoder="opencv")
    with pytest.raises(UsageError, match="not normalised"):
        prep.open(made, index=POLICY, statistics="some.json")


def test_poses_without_scipy_say_what_to_install(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert len(prep.open(made, index=POLICY)[0]["action"]) == 33
    with pytest.raises(EnvironmentLacksError, match=r"pip install 'cosmos-prep\[robot\]'"):
        prep.open(made, index="droid_forward_dynamics-train-c16")


def test_a_broken_video_is_told_with_the_window(own: Path) -> None:
    target = own / "success/videos/observation.image.exterior_image_1_left/chunk-000"
    for path in target.resolve().iterdir():
        copy = own / "broken.mp4"
        copy.write_bytes(path.read_bytes()[:200])
        path.unlink()
        path.write_bytes(copy.read_bytes())
    reader: Any = prep.open(own, index=POLICY)
    with pytest.raises(PrepError, match=r"window 0 \(success:\d+:0\) of droid_plus.*cannot be decoded"):
        reader[0]


def test_rows_of_another_episode_are_told_with_the_window(own: Path) -> None:
    for path in (own / "success/data").rglob("*.parquet"):
        table = pq.read_table(path)
        shifted = pa.array([value + 1 for value in table["index"].to_pylist()])
        pq.write_table(table.set_column(table.column_names.index("index"), "index", shifted), path)
    reader: Any = prep.open(own, index=POLICY)
    with pytest.raises(PrepError, match=r"window 3 \(success:\d+:3\).*index is"):
        reader[3]
