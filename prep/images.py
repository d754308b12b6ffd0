"""Check encoded images by decoding them with Pillow, the decoder that `datasets` and the loaders use.

Nothing here keeps state, and Pillow's decoders release Python's lock: any number of threads may call it.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from prep.errors import PrepError
from prep.findings import Finding, found
from prep.signatures import HEAD_BYTES, lfs_oid, looks_like

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = ["ImageFacts", "check_image", "decoded", "rgb"]

MAX_PIXELS: Final = 178_956_970
"""Beyond so many pixels Pillow refuses an image as a decompression bomb."""
MAX_ASPECT: Final = 200
"""Qwen's image processor refuses an image whose one side is more than so many times the other."""

_DAMAGE: Final = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    NotImplementedError,
    struct.error,
    zlib.error,
)
"""What Pillow's decoders raise on damaged bytes."""
_ENDINGS: Final = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "MPO": ("jpg", "jpeg", "mpo"),
    "PNG": ("png", "apng"),
    "GIF": ("gif",),
    "WEBP": ("webp",),
    "BMP": ("bmp", "dib"),
    "TIFF": ("tif", "tiff"),
}
_MAGIC: Final = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF"}
_IMAGE_ENDINGS: Final = frozenset(ending for endings in _ENDINGS.values() for ending in endings)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image is: width and height in pixels before any rotation, Pillow's format and mode."""

    width: int
    height: int
    format: str
    mode: str
    frames: int


def check_image(
    data: bytes | None, *, name: str | None = None, path: str = "", place: str = ""
) -> tuple[ImageFacts | None, list[Finding]]:
    """Check the bytes of one image, decoding it whole; the facts are None where it has an error.

    `name` is the file name that stands beside the bytes, if any; `path` and `place` are where the
    findings say it is. An image has at most one error.
    """
    error = _without_bytes(data, name, path, place)
    if error is not None or data is None:
        return None, [error] if error else []
    opened = _opened(data)
    if isinstance(opened, tuple):
        code, message = opened
        return None, [found(code, path, _named(name, message), place=place)]
    message = _absurd(opened)
    if message:
        return None, [found("IMG007", path, _named(name, message), place=place)]
    try:
        opened.load()
        facts = _facts(opened)
    except _DAMAGE as damage:
        message = f"{opened.format} of {opened.width}x{opened.height}: {_said(damage)}"
        return None, [found("IMG004", path, _named(name, message), place=place)]
    return facts, list(_warnings(facts, name, path, place))


def _without_bytes(data: bytes | None, name: str | None, path: str, place: str) -> Finding | None:
    """What is wrong before anything is decoded."""
    if data is None:
        where = (
            f"only the path {name!r}, which leads out of the dataset" if name else "neither bytes nor path"
        )
        return found("IMG001", path, where, place=place)
    if not data:
        return found("IMG002", path, _named(name, "0 bytes"), place=place)
    head = data[:HEAD_BYTES]
    stranger = looks_like(head)
    if stranger is None:
        return None
    oid = lfs_oid(head)
    message = f"{stranger} of {len(data)} bytes" + (f", oid sha256:{oid}" if oid else "")
    return found("IMG003", path, _named(name, message), place=place)


def _opened(data: bytes) -> Image | tuple[str, str]:
    """The image with its header read, or the code and message of why it cannot be."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return "IMG007", _said(error)
    except UnidentifiedImageError:
        kind = next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None)
        if kind is not None:
            return "IMG004", f"{len(data)} bytes of a {kind} whose header cannot be read"
        return "IMG003", f"{len(data)} bytes that begin with {data[:8].hex(' ')}: Pillow knows no such image"
    except _DAMAGE as error:
        return "IMG004", _said(error)


def _absurd(image: Image) -> str:
    width, height = image.size
    if not width or not height:
        return f"{width}x{height} pixels"
    if width * height > MAX_PIXELS:
        return f"{width}x{height} is {width * height} pixels; expected at most {MAX_PIXELS}"
    if max(width, height) > MAX_ASPECT * min(width, height):
        return f"{width}x{height}: one side is more than {MAX_ASPECT} times the other"
    return ""


def _facts(image: Image) -> ImageFacts:
    width, height = image.size
    return ImageFacts(width, height, image.format or "", image.mode, getattr(image, "n_frames", 1))


def _warnings(facts: ImageFacts, name: str | None, path: str, place: str) -> Iterator[Finding]:
    ending = PurePosixPath(name or "").suffix.lower().removeprefix(".")
    if ending in _IMAGE_ENDINGS and ending not in _ENDINGS.get(facts.format, (ending,)):
        yield found("IMG005", path, f"{name} holds a {facts.format} image", place=place)
    if facts.mode != "RGB":
        yield found("IMG006", path, _named(name, f"mode {facts.mode}; expected RGB"), place=place)
    if facts.frames > 1:
        yield found("IMG008", path, _named(name, f"{facts.frames} frames or pages; one is used"), place=place)


def decoded(data: bytes) -> Image:
    """The image as `datasets` gives it: decoded, and turned upright where EXIF says so.

    Raises what Pillow raises.
    """
    from PIL import Image, ImageOps

    image: Image.Image = Image.open(io.BytesIO(data))
    image.load()
    if image.getexif().get(0x0112) is not None:
        image = ImageOps.exif_transpose(image)
    return image


def rgb(data: bytes) -> NDArray[np.uint8]:
    """The pixels, uint8 [H, W, 3], upright; transparency is dropped, as upstream drops it.

    Raises PrepError for what cannot be decoded.
    """
    import numpy as np
    from PIL import Image

    try:
        return np.asarray(decoded(data).convert("RGB"))
    except (*_DAMAGE, Image.DecompressionBombError) as error:
        raise PrepError(f"The image cannot be decoded: {_said(error)}.") from error


def _named(name: str | None, message: str) -> str:
    return f"{name}: {message}" if name else message


def _said(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
