"""The real helm, and releases of the chart in a real Kubernetes."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.chart.helm import ROOT, Helm
from tests.integration.chart.release import Release, placed
from tools.cluster import Cluster, prepare, unavailable
from tools.development import development_values


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Helm without a cluster."""
    missing = unavailable()
    if missing:
        pytest.skip(missing)
    return Helm(prepare().built.programs["helm"], os.environ)


@pytest.fixture(scope="session")
def development() -> Mapping[str, Any]:
    """Values that run this checkout in pods."""
    prefix, base = Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()
    return development_values(prefix, base, ROOT)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Kubernetes of the module's own, at first without KubeRay."""
    missing = unavailable()
    if missing:
        pytest.skip(missing)
    models = {ROOT / "examples/tandem-tiny": "/models/tandem-tiny"}
    started = Cluster.start(f"chart-{os.getpid()}", mounts=models, owner=os.getpid())
    yield started
    started.stop()


@pytest.fixture
def release(cluster: Cluster, development: Mapping[str, Any]) -> Iterator[Release]:
    """A place for a release of the test's own."""
    with placed(cluster, "tandem-system", development) as place:
        yield place
