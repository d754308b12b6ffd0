"""The reader of reasoning datasets, against digests of upstream's own datasets and beside tao-daft's reader.

The digests were made by hand with upstream's `qa_dataset.py` (commit 434d2814, the template's text left
out) and the sampling adapter over it (`reasoning_qa.py`), fed with what `prep env` prints for the dataset.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import prep
from prep.environment import env
from prep.errors import PrepError
from tests.reasoning import annotation, clips, item, run


def real_files(real_data: Path) -> list[Path]:
    """All real annotation files but the one about an image."""
    paths = sorted((real_data / "daft/tao-vl-reason-v1.0").glob("*/*.json"))
    return [path for path in paths if path.name != "grounding.json"]


def messages(out: Path) -> list[list[dict[str, Any]]]:
    reader = prep.open(out / "video_reasoning/train")
    return [reader[index]["messages"] for index in range(len(reader))]


def digest(samples: Sequence[Sequence[dict[str, Any]]]) -> str:
    """Over all texts and the videos' names: the same wherever the media stand."""
    texts = [
        [
            turn["content"]
            if isinstance(turn["content"], str)
            else [block.get("text") or Path(block["video"]).name for block in turn["content"]]
            for turn in sample
        ]
        for sample in samples
    ]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


@pytest.mark.parametrize(
    ("asked", "count", "expected"),
    [
        ({"mode": "hybrid"}, 110, "630cf0245fbde80f249e78323c3ab25adb86717f05d2d1656ad0ed6988ca9a9e"),
        (
            {"mode": "think", "stride": 2, "offset": 1, "limit": 7},
            7,
            "04a9358f33806d18e04c6bc955493310fea664f2a11095ae09509d66a904e59d",
        ),
        (
            {"mode": "answer", "stride": 5, "offset": 3, "system_prompt": "Be brief."},
            11,
            "d6cf65ce6bd0624d608cf16a247227dba0677c08be1f1dcb0b8378bf863e0f5e",
        ),
        (
            {"mode": "hybrid", "stride": 2, "offset": 1, "limit": 3},
            3,
            "6823c25506f9e68bb71047b01eb72462d3fdc63f18b8ab8139c56302e04a5555",
        ),
    ],
)
@pytest.mark.parametrize("media", ["link", "copy", "reference"])
def test_the_real_files_give_upstream_s_messages(
    asked: dict[str, Any], count: int, expected: str, media: str, real_data: Path, tmp_path: Path
) -> None:
    (result,) = run(tmp_path, real_files(real_data), media=media, ignore=("FIL002",), **asked)
    ours = messages(tmp_path)
    assert len(ours) == count == result.consumption["samples"]
    assert digest(ours) == expected
    videos = {sample[-2]["content"][0]["video"] for sample in ours}
    assert all(Path(video).is_file() for video in videos)


def test_the_videos_are_the_ones_that_the_environment_leads_to(real_data: Path, tmp_path: Path) -> None:
    run(tmp_path, real_files(real_data), mode="answer", ignore=("FIL002",))
    variables = env(tmp_path / "video_reasoning/train", consumer="video_reasoning_sft").variables
    files = json.loads(variables["COSMOS_VIDEO_TRAIN_ANNOTATIONS"])
    roots = json.loads(variables["COSMOS_VIDEO_TRAIN_MEDIA_ROOTS"])
    expected = [
        os.path.join(root, entry["video_id"])  # noqa: PTH118 - as upstream joins
        for file, root in zip(files, roots, strict=True)
        for entry in json.loads(Path(file).read_text())["items"]
    ]
    assert [sample[0]["content"][0]["video"] for sample in messages(tmp_path)] == expected


@pytest.mark.parametrize("mode", ["answer", "think", "hybrid"])
def test_tao_daft_s_reader_gives_the_same_messages_when_it_is_installed(
    mode: str, real_data: Path, tmp_path: Path
) -> None:
    datasets = pytest.importorskip(
        "nvidia_tao_daft.datasets.tao_vl_reason_v1_0", reason="the reference extra is not installed"
    )
    files = real_files(real_data)
    run(tmp_path, files, mode=mode, media="reference", system_prompt="Be brief.", ignore=("FIL002",))
    variables = env(tmp_path / "video_reasoning/train").variables
    roots = json.loads(variables["COSMOS_VIDEO_TRAIN_MEDIA_ROOTS"])
    theirs = datasets.TaoVlReasonV1_0CosmosRLConversationDataset(
        json.loads(variables["COSMOS_VIDEO_TRAIN_ANNOTATIONS"]), roots, "Be brief.", None, mode
    )
    half = len(theirs) // 2
    # Its hybrid shows all answers, then all think targets; Cosmos Framework interleaves them.
    order = (
        range(len(theirs))
        if mode != "hybrid"
        else [at + half * form for at in range(half) for form in (0, 1)]
    )
    assert messages(tmp_path) == [theirs[at] for at in order]


def test_tao_daft_ignores_an_embedded_root_when_it_is_installed(real_data: Path) -> None:
    datasets = pytest.importorskip(
        "nvidia_tao_daft.datasets.tao_vl_reason_v1_0", reason="the reference extra is not installed"
    )
    path = real_data / "daft/tao-vl-reason-v1.0/its_collision_no_copy_media/bcq.json"
    theirs = datasets.TaoVlReasonV1_0CosmosRLConversationDataset([str(path)])
    assert theirs[0][0]["content"][0]["video"] == str(path.parent / "raw/video_001.mp4")
    assert not (path.parent / "raw/video_001.mp4").exists()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    source = clips(tmp_path / "source", "a.mp4", "b.mp4")
    files = [
        annotation(source / "a.json", [item("a.mp4")]),
        annotation(source / "none.json", []),
        annotation(source / "b.json", [item("b.mp4"), item("b.mp4", "How?")]),
    ]
    run(tmp_path / "out", files)
    return tmp_path / "out/video_reasoning/train"


def test_a_sample(dataset: Path) -> None:
    reader = prep.open(dataset)
    assert len(reader) == 6
    assert [(reader[at]["id"], reader[at]["item"], reader[at]["form"]) for at in (0, 3, 5)] == [
        ("a.json/items/0", 0, "answer"),
        ("b.json/items/0", 1, "think"),
        ("b.json/items/1", 2, "think"),
    ]


@pytest.mark.parametrize("index", [-1, 6, 10**12])
def test_an_index_outside(index: int, dataset: Path) -> None:
    with pytest.raises(IndexError, match="there are 6"):
        prep.open(dataset)[index]


def test_a_reader_pickles_without_what_it_has_read(dataset: Path) -> None:
    reader = prep.open(dataset)
    before = len(pickle.dumps(reader))
    sample = reader[2]
    data = pickle.dumps(reader)
    assert len(data) == before
    assert pickle.loads(data)[2] == sample


def test_a_file_that_was_changed_is_named(dataset: Path) -> None:
    annotation(dataset / "b.json", [item("b.mp4")])
    reader = prep.open(dataset)
    assert reader[0]["item"] == 0  # the other files are as they were
    with pytest.raises(PrepError, match=r"b\.json: cannot be read: it has 1 items, the manifest states 2"):
        reader[2]


def test_media_that_are_referred_to_need_the_note_of_their_place(tmp_path: Path) -> None:
    source = clips(tmp_path / "source", "a.mp4")
    run(tmp_path / "out", [annotation(source / "a.json", [item("a.mp4")])], media="reference")
    root = tmp_path / "out/video_reasoning/train"
    assert prep.open(root)[0]["messages"][0]["content"][0]["video"] == str(source / "a.mp4")
    (root / ".prep/location.json").unlink()
    with pytest.raises(PrepError, match="does not say where the media stand"):
        prep.open(root)[0]
