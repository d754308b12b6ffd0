"""`prep env`: what upstream's launcher reads, as bash, dotenv files and JSON understand it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from prep import recipe
from prep.environment import env
from prep.errors import PrepError, UsageError
from prep.robots import RobotOptions, prepare_robots
from prep.snapshots import SnapshotOptions, prepare_snapshots
from tests.commands import prep, told
from tests.llava import parquet, row
from tests.robot_trees import droid_tree, episode_id, keep, run
from tests.sft_trees import bridge_tree, build, source
from tests.trees import edit_json, make_tree, prove

NAMES = [
    "plain",
    "with space",
    "it's",
    'double "quotes"',
    "$HOME and `id`",
    "back\\slash",
    "two\nlines; touch injected",
    "Übung ”",
    "-dash",
    "hash # sign",
]


def evaluated(text: bytes | str, name: str, cwd: Path, *, dotenv: bool = False) -> bytes:
    """What bash has in variable `name` after it took the text."""
    (cwd / "lines.sh").write_bytes(text if isinstance(text, bytes) else text.encode())
    script = (
        'set -a; . ./lines.sh; printf %s "${!1}"'
        if dotenv
        else 'eval "$(cat lines.sh)"; printenv "$1" | head -c -1'
    )
    command = ["bash", "-euo", "pipefail", "-c", script, "bash", name]
    return subprocess.run(command, cwd=cwd, capture_output=True, check=True).stdout


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_bash_gets_the_very_path(name: str, form: str, tmp_path: Path) -> None:
    out = tmp_path / name
    make_tree(out / "videophy2_val", 1, manifest=True)
    text = env(out).text(form)
    got = evaluated(text, "VIDEOPHYSICS_ROOT", tmp_path, dotenv=form == "dotenv")
    assert got == os.fsencode(out)
    assert not (tmp_path / "injected").exists()
    assert evaluated(text, "HF_HUB_OFFLINE", tmp_path, dotenv=form == "dotenv") == b"1"


def test_a_path_that_is_not_utf8_comes_out_byte_for_byte(tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    try:
        make_tree(out / "videophy2_val", 1, manifest=True)
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    done = prep("env", out)
    assert done.returncode == 0, done.stderr
    assert evaluated(os.fsencode(done.stdout), "VIDEOPHYSICS_ROOT", tmp_path) == os.fsencode(out)


@pytest.mark.parametrize(
    "given", ["out", "out/", "./out", "out/videophy2_val/", "out/../out", "out/videophy2_val/media/.."]
)
def test_the_value_is_absolute_without_a_trailing_slash(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path / "out" / "videophy2_val", 1, manifest=True)
    monkeypatch.chdir(tmp_path)
    assert env(given).variables["VIDEOPHYSICS_ROOT"] == str(tmp_path / "out")


def test_the_dataset_may_be_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_tree(tmp_path / "out" / "videophy2_val", 1, manifest=True))
    assert env(".").variables["VIDEOPHYSICS_ROOT"] == str(tmp_path / "out")
    assert env("..").variables["VIDEOPHYSICS_ROOT"] == str(tmp_path / "out")


def test_a_link_is_kept_since_the_user_knows_the_path_by_it(tmp_path: Path) -> None:
    make_tree(tmp_path / "far" / "videophy2_val", 1, manifest=True)
    (tmp_path / "near").symlink_to("far")
    assert env(tmp_path / "near").variables["VIDEOPHYSICS_ROOT"] == str(tmp_path / "near")


def test_json_has_variables_and_remarks(tmp_path: Path) -> None:
    make_tree(tmp_path / "videophy2_val", 1, manifest=True)
    document = json.loads(env(tmp_path, consumer="videophy2_sft_edge").text("json"))
    assert document["variables"] == {
        "VIDEOPHYSICS_ROOT": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    assert any("VLM_SAFETENSORS_PATH" in remark for remark in document["remarks"])


def test_a_consumer_that_nothing_is_for_is_named_with_the_known_ones(tmp_path: Path) -> None:
    make_tree(tmp_path / "videophy2_val", 1, manifest=True)
    with pytest.raises(UsageError, match="videophy2_sft_nano"):
        env(tmp_path, consumer="droid_policy")


def test_a_renamed_directory_is_refused_with_its_right_name(tmp_path: Path) -> None:
    make_tree(tmp_path / "videophy2_val", 1, manifest=True).rename(tmp_path / "mine")
    with pytest.raises(UsageError, match="named videophy2_val") as error:
        env(tmp_path)
    assert "Rename it to videophy2_val" in error.value.remedy


def test_two_datasets_that_set_one_variable_to_two_values_are_refused(tmp_path: Path) -> None:
    make_tree(tmp_path / "a" / "videophy2_val", 1, manifest=True)
    make_tree(tmp_path / "b" / "videophy2_val", 1, manifest=True)
    with pytest.raises(UsageError) as error:
        env(tmp_path)
    assert error.value.exit_status == 2
    assert str(tmp_path / "a") in error.value.message
    assert str(tmp_path / "b") in error.value.message
    assert env(tmp_path / "a").variables["VIDEOPHYSICS_ROOT"] == str(tmp_path / "a")


def test_a_split_that_is_not_there_is_remarked_and_one_beside_is_not(tmp_path: Path) -> None:
    val = make_tree(tmp_path / "videophy2_val", 1, manifest=True)
    assert [remark for remark in env(tmp_path).remarks if "videophy2_train" in remark]
    make_tree(tmp_path / "videophy2_train", 1, manifest=True, split="train")
    assert not [remark for remark in env(tmp_path).remarks if "not there" in remark]
    assert not [remark for remark in env(val).remarks if "not there" in remark]


def test_of_many_values_for_one_variable_a_few_are_told_and_their_number(tmp_path: Path) -> None:
    for name in "abcde":
        make_tree(tmp_path / name / "videophy2_val", 1, manifest=True)
    with pytest.raises(UsageError, match=r"^5 datasets would set VIDEOPHYSICS_ROOT: .*; and 2 more") as error:
        env(tmp_path)
    assert str(tmp_path / "c") in error.value.message
    assert str(tmp_path / "d") not in error.value.message


def test_an_sft_dataset_without_train_is_remarked(tmp_path: Path) -> None:
    build(tmp_path / "data", **source(tmp_path / "source", ["first"]))
    tree = bridge_tree(tmp_path / "tree")
    shutil.rmtree(tree / "train")
    build(tmp_path / "other", "bridge", source=str(tree))
    assert not [remark for remark in env(tmp_path / "data").remarks if "not there" in remark]
    assert [remark for remark in env(tmp_path / "other").remarks if "not there: train" in remark]


def test_several_snapshots_are_refused_by_name_since_upstream_reads_one(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(parquet([row(0)]))
    options = SnapshotOptions(source=str(tmp_path / "rows.parquet"))
    roots = []
    for name in ("a", "b"):
        results = prepare_snapshots("llava_ov", tmp_path / name, subsets=["default"], options=options)
        roots.append(results[0].root)
    consumer = "pre_exp012_llava_ov_mapstyle_dataloader"
    assert "SNAPSHOT_OVERRIDES" in env(roots[0], consumer=consumer).variables
    message = told(prep("env", tmp_path, "--for", consumer), 2)
    assert "Two datasets would set SNAPSHOT_OVERRIDES" in message
    assert all(str(root) in message for root in roots)


@pytest.mark.parametrize("what", ["empty", "bare", "absent", "file"])
def test_what_is_no_prepared_dataset_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / what
    if what == "empty":
        path.mkdir()
    elif what == "bare":
        make_tree(path, 1)
    elif what == "file":
        path.touch()
    with pytest.raises(UsageError) as error:
        env(path)
    assert error.value.remedy


def test_a_broken_manifest_is_named(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 1, manifest=True)
    (tree / "manifest.json").write_text("{")
    with pytest.raises(PrepError, match="not valid JSON"):
        env(tmp_path)


@pytest.mark.parametrize(
    ("name", "template"),
    [("X; touch injected; Y", "{out_root}"), ("ROOT", "{outroot}"), ("ROOT", "{directory}/{}")],
)
def test_a_recipe_cannot_set_what_is_no_variable(name: str, template: str, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 1)
    document = dict(recipe.load_recipe("videophy2").document)
    prove(tree, recipe={**document, "environment": {name: template}})
    with pytest.raises(UsageError):
        env(tmp_path)


def test_a_remark_of_several_lines_stays_a_comment(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 1, manifest=True)
    path = tree / "manifest.json"
    edit_json(path, "recipe", "environment", "not_provided", value={"A": "one\ntouch injected\r\ntouch more"})
    evaluated(env(tmp_path).text("shell"), "VIDEOPHYSICS_ROOT", tmp_path)
    assert not (tmp_path / "injected").exists()
    assert not (tmp_path / "more").exists()


def test_nothing_is_written(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", 1, manifest=True)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    env(tree)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    shutil.rmtree(tree)


# --- robot datasets ------------------------------------------------------------------------


def robot(out: Path, recipe_name: str = "droid_policy", *, ranges: list[int] | None = None) -> Path:
    """A prepared DROID dataset below `out`; `ranges` is what a filter keeps of each episode."""
    if not (out.parent / "tree").exists():
        droid_tree(out.parent / "tree")
    path = None
    if ranges is not None:
        named = {episode_id(number): [ranges] for number in range(40)}
        path = str(keep(out.parent / "keep.json", named))
    return run(out, recipe_name, root=out.parent / "tree", keep_ranges=path).root


@pytest.mark.parametrize("name", ["droid_policy", "droid_forward_dynamics"])
def test_the_overrides_turn_the_very_filter_on(name: str, tmp_path: Path) -> None:
    root = robot(tmp_path / "data", name, ranges=[0, 90])
    consumer = {"droid_policy": "action_policy_droid_nano"}.get(name, "action_fd_droid_posttrain")
    found = env(tmp_path / "data", consumer=consumer)
    assert found.variables["DATASET_PATH"] == str(root)
    first, second = found.variables["EXTRA_TAIL_OVERRIDES"].split(" ")
    start = "dataloader_train.dataloader.datasets.droid.dataset."
    assert first == f"{start}use_filter_dict=True"
    path = Path(second.removeprefix(f"{start}filter_dict_path="))
    assert path.parent == root / "filters"
    assert len(json.loads(path.read_text())) == 40
    assert evaluated(found.text("shell"), "EXTRA_TAIL_OVERRIDES", tmp_path).decode() == f"{first} {second}"
    assert evaluated(found.text("dotenv"), "EXTRA_TAIL_OVERRIDES", tmp_path, dotenv=True)


def test_without_a_filter_nothing_is_overridden(tmp_path: Path) -> None:
    root = robot(tmp_path / "data")
    found = env(root)
    assert "EXTRA_TAIL_OVERRIDES" not in found.variables
    assert found.variables["DROID_ROOT"] == str(root)


def test_an_unfiltered_index_beside_the_filtered_one_changes_nothing(tmp_path: Path) -> None:
    robot(tmp_path / "data", ranges=[0, 90])
    robot(tmp_path / "data")
    assert "EXTRA_TAIL_OVERRIDES" in env(tmp_path / "data").variables


@pytest.mark.parametrize("name", ["with space", "a,b", "a{b}", "Übung", "it's"])
def test_a_path_that_an_override_cannot_hold_is_refused(name: str, tmp_path: Path) -> None:
    out = tmp_path / name / "data"
    out.parent.mkdir()
    robot(out, ranges=[0, 90])
    with pytest.raises(UsageError, match="launcher") as error:
        env(out)
    assert error.value.remedy


def test_two_recipes_over_one_dataset_have_each_its_own_filter(tmp_path: Path) -> None:
    robot(tmp_path / "data", ranges=[0, 90])
    robot(tmp_path / "data", "droid_forward_dynamics", ranges=[0, 80])
    paths = {
        env(tmp_path / "data", consumer=consumer).variables["EXTRA_TAIL_OVERRIDES"]
        for consumer in ("action_policy_droid_nano", "action_fd_droid_posttrain")
    }
    assert len(paths) == 2
    both = env(tmp_path / "data")
    assert "EXTRA_TAIL_OVERRIDES" not in both.variables
    assert any("name one with --for" in remark for remark in both.remarks)


def test_two_recipes_with_one_filter_agree(tmp_path: Path) -> None:
    robot(tmp_path / "data", ranges=[0, 90])
    robot(tmp_path / "data", "droid_forward_dynamics", ranges=[0, 90])
    assert "EXTRA_TAIL_OVERRIDES" in env(tmp_path / "data").variables


def test_a_suite_and_the_folder_above_the_suites(tmp_path: Path) -> None:
    for suite in ("libero_spatial", "libero_object", "libero_goal", "libero_10"):
        droid_tree(tmp_path / "all" / suite, "flat", fps=20, files=False)
    prepare_robots("libero_all", tmp_path / "data", options=RobotOptions(root=tmp_path / "all"))
    run(tmp_path / "data", "libero_10", root=tmp_path / "all")
    parent = tmp_path / "data" / "LIBERO_LeRobot_v3"
    for consumer, value in (
        ("action_policy_libero_10_nano", parent / "libero_10"),
        ("action_policy_libero_all_nano", parent),
    ):
        assert env(tmp_path / "data", consumer=consumer).variables["LIBERO_ROOT"] == str(value)
    with pytest.raises(UsageError, match="Two datasets would set LIBERO_ROOT"):
        env(tmp_path / "data")
