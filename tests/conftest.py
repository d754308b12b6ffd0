"""Fixtures that every test file may use."""

from __future__ import annotations

from pathlib import Path

import pytest

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "real"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files made by others; a test that needs it skips where it is absent."""
    if not REAL.is_dir():
        pytest.skip("the real data folder ../shared/data/real is not beside this checkout")
    return REAL
