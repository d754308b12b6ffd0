"""`prep validate` on robot data: prepared and foreign trees, their files, and the indices beside them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from prep import schemas
from prep.findings import Report
from prep.robots import RobotOptions, prepare_robots
from prep.validation import validate
from prep.validation_robot import find_roots
from prep.windows import WindowIndex
from tests.robot_trees import NAME, keep, listing, run
from tests.robots import DROID, LIBERO, edit_json, edit_table, make_root

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole tree of success and failure with real videos."""
    folder = tmp_path_factory.mktemp("master")
    for kind in ("success", "failure"):
        make_root(folder / kind, DROID)
    for path in (folder / "failure/meta/episodes").rglob("*.parquet"):
        edit_table(path, _as_failures)
    return folder


def _as_failures(table: object) -> object:
    import pyarrow as pa
    import pyarrow.compute as pc

    assert isinstance(table, pa.Table)
    names = pc.replace_substring(table["episode_id"], "/success/", "/failure/")
    return table.set_column(table.schema.get_field_index("episode_id"), "episode_id", names)


@pytest.fixture
def tree(master: Path, tmp_path: Path) -> Path:
    return shutil.copytree(master, tmp_path / "tree")


@pytest.fixture
def made(tree: Path, tmp_path: Path) -> Path:
    """The tree, prepared with a filter: a dataset that validate finds nothing in."""
    ids = [f"LAB/success/2023-01-{1 + number:02d}/run_{number}" for number in range(6)]
    ranges = keep(tmp_path / "keep.json", {name: [[0, 14], [14, 30]] for name in ids})
    result = run(tmp_path / "data", root=tree, chunk_length=4, keep_ranges=str(ranges))
    assert result.outcome == "complete"
    return result.root


def codes(report: Report, *, warnings: bool = False) -> list[str]:
    return [group.code for group in report.ordered() if warnings or group.severity == "error"]


@pytest.mark.parametrize("level", ["quick", "standard", "deep"])
def test_a_prepared_dataset_is_clean_and_left_alone(level: str, made: Path) -> None:
    before = listing(made)
    report = validate(made.parent, level=level)  # type: ignore[arg-type]
    assert codes(report, warnings=True) == []
    assert report.checked["episodes"] == 12
    assert report.checked["window indices"] == 2
    (dataset,) = report.datasets
    assert (dataset["path"], dataset["kind"], dataset["records"]) == (NAME, "lerobot", 12)
    assert str(dataset["dataset_id"]).startswith(f"{NAME}@")
    assert listing(made) == before


def test_a_changed_input_makes_the_index_unfit(made: Path, tree: Path) -> None:
    with (tree / "success/meta/info.json").open("a") as file:
        file.write("\n")
    assert codes(validate(made, level="quick")) == ["FIL003", "WIN001"]


def test_an_input_of_the_same_size_is_found_by_its_hash(made: Path, tree: Path) -> None:
    path = tree / "success/meta/info.json"
    path.write_bytes(path.read_bytes().replace(b'"arm"', b'"leg"'))
    assert codes(validate(made, level="quick")) == []
    assert "WIN001" in codes(validate(made))


def test_an_input_that_is_gone_is_told(made: Path, tree: Path) -> None:
    (tree / "success/meta/tasks.parquet").unlink()
    report = validate(made, level="quick")
    assert {"WIN001", "FIL005"} <= set(codes(report))


def test_the_filter_that_upstream_is_pointed_to_is_checked(made: Path) -> None:
    (path,) = (made / "filters").iterdir()
    text = path.read_text()
    path.write_text(text.replace("14", "15", 1))
    assert codes(validate(made, level="quick")) == []
    assert codes(validate(made)) == ["WIN001"]
    path.unlink()
    assert codes(validate(made, level="quick")) == ["WIN001"]


def test_damaged_and_foreign_files_among_the_indices(made: Path) -> None:
    first, second = sorted((made / "windows").iterdir())
    first.write_bytes(first.read_bytes()[:-100])
    (made / "windows/notes.txt").write_text("mine")
    report = validate(made, level="quick")
    assert codes(report) == ["WIN001"]
    assert "FIL006" in codes(report, warnings=True)
    assert report.checked["window indices"] == 1
    assert second.is_file()


def test_sizes_are_those_of_the_manifest(made: Path, tree: Path) -> None:
    videos = sorted((tree / "failure/videos").rglob("*.mp4"))
    videos[0].write_bytes(videos[0].read_bytes()[:-10])
    videos[1].unlink()
    report = validate(made, level="quick")
    assert {"FIL003", "FIL005"} <= set(codes(report))
    places = {finding.path for group in report.ordered() for finding in group.findings}
    assert {f"failure/{path.relative_to(tree / 'failure')}" for path in videos[:2]} <= places


def test_a_dangling_link_is_told_and_does_not_crash(made: Path, tree: Path) -> None:
    shutil.rmtree(tree)
    found = codes(validate(made))
    assert "FIL005" in found
    assert not any(code.startswith("RUL") for code in found)


def test_metadata_alone_is_prepared_and_told_as_missing_files(master: Path, tmp_path: Path) -> None:
    for kind in ("success", "failure"):
        shutil.copytree(master / kind / "meta", tmp_path / "tree" / kind / "meta")
    result = run(tmp_path / "data", root=tmp_path / "tree", chunk_length=4)
    assert result.outcome == "complete"
    report = validate(result.root, level="quick")
    assert report.exit_status == 1
    assert "WIN001" not in codes(report)


def test_foreign_trees_are_found_in_every_form(master: Path, tmp_path: Path) -> None:
    shutil.copytree(master, tmp_path / "sharded/success")
    (tmp_path / "sharded/success/failure").rename(tmp_path / "sharded/success/RAIL")
    (tmp_path / "sharded/success/success").rename(tmp_path / "sharded/success/IRIS")
    for path, roots in (
        (master, ["failure", "success"]),
        (master / "success", [""]),
        (tmp_path / "sharded", ["success/IRIS", "success/RAIL"]),
    ):
        assert find_roots(path) == roots
        report = validate(path, level="quick")
        assert report.errors == 0
        assert report.checked["episodes"] == 6 * len(roots)
        assert [each["path"] for each in report.datasets] == ["."]


def test_a_defect_is_told_with_its_root(master: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(master, tmp_path / "tree")
    edit_json(tree / "failure/meta/info.json", lambda info: info.update(total_frames=1))
    report = validate(tree, level="quick")
    assert report.errors
    places = [finding.path for group in report.ordered() for finding in group.findings]
    assert [path for path in places if path] == ["failure/meta/info.json"] * (len(places) - 1)


def test_the_folder_above_four_suites(tmp_path: Path) -> None:
    for number, suite in enumerate(SUITES):
        lengths = (24, 18, 30, 21, 27, 16 + number)
        make_root(tmp_path / "all" / suite, replace(LIBERO, lengths=lengths))
    foreign = validate(tmp_path / "all", level="quick")
    assert foreign.errors == 0
    assert [each["path"] for each in foreign.datasets] == sorted(SUITES)
    prepare_robots("libero_all", tmp_path / "data", options=RobotOptions(root=tmp_path / "all"))
    report = validate(tmp_path / "data/LIBERO_LeRobot_v3")
    assert codes(report, warnings=True) == []
    assert [each["path"] for each in report.datasets] == sorted(SUITES)
    assert report.checked["episodes"] == 24
    assert report.checked["window indices"] == 8
    # An index of rows is bound to the frame tables.
    table = tmp_path / "all/libero_goal/data/chunk-000/file-003.parquet"
    table.write_bytes(table.read_bytes() + b" ")
    found = validate(tmp_path / "data/LIBERO_LeRobot_v3", level="quick")
    wrong = [
        finding.path for group in found.ordered() if group.code == "WIN001" for finding in group.findings
    ]
    assert wrong == [
        "libero_goal/windows/libero_all-train-c16.arrow",
        "libero_goal/windows/libero_all-val-c16.arrow",
    ]


def test_the_converted_real_tree_is_clean_once_prepared(real_data: Path, tmp_path: Path) -> None:
    result = run(tmp_path / "data", "lerobot", root=real_data / "g1_lerobot_v30_converted")
    assert validate(result.root, level="quick").errors == 0


def test_the_old_format_is_told_by_its_command(real_data: Path) -> None:
    report = validate(real_data / "g1_lerobot_v21", level="quick")
    assert report.exit_status == 1
    assert "convert_dataset_v21_to_v30" in json.dumps(report.as_dict())


def test_what_the_schemas_say_is_asked_where_no_check_has_spoken(tree: Path) -> None:
    assert "TXT005" not in codes(validate(tree, level="quick"))
    edit_json(tree / "success/meta/info.json", lambda info: info.update(robot_type=7))
    report = validate(tree, level="quick")
    (group,) = [group for group in report.ordered() if group.code == "TXT005"]
    assert [finding.at() for finding in group.findings] == ["success/meta/info.json:/robot_type"]


def test_a_written_filter_and_index_obey_their_schemas(made: Path) -> None:
    (path,) = (made / "filters").iterdir()
    assert schemas.is_valid("keep-ranges", json.loads(path.read_bytes()))
    assert not schemas.is_valid("keep-ranges", {"ILIAD/success/1": [[0, 4]]})
    for index in (made / "windows").iterdir():
        assert schemas.is_valid("window-index", WindowIndex.open(index).parameters)
    assert not schemas.is_valid("window-index", {})
