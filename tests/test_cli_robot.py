"""The robot commands as a user types them: what they print, and what each mistake is told."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from prep.cli import cli
from prep.keep_ranges import upstream_key
from prep.permutation import torch_permutation
from prep.window_lists import open_index
from tests.commands import PROJECT, prep, told
from tests.robot_trees import LENGTHS, NAME, droid_tree, episode_id

FILTERED = "droid_policy-train-c32-filtered"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset with two recipes' indices, and a filter whose episodes are split in two."""
    folder = tmp_path_factory.mktemp("droid")
    droid_tree(folder / "tree")
    ranges = {
        upstream_key(episode_id(number)): [[0, 38], [38, length]] for number, length in enumerate(LENGTHS)
    }
    (folder / "keep.json").write_text(json.dumps(ranges))
    done = prep("droid", "--root", "tree", "--keep-ranges", "keep.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stderr)
    assert done.stdout == ""
    done = prep("droid", "--recipe", "droid_forward_dynamics", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def directory(place: Path) -> Path:
    return place / "data" / NAME


def ask(directory: Path, *arguments: str, index: str = FILTERED) -> dict[str, object]:
    """The answer of `prep windows` as JSON, in this process."""
    done = CliRunner().invoke(
        cli, ["windows", str(directory), "--index", index, "--format", "json", *arguments]
    )
    assert done.exit_code == 0, done.output
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_what_is_printed_is_read_in_eighty_columns(place: Path) -> None:
    lines = (place / "said.txt").read_text().splitlines()
    assert lines[0] == NAME
    facts = dict(line.split(None, 1) for line in lines[1:4])
    assert facts["status"] == "complete"
    assert facts["episodes"] == "40"
    assert max(map(len, lines)) <= 100
    notes = " ".join(line.strip() for line in lines)
    assert "note: filter: 40 of 40 episodes matched, 40 keys (keys under gs://" in notes
    assert "74.41% on the full release" in notes
    assert "reused" not in notes


def test_machines_get_one_document(place: Path) -> None:
    done = prep("droid", "--format", "json", "-q", cwd=place)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["status"], result["rows"]) == (0, 40)
    assert set(result["consumption"]) == {"train", "val"}
    assert (
        result["consumption"]["train"]["windows"] == result["consumption"]["train"]["windows_without_filter"]
    )


def test_at_answers_with_the_frame_of_the_episode(directory: Path) -> None:
    index = open_index(directory, FILTERED).index
    order = torch_permutation(40, 42).tolist()[1:]
    # The second range of the second episode: its frames count from the episode's start.
    second = [place for place in range(len(index)) if index.resolve(place).frame == 38]
    answer = ask(directory, "--at", str(second[0]), "--at", "0")["answers"]
    assert isinstance(answer, list)
    window = index.resolve(second[0])
    assert answer[0] == {
        "index": second[0],
        "root": "success",
        "episode": window.episode_index,
        "frame": 38,
        "row": sum(LENGTHS[: window.episode_index]) + 38,
        "span": window.span,
    }
    assert answer[1]["episode"] == next(number for number in order if LENGTHS[number] > 32)


def test_episode_and_id_are_the_way_back(directory: Path) -> None:
    number = next(number for number, length in enumerate(LENGTHS) if length > 80 and number not in (0,))
    spans = ask(directory, "--episode", f"success:{number}")["answers"]
    assert isinstance(spans, list)
    assert [span["first_frame"] for span in spans] == [0, 38]
    assert [span["end_frame"] for span in spans] == [6, LENGTHS[number] - 32]
    for span in spans:
        where = ask(directory, "--id", f"success:{number}:{span['first_frame']}")["answers"]
        assert isinstance(where, list)
        assert where[0]["index"] == span["first_index"]


def test_episode_numbers_restart_in_every_root(directory: Path) -> None:
    answers = ask(
        directory, "--id", "success:3:2", "--id", "failure:3:2", index="droid_forward_dynamics-train"
    )["answers"]
    assert isinstance(answers, list)
    assert answers[0]["index"] != answers[1]["index"]
    windows = open_index(directory, "droid_forward_dynamics-train").index
    for root, answer in enumerate(answers):
        assert windows.resolve(answer["index"]).identity == (root, 3, 2)


def test_the_lines_for_people(directory: Path) -> None:
    done = prep("windows", directory, "--index", "droid_policy-val-c32-filtered", "--at", "0")
    assert done.returncode == 0
    assert done.stdout.startswith("index 0  root success  episode ")
    assert "windows in " in done.stderr


def test_held_out_and_left_over_windows_are_all_windows(directory: Path, tmp_path: Path) -> None:
    held, rest = tmp_path / "held.parquet", tmp_path / "rest.parquet"
    total = ask(directory, "--hold-out", "50", "--seed", "7", "--export", str(held))["windows"]
    assert ask(directory, "--exclude", str(held), "--export", str(rest))["exported"] == int(str(total)) - 50
    lists = [
        set(map(tuple, (row.values() for row in pq.read_table(path).to_pylist()))) for path in (held, rest)
    ]
    assert len(lists[0]) == 50
    assert not lists[0] & lists[1]
    index = open_index(directory, FILTERED).index
    everything = {("success", *index.resolve(place).identity[1:]) for place in range(len(index))}
    assert lists[0] | lists[1] == everything
    again = tmp_path / "again.parquet"
    ask(directory, "--hold-out", "50", "--seed", "7", "--export", str(again))
    assert again.read_bytes() == held.read_bytes()
    both = ask(directory, "--exclude", str(held), "--hold-out", "10", "--export", str(again))
    assert both["exported"] == 10
    assert not {tuple(row.values()) for row in pq.read_table(again).to_pylist()} & lists[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--at", "-1"], "Give 0 to"),
        (["--at", "1000000"], "Give 0 to"),
        (["--id", "success:3:900"], "starts at frame 900"),
        (["--id", "nowhere:3:0"], "roots: success"),
        (["--episode", "success:4000"], "no window of episode success:4000"),
        (["--episode", "x"], "'x' is not an episode"),
        (["--hold-out", "5"], "--export"),
        (["--hold-out", "100000", "--export", "x"], "cannot be drawn"),
        (["--exclude", "absent", "--export", "x"], "no list absent"),
    ],
)
def test_each_mistake_is_told_in_two_lines(arguments: list[str], said: str, directory: Path) -> None:
    text = told(prep("windows", directory, "--index", FILTERED, *arguments), 2)
    assert said in text


def test_several_indices_and_no_name(directory: Path, tmp_path: Path) -> None:
    text = told(prep("windows", directory, "--at", "0"), 2)
    assert "droid_policy-train-c32-filtered.arrow" in text
    assert "There is none yet" in told(prep("windows", tmp_path, "--at", "0"), 2)


def test_an_index_of_changed_inputs_is_refused(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    assert prep("droid", "--root", tree, "-q", cwd=tmp_path).returncode == 0
    with (tree / "success/meta/info.json").open("a") as file:
        file.write("\n")
    text = told(prep("windows", tmp_path / "data" / NAME, "--index", "droid_policy-train", "--at", "0"), 1)
    assert "success/meta/info.json" in text
    assert "--update" in text


@pytest.mark.parametrize(
    ("size", "status"), [("10kB", 2), ("1.5TB", 2), ("ten", 2), ("-1", 2), ("1XB", 2), ("0", 2)]
)
def test_sizes_are_read_as_people_write_them(size: str, status: int, tmp_path: Path) -> None:
    done = prep("lerobot", "--max-download", size, cwd=tmp_path)
    assert done.returncode == status
    is_size = size in ("10kB", "1.5TB", "0")
    assert ("names no Hub repository" in done.stderr) == is_size
    assert ("is no size" in done.stderr) != is_size


def test_a_half_downloaded_tree_ends_with_three_and_what_to_do(tmp_path: Path) -> None:
    tree = droid_tree(tmp_path / "tree")
    next((tree / "success/videos").rglob("*.mp4")).unlink()
    done = prep("droid", "--root", tree, cwd=tmp_path)
    assert done.returncode == 3
    assert "INCOMPLETE" in done.stderr
    said = " ".join(done.stderr.split())
    assert "0 of 1 file present, 1 missing" in said
    assert "next: Finish the download" in done.stderr


def test_an_error_of_the_filter_is_one_line_and_the_next_step(tmp_path: Path) -> None:
    droid_tree(tmp_path / "tree")
    (tmp_path / "keep.json").write_text(json.dumps({"LAB/success/none/such": [[0, 9]]}))
    text = told(prep("droid", "--root", "tree", "--keep-ranges", "keep.json", cwd=tmp_path), 1)
    assert "LAB/success/none/such" in text
    assert episode_id(0) in text


def test_a_suite_of_libero(tmp_path: Path) -> None:
    for suite in ("libero_10", "libero_goal"):
        droid_tree(tmp_path / "all" / suite, "flat", fps=20, files=False)
    done = prep("libero", "--suite", "libero_goal", "--root", "all", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data/LIBERO_LeRobot_v3/libero_goal/manifest.json").is_file()
    assert "libero_spatial" in told(prep("libero", "--suite", "all", "--root", "all", cwd=tmp_path), 2)


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    text = (PROJECT / "recipes" / "lerobot.toml").read_text(encoding="utf-8")
    mine = text.replace('name = "lerobot"', 'name = "mine"').replace(
        'directory = "lerobot"', 'directory = "arm"'
    )
    (tmp_path / "mine.toml").write_text(mine.replace("[roots]", "[roots]\nfps = 15"))
    droid_tree(tmp_path / "tree", "flat")
    done = prep("lerobot", "--recipe", "mine.toml", "--root", "tree", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data/arm/windows/mine-full-c16.arrow").is_file()
    assert "conversations" in told(
        prep("lerobot", "--recipe", "videophy2", "--root", "tree", cwd=tmp_path), 2
    )
