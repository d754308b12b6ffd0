"""What this machine has of what prep needs, and what a directory's file system can do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prep import __version__
from prep.files import free_space
from prep.progress import bytes_text

__all__ = ["Check", "examine"]

_PACKAGES = (
    "click", "rich", "loguru", "jsonschema-rs", "orjson", "pyarrow", "pandas", "numpy", "datasets",
    "huggingface-hub", "av", "pillow", "httpx",
)  # fmt: skip
_OPTIONAL = {
    "torch": "pip install 'cosmos-prep[torch]'",
    "torchcodec": "pip install 'cosmos-prep[torch]' (torchcodec also needs the system's ffmpeg)",
    "scipy": "pip install 'cosmos-prep[robot]'",
    "nvidia-tao-daft": "pip install 'cosmos-prep[reference]'",
}
_LOW_BYTES = 1_000_000_000
_LOW_FILES = 100_000
_HUB_SECONDS = 5.0
_HUB_REMEDY = "Set HF_ENDPOINT to a mirror, HTTPS_PROXY to your proxy, or work with --offline."


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, what was found, whether it is good, and the remedy if not.

    A check that is not `needed` is only told.
    """

    name: str
    found: str
    good: bool = True
    needed: bool = True
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


def examine(directory: str | Path) -> list[Check]:
    """Look at the machine and at `directory`, in which a folder is made and removed for the trial."""
    return [
        Check("prep", __version__),
        Check("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *_packages(),
        *_decoders(),
        _hub(),
        *_directory(Path(directory)),
    ]


def _packages() -> Iterator[Check]:
    for name in _PACKAGES:
        version = _version(name)
        yield Check(name, version or "not installed", version is not None, remedy=f"pip install {name}")
    for name, remedy in _OPTIONAL.items():
        version = _version(name)
        yield Check(name, version or "not installed (optional)", version is not None, False, remedy)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _decoders() -> Iterator[Check]:
    if importlib.util.find_spec("av") is not None:
        import av

        libraries = ", ".join(
            f"{name} {'.'.join(map(str, version))}" for name, version in sorted(av.library_versions.items())
        )
        yield Check("FFmpeg of PyAV", libraries)
        for codec in ("h264", "hevc", "av1", "vp9"):
            yield _decoder(codec)
    ffmpeg = shutil.which("ffmpeg")
    yield Check(
        "ffmpeg command",
        ffmpeg or "not found (optional)",
        ffmpeg is not None,
        False,
        "Install your system's ffmpeg package; only torchcodec needs it.",
    )


def _decoder(codec: str) -> Check:
    from av.codec import Codec
    from av.codec.codec import UnknownCodecError

    try:
        found = Codec(codec, "r")
    except UnknownCodecError:
        return Check(f"decoder {codec}", "not in this build", False, remedy="pip install --upgrade av")
    return Check(f"decoder {codec}", found.long_name)


def _hub() -> Check:
    import httpx

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return Check("Hub", "switched off by HF_HUB_OFFLINE", False, False, "unset HF_HUB_OFFLINE")
    try:
        from huggingface_hub import get_token  # refuses a malformed HF_ENDPOINT when imported

        token = "with a token" if get_token() else "without a token (only gated datasets need one)"
        answer = httpx.get(f"{endpoint}/api/datasets?limit=1", timeout=_HUB_SECONDS, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError) as error:
        # ImportError and ValueError: a proxy variable that httpx cannot serve.
        found = f"{endpoint} does not answer: {str(error) or type(error).__name__}"
        return Check("Hub", found, False, False, _HUB_REMEDY)
    # A mirror need not list datasets, and a private one may want a token for it.
    good = answer.is_success or answer.status_code in (401, 404)
    return Check("Hub", f"{endpoint} answers {answer.status_code}, {token}", good, False, _HUB_REMEDY)


def _directory(directory: Path) -> Iterator[Check]:
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    free = free_space(existing)
    yield Check(
        f"free in {directory}",
        bytes_text(free.bytes),
        free.bytes >= _LOW_BYTES,
        remedy="Free some space or use another --out-root.",
    )
    files = free.files
    yield Check(
        "free inodes",
        "no limit stated" if files is None else str(files),
        files is None or files >= _LOW_FILES,
        remedy="Free some inodes or use another --out-root.",
    )
    if not existing.is_dir():
        yield Check("write", f"{existing} is a file", False, remedy="Give a folder.")
        return
    trial = existing / f".prep-doctor-{uuid.uuid4().hex}"
    try:
        trial.mkdir()
    except OSError as error:
        yield Check(
            "write",
            f"{existing}: {error.strerror}",
            False,
            remedy="Give write permission, or another folder.",
        )
        return
    try:
        yield from _abilities(trial)
    finally:
        shutil.rmtree(trial)


def _abilities(trial: Path) -> Iterator[Check]:
    (trial / "a").write_bytes(b"a")
    renames = "Files are put into place by rename: use another file system."
    links = "Media shared by two datasets will be copied; use one file system for both."
    yield _try("rename over a file", lambda: _rename(trial), remedy=renames)
    yield _try("exclusive creation (the lock)", lambda: _exclusive(trial), remedy=renames)
    yield _try("sync", lambda: _sync(trial), remedy="Without it a power cut may lose finished work.")
    yield _try("hard link", lambda: (trial / "h").hardlink_to(trial / "b"), needed=False, remedy=links)
    yield _try("symbolic link", lambda: (trial / "s").symlink_to("b"), needed=False, remedy=links)
    same = (trial / "B").exists()
    yield Check(
        "letter case",
        "names that differ in case are one file" if same else "told apart",
        not same,
        False,
        "Recipes whose file names differ only in case need another file system.",
    )


def _try(name: str, action: Callable[[], object], *, remedy: str, needed: bool = True) -> Check:
    try:
        action()
    except OSError as error:
        return Check(name, f"no: {error.strerror or error}", False, needed, remedy)
    return Check(name, "yes")


def _rename(trial: Path) -> None:
    (trial / "b").write_bytes(b"b")
    (trial / "a").replace(trial / "b")


def _exclusive(trial: Path) -> None:
    (trial / "lock").touch(exist_ok=False)
    try:
        (trial / "lock").touch(exist_ok=False)
    except FileExistsError:
        return
    raise OSError(0, "a file was created exclusively twice")


def _sync(trial: Path) -> None:
    descriptor = os.open(trial / "b", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
