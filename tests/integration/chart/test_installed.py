"""An installed release, with the real helm in a real Kubernetes."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.integration.chart.release import OPERATOR, Release, placed, wait_for
from tools.cluster import Cluster
from tools.development import IMAGE

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def notes() -> list[str]:
    """Output of helm."""
    return []


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, development: Mapping[str, Any], notes: list[str]
) -> Iterator[Release]:
    """The release that all tests of this module look at."""
    with placed(cluster, "tandem-system", development) as place:
        notes.append(place.install())
        yield place


def test_the_operator_is_available(release: Release) -> None:
    deployment = release.get("deployment", OPERATOR)

    assert deployment["status"]["availableReplicas"] == 1


def test_the_notes_warn_of_a_missing_kuberay_and_name_the_next_step(
    release: Release, notes: list[str]
) -> None:
    assert "WARNING: this cluster has no RayService" in notes[0]
    assert (
        f"kubectl --namespace {release.namespace} rollout status deployment/{OPERATOR}" in notes[0]
    )


def test_an_upgrade_that_changes_nothing_leaves_the_pod_alone(release: Release) -> None:
    pod = release.pod()

    release.upgrade()

    assert release.pod() == pod


def test_editors_write_services_and_viewers_read_them(release: Release) -> None:
    for role in ("edit", "view"):
        release.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}or")

    # Kubernetes copies the rules into its own roles a moment later.
    wait_for("aggregation", lambda: release.may("editor", "create", "inferenceservices"))
    wait_for("aggregation", lambda: release.may("viewor", "watch", "inferenceservices"))
    assert release.may("editor", "patch", "inferenceservices/scale")
    assert not release.may("editor", "patch", "inferenceservices/status")
    assert not release.may("viewor", "patch", "inferenceservices")


@pytest.mark.parametrize(("caller", "gets_in"), [("prometheus", True), ("another", False)])
def test_metrics_are_for_prometheus_alone(release: Release, caller: str, gets_in: bool) -> None:
    address = release.get("service", f"{OPERATOR}-metrics")["spec"]["clusterIP"]
    release.apply(asks(f"http://{address}:8080/metrics", caller))

    ended = wait_for("the caller ends", lambda: how_it_ended(release, caller))

    assert (ended == "Succeeded") == gets_in
    assert ("tandem_operator_" in release.kubectl("logs", caller)) == gets_in


def asks(url: str, name: str) -> dict[str, Any]:
    """A pod with this name and label that reads a page."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "wget",
                    "image": IMAGE,
                    "command": ["wget", "--timeout=10", "--tries=1", "--output-document=-", url],
                }
            ],
        },
    }


def how_it_ended(release: Release, pod: str) -> str | None:
    phase: str = release.get("pod", pod)["status"]["phase"]
    return phase if phase in {"Succeeded", "Failed"} else None
