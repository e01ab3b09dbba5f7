"""The replica's log: Serve's file, with the lines of Tandem's own loggers in it."""

import logging
from typing import Final

_SERVE_LOGGER: Final = "ray.serve"
"""Logger whose handlers Serve sets up: they write the replica's file."""
OWN_LOGGERS: Final = ("tandem_engine", "tandem_serve")

_LOGGER: Final = logging.getLogger(__name__)


class ServeLogHandler(logging.Handler):
    """Passes records to Serve's logger, at the level that Serve has, and writes them at once.

    Serve replaces its handlers when its settings change, so each record looks them up. They buffer
    lines; without the flush a rewrite of a setting would be logged hours later.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; see `logging.Handler`."""
        serve = logging.getLogger(_SERVE_LOGGER)
        if not serve.isEnabledFor(record.levelno):
            return
        try:
            serve.handle(record)
            for handler in serve.handlers:
                handler.flush()
        except (OSError, ValueError):
            # A full disk, or a file that is closed already, must not end the engine.
            self.handleError(record)


def configure_logging() -> None:
    """Write INFO and above of Tandem's loggers to the replica's log; calling it again is harmless.

    Python by itself shows no INFO, and Ray sets up its own loggers only.
    """
    for name in OWN_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        if not any(isinstance(handler, ServeLogHandler) for handler in logger.handlers):
            logger.addHandler(ServeLogHandler())


def report_startup(line: str) -> None:
    """Log a line on the start of the replica; `tandem serve` shows the last one."""
    _LOGGER.info("start-up: %s", line)
