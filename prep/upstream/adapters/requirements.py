"""What a reference needs installed, and the exact line that installs what is missing."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

from prep.errors import EnvironmentLacksError
from prep.readers.robot_torchcodec import load_torchcodec

__all__ = ["CONVERSATIONS", "LEROBOT", "MODEL_INPUT", "ROBOT", "SFT", "require"]

CONVERSATIONS: Mapping[str, str] = {
    "torch": "torch",
    "loguru": "loguru",
    "attrs": "attrs",
    "omegaconf": "omegaconf",
    "iopath": "iopath",
}
"""Modules that upstream's reader of conversations imports, with the packages that have them."""

SFT: Mapping[str, str] = {
    **CONVERSATIONS,
    "boto3": "boto3",
    "pydantic": "pydantic",
    "transformers": "transformers",
}
"""The same for upstream's SFT metadata."""

_LEROBOT = "lerobot==0.4.4"

LEROBOT: Mapping[str, str] = {
    "torch": "torch",
    "torchvision": "torchvision",
    "torchcodec": "torchcodec",
    "accelerate": "accelerate",
    "fsspec": "fsspec",
    "packaging": "packaging",
    "lerobot": _LEROBOT if sys.version_info < (3, 12) else "lerobot[dataset]>=0.6",
}
"""lerobot, and what its datasets import beside the packages that `prep` itself needs."""

ROBOT: Mapping[str, str] = {**LEROBOT, "scipy": "scipy", "loguru": "loguru"}
"""The same for upstream's DROID and LIBERO readers, which read through lerobot."""

MODEL_INPUT: Mapping[str, str] = {**ROBOT, **CONVERSATIONS}
"""The same for what upstream makes of their samples before a model sees them."""


def require(reference: str, needed: Mapping[str, str]) -> None:
    """Raise EnvironmentLacksError with the line that installs whatever of `needed` is not there.

    lerobot 0.4.4 caps packages below the versions that stand beside it here, so it goes in by itself,
    without its dependencies.
    """
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if not missing:
        if "torchcodec" in needed:
            load_torchcodec()  # installed, it may still find no FFmpeg
        return
    packages = [needed[name] for name in missing]
    plain = [each for each in packages if each != _LEROBOT]
    lines = [f"pip install {' '.join(map(_quoted, plain))}"] if plain else []
    if _LEROBOT in packages:
        lines.append(f"pip install --no-deps {_LEROBOT}")
    raise EnvironmentLacksError(
        f"The reference {reference} needs {', '.join(missing)}, which this environment lacks.",
        remedy=" && ".join(lines),
    )


def _quoted(package: str) -> str:
    return f"'{package}'" if set("[<>") & set(package) else package
