"""A release through its life, with the real helm in a real Kubernetes."""

import json
from pathlib import Path

import pytest

from tests.integration.chart.helm import CHART, VALUES
from tests.integration.chart.release import CRD, NAME, OPERATOR, Release, isvc, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize("file", VALUES, ids=lambda file: file.name)
def test_the_api_server_takes_every_object(release: Release, file: Path) -> None:
    # The CRDs of the Prometheus operator are not here.
    objects = release.helm.template(
        "--set", "metrics.serviceMonitor.enabled=false,metrics.podMonitor.enabled=false",
        namespace="default", values=[file],
    )  # fmt: skip
    everything = {"apiVersion": "v1", "kind": "List", "items": objects}

    said = release.cluster.kubectl(
        "apply", "--dry-run=server", "-f", "-", input=json.dumps(everything)
    )
    assert said.count("(server dry run)") == len(objects)


def test_an_upgrade_starts_a_new_pod_and_a_rollback_the_old_settings(release: Release) -> None:
    release.install()
    first = release.pod()

    release.upgrade(settings={"resyncSeconds": 31})
    second = wait_for("one new pod", lambda: replaced(release, first))
    assert "resyncSeconds: 31" in config(release)

    release.rollback(1)
    wait_for("one new pod", lambda: replaced(release, second))
    assert "resyncSeconds" not in config(release)


def test_uninstall_keeps_crd_and_services_and_the_next_release_takes_them_over(
    release: Release,
) -> None:
    release.install()
    release.apply(isvc("kept"))

    said = release.uninstall()
    assert CRD in said
    assert release.names("isvc") == ["kept"]
    assert release.names("deployments") == []
    assert release.names("clusterroles", selector=f"app.kubernetes.io/instance={NAME}") == []

    release.install()
    wait_for("a status", lambda: release.status("kept"))


def test_uninstall_takes_crd_and_services_along_when_told_so(release: Release) -> None:
    release.install(crds={"keep": False})
    release.apply(isvc("gone"))
    wait_for("a status", lambda: release.status("gone"))

    release.uninstall()

    assert CRD not in crds(release)


def test_two_operators_are_ready_and_one_leads(release: Release) -> None:
    release.install(replicaCount=2)

    pods = {pod["metadata"]["name"] for pod in release.pods()}
    assert len(pods) == 2
    lease = wait_for("a leader", lambda: release.get("lease", OPERATOR)["spec"]["holderIdentity"])
    assert lease in pods
    assert release.names("poddisruptionbudgets") == [OPERATOR]


def test_the_chart_can_be_packaged(release: Release, tmp_path: Path) -> None:
    release.helm.run("package", str(CHART), "--destination", str(tmp_path))

    (package,) = tmp_path.iterdir()
    assert package.name.startswith("tandem-")


def crds(release: Release) -> list[str]:
    return release.names("customresourcedefinitions")


def config(release: Release) -> str:
    text: str = release.get("configmap", OPERATOR)["data"]["operator.yaml"]
    return text


def replaced(release: Release, old: str) -> str | None:
    """The uid of the one pod, once it is another one."""
    pods = release.pods()
    if len(pods) != 1 or pods[0]["metadata"]["uid"] == old:
        return None
    uid: str = pods[0]["metadata"]["uid"]
    return uid
