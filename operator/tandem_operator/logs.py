"""The operator's log on standard error: lines for people, or JSON for machines."""

import json
import logging
from enum import StrEnum

from tandem_operator.clock import now_text


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": now_text(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(log_format: LogFormat, *, verbose: bool) -> None:
    """Log the operator's own lines; with `verbose`, also those of its libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _Json()
        if log_format is LogFormat.JSON
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s")
    )
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    if not verbose:
        for name in ("kopf", "httpx", "httpx2", "httpcore2", "asyncio", "aiohttp"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # kopf shows the same traceback three times when a kind goes away; our own line follows.
        logging.getLogger("kopf._core.reactor").setLevel(logging.CRITICAL)
