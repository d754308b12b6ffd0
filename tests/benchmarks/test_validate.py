"""Records a second of `validate(level="quick")` beside a bare loop that opens and parses the same files.

Run by `make bench`. The bare loop is the baseline in the same run: compare the two rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from prep.layouts.conversations import Layout, meta_json
from prep.recipe import load_recipe
from prep.validation import validate
from tests.trees import PROMPT, conversation, prove

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


@pytest.mark.benchmark(group="validate quick, 20,000 records")
def test_bare_loop(benchmark: Any, tree: Path) -> None:
    def parse_all() -> int:
        with (tree / "meta.json").open("rb") as file:
            entries = orjson.loads(file.read())
        for entry in entries:
            with open(f"{tree}/{entry['conversation']}", "rb") as file:  # noqa: PTH123 - the baseline is bare
                orjson.loads(file.read())
        return len(entries)

    assert benchmark.pedantic(parse_all, rounds=5, warmup_rounds=1) == RECORDS


@pytest.mark.benchmark(group="validate quick, 20,000 records")
def test_validate_with_a_manifest(benchmark: Any, tree: Path) -> None:
    report = benchmark.pedantic(lambda: validate(tree, level="quick"), rounds=5, warmup_rounds=1)
    assert (report.errors, report.warnings, report.checked["records"]) == (0, 0, RECORDS)


@pytest.mark.benchmark(group="validate quick, 20,000 records")
def test_validate_without_a_manifest(benchmark: Any, tree: Path) -> None:
    proof = (tree / "manifest.json").rename(tree.parent / "manifest.json")
    state = (tree / ".prep").rename(tree.parent / ".prep")
    try:
        report = benchmark.pedantic(lambda: validate(tree, level="quick"), rounds=5, warmup_rounds=1)
    finally:
        proof.rename(tree / "manifest.json")
        state.rename(tree / ".prep")
    assert (report.errors, report.checked["records"]) == (0, RECORDS)
