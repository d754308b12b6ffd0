"""The snapshot reader: upstream's messages and pixels, in order, from shards or parquet."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pytest

import prep
from prep.errors import PrepError
from prep.images import rgb
from prep.layouts.arrow_snapshot import Form
from prep.snapshots import SnapshotOptions, prepare_snapshots
from tests.llava import parquet, picture, qwen_rows, row

# By hand: `get_llava_ov_map` and `VLMProcessor._sharegpt_to_openai` of cosmos-framework at 5eee9ed5, run
# over the same rows (upstream's own `load_dataset` on the raw parquet, and `load_from_disk` on the
# snapshot), each image as RGB bytes and then the messages as JSON.
UPSTREAM = "7f227ef65825c4b0d3c0f3a3cf656fd2720b138fa83a176308f6654326714ed3"


def made(tmp_path: Path, rows: list[dict[str, object]], form: Form = "arrow") -> Path:
    source = tmp_path / "rows.parquet"
    source.write_bytes(parquet(rows, group=5))
    options = SnapshotOptions(source=str(source), form=form, shard_bytes=2000, on_bad_image="drop")
    [result] = prepare_snapshots("llava_ov", tmp_path / form, subsets=["default"], options=options)
    return result.root


@pytest.mark.parametrize("form", ["arrow", "hub"])
def test_samples_in_order(tmp_path: Path, form: Form) -> None:
    reader = prep.open(made(tmp_path, [row(n) for n in range(60)], form))
    assert len(reader) == 60
    for index in (0, 59, 17, 3, 40, 41, 0):
        sample = reader[index]
        assert sample["id"] == f"row {index}"
        assert sample["media"] == {"image_0": picture(index)}
        assert sample["image"].tolist() == rgb(picture(index)).tolist()
        assert sample["messages"][0]["content"][0] == {"type": "image", "image": "image_0"}
        assert sample["messages"][1] == {"role": "assistant", "content": f"It is {index}."}


def test_the_same_messages_and_pixels_as_upstream(tmp_path: Path, real_data: Path) -> None:
    broken = {"multipage_rgb.tif", "corrupt.jpg", "heapbof.png", "sigsegv.png"}
    rows = [each for each in qwen_rows(real_data) if each["image"]["path"] not in broken]
    rows[3] = {**rows[3], "image": None}
    rows[5] = {**rows[5], "conversations": rows[5]["conversations"][:1]}
    reader = prep.open(made(tmp_path, rows))
    digest = hashlib.sha256()
    for index in range(len(reader)):
        sample = reader[index]
        digest.update(sample["image"].tobytes())
        digest.update(json.dumps(sample["messages"]).encode())
    assert digest.hexdigest() == UPSTREAM


def test_outside_is_an_index_error(tmp_path: Path) -> None:
    reader = prep.open(made(tmp_path, [row(n) for n in range(3)]))
    for index in (-1, 3):
        with pytest.raises(IndexError, match="there are 3"):
            reader[index]


def test_a_reader_pickles_small_and_opens_nothing_before_use(tmp_path: Path) -> None:
    root = made(tmp_path, [row(n) for n in range(60)])
    reader = prep.open(root)
    reader[5]
    frozen = pickle.dumps(reader)
    assert len(frozen) < 2000
    for shard in root.glob("*.arrow"):
        shard.rename(shard.with_suffix(".away"))
    thawed = pickle.loads(frozen)
    assert len(thawed) == 60
    with pytest.raises(PrepError, match=r"data-00000-of-.*cannot be read"):
        thawed[0]


def test_a_damaged_image_names_the_sample(tmp_path: Path) -> None:
    root = made(tmp_path, [row(n) for n in range(3)])
    shard = next(root.glob("*.arrow"))
    data = bytearray(shard.read_bytes())
    place = data.index(picture(1))
    data[place + 45 : place + 60] = b"\x00" * 15
    shard.write_bytes(bytes(data))
    reader = prep.open(root)
    assert reader[0]["id"] == "row 0"
    with pytest.raises(PrepError, match=r"sample 1 of llava_ov/default/train@"):
        reader[1]
