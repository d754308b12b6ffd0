"""The check of encoded images: every kind of fault, and the real files of others."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prep.errors import PrepError
from prep.images import check_image, rgb
from tests.llava import picture

EXPECTED = {
    "torchcodec/bad_huffman.jpg": [],  # damaged, and decoded by Pillow all the same
    "torchcodec/cmyk.jpg": ["IMG006"],
    "torchcodec/corrupt.jpg": ["IMG004"],
    "torchcodec/gradient_16bit.png": [],
    "torchcodec/gradient_interlaced.png": [],
    "torchcodec/grayscale.jpg": ["IMG006"],
    "torchcodec/grayscale_16bit.png": ["IMG006"],
    "torchcodec/grayscale_alpha.png": ["IMG006"],
    "torchcodec/heapbof.png": ["IMG003"],
    "torchcodec/rgba.png": ["IMG006"],
    "torchcodec/sigsegv.png": ["IMG004"],
    "scikit-image/chelsea.png": [],
    "scikit-image/chessboard_GRAY.png": ["IMG006"],
    "scikit-image/coins.png": ["IMG006"],
    "scikit-image/color.png": [],
    "scikit-image/logo.png": ["IMG006"],
    "scikit-image/multipage_rgb.tif": ["IMG003"],
    "scikit-image/rocket.jpg": [],
    "scikit-learn/china.jpg": [],
    "scikit-learn/flower.jpg": [],
}


def codes(data: bytes | None, name: str | None = None) -> list[str]:
    return [finding.code for finding in check_image(data, name=name)[1]]


@pytest.mark.parametrize("name", EXPECTED)
def test_real_images(real_data: Path, name: str) -> None:
    assert codes((real_data / "image" / name).read_bytes(), name) == EXPECTED[name]


def test_every_real_image_is_listed_above(real_data: Path) -> None:
    found = {path.relative_to(real_data / "image").as_posix() for path in (real_data / "image").rglob("*.*")}
    assert found - {"scikit-learn/README.txt"} == set(EXPECTED)


def test_a_sound_image_tells_its_facts() -> None:
    facts, findings = check_image(picture(1, (24, 16)), name="1.png")
    assert findings == []
    assert facts is not None
    assert (facts.width, facts.height, facts.format, facts.mode, facts.frames) == (24, 16, "PNG", "RGB", 1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, "IMG001"),
        (b"", "IMG002"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9\n", "IMG003"),
        (b"<!doctype html><html></html>", "IMG003"),
        (b"no image at all", "IMG003"),
        (picture(1)[:-40], "IMG004"),
        (picture(1)[:30], "IMG004"),
        (picture(3, (64, 64), kind="JPEG")[:-200], "IMG004"),
        (picture(1, (401, 2)), "IMG007"),
        (picture(1, (2, 401)), "IMG007"),
    ],
)
def test_errors(data: bytes | None, code: str) -> None:
    facts, findings = check_image(data, name="a.png", path="shard", place="row 3")
    assert facts is None
    assert [(finding.code, finding.severity, finding.at()) for finding in findings] == [
        (code, "error", "shard:row 3")
    ]


def test_a_strip_of_exactly_200_is_accepted() -> None:
    assert codes(picture(1, (400, 2))) == []


def test_a_bomb_is_not_decoded() -> None:
    # A PNG header that states 20,000 x 20,000 pixels before the few that are there.
    data = bytearray(picture(1))
    data[16:24] = (20_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    assert codes(bytes(data)) == ["IMG007"]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_no_cut_and_no_flipped_byte_escapes_as_an_exception(cut: int) -> None:
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        data = picture(5, (40, 30), kind=kind)
        check_image(data[: -cut * 3])
        check_image(data[:cut] + bytes([data[cut] ^ 0xFF]) + data[cut + 1 :])


def test_the_name_is_held_against_the_content() -> None:
    jpeg = picture(1, kind="JPEG")
    assert codes(jpeg, "a.png") == ["IMG005"]
    assert codes(jpeg, "a.JPG") == codes(jpeg, "a") == codes(jpeg, "a.dat") == []


def test_an_animation_is_named() -> None:
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (0, 120, 255)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert "IMG008" in codes(buffer.getvalue(), "a.gif")


def test_pixels_are_upright_rgb(tmp_path: Path) -> None:
    wide = Image.fromarray(np.arange(6 * 4 * 3, dtype=np.uint8).reshape(4, 6, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    path = tmp_path / "turned.png"
    wide.save(path, exif=exif)
    assert rgb(path.read_bytes()).tolist() == np.rot90(np.asarray(wide), -1).tolist()
    assert rgb(picture(9, mode="L")).shape == (16, 24, 3)


def test_what_cannot_be_decoded_is_an_error_in_words() -> None:
    with pytest.raises(PrepError, match="cannot be decoded"):
        rgb(picture(1)[:-40])
