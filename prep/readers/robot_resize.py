"""Pictures made smaller or larger with torch's own roundings, in numpy.

The reference scales float32 pictures in [0, 1] and cuts them to bytes, so one rounding in another
order is another byte. The orders here are those of torch's CPU kernels on one thread with fused
multiply-add (every x86 machine with AVX2), found by comparing values bit for bit with torch 2.14.1.

On several threads torch sums bilinear pictures of more than 128 pixels (height and width together) in
another order, and 2 % of the bytes are others. A DataLoader's workers have one thread: theirs is the
order of training. A comparison in the main process must call `torch.set_num_threads(1)`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

__all__ = ["bicubic", "bilinear", "half", "scale_planes"]

_F = np.float32
_SCALE = _F(255)
_QUARTER = _F(63.75)  # a quarter of 255: the mean of four, and back to bytes; exact, for 4 is a power of two
_TAPS_AT_ONCE = 4
_A = _F(-0.5)  # the sharpness of torch's antialiased bicubic kernel


def half(picture: Bytes) -> Bytes:
    """A picture uint8 [H, W, 3] at half its size, as uint8 [3, H // 2, W // 2]; H and W are even.

    Bilinear without antialiasing: the mean of each two by two, summed upper left, upper right, lower
    left, lower right.
    """
    height, width, channels = picture.shape
    out = np.empty((channels, height // 2, width // 2), np.uint8)
    for channel in range(channels):
        _halve(picture[..., channel], out[channel])
    return out


def _halve(plane: Bytes, out: Bytes) -> None:
    """The same of one plane [H, W]."""
    # Two neighbours are one number of 16 bits, so that left and right come apart in runs of memory.
    pairs = (plane if plane.strides[1] == 1 else np.ascontiguousarray(plane)).view("<u2")
    total = np.empty(out.shape, np.float32)
    part, bits = np.empty_like(total), np.empty(out.shape, np.uint16)
    for at, row in enumerate((pairs[::2], pairs[1::2])):
        _in_unit(np.bitwise_and(row, 255, out=bits), part if at else total)
        if at:
            total += part
        total += _in_unit(np.right_shift(row, 8, out=bits), part)
    total *= _QUARTER
    out[...] = total


def _in_unit(values: NDArray[np.uint16], out: Floats) -> Floats:
    """Bytes as float32 in [0, 1]. The division is a step of its own: with its cast it takes longer."""
    out[...] = values
    out /= _SCALE
    return out


def bilinear(picture: Bytes, height: int, width: int) -> Bytes:
    """A picture uint8 [H, W, 3] as uint8 [3, height, width]: bilinear, no antialiasing, corners not aligned.

    Equal to torch at 256 by 256 from any size, and at half of any size. At widths that are no multiple
    of 8 torch ends its rows in another order; nothing here asks for such.
    """
    out = np.empty((picture.shape[2], height, width), np.uint8)
    scale_planes(tuple(picture.transpose(2, 0, 1)), out)
    return out


def scale_planes(planes: Sequence[Bytes], out: Bytes) -> None:
    """Planes uint8 [H, W] scaled to fill `out`, uint8 [planes, height, width], as `bilinear` does."""
    for plane, target in zip(planes, out, strict=True):
        height, width = target.shape
        if plane.shape == (height, width):
            target[...] = plane
        elif plane.shape == (2 * height, 2 * width):
            _halve(plane, target)
        else:
            target[...] = _between(plane, height, width)


def _between(plane: Bytes, height: int, width: int) -> Bytes:
    """One plane, each place between four of its own."""
    values: Floats = plane.astype(np.float32)
    values /= _SCALE
    upper, lower, above, below = _places(plane.shape[0], height)
    first, second, left, right = _places(plane.shape[1], width)
    above, below = above[:, None], below[:, None]
    total: Floats = (above * right) * values[upper[:, None], second]
    total = _fused(above * left, values[upper[:, None], first], total)
    total = _fused(below * left, values[lower[:, None], first], total)
    total = _fused(below * right, values[lower[:, None], second], total)
    return _bytes(total)


def _bytes(values: Floats) -> Bytes:
    """Floats in [0, 1] as bytes, cut and not rounded."""
    cut: Bytes = np.clip(values * _SCALE, 0, _SCALE).astype(np.uint8)
    return cut


def _fused(left: Floats, right: Floats, added: Floats) -> Floats:
    """left * right + added, rounded once: a product of two float32 is exact in float64."""
    wide: NDArray[np.float64] = left.astype(np.float64) * right
    wide += added
    return wide.astype(np.float32)


@functools.lru_cache(maxsize=16)
def _places(source: int, target: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats, Floats]:
    """For each place of one axis the two that it lies between, and their weights."""
    place = np.arange(target, dtype=np.float32)
    place = np.maximum(_F(source) / _F(target) * (place + _F(0.5)) - _F(0.5), _F(0))
    first = place.astype(np.intp)
    second = first + (first < source - 1)
    weight = place - first.astype(np.float32)
    return first, second, _F(1) - weight, weight


def bicubic(pictures: Bytes, height: int, width: int) -> Bytes:
    """Pictures uint8 [..., H, W] as uint8 [..., height, width]: bicubic, antialiased, halves to even.

    What torchvision's `resize` gives for a tensor of bytes: first along the rows, then the columns.
    """
    *others, rows, columns = pictures.shape
    # The axis that is scaled stands first, so that each tap is a run of memory.
    values = pictures.reshape(-1, rows, columns).transpose(2, 0, 1).astype(np.float32)
    values = _along(values, width).transpose(2, 1, 0)
    values = _along(values, height)
    out = np.rint(np.clip(values, 0, 255, out=values), out=values).astype(np.uint8)
    return np.ascontiguousarray(out.transpose(1, 0, 2)).reshape(*others, height, width)


def _along(values: Floats, target: int) -> Floats:
    """The first axis scaled."""
    if len(values) == target:
        return values
    out = np.empty((target, *values.shape[1:]), np.float32)
    values = np.ascontiguousarray(values)
    for places, first, weights in _kernels(len(values), target):
        out[places] = _weighted(values, first, weights)
    return out


def _weighted(values: Floats, first: NDArray[np.intp], weights: Floats) -> Floats:
    """Sums of `weights` [taps, places] with the values from `first` on.

    torch's compiler takes four taps after the first at once, rounding each product; what is left of
    four is fused.
    """
    weights = weights[..., None, None]
    total: Floats = values[first] * weights[0]
    taps = len(weights)
    rounded = 1 + (taps - 1) // _TAPS_AT_ONCE * _TAPS_AT_ONCE
    for tap in range(1, rounded):
        total += values[first + tap] * weights[tap]
    for tap in range(rounded, taps):
        total = _fused(values[first + tap], weights[tap], total)
    return total


@functools.lru_cache(maxsize=16)
def _kernels(source: int, target: int) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp], Floats], ...]:
    """The places of an axis by how many taps they have: (places, first taps, weights [taps, places])."""
    each = list(_weights(source, target))
    parts = []
    for taps in sorted({len(weights) for _, weights in each}):
        places = [place for place, (_, weights) in enumerate(each) if len(weights) == taps]
        first = np.array([each[place][0] for place in places], np.intp)
        weights = np.array([each[place][1] for place in places], np.float32).T
        parts.append((np.array(places, np.intp), first, np.ascontiguousarray(weights)))
    return tuple(parts)


def _weights(source: int, target: int) -> Iterator[tuple[int, list[np.float32]]]:
    """For each place the first tap and the weights; each step rounded to float32 where torch's is."""
    scale = _F(source) / _F(target)
    stretch = max(scale, _F(1))
    reach, inverse = _F(2) * stretch, _F(1) / stretch
    for place in range(target):
        center = _F(float(scale) * (place + 0.5))
        first = max(int(float(center - reach) + 0.5), 0)
        end = min(int(float(center + reach) + 0.5), source)
        weights = [_cubic(_F((float(_F(tap) - center) + 0.5) * float(inverse))) for tap in range(first, end)]
        total = functools.reduce(lambda sum_, weight: sum_ + weight, weights, _F(0))
        yield first, [weight / total for weight in weights]


def _cubic(distance: np.float32) -> np.float32:
    """Keys' kernel with fused steps."""
    x = abs(distance)
    if x < 1:
        return _step(_step(_A + _F(2), x, -(_A + _F(3))) * x, x, _F(1))
    if x < 2:
        return _step(_step(_step(_A, x, _F(-5) * _A), x, _F(8) * _A), x, _F(-4) * _A)
    return _F(0)


def _step(left: np.float32, right: np.float32, added: np.float32) -> np.float32:
    return _F(float(left) * float(right) + float(added))
