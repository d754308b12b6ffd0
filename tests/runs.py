"""The real `prep` command as a child process, against a loopback Hub: what the run tests share."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from prep.loopback import LoopbackHub
from prep.manifest import Manifest
from tests.trees import clip_bytes

__all__ = [
    "NAME",
    "THOROUGH",
    "Clip",
    "World",
    "assert_clean",
    "assert_one_failure",
    "assert_true",
    "digests",
    "ended",
    "finished_sources",
    "lock_text",
    "wait_for",
    "whole_tree",
]

REPOSITORY = "videophysics/videophy2_test"
TABLE = "videophy2_test.csv"
HOST = "https://clips.example/"
NAME = "videophy2_val"
PROJECT = Path(__file__).resolve().parents[1]
THOROUGH = bool(os.environ.get("PREP_THOROUGH"))
"""Whether the tests of interrupted runs take every case instead of a sample; takes some minutes."""
_PATIENCE = 60.0


@dataclass(frozen=True)
class Clip:
    """A row's clip: `name` in its URL, and the number of its content."""

    name: str
    content: int


@dataclass
class World:
    """A Hub with the VideoPhy-2 table, a host with its clips, and a place for the Hub's cache."""

    hub: LoopbackHub
    folder: Path
    table: bytes = b""
    extra: Mapping[str, str] = field(default_factory=dict)

    def publish(self, clips: Sequence[Clip], pad: int = 0) -> None:
        """Serve the clips, each with `pad` bytes more, and commit a table that names them in this order."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(["caption", "video_url", "sa", "pc", "joint"])
        for number, clip in enumerate(clips):
            writer.writerow([f"A clip, number {number}", HOST + clip.name, 3, clip.content % 5 + 1, 1])
            self.hub.add_file(clip.name, padded(clip.content, pad))
        self.table = text.getvalue().encode()
        self.hub.add_repo(REPOSITORY, {TABLE: self.table})

    def environment(self) -> dict[str, str]:
        """The child's environment: nothing of this machine's Hub, no proxies."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        cache = str(self.folder / "hub")
        return {
            **kept,
            "PYTHONPATH": str(PROJECT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HOME": cache,
            "HOME": cache,
            **self.extra,
        }

    def arguments(self, out: Path, *options: str) -> list[str]:
        """The arguments of a run of the val split into `out`."""
        mirror = f"{HOST}={self.hub.endpoint}/files/"
        fixed = ["--split", "val", "--prompt", "builtin", "--mirror", mirror, "--timeout", "5", "-q"]
        return ["videophy2", "--out-root", str(out), *fixed, *options]

    def start(
        self, out: Path, *options: str, python: Sequence[str] = ("-m", "prep"), **more: Any
    ) -> subprocess.Popen[str]:
        """Start a run."""
        return subprocess.Popen(
            [sys.executable, *python, *self.arguments(out, *options)],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            **more,
        )

    def run(self, out: Path, *options: str, **more: Any) -> tuple[int, str]:
        """Run to the end: the exit status and what it said on stderr."""
        return ended(self.start(out, *options, **more))

    def complete(self, out: Path, *options: str, **more: Any) -> Path:
        """Run to the end, which must be a good one; the dataset's directory."""
        status, said = self.run(out, *options, **more)
        assert status == 0, said
        return out / NAME

    def fetched(self) -> list[str]:
        """The names of the clips that were asked for since the log was cleared, one a request."""
        bodies = (record for record in self.hub.requests if record.method == "GET")
        return [unquote(record.path[7:]) for record in bodies if record.path.startswith("/files/")]


def whole_tree(clips: Sequence[Clip], folder: Path) -> dict[str, str]:
    """The digests of what an undisturbed run makes of these clips; the same on every Hub."""
    with LoopbackHub() as hub:
        world = World(hub, folder)
        world.publish(clips)
        return digests(world.complete(folder / "out"))


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a run: the exit status and what it said on stderr."""
    _, said = process.communicate(timeout=_PATIENCE)
    return process.returncode, said


def padded(content: int, pad: int) -> bytes:
    """A clip with a box of padding."""
    return clip_bytes(content) + (pad.to_bytes(4, "big") + b"free" + bytes(pad - 8) if pad else b"")


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> bool:
    """Wait until the condition holds; False if the process has ended before."""
    until = time.monotonic() + _PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:
            return condition()
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.001)
    return True


def digests(root: Path) -> dict[str, str]:
    """Every file below `root` with the sha256 of its bytes, and every folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        found[relative] = "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def assert_clean(root: Path) -> None:
    """Nothing of a run is left in a finished dataset."""
    inside = [sorted(path.name for path in folder.iterdir()) for folder in (root, root / ".prep")]
    assert inside[0] == [".prep", "manifest.json", "media", "meta.json", "text"]
    assert inside[1] == ["files.parquet", "records.parquet", "source"]
    assert [path for path in root.rglob("*") if path.name.endswith((".partial", ".part"))] == []


def assert_one_failure(status: int, said: str) -> str:
    """A run that a rerun may mend: status 3, one sentence and the next step; the sentence."""
    assert status == 3, said
    assert "Traceback" not in said
    assert "Exception" not in said
    lines = said.splitlines()
    assert len(lines) == 2, said
    assert lines[0].startswith("prep: "), said
    assert lines[1].startswith("      "), said
    return lines[0]


def finished_sources(root: Path) -> set[str]:
    """The clips that a killed run has noted as fetched, read without our own code."""
    path = root / ".prep" / "ledger"
    if not path.exists():
        return set()
    lines = [line for line in path.read_bytes().split(b"\n")[:-1] if line]
    sources = (json.loads(line).get("source") for line in lines if line.endswith(b"}"))
    return {source.removeprefix(HOST) for source in sources if source}


def assert_true(root: Path, known: Iterable[int], pad: int = 0) -> bool:
    """Whatever stands under a final name is whole; whether there is a manifest, which must be true then."""
    whole = {hashlib.sha256(padded(content, pad)).hexdigest() for content in known}
    for path in (root / "media").glob("*.mp4"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in whole, path
    for path in (root / "text").glob("*.json"):
        assert json.loads(path.read_text("ascii"))["conversations"], path
    manifest = Manifest.load(root)
    if manifest is None:
        return False
    for row in manifest.files():
        assert hashlib.sha256((root / row.path).read_bytes()).hexdigest() == row.sha256, row.path
    return True


def lock_text(**changes: object) -> str:
    """A lock as a run of this host would write it, with some facts changed."""
    return json.dumps({"token": "0" * 32, "host": socket.gethostname(), **changes})
