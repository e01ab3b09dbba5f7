"""The replica's log: lines of Tandem's loggers reach Serve's file, and at once."""

import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import Slo
from tandem_engine.async_engine.async_engine import in_force
from tandem_serve.replica_log import configure_logging, report_startup
from tandem_serve.testing import LIMITS

NAMES = ("ray.serve", "tandem_engine", "tandem_serve")


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.level, logger.propagate, logger.handlers = level, propagate, handlers


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Return the file of a logger that is set up as Serve does: a thousand lines are collected."""
    serve, path = logging.getLogger("ray.serve"), tmp_path / "replica.log"
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(levelname)s -- %(message)s"))
    serve.handlers = [MemoryHandler(1000, flushLevel=logging.ERROR, target=file)]
    serve.propagate = False
    serve.setLevel(logging.INFO)
    yield path
    file.close()


def test_rewrites_by_the_models_lengths_are_in_the_log(log: Path) -> None:
    configure_logging()

    in_force(ScheduleConfig(max_prefill_tokens=16, max_batch_size=200), LIMITS, Slo())

    lines = log.read_text().splitlines()
    assert "INFO -- maxPrefillTokens 16 is raised to 128, the longest request" in lines[-2]
    assert "INFO -- maxBatchSize 200 is lowered to maxPrefillTokens 128" in lines[-1]


def test_a_line_of_the_start_has_its_mark(log: Path) -> None:
    configure_logging()

    report_startup("Loading weights")

    assert log.read_text() == "INFO -- start-up: Loading weights\n"


def test_serves_level_counts(log: Path) -> None:
    configure_logging()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)

    logging.getLogger("tandem_engine.loop").info("a step")
    logging.getLogger("tandem_engine.loop").warning("a slow step")

    assert log.read_text() == "WARNING -- a slow step\n"


def test_configuring_twice_writes_a_line_once(log: Path) -> None:
    configure_logging()
    configure_logging()

    logging.getLogger("tandem_serve.http").info("once")

    assert log.read_text() == "INFO -- once\n"
