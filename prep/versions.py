"""What a comparison ran on: packages, decoders, FFmpeg and the CPU, since each may change a byte."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Any

from prep import __version__

__all__ = ["environment"]

_PACKAGES = (
    "numpy", "pyarrow", "pandas", "av", "pillow", "scipy", "torch", "torchvision", "torchcodec", "lerobot",
    "datasets", "cosmos-framework", "nvidia-tao-daft",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Versions by name; both sides of a comparison run in this one process.

    `ffmpeg` names the FFmpeg of each decoder that has been loaded: what PyAV bundles and what
    torchcodec found are often not the same.
    """
    return {
        "prep": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "ffmpeg": _ffmpeg(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's own name, on Linux; elsewhere what Python knows of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.processor() or platform.machine()


def _ffmpeg() -> dict[str, str]:
    """The FFmpeg of each loaded decoder; loading one here would only say what nobody used."""
    found = {}
    if "av" in sys.modules:
        import av

        found["av"] = str(av.ffmpeg_version_info)
    codec = sys.modules.get("torchcodec")
    if codec is not None:
        found["torchcodec"] = str(getattr(codec, "ffmpeg_major_version", "unknown"))
    return found
