"""The real Prometheus and its promtool."""

from pathlib import Path

import pytest

from tests.prometheus import Promtool, programs


@pytest.fixture(scope="session")
def binaries() -> dict[str, Path]:
    """The programs by name."""
    return programs()


@pytest.fixture(scope="session")
def promtool(binaries: dict[str, Path]) -> Promtool:
    return Promtool(binaries["promtool"])
