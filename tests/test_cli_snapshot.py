"""`prep llava-ov` as people run it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import prep
from prep.cli_snapshot import llava_ov
from prep.environment import env
from prep.errors import UsageError
from prep.layouts.arrow_snapshot import safe_name
from prep.loopback import LoopbackHub
from tests.llava import REPO, publish, row

SUBSET = "ai2d(gpt4v)"


@pytest.fixture(autouse=True)
def _hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with LoopbackHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        publish(
            hub, {SUBSET: [[row(n) for n in range(9)], [row(9)]], "chartqa": [[row(n) for n in range(4)]]}
        )
        monkeypatch.chdir(tmp_path)
        yield


def run(*arguments: str) -> Result:
    return CliRunner().invoke(llava_ov, arguments)


def test_list_shows_the_subsets_on_stdout() -> None:
    listed = run("--subset", "list")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [SUBSET, "chartqa"]
    document = json.loads(run("--subset", "list", "--format", "json").stdout)
    assert [(entry["name"], entry["files"]) for entry in document] == [(SUBSET, 2), ("chartqa", 1)]


def test_several_subsets_and_what_is_printed() -> None:
    done = run("--subset", SUBSET, "--subset", "chartqa", "--max-samples", "3", "-q", "--format", "json")
    assert done.exit_code == 0
    results = json.loads(done.stdout)
    assert [(result["name"], result["kept"]) for result in results] == [
        (f"llava_ov/{safe_name(SUBSET)}/train", 3),
        ("llava_ov/chartqa/train", 3),
    ]
    assert len(prep.open("data/llava_ov/chartqa/train")) == 3
    text = run("--subset", SUBSET, "--max-samples", "3", "-q").stderr
    assert "nothing to do" in text
    assert SUBSET in text


def test_no_subset_says_what_to_do() -> None:
    failed = run()
    assert isinstance(failed.exception, UsageError)
    assert "--subset list" in failed.exception.remedy


def test_environment_of_one_snapshot_of_several_and_of_the_hub_layout(tmp_path: Path) -> None:
    run("--subset", SUBSET, "-q")
    consumer = "pre_exp012_llava_ov_mapstyle_dataloader"
    one = env("data", consumer=consumer)
    root = tmp_path / "data/llava_ov" / safe_name(SUBSET) / "train"
    assert one.variables["SNAPSHOT_OVERRIDES"].split() == [
        "dataloader_train.distributor.dataset._target_=datasets.load_from_disk",
        "~dataloader_train.distributor.dataset.subset",
        "~dataloader_train.distributor.dataset.split",
        "~dataloader_train.distributor.dataset.n",
        f"+dataloader_train.distributor.dataset.dataset_path={root}",
    ]
    run("--subset", "chartqa", "-q")
    with pytest.raises(UsageError, match="Two datasets would set SNAPSHOT_OVERRIDES"):
        env("data", consumer=consumer)
    run("--subset", "chartqa", "--hub-layout", "--out-root", "hub-layout", "-q")
    named = env("hub-layout", consumer=consumer)
    assert "SNAPSHOT_OVERRIDES" not in named.variables
    assert (
        f"upstream's load_dataset finds the subset where it is run in {tmp_path / 'hub-layout'}"
        in named.remarks
    )
    assert (tmp_path / "hub-layout" / REPO / "README.md").is_file()


def test_a_path_that_hydra_would_misread_is_refused(tmp_path: Path) -> None:
    run("--subset", SUBSET, "-q", "--out-root", "my data")
    with pytest.raises(UsageError, match="splits its overrides at spaces"):
        env(tmp_path / "my data")
