"""The log: silent unless the command asks for it, so that the library never writes by itself."""

from __future__ import annotations

import sys

from loguru import logger

__all__ = ["logger", "show"]

logger.disable("prep")


def show(level: str) -> None:
    """Write the log from `level` upwards to stderr."""
    logger.remove()
    logger.add(sys.stderr, level=level, format="{time:HH:mm:ss} {level: <7} {message}")
    logger.enable("prep")
