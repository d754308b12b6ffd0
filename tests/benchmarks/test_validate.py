"""Records a second of `validate(level="quick")` beside a bare loop that opens and parses the same files.

Run by `make bench`. The bare loop is the baseline in the same run. At level "standard" the time goes into
opening containers and decoding a frame of each: the last benchmark states the shares.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import orjson
import pytest

from prep.layouts.conversations import Layout, meta_json
from prep.recipe import load_recipe
from prep.validation import validate
from tests.trees import PROMPT, conversation, make_tree, prove

RECORDS = 20_000


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of 20,000 records with captions, its media of 2 kB each, with a manifest."""
    root = tmp_path_factory.mktemp("many") / "val"
    layout = Layout.of(load_recipe("videophy2").document)
    for folder in ("media", "text"):
        (root / folder).mkdir(parents=True)
    for row in range(1, RECORDS + 1):
        question = f"{PROMPT * 20}\nCaption: clip {row} in which something falls off a table\n"
        (root / layout.media(row)).write_bytes(row.to_bytes(2000, "big"))
        (root / layout.conversation(row)).write_text(
            json.dumps(conversation(question, "3")), encoding="ascii"
        )
    (root / "meta.json").write_bytes(b"".join(meta_json(layout.entry(row) for row in range(1, RECORDS + 1))))
    prove(root)
    return root


def parse_all(tree: Path) -> int:
    """The bare loop."""
    with (tree / "meta.json").open("rb") as file:
        entries = orjson.loads(file.read())
    for entry in entries:
        with open(f"{tree}/{entry['conversation']}", "rb") as file:  # noqa: PTH123 - the baseline is bare
            orjson.loads(file.read())
    return len(entries)


def median_seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """The median time of a few rounds after one that warms the page cache."""
    work()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def test_validate_with_a_manifest(benchmark: Any, tree: Path) -> None:
    assert parse_all(tree) == RECORDS
    bare = median_seconds(lambda: parse_all(tree))
    report = benchmark.pedantic(lambda: validate(tree, level="quick"), rounds=5, warmup_rounds=1)
    assert (report.errors, report.warnings, report.checked["records"]) == (0, 0, RECORDS)
    ratio = bare / benchmark.stats.stats.median
    benchmark.extra_info.update(baseline="open and parse the same files", baseline_seconds=bare, ratio=ratio)
    print(f"\nvalidate quick: {ratio:.2f} x the records a second of a bare loop")
    assert ratio >= 0.7


def test_share_of_opening_containers(benchmark: Any, tmp_path: Path) -> None:
    clips = 200
    tree = make_tree(tmp_path / "val", records=clips, manifest=True)
    media = sorted((tree / "media").iterdir())

    def open_all() -> None:
        for path in media:
            with av.open(path):
                pass

    def open_and_decode_all() -> None:
        for path in media:
            with av.open(path) as container:
                container.streams.video[0].codec_context.thread_count = 1
                next(container.decode(video=0))

    report = benchmark.pedantic(lambda: validate(tree, level="standard", jobs=1), rounds=5, warmup_rounds=1)
    assert (report.errors, report.checked["videos"]) == (0, clips)
    whole = benchmark.stats.stats.median
    opening, decoding = median_seconds(open_all) / whole, median_seconds(open_and_decode_all) / whole
    benchmark.extra_info.update(opening=opening, opening_and_a_frame=decoding)
    print(
        f"\nvalidate standard: {opening:.0%} opening containers, {decoding:.0%} with a decoded frame of each"
    )
    assert 0 < opening < decoding < 1


def test_validate_without_a_manifest(benchmark: Any, tree: Path) -> None:
    proof = (tree / "manifest.json").rename(tree.parent / "manifest.json")
    state = (tree / ".prep").rename(tree.parent / ".prep")
    try:
        report = benchmark.pedantic(lambda: validate(tree, level="quick"), rounds=5, warmup_rounds=1)
    finally:
        proof.rename(tree / "manifest.json")
        state.rename(tree / ".prep")
    assert (report.errors, report.checked["records"]) == (0, RECORDS)
