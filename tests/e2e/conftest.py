"""A service as a user runs it: `tandem serve` in a process of its own, on ports of its own."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Service, Tandem, running_service
from tests.tiny import TINY


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The trained model of the examples."""
    return TINY


@pytest.fixture
def tandem(tmp_path: Path) -> Tandem:
    """The command, with no service running."""
    return Tandem(tmp_path)


@pytest.fixture(scope="session")
def service(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that runs for all tests of the session; put back what you change."""
    tandem = Tandem(tmp_path_factory.mktemp("service"))
    with running_service(tandem, checkpoint) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the commands of a test said to its report when it fails."""
    report = yield
    fixtures = list(getattr(item, "funcargs", {}).values())
    found = {fixture for fixture in fixtures if isinstance(fixture, Tandem)}
    found |= {fixture.tandem for fixture in fixtures if isinstance(fixture, Service)}
    if report.failed:
        report.sections += [(f"tandem said, by {call.when}", one.outputs()) for one in found]
    return report
