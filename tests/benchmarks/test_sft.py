"""A million records of an SFT JSONL at level "quick": speed beside the `jsonschema` package, and memory.

Run by `make bench`. The baseline parses each line with `json` and validates it against the same schema.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from prep.findings import Report
from prep.schemas import schema
from prep.validation_sft import SftCheck
from tests.commands import PROJECT

RECORDS = 1_000_000
BASELINE = 20_000
LINES = "train/video_dataset_file.jsonl"
MEMORY = 300 << 20

CHECK = """
import resource, sys
from pathlib import Path
from prep.findings import Report
from prep.validation_sft import SftCheck
report = Report(subject="x", level="quick")
records = SftCheck(Path(sys.argv[1]), None, "quick", 1, report, report.add).run()
print(records, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, report.errors)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A million records of about 500 bytes; their clips are elsewhere, so that no disk is measured."""
    root = tmp_path_factory.mktemp("million")
    (root / "train").mkdir()
    text = "The arm lifts a small black object and puts it down on the tray. " * 3
    with (root / LINES).open("w", encoding="utf-8") as file:
        for number in range(RECORDS):
            name = f"episode_{number:06d}_clip000"
            window = {
                "start_frame": 0,
                "end_frame": 86,
                "temporal_interval": 1,
                "caption": f"{number}. {text}",
            }
            file.write(
                json.dumps(
                    {
                        "uuid": name,
                        "duration": 17.4,
                        "width": 256,
                        "height": 256,
                        "vision_path": f"s3://bucket/videos/{name}.mp4",
                        "t2w_windows": [window],
                    }
                )
                + "\n"
            )
    return root


def test_records_a_second(benchmark: Any, tree: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema("sft-record"))
    began = time.perf_counter()
    with (tree / LINES).open(encoding="utf-8") as file:
        assert all(validator.is_valid(json.loads(line)) for line in islice(file, BASELINE))
    baseline = BASELINE / (time.perf_counter() - began)

    def run() -> int:
        report = Report(subject="million", level="quick")
        return SftCheck(tree, None, "quick", 1, report, report.add).run()

    assert benchmark.pedantic(run, rounds=1) == RECORDS
    ours = RECORDS / benchmark.stats.stats.median
    benchmark.extra_info.update(records_a_second=round(ours), jsonschema_a_second=round(baseline))
    assert ours >= 4 * baseline


def test_memory(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(tree)], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    records, peak, errors = map(int, done.stdout.split())
    assert (records, errors) == (RECORDS, 0)
    assert peak < MEMORY, f"{peak / 2**20:.0f} MiB"
