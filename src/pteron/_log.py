"""The runtime's log as Python's: the logger ``pteron.native``."""

from __future__ import annotations

import logging

_logger = logging.getLogger("pteron.native")
_logger.addHandler(logging.NullHandler())

_LEVELS = {"D": logging.DEBUG, "I": logging.INFO, "E": logging.ERROR, "F": logging.CRITICAL}


def emit(level: str, file: str, line: int, text: str) -> None:
    """Log one line of the runtime, with the place in its source."""
    number = _LEVELS.get(level, logging.WARNING)
    if not _logger.isEnabledFor(number):
        return
    record = _logger.makeRecord(_logger.name, number, file, line, text, (), None)
    _logger.handle(record)
