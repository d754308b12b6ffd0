"""The log: silent unless the command asks for it, so that the library never writes by itself."""

from __future__ import annotations

import logging
import sys

from loguru import logger

__all__ = ["logger", "show"]

logger.disable("prep")

_CHATTY = ("asyncio", "httpcore", "PIL", "filelock", "fsspec")


class _Forward(logging.Handler):
    """Brings what libraries log in the standard way, such as each HTTP request, into our log."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.log(record.levelname, "{}: {}", record.name, record.getMessage())


def _write(line: str) -> None:
    # Looked up at each line: a progress bar stands in for stderr, so as to stay below the log.
    sys.stderr.write(line)


def show(level: str) -> None:
    """Write the log from `level` upwards to stderr, that of the libraries included."""
    logger.remove()
    logger.add(_write, level=level, format="{time:HH:mm:ss} {level: <7} {message}")
    logger.enable("prep")
    logging.basicConfig(handlers=[_Forward()], level=level, force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
