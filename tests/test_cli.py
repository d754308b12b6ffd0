"""The command as a user meets it: help, statuses, mistakes, streams."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from prep import __version__
from prep.cli import main
from prep.loopback import Fault, FaultKind, LoopbackHub
from prep.workspace import Workspace
from tests.commands import PROJECT, check_line, leaves, prep, told
from tests.runs import Clip, World
from tests.trees import make_tree

COMMANDS = dict(leaves())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three rows, each with its clip."""
    with LoopbackHub() as hub:
        world = World(hub, tmp_path / "world")
        world.publish([Clip(f"{number}.mp4", number) for number in (1, 2, 3)])
        yield world


def run(world: World, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return prep(*world.arguments(out, *options), env=world.environment())


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_one_line_of_help_and_examples_that_parse(name: str) -> None:
    text = COMMANDS[name].help or ""
    first, _, rest = text.partition("\n\n")
    assert first.endswith(".")
    assert len(first) <= 100
    assert "\n" not in first
    lines = [line.strip().removeprefix("Example:").strip() for line in rest.splitlines() if "prep " in line]
    assert lines
    for line in lines:
        line = line.removeprefix('eval "$(').removesuffix(')"')
        assert line.startswith(f"prep {name}")
        check_line(line)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_says_what_it_does(name: str) -> None:
    options = [item for item in COMMANDS[name].params if isinstance(item, click.Option)]
    silent = [item.opts[0] for item in options if not item.help and not isinstance(item.type, click.Choice)]
    assert silent == []


def test_a_line_with_a_wrong_option_value_or_command_does_not_parse() -> None:
    for line in ("prep validate --lvel quick", "prep validate --level quik", "prep vldate", "prep env a b"):
        with pytest.raises(click.UsageError):
            check_line(line)


def test_help_and_version_are_answers() -> None:
    assert prep("--version").stdout == f"prep, version {__version__}\n"
    helped = prep("validate", "-h")
    assert helped.returncode == 0
    assert "--level" in helped.stdout


@pytest.mark.parametrize("arguments", [(), ("vendor",)])
def test_without_arguments_the_help_is_shown_and_the_usage_was_wrong(arguments: tuple[str, ...]) -> None:
    done = prep(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Commands:" in done.stderr


def test_a_run_that_is_done_ends_with_0_and_its_second_run_too(world: World, tmp_path: Path) -> None:
    assert run(world, tmp_path / "out").returncode == 0
    again = run(world, tmp_path / "out")
    assert again.returncode == 0
    assert "nothing to do" in again.stderr


def test_rows_that_failed_for_good_end_with_1_and_are_listed(world: World, tmp_path: Path) -> None:
    world.hub.faults.set("2.mp4", Fault(FaultKind.NOT_FOUND))
    done = run(world, tmp_path / "out")
    assert done.returncode == 1
    assert "http_404" in done.stderr
    listed = prep("failures", tmp_path / "out" / "videophy2_val", "--format", "json")
    assert listed.returncode == 0
    assert [(row["row"], row["reason"]) for row in json.loads(listed.stdout)] == [(2, "http_404")]


def test_a_failed_row_is_listed_with_its_source_once(world: World, tmp_path: Path) -> None:
    world.hub.faults.set("2.mp4", Fault(FaultKind.UNAVAILABLE, retry_after=0))
    assert run(world, tmp_path / "out").returncode == 3
    listed = prep("failures", tmp_path / "out" / "videophy2_val")
    (line,) = listed.stdout.splitlines()
    assert line.startswith("row 2\thttp_503\t")
    assert line.count("2.mp4") <= 2, "the row's own address, and the mirror's that was asked"
    assert listed.stderr.startswith("1 failed row of the unfinished run")


def test_a_change_of_a_finished_dataset_ends_with_2_and_names_update(world: World, tmp_path: Path) -> None:
    world.complete(tmp_path / "out")
    said = told(run(world, tmp_path / "out", "--score-field", "sa"), 2)
    assert "--update" in said
    assert "score_field" in said


def test_a_dataset_that_another_run_holds_ends_with_3(world: World, tmp_path: Path) -> None:
    with Workspace(tmp_path / "out" / "videophy2_val"):
        told(run(world, tmp_path / "out"), 3)


def test_a_prompt_that_cannot_be_had_ends_with_4_and_names_the_ways_out(world: World, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "videophy2_test.csv").write_text("video_url,pc,sa,joint\nfile:///a.mp4,3,3,1\n")
    source = f"val={tmp_path / 'source'}"
    options = ("--split", "val", "--offline", "--source", source, "--out-root", tmp_path / "out")
    environment = {**world.environment(), "XDG_CACHE_HOME": str(tmp_path / "empty")}
    done = prep("videophy2", *options, cwd=tmp_path, env=environment)
    if (PROJECT / "vendor" / "cosmos_framework").exists():
        pytest.skip("the vendor folder of this checkout is filled")
    said = told(done, 4)
    assert "--prompt builtin" in said
    assert "prep vendor sync" in said


def test_findings_end_with_1_and_their_absence_with_0(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "videophy2_val", manifest=True)
    assert prep("validate", tree, "--level", "quick").returncode == 0
    (tree / "media" / "video_0002.mp4").unlink()
    done = prep("validate", tree, "--level", "quick")
    assert done.returncode == 1
    assert "FIL005" in done.stdout


def test_a_bare_tree_is_a_valid_argument_and_its_missing_manifest_a_warning(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    done = prep("validate", tree, "--level", "quick")
    assert done.returncode == 0
    assert "MAN004" in done.stdout


MISTAKES = [
    (("vldate",), "validate"),
    (("vendor", "snc"), "sync"),
    (("validate", ".", "--lvel", "quick"), "--level"),
    (("validate", ".", "--level", "quik"), "quick"),
    (("validate", ".", "--select", "VDI"), "VDI"),
    (("validate", "dataa"), "data"),
    (("env", "date"), "data"),
    (("adopt", "dataa/videophy2_val"), "data/videophy2_val"),
    (("failures", "data/videophy2_vla"), "videophy2_val"),
    (("prepare", "vidophy2"), "videophy2"),
    (("videophy2", "--split", "vla"), "val"),
    (("videophy2", "--source", "vla=a/b", "--prompt", "builtin"), "val"),
    (("videophy2", "--source", "nonsense"), "--source val="),
    (("videophy2", "--mirror", "nonsense"), "--mirror https://"),
    (("videophy2", "--limit", "0"), "--limit"),
    (("videophy2", "--score-field", "pcc", "--prompt", "builtin"), "pc"),
    (("videophy2", "--prompt", "bultin"), "builtin"),
    (("explain", "VID-3"), "VID003"),
    (("explain", "VDI003"), "VID003"),
    (("show", "data/videophy2_val", "--index", "3"), "2"),
    (("show", "data/videophy2_val", "--png", "a.gif"), ".png"),
    (("env", "data", "--for", "videophy2_sft_nan"), "videophy2_sft_nano"),
    (("env", "x" * 300), "too long"),
    (("show", "data"), "data/videophy2_val"),
    (("show", "data/videophy2_val/meta.json"), "not a directory"),
    (("failures", "data"), "data/videophy2_val"),
    (("failures", "data/videophy2_val/meta.json"), "not a directory"),
    (("adopt", "data"), "data/videophy2_val"),
    (("adopt", "data/videophy2_val/media", "--recipe", "videophy2", "--split", "val"), "holds neither"),
    (("validate", "data", "--report", "data"), "is a directory"),
    (("videophy2", "--out-root", "data/videophy2_val"), "--out-root data`"),
    (("videophy2", "--out-root", "data/videophy2_val/meta.json"), "is a file"),
    (("videophy2", "--prompt", ""), "builtin"),
    (("videophy2", "--prompt", "data"), "text file"),
    (("vendor", "sync", "--from", "elsewhere"), "does not appear to be a git repository"),
    (("demo", "data"), "not empty"),
    (("demo", "data/videophy2_val/meta.json"), "is a file"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished dataset of three records."""
    folder = tmp_path_factory.mktemp("place")
    make_tree(folder / "data" / "videophy2_val", manifest=True)
    return folder


@pytest.mark.parametrize(("arguments", "near"), MISTAKES, ids=[" ".join(item[0])[:40] for item in MISTAKES])
def test_a_mistake_is_one_sentence_with_what_was_meant(
    arguments: tuple[str, ...],
    near: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # In this process, for there are many of them; `main` is what the child process would run.
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["prep", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert said.out == ""
    assert near in told(subprocess.CompletedProcess(arguments, int(end.value.code or 0), "", said.err), 2)


def test_validate_and_env_take_the_folder_that_runs_make_by_default(place: Path) -> None:
    assert prep("validate", "--level", "quick", cwd=place).returncode == 0
    assert "export VIDEOPHYSICS_ROOT=" in prep("env", cwd=place).stdout


@pytest.mark.parametrize("arguments", [("--debug", "explain", "NOPE"), ("explain", "NOPE", "--debug")])
def test_debug_shows_the_traceback_before_the_sentence(arguments: tuple[str, ...]) -> None:
    done = prep(*arguments)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-2].startswith("prep: There is no finding")


def test_verbose_logs_each_request_on_stderr(world: World, tmp_path: Path) -> None:
    silent = run(world, tmp_path / "a")
    assert f"{world.hub.endpoint}/files/1.mp4" not in silent.stderr
    done = run(world, tmp_path / "b", "-v")
    assert done.returncode == 0
    assert f"{world.hub.endpoint}/files/1.mp4" in done.stderr
    assert done.stdout == ""


def test_the_json_of_a_run_is_on_stdout_and_its_table_on_stderr(world: World, tmp_path: Path) -> None:
    done = run(world, tmp_path / "out", "--format", "json")
    (result,) = json.loads(done.stdout)
    assert (result["rows"], result["kept"], result["status"]) == (3, 3, 0)
    assert result["dataset_id"][:26] in done.stderr
    assert "rows" in done.stderr


@pytest.mark.parametrize("output", ["json", "junit"])
def test_the_report_for_machines_is_alone_on_stdout(output: str, place: Path) -> None:
    import xml.etree.ElementTree as ET

    done = prep("validate", "data", "--level", "quick", "--format", output, "--report", "r", cwd=place)
    assert done.returncode == 0
    assert (place / "r").read_text() == done.stdout
    if output == "json":
        assert json.loads(done.stdout)["errors"] == 0
    else:
        assert ET.fromstring(done.stdout).tag == "testsuite"
    assert done.stderr == "0 errors, 0 warnings in data\n"


def test_explain_fits_the_terminal_and_lists_every_code() -> None:
    narrow = prep("explain", "vid003", env={"COLUMNS": "50"}).stdout
    assert narrow.startswith("VID003")
    assert max(map(len, narrow.splitlines())) <= 50
    wide = prep("explain", "vid003", env={"COLUMNS": "200"}).stdout
    assert len(wide.splitlines()) < len(narrow.splitlines())
    assert wide.split() == narrow.split()


def test_a_reader_that_leaves_is_no_failure() -> None:
    line = f"set -o pipefail; {sys.executable} -m prep explain | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_output_is_utf8_whatever_the_locale(place: Path) -> None:
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = prep("validate", "data", "--level", "quick", "--ignore", "MAN", cwd=place, env=environment)
    assert done.returncode == 0, done.stderr
    folder = place / "Übung ”"
    if not folder.exists():
        make_tree(folder / "videophy2_val", manifest=True)
    done = prep("env", folder, env=environment)
    assert f"VIDEOPHYSICS_ROOT='{folder}'" in done.stdout
