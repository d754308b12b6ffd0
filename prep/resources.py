"""Where the data folders of the package are: recipes, schemas and the lock of upstream's files.

They stand once, at the top of the repository. A wheel carries them as ``prep/_data/<kind>`` (pyproject.toml
says how); a checkout and an editable install read them where they stand.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from prep.errors import EnvironmentLacksError

__all__ = ["data_folder", "user_cache"]

PACKAGE = Path(__file__).resolve().parent


def data_folder(kind: Literal["recipes", "schemas", "vendor"]) -> Path:
    """The folder of this kind: the installed wheel's own, else the one beside the package in a checkout.

    Raises `EnvironmentLacksError` where neither is there, which only a damaged installation brings about.
    """
    carried = PACKAGE / "_data" / kind
    if carried.is_dir():
        return carried
    beside = PACKAGE.parent / kind
    if beside.is_dir():
        return beside
    raise EnvironmentLacksError(
        f"The installation is incomplete: neither {carried} nor {beside} is there.",
        remedy="Install cosmos-prep again.",
    )


def user_cache() -> Path:
    """The project's folder in the user's cache (XDG_CACHE_HOME, else ~/.cache); not made here."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cosmos-prep"
