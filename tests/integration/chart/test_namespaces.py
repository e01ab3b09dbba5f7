"""A release that serves some namespaces has no right, and does nothing, beyond them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.integration.chart.release import NAME, OPERATOR, Release, isvc, placed, wait_for
from tools.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SERVED, OTHER = "team-a", "team-b"


@pytest.fixture(scope="module")
def release(cluster: Cluster, development: Mapping[str, Any]) -> Iterator[Release]:
    """A release that serves one of two namespaces, with a service in each."""
    for name in (SERVED, OTHER):
        cluster.kubectl("create", "namespace", name)
    with placed(cluster, "tandem-system", development) as place:
        place.install(namespaces=[SERVED])
        # The other one comes first, so it would be seen first.
        for namespace in (OTHER, SERVED):
            place.apply(isvc("tiny"), namespace)
        yield place


def test_only_services_of_its_namespaces_are_touched(release: Release) -> None:
    wait_for("a status", lambda: release.status("tiny", SERVED))
    assert release.status("tiny", OTHER) == {}
    log = release.kubectl("logs", f"deployment/{OPERATOR}")
    assert "forbidden" not in log.lower()


def test_it_makes_no_cluster_role(release: Release) -> None:
    selector = f"app.kubernetes.io/instance={NAME}"
    assert release.names("clusterroles", selector=selector) == []
    assert release.names("clusterrolebindings", selector=selector) == []


def test_its_rights_end_where_its_namespaces_end(release: Release) -> None:
    account = f"system:serviceaccount:{release.namespace}:{OPERATOR}"
    for verb, kind in (("list", "inferenceservices"), ("create", "networkpolicies")):
        assert release.may(account, verb, kind, SERVED)
        assert not release.may(account, verb, kind, OTHER)
        assert not release.may(account, verb, kind, release.namespace)


def test_no_secret_of_a_service_can_be_read(release: Release) -> None:
    account = f"system:serviceaccount:{release.namespace}:{OPERATOR}"
    for verb in ("get", "list", "watch", "update", "patch"):
        for namespace in (SERVED, OTHER, release.namespace):
            assert not release.may(account, verb, "secrets", namespace)
