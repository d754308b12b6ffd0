"""Preparing a snapshot, against `datasets`' own load, filter and save of the same parquet, in a process each.

Ours verifies every image by decoding it; the baseline's filter decodes them as well. Run with `make bench`.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.llava import parquet, row

ROWS = 2000
FILES = 4
LEAST_SHARE = 0.8
MOST_MEMORY = 0.5

MEASURE = """
import json, resource, sys, time
began = time.monotonic()
{body}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"rows": rows, "seconds": time.monotonic() - began, "peak": peak}}))
"""

OURS = """
from prep.snapshots import SnapshotOptions, prepare_snapshots
options = SnapshotOptions(source=sys.argv[1])
rows = prepare_snapshots("llava_ov", sys.argv[2], subsets=["sub"], options=options)[0].kept
"""

BASELINE = """
import datasets
from pathlib import Path
files = sorted(map(str, Path(sys.argv[1]).rglob("*.parquet")))
made = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=sys.argv[2] + "/cache")
made = made.filter(lambda x: x.get("image") is not None and len(x.get("conversations") or []) >= 2)
made.save_to_disk(sys.argv[2] + "/saved")
rows = len(made)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of 640 x 427 pixels, each of its own, as `datasets` writes them: row groups of 100."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "sub").mkdir()
    dice = np.random.default_rng(0)
    noise = dice.integers(0, 255, (427 // 8 + 1, 640 // 8 + 1, 3), np.uint8)
    base = Image.fromarray(noise).resize((640, 427), Image.Resampling.BICUBIC)
    for file in range(FILES):
        numbers = range(file * ROWS // FILES, (file + 1) * ROWS // FILES)
        rows = [row(number, _photograph(base, dice)) for number in numbers]
        (folder / "sub" / f"train-{file:05d}-of-{FILES:05d}.parquet").write_bytes(parquet(rows))
    return folder


def _photograph(base: Image.Image, dice: np.random.Generator) -> bytes:
    buffer = io.BytesIO()
    shifted = np.roll(np.asarray(base), tuple(dice.integers(0, 400, 2)), (0, 1))
    Image.fromarray(shifted ^ dice.integers(0, 16, shifted.shape, np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def measured(body: str, source: Path, out: Path) -> dict[str, Any]:
    """Rows, seconds and peak memory of a process that runs `body`."""
    script = MEASURE.format(body=textwrap.dedent(body))
    command = [sys.executable, "-c", script, str(source), str(out)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return facts


def test_as_fast_as_datasets_in_half_the_memory(source: Path, tmp_path: Path) -> None:
    rounds = [
        (measured(OURS, source, tmp_path / f"ours{at}"), measured(BASELINE, source, tmp_path / f"base{at}"))
        for at in range(3)
    ]
    shares = sorted(base["seconds"] / ours["seconds"] for ours, base in rounds)
    ours, base = rounds[0]
    assert ours["rows"] == base["rows"] == ROWS
    peaks = f"{ours['peak'] / 1e6:.0f} MB to {base['peak'] / 1e6:.0f} MB"
    print(
        f"\n{ROWS / min(each['seconds'] for each, _ in rounds):.0f} rows/s, "
        f"{shares[1]:.2f} times the baseline's rate, peak {peaks}"
    )
    assert shares[1] >= LEAST_SHARE
    assert ours["peak"] <= MOST_MEMORY * base["peak"]
