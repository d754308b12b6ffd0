"""Scaled pictures: torch's bytes as facts, and the half against its sum written out."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.errors import UsageError
from prep.readers.robot_canvas import check_tier, closest, fill_canvas, normalised, on_canvas
from prep.readers.robot_resize import bicubic, bilinear, half, scale_planes

# torch 2.14.1 on one thread: interpolate(mode="bilinear") of pictures / 255, times 255, clamped and cut;
# torchvision 0.29.1: resize(BICUBIC, antialias=True) of bytes. The first 12 digits of sha256.
BILINEAR = {
    ((96, 128), (48, 64)): "cdf0983c0836",
    ((360, 640), (180, 320)): "0f31c73b02d4",
    ((361, 641), (180, 320)): "ac3525106988",
    ((128, 128), (256, 256)): "290cd2936891",
    ((480, 640), (256, 256)): "46b0f53fd13c",
    ((81, 121), (256, 256)): "93231b440847",
}
BICUBIC = {
    ((256, 512), (160, 320)): "f9305ec3ab66",
    ((256, 256), (192, 192)): "7a76fb18e222",
    ((361, 641), (154, 274)): "a9c12803a7d5",
    ((540, 640), (270, 320)): "b0757d64c763",
}


def drawn(size: tuple[int, int]) -> Any:
    return np.random.RandomState(size[0]).randint(0, 256, (*size, 3)).astype(np.uint8)


def sha(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:12]


@pytest.mark.parametrize(("sizes", "expected"), BILINEAR.items())
def test_bilinear_is_torchs(sizes: Any, expected: str) -> None:
    source, target = sizes
    assert sha(bilinear(drawn(source), *target)) == expected


@pytest.mark.parametrize(("sizes", "expected"), BICUBIC.items())
def test_bicubic_is_torchvisions(sizes: Any, expected: str) -> None:
    source, target = sizes
    assert sha(bicubic(drawn(source).transpose(2, 0, 1), *target)) == expected


@given(st.lists(st.integers(0, 255), min_size=4, max_size=4))
def test_half_is_the_sum_of_four_in_order(pixels: list[int]) -> None:
    picture = np.array(pixels, np.uint8).reshape(2, 2, 1).repeat(3, axis=2)
    total = np.float32(0)
    for pixel in pixels:
        total = total + np.float32(pixel) / np.float32(255)
    expected = int(total * np.float32(0.25) * np.float32(255))
    assert half(picture).tolist() == [[[expected]]] * 3


def test_planes_of_any_layout_are_scaled_alike() -> None:
    picture = drawn((90, 128))
    wide = np.zeros((3, 90, 160), np.uint8)
    wide[..., :128] = picture.transpose(2, 0, 1)
    for target in ((45, 64), (256, 256), (90, 128)):
        expected = picture.transpose(2, 0, 1) if target == (90, 128) else bilinear(picture, *target)
        out = np.zeros((3, target[0] + 3, target[1] + 5), np.uint8)
        scale_planes(tuple(wide[..., :128]), out[:, 3:, 5:])
        assert (out[:, 3:, 5:] == expected).all()
        assert not out[:, :3].any()
        assert not out[:, :, :5].any()


def test_half_is_not_the_integer_mean() -> None:
    picture = drawn((180, 320)).astype(np.uint16)
    mean = (picture[::2, ::2] + picture[::2, 1::2] + picture[1::2, ::2] + picture[1::2, 1::2]) // 4
    differing = (half(picture.astype(np.uint8)).transpose(1, 2, 0) != mean).mean()
    assert 0.01 < differing < 0.03


@pytest.mark.parametrize(
    ("size", "tier", "expected"),
    [
        ((540, 640), None, ((544, 736), (540, 640), "4,3")),  # the pull request's own numbers
        ((256, 512), None, ((192, 320), (160, 320), "16,9")),
        ((256, 256), None, ((256, 256), (256, 256), "1,1")),
        ((270, 320), "480", ((544, 736), (270, 320), "4,3")),  # never enlarged
        ((1080, 720), "480", ((768, 512), (768, 512), "2,3")),
    ],
)
def test_the_canvas(size: tuple[int, int], tier: str | None, expected: Any) -> None:
    assert tuple(closest(*size, tier)) == expected


def test_the_rest_of_the_canvas_is_mirrored() -> None:
    video = drawn((540, 640)).transpose(2, 0, 1)[:, None]
    out = on_canvas(video, closest(540, 640))
    assert out.shape == (3, 1, 544, 736)
    assert (out[..., :540, :640] == video).all()
    assert (out[..., 540:, :640] == video[..., -2:-6:-1, :]).all()
    assert (out[..., :540, 640:] == video[..., :, -2:-98:-1]).all()


@pytest.mark.parametrize(
    ("size", "tier"),
    [
        ((54, 64), "480"),
        ((540, 640), None),
        ((256, 512), None),
        ((90, 200), "480"),
        ((300, 250), "256"),
        ((255, 255), None),
    ],
)
def test_a_canvas_is_filled_with_what_on_canvas_gives(size: tuple[int, int], tier: str | None) -> None:
    video = np.stack([drawn(size).transpose(2, 0, 1), drawn(size)[::-1].transpose(2, 0, 1)], axis=1)
    canvas = closest(*size, tier)
    out = np.full((3, 2, *canvas.canvas_hw), np.nan, np.float32)
    fill_canvas(video, canvas, out)
    assert (out == normalised(on_canvas(video, canvas))).all()


def test_where_too_much_is_missing_the_edge_is_repeated() -> None:
    video = drawn((90, 200)).transpose(2, 0, 1)[:, None]
    out = on_canvas(video, closest(90, 200, "480"))
    assert (out[..., 90:, :200] == video[..., -1:, :]).all()
    assert (out[..., :90, 200:] == video[..., :, -1:]).all()


def test_bytes_become_minus_one_to_one() -> None:
    values = normalised(np.arange(256, dtype=np.uint8))
    assert values.dtype == np.float32
    assert values[0] == -1
    assert values[255] == 1
    assert (values == np.arange(256, dtype=np.float32) / np.float32(127.5) - np.float32(1)).all()


def test_other_tiers_and_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="no tier 720"):
        check_tier(720)
    with pytest.raises(UsageError, match="No tier fits"):
        closest(1080, 1920)
