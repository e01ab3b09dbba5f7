"""KubeRay and Tandem, installed as `make up` does it, on a Kubernetes of the tests' own."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.kubernetes.harness import Checkpoint, OperatorProcess
from tests.e2e.kubernetes.prometheus import Prometheus, monitored_values
from tests.e2e.kubernetes.scaled import (
    SETTINGS,
    WINDOW_S,
    ScaledService,
    one_at_a_time,
    seconds_of_one,
)
from tests.e2e.kubernetes.scaled_case import Case, Release, follows_its_slo
from tests.figures import Times
from tests.tiny import TINY
from tools.cluster import Cluster, kuberay, monitoring
from tools.cluster.progress import SILENT
from tools.kubernetes import Kubernetes
from tools.up import cluster_values, install_tandem


@pytest.fixture(scope="session")
def times(request: pytest.FixtureRequest) -> Times:
    """Takes times; they are printed when the run ends."""
    return Times.of(request.config, "times on Kubernetes")


@pytest.fixture(scope="module")
def tandem(cluster: Cluster, times: Times) -> Kubernetes:
    """The cluster with KubeRay, and Tandem installed by Helm."""
    kubernetes = Kubernetes.of_cluster(cluster)
    with times.measure("KubeRay installed"):
        kuberay.install(cluster)
    with times.measure("Tandem installed by Helm"):
        install_tandem(kubernetes, cluster_values(cluster), SILENT)
    return kubernetes


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tandem: Kubernetes, times: Times) -> Prometheus:
    """A Prometheus that scrapes the replicas, by the chart's own PodMonitor."""
    with times.measure("Prometheus, its operator and Alertmanager installed"):
        monitoring.install(cluster)
    # The chart asks whether the cluster has PodMonitors when it is installed.
    with times.measure("Tandem upgraded, which finds them"):
        install_tandem(tandem, monitored_values(cluster), SILENT)
    return Prometheus(tandem)


@pytest.fixture(scope="module")
def release(cluster: Cluster, prometheus: Prometheus) -> Release:
    """The release, installed."""
    values = monitored_values(cluster)
    values["settings"]["autoscaling"] = {
        **SETTINGS,
        "prometheus": {"url": monitoring.PROMETHEUS_URL},
    }
    release = Release(prometheus.kubernetes, values)
    release.install()
    return release


@pytest.fixture(scope="module")
def case(release: Release, prometheus: Prometheus, times: Times) -> Iterator[Case]:
    """A service with one replica whose target a small burst keeps and a large one misses."""
    service = ScaledService(release.kubernetes, "scaled")
    service.apply(one_at_a_time)
    service.wait_ready()
    one_s = asyncio.run(seconds_of_one(service))
    times.figures.say(times.section, f"{one_s:8.3f} s  one answer of {service.name}")
    prometheus.wait_scraped(service, 1)
    prometheus.wait_quiet(service, WINDOW_S)
    service.apply(follows_its_slo(one_s))
    service.wait_ready()
    yield Case(service, one_s)
    service.delete()
    service.wait_gone()


@pytest.fixture
def checkpoint() -> Iterator[Checkpoint]:
    """A copy of tandem-tiny that the pods' user may read; pytest's own folders are closed."""
    with TemporaryDirectory(prefix="tandem-tiny-") as folder:
        # copyfile leaves the files' modes to the umask; __pycache__ is there if a test has run.
        shutil.copytree(TINY, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
        Path(folder).chmod(0o755)
        yield Checkpoint(Path(folder))


@pytest.fixture
def operator(cluster: Cluster, tandem: Kubernetes) -> Iterator[OperatorProcess]:
    """The operator's process, to be killed."""
    process = OperatorProcess(cluster, tandem)
    process.wait_until_available()
    yield process
    process.wait_until_available()
