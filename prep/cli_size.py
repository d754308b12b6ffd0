"""A size in bytes on the command line."""

from __future__ import annotations

import re
from typing import Any

import click

__all__ = ["ByteSize"]

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class ByteSize(click.ParamType):  # type: ignore[type-arg]
    """A size such as 50GB, 1.5TB or 1000000, in decimal units."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; fails as click wants it."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?[bB]?)", str(value).strip())
        unit = match[2].upper() if match else ""
        unit = unit if unit.endswith("B") or not unit else f"{unit}B"
        if match is None or (unit not in _UNITS and unit != "B"):
            self.fail(f"{value!r} is no size; write it as 50GB", param, ctx)
        return round(float(match[1]) * _UNITS.get(unit, 1))
