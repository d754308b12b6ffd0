"""A snapshot opens with plain `datasets`, the oldest and the newest that we allow, where `prep` is not.

Each version is installed into a folder of its own, before the other packages of this environment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prep.snapshots import SnapshotOptions, prepare_snapshots
from tests.llava import FEATURES, REPO, parquet, picture, row

pytestmark = pytest.mark.slow

VERSIONS: Mapping[str, tuple[str, ...]] = {
    # With the packages that it caps below what stands in the lock.
    "oldest": ("datasets==4.0.0", "dill<0.3.9", "multiprocess<0.70.17", "fsspec<=2025.3.0"),
    "newest": ("datasets",),
}
ROWS = [
    *(row(n) for n in range(40)),
    row(40, picture(40, mode="L")),
    row(41, picture(41, mode="RGBA")),
    row(42, picture(42, kind="JPEG"), conversations=row(42)["conversations"] * 3),
    row(43, id="N\u00b0 43 \u2014 \u56fe", data_source=None),
]

READ = """
import hashlib, importlib.util, json, sys
from importlib.metadata import requires, version
from packaging.requirements import Requirement

assert importlib.util.find_spec("prep") is None, "prep is to be seen"
wanted = [each for each in map(Requirement, requires("datasets"))
          if each.marker is None or each.marker.evaluate({"extra": ""})]
lacking = [f"{each} (here is {version(each.name)})" for each in wanted
           if not each.specifier.contains(version(each.name), prereleases=True)]
if lacking:
    print(json.dumps({"lacking": lacking}))
    sys.exit()

import datasets
opened = sys.argv[1]
made = (datasets.load_from_disk(opened) if opened.startswith("/")
        else datasets.load_dataset(opened, name="default", split="train"))
plain = made.cast_column("image", datasets.Image(decode=False))
rows = [{**each, "image": [each["image"]["path"], hashlib.sha256(each["image"]["bytes"]).hexdigest()]}
        for each in plain]
pixels = [[image.mode, *image.size, hashlib.sha256(image.tobytes()).hexdigest()] for image in made["image"]]
print(json.dumps({"version": version("datasets"), "file": datasets.__file__, "rows": rows, "pixels": pixels,
                  "features": made.features.to_dict(), "modules": [m for m in sys.modules if m == "prep"]}))
"""


@pytest.fixture(scope="session", params=VERSIONS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one version of `datasets`; skips where no package index answers."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("this environment has no pip, which puts another version of datasets beside it")
    folder = tmp_path_factory.mktemp(request.param)
    options = ("--quiet", "--no-deps", "--disable-pip-version-check", "--retries", "1", "--timeout", "15")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", folder, *VERSIONS[request.param]],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing"]
        pytest.skip(f"{VERSIONS[request.param][0]} cannot be installed here; pip says: {said[-1]}")
    return folder


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An out-root with both forms of one subset, in several shards."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "rows.parquet").write_bytes(parquet(ROWS, group=7))
    for form in ("arrow", "hub"):
        options = SnapshotOptions(source=str(folder / "rows.parquet"), form=form, shard_bytes=3000)  # type: ignore[arg-type]
        [result] = prepare_snapshots("llava_ov", folder / "out", subsets=["default"], options=options)
        assert result.kept == len(ROWS)
    assert len(list((folder / "out/llava_ov/default/train").glob("*.arrow"))) > 3
    return folder / "out"


def read(library: Path, opened: str, cwd: Path, cache: Path) -> dict[str, Any]:
    """What the library gives of a dataset, in a process that sees its folder and the installed packages."""
    packages = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(library), *packages]),
        "PYTHONUTF8": "1",
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    # Without `site`, so that no .pth file shows it the project.
    done = subprocess.run(
        [sys.executable, "-S", "-c", READ, opened],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    if "lacking" in answer:
        pytest.skip(f"the newest datasets wants other packages than the lock's: {answer['lacking']}")
    return answer


def expected_rows() -> list[dict[str, Any]]:
    def told(image: Mapping[str, Any]) -> list[str]:
        return [image["path"], hashlib.sha256(image["bytes"]).hexdigest()]

    return [{**each, "image": told(each["image"])} for each in ROWS]


@pytest.mark.parametrize("form", ["arrow", "hub"])
def test_the_rows_are_those_of_the_source(library: Path, form: str, prepared: Path, tmp_path: Path) -> None:
    opened = str(prepared / "llava_ov/default/train") if form == "arrow" else REPO
    found = read(library, opened, prepared, tmp_path)
    assert found["file"].startswith(str(library))
    assert found["version"] == "4.0.0" or int(found["version"].split(".")[0]) >= 5
    assert found["rows"] == expected_rows()
    assert found["features"] == FEATURES.to_dict()
    assert [mode for mode, *_ in found["pixels"][-4:]] == ["L", "RGBA", "RGB", "RGB"]
    assert {(width, height) for _, width, height, _ in found["pixels"]} == {(24, 16)}
    assert found["modules"] == []
