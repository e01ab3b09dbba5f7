"""An API server with our CRD and KubeRay's, without KubeRay; a namespace and operators for each."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem_operator.crd.manifest import CRD_FILE, NAME
from tests.figures import Figures
from tests.integration.operator.process import Namespace, OperatorProcess, end_all, until
from tests.patience import HANG_S
from tools.cluster import Cluster, prepare
from tools.cluster.modules import KUBERAY
from tools.cluster.paths import CHECKOUT

StartOperator = Callable[..., OperatorProcess]
SECTION = "figures of the operator"
RAY_CRDS = ("rayservices.ray.io", "rayclusters.ray.io")

_numbers = itertools.count(1)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Lines that are printed when the run ends."""
    return Figures.of(request.config)


@pytest.fixture(scope="module")
def crds(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which knows InferenceServices and RayServices until the module ends."""
    names = (NAME, *RAY_CRDS)
    for name in names:
        install(cluster, name)
    yield cluster
    cluster.kubectl("delete", "crd", *names, "--ignore-not-found", f"--timeout={HANG_S:.0f}s")


def install(cluster: Cluster, name: str) -> None:
    """Have the CRD of this name served."""
    if not cluster.kubectl("get", "crd", name, "--ignore-not-found", "--output=name"):
        cluster.kubectl("create", f"--filename={crd_file(name)}")
    until(lambda: is_served(cluster, name), f"{name} is served")


def crd_file(name: str) -> Path:
    """Our CRD, or one of KubeRay's."""
    if name == NAME:
        return CHECKOUT / CRD_FILE
    plural, _, group = name.partition(".")
    return prepare().built.folders[KUBERAY.name] / "crds" / f"{group}_{plural}.yaml"


def is_served(cluster: Cluster, name: str) -> bool:
    found = json.loads(cluster.kubectl("get", "crd", name, "--output=json"))
    conditions = found.get("status", {}).get("conditions") or ()
    return any(
        condition["type"] == "Established" and condition["status"] == "True"
        for condition in conditions
    )


@pytest.fixture
def namespace(crds: Cluster) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    name = f"operator-{next(_numbers)}"
    crds.kubectl("create", "namespace", name)
    yield Namespace(crds, name)
    crds.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def start_operator(namespace: Namespace, tmp_path: Path) -> Iterator[StartOperator]:
    """`start_operator(identity, **fields)`: starts one; all are ended with the test."""
    started: list[OperatorProcess] = []

    def start(identity: str = "first", **fields: Any) -> OperatorProcess:
        started.append(
            OperatorProcess(namespace=namespace, folder=tmp_path, identity=identity, **fields)
        )
        return started[-1].start()

    yield start
    end_all(started)


@pytest.fixture
def operator(start_operator: StartOperator) -> OperatorProcess:
    """An operator that leads."""
    return start_operator().wait_until_leading()
