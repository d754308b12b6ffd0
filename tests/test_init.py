"""`prep init`: what is guessed of each kind of source, why, and that the recipe runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import prep
from prep.cli_group import Settings
from prep.cli_init import init as command
from prep.errors import UsageError
from prep.init import Made, init
from prep.preparation import prepare
from prep.reasoning import prepare_video_reasoning
from prep.recipe import load_recipe
from prep.robots import RobotOptions, prepare_robots
from tests.clips import make_clip
from tests.reasoning import annotation, clips, item

Rows = Sequence[Mapping[str, Any]]

ROWS: Rows = [
    {"clip": "v/a.mp4", "question": "What moves?", "answer": 'A disc, "round".'},
    {"clip": "v/b.mp4", "question": "Where?", "answer": "Left,\nthen right."},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return clips(tmp_path / "mine", "v/a.mp4", "v/b.mp4")


def write_csv(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.table({key: [row[key] for row in rows] for key in rows[0]}), path)
    return path


def write_conversations(path: Path, rows: Rows) -> Path:
    path.write_text(
        json.dumps(
            [
                {
                    "video": row["clip"],
                    "conversations": [
                        {"from": "human", "value": f"<video>\n{row['question']}"},
                        {"from": "gpt", "value": row["answer"]},
                    ],
                }
                for row in rows
            ]
        )
    )
    return path


def document(made: Made) -> Mapping[str, Any]:
    return load_recipe(made.recipe).document


def turns(made: Made, out: Path, split: str) -> list[tuple[str, str]]:
    """Prepare, and the question and answer of each sample."""
    results = prepare(made.recipe, out)
    assert [result.outcome for result in results] == ["complete"] * len(results)
    reader = prep.open(next(result.root for result in results if result.name.endswith(split)))
    texts = [reader[index]["texts"] for index in range(len(reader))]
    return [(sample[0]["content"][-1]["text"], sample[1]["content"][0]["text"]) for sample in texts]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.csv", write_csv),
        ("rows.jsonl", write_lines),
        ("rows.parquet", write_parquet),
        ("rows.json", write_conversations),
    ],
)
def test_a_table_becomes_a_recipe_that_runs(name: str, write: Any, folder: Path, tmp_path: Path) -> None:
    made = init(write(folder / name, ROWS))
    assert (made.kind, made.recipe) == ("conversations", folder / "rows.toml")
    assert turns(made, tmp_path / "out", "train") == [(row["question"], row["answer"]) for row in ROWS]
    text = made.recipe.read_text()
    assert "# Guessed: 100% of the values looked at end as those of videos do." in text
    assert "# Guessed: a column is called 'question'." in text
    assert made.tables == ([] if name == "rows.csv" else [folder / "rows_train.csv"])


def test_a_split_column_makes_splits(folder: Path, tmp_path: Path) -> None:
    splits = ("train", "validation")
    rows = [{**row, "split": split} for row, split in zip(ROWS, splits, strict=True)]
    made = init(write_csv(folder / "rows.csv", rows))
    assert list(document(made)["splits"]) == ["train", "val"]
    assert "'split' has the values train, validation" in made.recipe.read_text()
    assert turns(made, tmp_path / "out", "val") == [("Where?", "Left,\nthen right.")]


def test_scores_are_numbers_of_a_scale(real_data: Path, tmp_path: Path) -> None:
    made = init(real_data / "videophy2/videophy2_test_excerpt.csv", output=tmp_path / "my.toml")
    assert document(made)["columns"] == {"media": "video_url"}
    assert document(made)["answers"] == {"pc": {"kind": "integer", "minimum": 2, "maximum": 5}}
    assert "the scale may be wider" in made.recipe.read_text()
    assert not made.tables


def test_real_conversations(real_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "qwen_video.json"
    path.write_bytes((real_data / "llava/qwen_video.json").read_bytes())
    made = init(path)
    with (tmp_path / "qwen_video_train.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = [
        (record["video"], record["conversations"][1]["value"]) for record in json.loads(path.read_text())
    ]
    assert [(row["video"], row["answer"]) for row in rows] == expected
    assert not any("<video>" in row["question"] for row in rows)
    assert document(made)["prompt"] == {"column": "question"}


def test_turns_that_are_left_out_are_counted(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B."}]
    rows = [{"videos": ["a.mp4"], "messages": turn}, {"videos": ["b.mp4"], "messages": turn * 2}]
    made = init(write_lines(tmp_path / "rows.jsonl", rows))
    assert "1 of 2 conversations have further turns, which are left out" in made.remarks
    assert document(made)["columns"] == {"media": "videos"}


def test_a_folder_of_videos_gets_a_table_to_fill_in(folder: Path) -> None:
    made = init(folder / "v")
    assert made.tables == [folder / "v_train.csv"]
    assert made.tables[0].read_text() == "media,question,answer\nv/a.mp4,,\nv/b.mp4,,\n"
    assert "nothing tells: fill the table in" in made.recipe.read_text()


def test_folders_that_are_labels_and_splits(tmp_path: Path) -> None:
    names = [
        f"{split}/{label}/{n}.avi" for split in ("train", "val") for label in ("run", "walk") for n in (1, 2)
    ]
    for name in names:
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_clip(tmp_path / "clip.mp4", frames=4, width=32, height=32).read_bytes())
    made = init(tmp_path / "set")
    assert list(document(made)["splits"]) == ["train", "val"]
    assert document(made)["record"]["media"] == "media/{row:06d}.avi"
    assert made.tables[1].read_text().splitlines()[1:] == [
        f"set/val/{label}/{n}.avi,,{label}" for label in ("run", "walk") for n in (1, 2)
    ]


def test_a_robot_tree(real_data: Path, tmp_path: Path) -> None:
    tree = real_data / "droid_lerobot_v30_nvidia"
    made = init(tree, output=tmp_path / "robot.toml")
    assert made.kind == "lerobot"
    (result,) = prepare_robots(
        made.recipe, tmp_path / "out", options=RobotOptions(root=tree, dry_run=True, metadata_only=True)
    )
    assert (result.outcome, result.rows > 0) == ("planned", True)
    assert f"--root {tree}" in made.command


def test_a_robot_tree_of_another_version_is_named(real_data: Path) -> None:
    with pytest.raises(UsageError, match=r"version v2\.1"):
        init(real_data / "g1_lerobot_v21")


def test_annotation_files(folder: Path, tmp_path: Path) -> None:
    for name, video in (("bcq.json", "v/a.mp4"), ("bcq_val.json", "v/b.mp4")):
        annotation(folder / name, [item(video)])
    made = init(folder)
    results = prepare_video_reasoning(made.recipe, tmp_path / "out")
    assert [(result.name, result.outcome) for result in results] == [
        ("mine/train", "complete"),
        ("mine/val", "complete"),
    ]


def test_images_are_another_kind(real_data: Path, tmp_path: Path) -> None:
    made = init(real_data / "llava/qwen_single_images.json", output=tmp_path / "images.toml")
    assert made.kind == "arrow_snapshot"
    assert init(real_data / "image", output=tmp_path / "folder.toml").kind == "arrow_snapshot"


def test_pictures_in_a_parquet(tmp_path: Path) -> None:
    rows = [
        {
            "id": "1",
            "picture": {"bytes": b"x", "path": "a.png"},
            "conversations": [{"from": "human", "value": "?"}],
        }
    ]
    made = init(write_parquet(tmp_path / "rows.parquet", rows))
    assert document(made)["columns"] == {"id": "id", "image": "picture", "conversations": "conversations"}


def test_videos_with_captions_are_for_the_generator(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / f"v/{name}.txt").write_text("A disc moves.")
    assert init(folder / "v").kind == "sft_jsonl"


def test_nothing_is_overwritten(folder: Path) -> None:
    path = write_csv(folder / "rows.csv", ROWS)
    made = init(path)
    made.recipe.write_text("mine")
    with pytest.raises(UsageError, match=r"rows\.toml is there"):
        init(path)
    assert made.recipe.read_text() == "mine"
    assert init(path, update=True).kind == "conversations"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("rows.csv", b"a,b\n1,2\n", "no column names videos"),
        ("rows.csv", b"video,b\na.mp4,2\n", "no column looks like an answer"),
        ("rows.csv", b"", "no header"),
        ("rows.csv", b"video,\xff\n", "not UTF-8"),
        ("rows.jsonl", b'{"video": "a.mp4"}\nnone\n', "line 2"),
        ("rows.json", b'{"a": 1}', "no array of objects"),
        ("rows.parquet", b"PAR1", "cannot be read"),
        ("rows.xlsx", b"", "a table ends in"),
    ],
)
def test_what_cannot_be_guessed_is_said(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=said):
        init(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no videos"):
        init(tmp_path)


def test_an_unknown_key_is_refused_when_the_recipe_runs(folder: Path) -> None:
    made = init(write_csv(folder / "rows.csv", ROWS))
    made.recipe.write_text(made.recipe.read_text().replace("[columns]", "[columns]\nmidea = 'x'"))
    with pytest.raises(UsageError, match="midea"):
        load_recipe(made.recipe)


def test_the_command_says_what_to_do_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    write_csv(folder / "rows.csv", ROWS)
    done = CliRunner().invoke(command, ["rows.csv"], obj=Settings())
    assert done.exit_code == 0
    assert "next: look at it, then prep prepare rows.toml" in done.output
