"""A service without replicas against a real API server with KubeRay's CRDs."""

from typing import Any

import pytest
import yaml

from tandem_operator.k8s import names
from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    manifest,
    settle,
    until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_last_replica_goes_and_comes_back_without_another_change(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest(scaling={"minReplicas": 0, "replicas": 1}))
    settle(namespace, operator)
    stamp = ray_service(namespace)["metadata"]["annotations"][names.CHANGED_AT]
    assert "excludeHeadPodFromServeSvc" not in ray_service(namespace)["spec"]
    assert deployment(namespace)["num_replicas"] == 1

    namespace.kubectl("scale", "isvc", "tiny", "--replicas=0")
    until(lambda: "autoscaling_config" in deployment(namespace), "no replica is asked for")
    until(lambda: scaling(namespace).get("desiredReplicas") == 0, "the autoscaler writes it down")
    operator.wait_for_resyncs()
    budget = namespace.get("poddisruptionbudget", "tiny")
    assert budget
    assert budget["spec"]["minAvailable"] == 0
    writes = operator.writes()
    operator.wait_for_resyncs(2)
    assert operator.writes() == writes, "nothing is left to write"

    namespace.kubectl("scale", "isvc", "tiny", "--replicas=1")
    until(lambda: deployment(namespace).get("num_replicas") == 1, "one replica is asked for")
    metadata = ray_service(namespace)["metadata"]
    assert metadata["annotations"][names.CHANGED_AT] == stamp, "a number is no change"


def scaling(namespace: Namespace) -> dict[str, Any]:
    found = namespace.get("isvc", "tiny")
    assert found
    return dict(found.get("status", {}).get("scaling") or {})


def ray_service(namespace: Namespace) -> dict[str, Any]:
    found = namespace.get("rayservice", "tiny")
    assert found
    return found


def deployment(namespace: Namespace) -> dict[str, Any]:
    document = yaml.safe_load(ray_service(namespace)["spec"]["serveConfigV2"])
    (found,) = document["applications"][0]["deployments"]
    return dict(found)
