"""Fixtures that every test file may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from prep.loopback import LoopbackHub
from tests.clips import make_clip
from tests.world import World

# A loaded machine is slow, not wrong: no test is judged by its time.
settings.register_profile("prep", deadline=None)
settings.load_profile("prep")

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "real"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files made by others; a test that needs it skips where it is absent."""
    if not REAL.is_dir():
        pytest.skip("the real data folder ../shared/data/real is not beside this checkout")
    return REAL


@pytest.fixture(scope="session")
def base_clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small whole MP4."""
    path = tmp_path_factory.mktemp("clips") / "clip.mp4"
    return make_clip(path, frames=4, width=32, height=32).read_bytes()


@pytest.fixture
def world(tmp_path: Path, base_clip: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A Hub and a host of clips on loopback, to which the real Hub client goes."""
    with LoopbackHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield World(hub, tmp_path, base_clip)
