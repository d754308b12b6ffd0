"""The checks of a LeRobot root: real trees, who reads, what is left out, and single rules at their limits."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.findings import Finding, Report
from prep.layouts.lerobot_checks import check_root
from prep.layouts.lerobot_columns import Series, series
from tests.layouts.lerobot_defects import SIDE, TOP, frames_of, pictures
from tests.robots import DROID, LIBERO, PLAIN, edit_json, edit_table, encode, make_root, video_path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return make_root(tmp_path / "plain")


def found_in(root: Path, **options: Any) -> list[Finding]:
    return list(check_root(root, **options))


def codes(root: Path, **options: Any) -> Counter[str]:
    return Counter(finding.code for finding in check_root(root, **options))


# --- real trees --------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["quick", "standard", "deep"])
@pytest.mark.parametrize("name", ["g1_lerobot_v30_converted", "rebot_lerobot_v30_novideo"])
def test_real_trees_that_lerobot_reads_are_clean(real_data: Path, name: str, level: str) -> None:
    assert found_in(real_data / name, level=level) == []


def test_a_tree_of_v21_is_refused_with_the_command_that_converts(real_data: Path) -> None:
    (finding,) = found_in(real_data / "g1_lerobot_v21")
    assert (finding.code, finding.severity) == ("LER001", "error")
    assert "v2.1" in finding.message
    assert "convert_dataset_v21_to_v30" in finding.remedy


def test_nvidias_example_gives_each_of_its_defects(real_data: Path) -> None:
    report = Report("droid")
    report.extend(check_root(real_data / "droid_lerobot_v30_nvidia", report=report))
    assert {group.code: group.count for group in report.ordered()} == {
        "LER004": 2,  # two templates of older names
        "LER006": 4,  # shape []
        "LER007": 3,  # cameras without names
        "LER010": 6,  # timestamp and five features as float64
        "LER014": 1,  # 0:57639 of one episode
        "LER015": 1,
        "LER022": 4,  # no routing of the rows and of three cameras
        "LER029": 1,
        "LER033": 1,
        "LER036": 1,
        "LER042": 2,  # two cameras not downloaded
        "LER053": 1,  # the gripper state is 0 throughout
        "LER058": 1,  # av1 as declared, h264 in the file
    }
    missing = report.groups["LER042", "error"].findings
    assert {finding.place.rpartition(".")[2] for finding in missing} == {
        "wrist_image_left",
        "exterior_image_1_left",
    }
    assert {"what": "2 videos", "why": "the files are not there, or hold no data"} in report.not_checked


def test_upstreams_own_reader_bears_more_than_lerobot(real_data: Path) -> None:
    root = real_data / "droid_lerobot_v30_nvidia"
    by_lerobot = {finding.code for finding in check_root(root) if finding.severity == "error"}
    by_upstream = {
        finding.code for finding in check_root(root, reader="upstream") if finding.severity == "error"
    }
    assert by_lerobot == {"LER004", "LER006", "LER022", "LER033", "LER042"}
    assert by_upstream == {"LER042"}


# --- who reads, and how far --------------------------------------------------------------


def test_task_numbers_out_of_place_are_fatal_only_where_lerobot_reads(plain: Path) -> None:
    table = pa.table({"task_index": [2, 1, 0], "task": list(PLAIN.tasks)})
    pq.write_table(table, plain / "meta/tasks.parquet")
    severities = {
        reader: {
            (finding.code, finding.severity) for finding in check_root(plain, level="quick", reader=reader)
        }
        for reader in ("lerobot", "upstream")
    }
    assert severities == {
        "lerobot": {("LER033", "error"), ("LER034", "error")},
        "upstream": {("LER034", "warning")},
    }


def test_upstream_takes_the_text_by_number(plain: Path) -> None:
    # Reversed numbers with reversed texts are the same tasks by number, and others by position.
    table = pa.table({"task_index": [2, 1, 0], "task": list(PLAIN.tasks)[::-1]})
    pq.write_table(table, plain / "meta/tasks.parquet")
    assert "LER040" not in codes(plain, reader="upstream")
    assert "LER040" in codes(plain, reader="lerobot")


def test_a_folder_without_info_is_no_tree(tmp_path: Path) -> None:
    assert codes(tmp_path) == {"LAY002": 1}


def test_a_newer_version_is_refused_by_name(plain: Path) -> None:
    edit_json(plain / "meta/info.json", lambda info: info.update(codebase_version="v3.7"))
    (finding,) = found_in(plain)
    assert (finding.code, "v3.7" in finding.message) == ("LER001", True)


def test_metadata_alone_counts_what_is_missing(plain: Path) -> None:
    for folder in ("data", "videos"):
        shutil.rmtree(plain / folder)
    report = Report("tree")
    report.extend(check_root(plain, report=report))
    assert {group.code: group.count for group in report.ordered()} == {"LER041": 3, "LER042": 6}
    assert {entry["what"] for entry in report.not_checked} >= {"rows of 3 frame tables", "6 videos"}


def test_the_report_says_what_was_counted_and_left_out(plain: Path) -> None:
    report = Report("tree")
    report.extend(check_root(plain, level="quick", report=report))
    assert report.checked == {"episodes": 6}
    assert {entry["what"] for entry in report.not_checked} == {"rows of the frame tables", "videos"}
    report = Report("tree")
    report.extend(check_root(plain, level="deep", report=report))
    assert report.checked == {"episodes": 6, "frame tables": 3, "frames": 136, "videos": 6}
    assert report.not_checked == []


def test_findings_come_in_the_same_order_however_many_threads(plain: Path) -> None:
    for camera in PLAIN.cameras:
        for file in range(2):
            video_path(plain, camera, file).write_bytes(f"no video {camera} {file}".encode())
    assert found_in(plain, jobs=4) == found_in(plain, jobs=1) != []


def test_names_are_wanted_only_where_a_filter_will_ask(tmp_path: Path) -> None:
    root = make_root(tmp_path / "droid", replace(DROID, ids=False))
    assert codes(root) == {"LER029": 1}
    assert codes(root, needs_ids=False) == {}
    assert codes(make_root(tmp_path / "libero", LIBERO), needs_ids=True) == {"LER029": 1}


def test_pandas_is_not_imported(plain: Path) -> None:
    # It takes a quarter of a second to import; some functions of pyarrow do it unasked.
    script = (
        "import sys; from pathlib import Path; from prep.layouts.lerobot_checks import check_root\n"
        f"assert not list(check_root(Path({str(plain)!r}), level='deep')); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_sample_of_the_videos_is_named_as_one(plain: Path) -> None:
    for camera in PLAIN.cameras:
        for file in range(2):
            video_path(plain, camera, file).write_bytes(f"no video {camera} {file}".encode())
    report = Report("tree")
    report.extend(check_root(plain, sample=2, seed=3, report=report))
    assert sum(group.count for group in report.ordered()) == 2
    assert report.not_checked[0] == {"what": "4 of 6 videos", "why": "sampled 2 of 6, seed 3"}


def test_a_folder_that_datasets_saved_is_refused_by_name(tmp_path: Path) -> None:
    Dataset.from_dict({"index": [0, 1]}).save_to_disk(tmp_path / "train")
    for folder in (tmp_path, tmp_path / "train"):
        (finding,) = found_in(folder)
        assert (finding.code, "load_from_disk" in finding.remedy) == ("LAY001", True)


# --- other forms of clean trees ----------------------------------------------------------


def test_metadata_in_several_chunks_is_joined_by_full_path(tmp_path: Path) -> None:
    # Two files of one name in two chunks, as a table of thousands of files has them.
    root = make_root(tmp_path / "tree", replace(PLAIN, meta_files=(4, 2)))
    folder = root / "meta/episodes"
    (folder / "chunk-001").mkdir()
    second = (folder / "chunk-000/file-001.parquet").rename(folder / "chunk-001/file-000.parquet")
    for column, value in (("chunk_index", 1), ("file_index", 0)):
        name = f"meta/episodes/{column}"
        edit_table(
            second,
            lambda table, name=name, value=value: table.set_column(
                table.column_names.index(name), name, pa.array([value] * table.num_rows)
            ),
        )
    assert found_in(root) == []


def test_pictures_texts_flags_and_matrices_are_borne(tmp_path: Path) -> None:
    root = make_root(tmp_path / "tree", replace(PLAIN, cameras=(), packing=()))
    picture = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    added = {
        "observation.images.still": (
            {"dtype": "image", "shape": [4, 4, 3]},
            [{"bytes": b"x", "path": "x"}],
            picture,
        ),
        "language": ({"dtype": "string", "shape": [1]}, ["go"], pa.string()),
        "next.done": ({"dtype": "bool", "shape": [1]}, [False], pa.bool_()),
        "pose": (
            {"dtype": "float64", "shape": [2, 2]},
            [[[0.0, 1.0], [2.0, 3.0]]],
            pa.list_(pa.list_(pa.float64())),
        ),
    }
    for file in range(3):
        for name, (_, cell, kind) in added.items():
            edit_table(
                root / f"data/chunk-000/file-{file:03d}.parquet",
                lambda table, name=name, cell=cell, kind=kind: table.append_column(
                    name, pa.array(cell * table.num_rows, kind)
                ),
            )
    declared = {name: feature | {"names": None} for name, (feature, _, _) in added.items()}
    edit_json(root / "meta/info.json", lambda info: info["features"].update(declared))
    values = {"observation.images.still": [[[0.1]]] * 3, "next.done": [0.0], "pose": [[0.0, 1.0], [2.0, 3.0]]}
    measures = {name: dict.fromkeys(("min", "max", "mean", "std"), value) for name, value in values.items()}
    edit_json(root / "meta/stats.json", lambda statistics: statistics.update(measures))
    # The matrix is the same in every row; nothing else is found.
    assert codes(root) == {"LER053": 1}


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    fps=st.sampled_from([1, 5, 10, 15, 20, 24, 25, 30, 50, 60, 120]),
    cuts=st.lists(st.integers(1, 8), max_size=3),
    fixed=st.booleans(),
)
def test_clean_trees_of_any_lengths_give_nothing(
    lengths: list[int], fps: int, cuts: list[int], fixed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    edges = sorted({0, len(lengths), *(cut for cut in cuts if cut < len(lengths))})
    files = tuple(end - start for start, end in itertools.pairwise(edges))
    shape = replace(
        PLAIN,
        cameras=(),
        packing=(),
        lengths=tuple(lengths),
        data_files=files,
        meta_files=files,
        fps=fps,
        fixed_lists=fixed,
        tasks=PLAIN.tasks[: len(lengths)],
    )
    report = Report("tree")
    report.extend(check_root(make_root(tmp_path_factory.mktemp("any") / "tree", shape), report=report))
    # A dataset of one frame has nothing that could change.
    assert report.ordered() == []
    assert report.checked["frames"] == sum(lengths)


# --- single rules ------------------------------------------------------------------------


def test_a_rule_that_crashes_is_a_finding_and_the_others_go_on(plain: Path) -> None:
    # A whole number beyond any float, which no rule foresees.
    edit_json(plain / "meta/info.json", lambda info: info.update(splits={"train": "0:٣"}, fps=10**400))
    counted = codes(plain, level="quick")
    assert counted["RUL001"] >= 1
    assert counted["LER014"] == 1


def test_an_episode_without_frames(tmp_path: Path) -> None:
    shape = replace(PLAIN, cameras=(), packing=(), lengths=(24, 0, 30, 21, 27, 16))
    assert codes(make_root(tmp_path / "tree", shape)) == {"LER028": 1}


def test_a_task_without_text(plain: Path) -> None:
    table = pa.table({"task_index": [0, 1, 2], "task": [*PLAIN.tasks[:2], None]})
    pq.write_table(table, plain / "meta/tasks.parquet")
    found = codes(plain, level="quick", reader="upstream")
    # The episodes name the text that the table has lost.
    assert found == {"LER035": 1, "LER038": 1}


def test_a_video_shorter_than_its_windows(plain: Path) -> None:
    # A fragmented MP4 states no count of frames: only its duration tells at level standard.
    wanted = pictures(SIDE, frames_of(0, 1))[:-5]
    path = video_path(plain, SIDE)
    with av.open(str(path), "w", options={"movflags": "frag_keyframe+empty_moov"}) as output:
        stream = output.add_stream("libx264", rate=Fraction(10))
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for picture in wanted:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    assert set(codes(plain)) & {"LER061", "LER062"} == {"LER061"}
    assert set(codes(plain, level="deep")) & {"LER061", "LER062"} == {"LER062"}


def test_files_of_one_camera_are_compared_where_nothing_is_declared(plain: Path) -> None:
    def forget(info: dict[str, Any]) -> None:
        info["features"][SIDE].pop("info")

    edit_json(plain / "meta/info.json", forget)
    assert codes(plain) == {}
    encode(video_path(plain, SIDE, 1), pictures(SIDE, frames_of(2, 3, 4, 5)), rate=10, codec="mpeg4")
    (finding,) = found_in(plain)
    assert (finding.code, finding.path) == ("LER058", f"videos/{SIDE}/chunk-000/file-001.mp4")


def test_a_link_that_leads_back_is_not_followed_for_ever(plain: Path) -> None:
    (plain / "videos/again").symlink_to(plain / "videos")
    assert set(codes(plain, level="quick")) == {"LER043"}


def test_windows_may_stand_in_any_order_in_the_table(tmp_path: Path) -> None:
    # Episode 0 second in the file: its window and its picture say the same.
    root = make_root(tmp_path / "tree", replace(PLAIN, cameras=PLAIN.cameras[:1], packing=((6,),)))
    times = {
        "from_timestamp": [1.8, 0.0, 4.2, 7.2, 9.3, 12.0],
        "to_timestamp": [4.2, 1.8, 7.2, 9.3, 12.0, 13.6],
    }

    def exchange(table: pa.Table) -> pa.Table:
        for name, values in times.items():
            column = f"videos/{TOP}/{name}"
            table = table.set_column(table.column_names.index(column), column, pa.array(values))
        return table

    edit_table(root / "meta/episodes/chunk-000/file-000.parquet", exchange)
    assert codes(root) == {}


def test_a_frame_table_may_be_of_another_type_in_each_file(plain: Path) -> None:
    def as_float64(table: pa.Table) -> pa.Table:
        values = pa.array(table["action"].to_pylist(), pa.list_(pa.float64()))
        return table.set_column(table.column_names.index("action"), "action", values)

    edit_table(plain / "data/chunk-000/file-001.parquet", as_float64)
    (finding,) = found_in(plain)
    assert (finding.code, finding.path) == ("LER010", "data/chunk-000/file-001.parquet")


def test_a_fault_of_type_is_told_once_for_all_files(plain: Path) -> None:
    edit_json(plain / "meta/info.json", lambda info: info["features"]["action"].update(dtype="float64"))
    assert codes(plain) == {"LER010": 1}


def test_unknown_text_and_blank_text_are_counted_apart(plain: Path) -> None:
    edit_table(
        plain / "meta/tasks.parquet",
        lambda table: table.set_column(
            table.column_names.index("__index_level_0__"), "__index_level_0__", pa.array(["", " | ", "go | "])
        ),
    )
    assert codes(plain, level="quick") == {"LER036": 3, "LER038": 3}


def test_an_hour_of_frames_in_float32_is_on_the_grid(tmp_path: Path) -> None:
    # At 3,600 s a float32 is 0.00024 s coarse, more than the tolerance of 0.0001 s.
    shape = replace(
        PLAIN, cameras=(), packing=(), lengths=(36_000,), data_files=(1,), meta_files=(1,), fps=10
    )
    assert codes(make_root(tmp_path / "long", shape)) == {}


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3000),
    width=st.integers(1, 9),
    fixed=st.booleans(),
    group=st.integers(1, 900),
    seed=st.integers(0, 99),
)
def test_a_column_reads_as_pyarrow_reads_it(
    rows: int, width: int, fixed: bool, group: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = np.random.default_rng(seed).integers(0, 3, (rows, width)).astype(np.float32)
    flat = pa.array(values.ravel())
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * width)
    lists = (
        pa.FixedSizeListArray.from_arrays(flat, width) if fixed else pa.ListArray.from_arrays(offsets, flat)
    )
    path = tmp_path_factory.mktemp("column") / "table.parquet"
    pq.write_table(pa.table({"x": lists}), path, row_group_size=group)
    with pq.ParquetFile(path) as file:
        column = series(file.read()["x"], "x")
    assert np.array_equal(column.values, values)
    least, greatest = column.extremes()
    assert np.array_equal(least, values.min(axis=0))
    assert np.array_equal(greatest, values.max(axis=0))
    assert column.repeated().tolist() == [
        at for at in range(rows - 1) if (values[at] == values[at + 1]).all()
    ]


def test_extremes_carry_a_nan_of_any_row() -> None:
    for row in (0, 700, 2999):
        values = np.zeros((3000, 3), np.float32)
        values[row, 1] = np.nan
        least, greatest = Series(values).extremes()
        assert np.isnan(least).tolist() == np.isnan(greatest).tolist() == [False, True, False]


def test_lerobot_opens_what_is_called_clean(tmp_path: Path) -> None:
    datasets = pytest.importorskip("lerobot.datasets.lerobot_dataset", reason="lerobot is not installed here")
    for name, shape in (("plain", PLAIN), ("droid", DROID), ("libero", LIBERO)):
        root = make_root(tmp_path / name, shape)
        opened = datasets.LeRobotDataset(f"local/{name}", root=root)
        assert len(opened) == json.loads((root / "meta/info.json").read_text())["total_frames"]
