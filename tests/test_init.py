"""`prep init`: what is guessed of each kind of source, why, and that the printed command runs."""

from __future__ import annotations

import csv
import errno
import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import prep
from prep.cli import cli
from prep.cli_group import Settings
from prep.cli_init import init as command
from prep.errors import IncompleteError, UsageError
from prep.files import disk_errors
from prep.init import Made, init
from prep.recipe import load_recipe
from tests.clips import make_clip
from tests.commands import prep as run
from tests.commands import told
from tests.reasoning import annotation, clips, item
from tests.robots import PLAIN, make_root

Rows = Sequence[Mapping[str, Any]]

ROWS: Rows = [
    {"clip": "v/a.mp4", "question": "What moves?", "answer": 'A disc, "round".'},
    {"clip": "v/b.mp4", "question": "Where?", "answer": "Left,\nthen right."},
]
PICTURES = ("scikit-image/chelsea.png", "scikit-image/rocket.jpg", "scikit-learn/china.jpg")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, apart from the sources."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return clips(tmp_path / "mine", "v/a.mp4", "v/b.mp4")


@pytest.fixture
def pictures(real_data: Path, tmp_path: Path) -> Path:
    """A folder with three real pictures, for tables to stand beside."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in PICTURES:
        shutil.copy(real_data / "image" / name, folder)
    return folder


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
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def write_conversations(path: Path, rows: Rows) -> Path:
    records = [{"video": row["clip"], "conversations": talk(row["question"], row["answer"])} for row in rows]
    path.write_text(json.dumps(records))
    return path


def talk(*texts: str, image: str = "<video>") -> list[dict[str, str]]:
    """Turns in the ShareGPT form."""
    speakers = ("human", "gpt")
    return [
        {"from": speakers[at % 2], "value": f"{image}\n{text}" if at == 0 else text}
        for at, text in enumerate(texts)
    ]


def document(made: Made) -> Mapping[str, Any]:
    return load_recipe(made.recipe).document


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def ran(made: Made, here: Path, status: int = 0) -> list[Path]:
    """Run exactly the command that is printed; the datasets, if they are made and found good."""
    words = shlex.split(made.command)
    assert words[:2] == ["prep", "prepare"]
    done = CliRunner().invoke(cli, [*words[1:], "--quiet", "--format", "json"], obj=Settings())
    assert done.exit_code == status, done.output
    roots = [here / result["directory"] for result in json.loads(done.stdout)]
    if status == 0:
        assert prep.validate(here / "data", level="quick").errors == 0
    return roots


def texts(root: Path) -> list[list[str]]:
    """The texts of each sample's turns."""
    reader = prep.open(root)
    return [[turn["content"][-1]["text"] for turn in reader[at]["texts"]] for at in range(len(reader))]


def said(root: Path) -> list[list[str]]:
    """The texts of each image's turns."""
    reader = prep.open(root)
    contents = [[turn["content"] for turn in reader[at]["messages"]] for at in range(len(reader))]
    return [[one if isinstance(one, str) else one[-1]["text"] for one in turns] for turns in contents]


# Tables of videos.


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.csv", write_csv),
        ("rows.jsonl", write_lines),
        ("rows.parquet", write_parquet),
        ("rows.json", write_conversations),
    ],
)
def test_a_table_becomes_a_recipe_that_runs(
    name: str, write: Callable[[Path, Rows], Path], folder: Path, here: Path
) -> None:
    made = init(write(folder / name, ROWS))
    assert (made.kind, made.recipe) == ("conversations", here / "rows.toml")
    assert made.command == "prep prepare rows.toml"
    (root,) = ran(made, here)
    assert texts(root) == [[row["question"], row["answer"]] for row in ROWS]
    assert "# Guessed: 100% of the values looked at end as those of videos do." in made.text
    assert made.tables == ([] if name == "rows.csv" else [here / "rows_train.csv"])
    assert sorted(path.name for path in folder.iterdir()) == [name, "v"]


def test_a_split_column_makes_splits(folder: Path, here: Path) -> None:
    splits = ("train", "validation")
    rows = [{**row, "split": split} for row, split in zip(ROWS, splits, strict=True)]
    made = init(write_csv(folder / "rows.csv", rows))
    assert list(document(made)["splits"]) == ["train", "val"]
    assert "'split' has the values train, validation" in made.text
    _, val = ran(made, here)
    assert texts(val) == [["Where?", "Left,\nthen right."]]


def test_scores_are_numbers_of_a_scale(real_data: Path) -> None:
    made = init(real_data / "videophy2/videophy2_test_excerpt.csv")
    assert document(made)["columns"] == {"media": "video_url"}
    assert document(made)["answers"] == {"pc": {"kind": "integer", "minimum": 2, "maximum": 5}}
    assert "the scale may be wider" in made.text.replace("\n# ", " ")
    assert not made.tables


def test_real_conversations(real_data: Path, tmp_path: Path, here: Path) -> None:
    records = json.loads((real_data / "llava/qwen_video.json").read_bytes())
    videos = ("gradio/a.mp4", "nvidia_cosmos/umi.mp4", "nvidia_cosmos/physical_plausibility.mp4")
    (tmp_path / "videos").mkdir()
    for record, video in zip(records, videos, strict=True):
        shutil.copy(real_data / "video" / video, tmp_path / "videos" / record["video"])
    (tmp_path / "annotations").mkdir()
    shutil.copy(real_data / "llava/qwen_video.json", tmp_path / "annotations")
    made = init(tmp_path / "annotations/qwen_video.json")
    assert document(made)["splits"]["train"]["media_root"] == "../videos"
    (root,) = ran(made, here)
    asked = [record["conversations"][0]["value"].replace("<video>\n", "") for record in records]
    told = [record["conversations"][1]["value"] for record in records]
    assert texts(root) == [list(pair) for pair in zip(asked, told, strict=True)]


def test_all_turns_are_kept_and_what_is_not_is_told(folder: Path, here: Path) -> None:
    system = {"from": "system", "value": "Be short."}
    rows = [
        {"video": "a.mp4", "conversations": [system, *talk("A?", "B.", "C?", "D.")]},
        {"video": "b.mp4", "conversations": talk("A?", "B.", "C?")},
        {"video": ["a.mp4", "b.mp4"], "conversations": talk("A?", "B.")},
    ]
    made = init(write_lines(folder / "rows.jsonl", rows))
    (root,) = ran(made, here)
    assert texts(root) == [["A?", "B.", "C?", "D."], ["A?", "B."]]
    for words in ("1 of 3 rows begin with a system's turn", "out of order", "name several videos"):
        assert any(words in remark for remark in made.remarks)
        assert words in made.text.replace("\n# ", " ")


def test_media_are_found_near_the_table_or_missed(folder: Path, here: Path) -> None:
    (folder / "tables").mkdir()
    found = init(write_csv(folder / "tables/rows.csv", [{"video": "a.mp4", "answer": "A."}]))
    assert document(found)["splits"]["train"]["media_root"] == "../mine/v"
    ran(found, here)
    missed = init(write_csv(folder / "gone.csv", [{"video": "no.mp4", "answer": "A."}]))
    assert any("0 of 1 media files looked for were found" in remark for remark in missed.remarks)
    ran(missed, here, status=1)


def test_absolute_paths_become_relative_to_what_they_share(folder: Path, here: Path) -> None:
    rows = [{"video": str(folder / row["clip"]), "answer": "A."} for row in ROWS]
    made = init(write_csv(folder / "rows.csv", rows))
    assert [row["video"] for row in read(made.tables[0])] == ["a.mp4", "b.mp4"]
    ran(made, here)


def test_rows_without_an_answer_are_told(folder: Path, here: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "answer": ""}]
    made = init(write_csv(folder / "rows.csv", rows))
    assert "1 of 2 rows have no answer: they fail: mend them, or give --min-coverage" in made.remarks
    ran(made, here, status=1)


# Folders of videos.


def test_real_videos_without_a_text(real_data: Path, here: Path) -> None:
    made = init(real_data / "video/nvidia_cosmos")
    assert made.tables == [here / "nvidia_cosmos_train.csv"]
    assert any("nothing tells what the videos show" in remark for remark in made.remarks)
    (root,) = ran(made, here)
    assert ["Describe what happens in the video.", "robolab example rollout"] in texts(root)


def test_folders_that_are_labels_and_splits(tmp_path: Path, here: Path) -> None:
    names = [
        f"{split}/{label}/{n}.avi" for split in ("train", "val") for label in ("run", "walk") for n in "12"
    ]
    for number, name in enumerate(names):
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        make_clip(path, frames=4 + number, width=32, height=32)
    made = init(tmp_path / "set")
    assert list(document(made)["splits"]) == ["train", "val"]
    assert document(made)["record"]["media"] == "media/{row:06d}.avi"
    assert [(row["media"], row["answer"]) for row in read(made.tables[1])] == [
        (f"val/{label}/{n}.avi", label) for label in ("run", "walk") for n in "12"
    ]
    assert len(ran(made, here)) == 2


@pytest.mark.parametrize("captions", ["{}.txt", "{}.json", "../texts/{}/caption.txt"])
def test_videos_with_captions_are_for_the_generator(captions: str, folder: Path, here: Path) -> None:
    source = folder if ".." in captions else folder / "v"
    for name in ("a", "b"):
        make_clip(folder / f"v/{name}.mp4", frames=64, width=32, height=32)
        path = folder / "v" / captions.format(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"temporal_caption": "A disc moves."}' if path.suffix == ".json" else "A disc.")
    made = init(source)
    assert made.kind == "sft_jsonl"
    (root,) = ran(made, here)
    assert len(prep.open(root)) == 2


def test_videos_with_real_captions(real_data: Path, tmp_path: Path, here: Path) -> None:
    (tmp_path / "clips").mkdir()
    shutil.copy(real_data / "video/gradio/a.mp4", tmp_path / "clips/kitchen.mp4")
    shutil.copy(
        real_data / "cosmos_captions/prompts/text2video_robot_kitchen.json", tmp_path / "clips/kitchen.json"
    )
    (root,) = ran(init(tmp_path / "clips"), here)
    assert len(prep.open(root)) == 1


@pytest.mark.parametrize(
    "table", [{"a.mp4": "One.", "b.mp4": "Two."}, [{"file_name": "a.mp4", "text": "One."}]]
)
def test_a_table_in_the_folder_is_taken(table: Any, folder: Path, here: Path) -> None:
    (folder / "v/captions.json").write_text(json.dumps(table))
    (root,) = ran(init(folder / "v"), here)
    assert texts(root)[0] == ["Describe what happens in the video.", "One."]


def test_several_tables_are_a_question(folder: Path) -> None:
    for name in ("one.csv", "two.csv"):
        write_csv(folder / name, ROWS)
    with pytest.raises(UsageError, match=r"2 tables that name media: one\.csv, two\.csv"):
        init(folder)


def test_an_sft_tree(folder: Path, here: Path) -> None:
    made = init(_captioned(folder))
    (root,) = ran(made, here)
    shutil.copytree(root, here / "tree", ignore=shutil.ignore_patterns(".prep", "manifest.json"))
    shutil.rmtree(here / "data")
    taken = init(here / "tree")
    assert document(taken)["source"] == {"tree": "tree"}
    assert len(prep.open(ran(taken, here)[0])) == 1


def _captioned(folder: Path) -> Path:
    make_clip(folder / "v/a.mp4", frames=64, width=32, height=32)
    (folder / "v/b.mp4").unlink()
    (folder / "v/a.txt").write_text("A disc.")
    return folder / "v"


# Images.


def test_real_conversations_about_images(real_data: Path, tmp_path: Path, here: Path) -> None:
    records = json.loads((real_data / "llava/qwen_single_images.json").read_bytes())
    for record, name in zip(records, ("color.png", "color.png", "coins.png"), strict=True):
        path = tmp_path / "set" / record["image"]
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(real_data / "image/scikit-image" / name, path)
    shutil.copy(real_data / "llava/qwen_single_images.json", tmp_path / "set")
    made = init(tmp_path / "set/qwen_single_images.json")
    assert (made.kind, made.tables) == ("arrow_snapshot", [])
    (root,) = ran(made, here)
    assert said(root)[0] == ["Is the value of Favorable 38 in 2015?", "Yes"]
    assert said(root) == [
        [turn["value"].replace("<image>", "").strip() for turn in record["conversations"]]
        for record in records
    ]


def test_turns_in_the_other_spelling_are_all_kept(pictures: Path, here: Path) -> None:
    words = [("system", "S"), ("user", "<image>A?"), ("assistant", "B."), ("user", "C?"), ("assistant", "D.")]
    turns = [{"role": role, "content": text} for role, text in words]
    made = init(write_lines(pictures / "rows.jsonl", [{"id": 7, "image": "chelsea.png", "messages": turns}]))
    (root,) = ran(made, here)
    assert said(root) == [["A?", "B.", "C?", "D."]]
    assert any("system's turn" in remark for remark in made.remarks)


@pytest.mark.parametrize("asked", [{"question": "What?"}, {}])
def test_questions_and_captions_of_images(asked: Mapping[str, str], pictures: Path, here: Path) -> None:
    made = init(
        write_csv(pictures / "rows.csv", [{"file_name": "rocket.jpg", **asked, "caption": "A rocket."}])
    )
    (root,) = ran(made, here)
    assert said(root) == [[asked.get("question", "Describe the image."), "A rocket."]]


@pytest.mark.parametrize(
    "more", [{"conversations": talk("Q", "A", image="<image>")}, {"question": "Q", "answer": "A"}]
)
def test_pictures_in_a_parquet(more: Mapping[str, Any], pictures: Path, here: Path) -> None:
    data = (pictures / "rocket.jpg").read_bytes()
    rows = [{"picture": {"bytes": data, "path": "rocket.jpg"}, **more}]
    made = init(write_parquet(pictures / "rows.parquet", rows))
    assert document(made)["columns"]["image"] == "picture"
    (root,) = ran(made, here)
    assert said(root) == [["Q", "A"]]


def test_a_downloaded_dataset_of_pictures(pictures: Path, here: Path) -> None:
    for split, name in (("train", "rocket.jpg"), ("test", "china.jpg")):
        picture = {"bytes": (pictures / name).read_bytes(), "path": name}
        (pictures.parent / "hub/data").mkdir(parents=True, exist_ok=True)
        rows = [{"image": picture, "conversations": talk("Q", name, image="<image>")}]
        write_parquet(pictures.parent / f"hub/data/{split}-00000-of-00001.parquet", rows)
    roots = ran(init(pictures.parent / "hub"), here)
    assert {root.name: said(root) for root in roots} == {
        "train": [["Q", "rocket.jpg"]],
        "test": [["Q", "china.jpg"]],
    }


def test_a_folder_of_real_images(real_data: Path, here: Path) -> None:
    made = init(real_data / "image/scikit-image")
    assert made.kind == "arrow_snapshot"
    ran(made, here, status=1)  # Pillow cannot read one of them, and says so
    done = run(*shlex.split(made.command)[1:], "--on-bad-image", "drop", cwd=here)
    assert done.returncode == 0, done.stderr
    assert len(prep.open(here / "data/scikit-image/default/train")) == 6


def test_a_folder_of_both_is_prepared_by_what_is_more(pictures: Path, folder: Path, here: Path) -> None:
    shutil.copy(folder / "v/a.mp4", pictures)
    made = init(pictures)
    assert made.kind == "arrow_snapshot"
    assert any("also holds 1 video" in remark for remark in made.remarks)
    ran(made, here)


# Robot data and annotation files.


def test_a_real_robot_tree(real_data: Path, here: Path) -> None:
    made = init(real_data / "g1_lerobot_v30_converted")
    assert made.kind == "lerobot"
    (root,) = ran(made, here)
    assert [path.name for path in (root / "windows").iterdir()] == ["g1_lerobot_v30_converted-full-c16.arrow"]


def test_a_real_robot_tree_without_videos(real_data: Path, here: Path) -> None:
    ran(init(real_data / "rebot_lerobot_v30_novideo"), here)


def test_several_robot_trees_and_groups(tmp_path: Path, here: Path) -> None:
    for name in ("several/one", "several/two", "grouped/success", "grouped/failure"):
        make_root(tmp_path / name, PLAIN)
    several, grouped = init(tmp_path / "several"), init(tmp_path / "grouped")
    assert list(document(several)["datasets"]) == ["one", "two"]
    assert document(grouped)["roots"] == {"form": "groups", "groups": ["success", "failure"]}
    assert len(ran(several, here)) == 2
    assert len(ran(grouped, here)) == 1


def test_a_robot_tree_of_another_version_is_named(real_data: Path) -> None:
    with pytest.raises(UsageError, match=r"version v2\.1"):
        init(real_data / "g1_lerobot_v21")


def test_annotation_files(folder: Path, here: Path) -> None:
    for name, video in (("bcq.json", "v/a.mp4"), ("bcq_val.json", "v/b.mp4")):
        annotation(folder / name, [item(video)])
    roots = ran(init(folder), here)
    assert [root.relative_to(here).as_posix() for root in roots] == ["data/mine/train", "data/mine/val"]


def test_a_real_annotation_file(real_data: Path, tmp_path: Path, here: Path) -> None:
    (tmp_path / "its/videos").mkdir(parents=True)
    shutil.copy(real_data / "daft/tao-vl-reason-v1.0/its_collision/bcq.json", tmp_path / "its")
    for number, video in (("1", "gradio/a.mp4"), ("2", "nvidia_cosmos/umi.mp4")):
        shutil.copy(real_data / "video" / video, tmp_path / f"its/videos/video_00{number}.mp4")
    made = init(tmp_path / "its/bcq.json")
    assert made.kind == "reasoning_qa"
    (root,) = ran(made, here)
    assert len(prep.open(root)) == 8  # four items, each with its answer and with its reasoning


# Where things are written, and what is refused.


def test_nothing_is_overwritten_and_nothing_is_written_by_halves(folder: Path, here: Path) -> None:
    path = write_lines(folder / "rows.jsonl", ROWS)
    (here / "rows.toml").write_text("mine")
    with pytest.raises(UsageError, match=r"rows\.toml is there"):
        init(path)
    assert [each.name for each in here.iterdir()] == ["rows.toml"]
    assert init(path, update=True).kind == "conversations"
    assert "kind" in (here / "rows.toml").read_text()


def test_a_dry_run_prints_the_recipe_and_writes_nothing(folder: Path, here: Path) -> None:
    write_lines(folder / "rows.jsonl", ROWS)
    done = CliRunner().invoke(command, [str(folder / "rows.jsonl"), "--dry-run"], obj=Settings())
    assert done.exit_code == 0
    assert done.stdout.startswith("# A first recipe")
    assert list(here.iterdir()) == []


def test_the_folder_itself_is_never_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "v")
    for source in (".", ".."):
        with pytest.raises(UsageError, match="the folder that it is about"):
            init(source)
    made = init(".", output=folder.parent)
    assert made.recipe == folder.parent / "v.toml"


def test_a_source_that_is_the_usual_out_root(folder: Path, here: Path) -> None:
    shutil.copytree(folder / "v", here / "data")
    made = init("data")
    assert made.command == "prep prepare data.toml --out-root prepared"
    done = run(*shlex.split(made.command)[1:], cwd=here)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (here / "data").iterdir()) == ["a.mp4", "b.mp4"]


def test_paths_hold_through_links_and_odd_names(folder: Path, tmp_path: Path, here: Path) -> None:
    odd = tmp_path / "my clips' folder é"
    folder.rename(odd)
    (tmp_path / "deep/er").mkdir(parents=True)
    (here / "link").symlink_to(tmp_path / "deep/er")
    made = init(write_csv(odd / "my rows.csv", ROWS), output=here / "link/my recipe.toml")
    assert made.command == "prep prepare 'link/my recipe.toml'"
    ran(made, here)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("rows.csv", b"a,b\n1,2\n", "no column names videos"),
        ("rows.csv", b"video,b\na.mp4,2\n", "no column looks like an answer"),
        ("rows.csv", b"", "no header"),
        ("rows.csv", b"video,answer\n", "no rows"),
        ("rows.csv", b"video,\xff\n", "not UTF-8"),
        ("rows.jsonl", b'{"video": "a.mp4"}\nnone\n', "line 2"),
        ("rows.json", b'{"a": 1}', "no array of objects"),
        ("rows.json", b"[1", "cannot be read"),
        ("rows.parquet", b"PAR1", "cannot be read"),
        ("rows.xlsx", b"", "a table ends in"),
        ("rows.jsonl", b'{"vision_path": "a.mp4", "t2w_windows": []}\n', "stands in no train/"),
    ],
)
def test_what_cannot_be_guessed_is_said(
    name: str, data: bytes, said: str, tmp_path: Path, here: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    assert said in told(run("init", tmp_path / name, cwd=here), 2)
    assert list(here.iterdir()) == []


def test_what_is_no_source_is_said(folder: Path, tmp_path: Path, here: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no videos" in told(run("init", tmp_path / "empty", cwd=here), 2)
    assert "Did you mean" in told(run("init", tmp_path / "emtpy", cwd=here), 2)
    assert "no folder" in told(run("init", folder, "--output", here / "no/x.toml", cwd=here), 2)
    (root,) = ran(init(write_csv(folder / "rows.csv", ROWS)), here)
    assert "is a prepared dataset" in told(run("init", root, cwd=here), 2)


def test_the_command_says_what_to_do_next(folder: Path, here: Path) -> None:
    write_csv(here / "rows.csv", ROWS)
    shutil.copytree(folder / "v", here / "v")
    done = CliRunner().invoke(command, ["rows.csv"], obj=Settings())
    assert done.exit_code == 0
    assert done.output.splitlines()[-1] == "next: prep prepare rows.toml"


@pytest.mark.parametrize(("sign", "named"), [(";", "`;`"), ("\t", "a tab")])
def test_a_table_without_commas_is_told_as_what_it_is(sign: str, named: str, folder: Path) -> None:
    (folder / "rows.csv").write_text(f"clip{sign}question{sign}answer\nv/a.mp4{sign}What?{sign}A disc.\n")
    with pytest.raises(UsageError, match=f"one column, whose name has {named} in it") as error:
        init(folder / "rows.csv")
    assert "with commas" in error.value.remedy


def test_a_recipe_that_cannot_be_written_is_named_itself(folder: Path, here: Path) -> None:
    table = write_csv(folder / "rows.csv", ROWS)
    # A folder where the partial file would be: as on a read-only disk, it cannot be opened.
    (here / ".rows.toml.partial").mkdir()
    message = told(run("init", table, cwd=here), 3)
    assert f"{here / 'rows.toml'}: " in message
    assert "partial" not in message


def test_a_read_only_disk_is_told_without_an_option_that_init_has_not(here: Path) -> None:
    with pytest.raises(IncompleteError) as error, disk_errors(here / "rows.toml"):
        raise OSError(errno.EROFS, "Read-only file system", str(here / ".rows.toml.partial"))
    assert error.value.message == f"{here / 'rows.toml'}: Read-only file system."
    assert error.value.remedy == "The file system is read-only: write elsewhere."
