"""The store that outlives the Ray head: its fields in a RayCluster, and services without one."""

from typing import Any

import pytest

from tandem_operator.render.settings import OperatorSettings
from tests.unit.operator.render.services import (
    SETTINGS,
    TOKEN,
    cluster_of,
    head_pod,
    one,
    rendered,
    worker_of,
    worker_pod,
)

PASSWORD = {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}}
STORE = {"redisAddress": "redis.storage.svc:6379", "redisPassword": PASSWORD}
OTHER = {"redisAddress": "redis.team.svc:6379"}
WITH_STORE = {"runtime": {"gcsFaultToleranceOptions": STORE}}
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"  # noqa: S105  # a name


def settings(**replica: Any) -> OperatorSettings:
    document = {"allowHostPath": True, "replica": {"image": "i", **replica}}
    return OperatorSettings.model_validate(document)


def revision_of(expected: Any) -> str:
    annotations = worker_of(expected)["template"]["metadata"]["annotations"]
    revision: str = annotations["serving.tandem.dev/revision"]
    return revision


def variables(pod: Any) -> set[str]:
    return {entry["name"] for entry in pod["containers"][0]["env"]}


def test_without_a_store_kuberay_is_told_of_none() -> None:
    expected = rendered()

    assert "gcsFaultToleranceOptions" not in cluster_of(expected)
    assert TOKEN_VARIABLE not in variables(head_pod(expected))
    annotations = one(expected, "RayService")["metadata"]["annotations"]
    assert not [name for name in annotations if name.startswith("ray.io/")]


def test_the_store_of_a_manifest_is_handed_to_kuberay_as_it_is() -> None:
    assert cluster_of(rendered(WITH_STORE))["gcsFaultToleranceOptions"] == STORE


def test_the_operators_store_is_that_of_services_that_name_none() -> None:
    under = settings(gcsFaultToleranceOptions=OTHER)

    assert cluster_of(rendered(under=under))["gcsFaultToleranceOptions"] == OTHER
    assert cluster_of(rendered(WITH_STORE, under))["gcsFaultToleranceOptions"] == STORE


def test_the_two_clusters_of_a_replacement_share_no_part_of_the_store() -> None:
    """KubeRay takes the id of the RayCluster where no namespace is given."""
    options = cluster_of(rendered(WITH_STORE))["gcsFaultToleranceOptions"]

    assert "externalStorageNamespace" not in options


@pytest.mark.parametrize(
    "under", [SETTINGS, settings(gcsFaultToleranceOptions=OTHER)], ids=["none", "another"]
)
def test_another_store_makes_another_cluster(under: OperatorSettings) -> None:
    assert revision_of(rendered(under=under)) != revision_of(rendered(WITH_STORE, under))


def test_the_cleanup_job_waits_for_no_secret_that_has_gone_with_its_service() -> None:
    """KubeRay makes the Job of the head's pod, and keeps a token that is there already."""
    container = head_pod(rendered(WITH_STORE))["containers"][0]

    (token,) = [entry for entry in container["env"] if entry["name"] == TOKEN_VARIABLE]
    assert token["valueFrom"]["secretKeyRef"] == {
        "name": TOKEN.secret,
        "key": "auth_token",
        "optional": True,
    }
    assert TOKEN_VARIABLE not in variables(worker_pod(rendered(WITH_STORE)))


def test_kuberay_waits_for_the_cleanup_until_the_last_request_has_ended() -> None:
    expected = rendered(WITH_STORE)

    timeout = one(expected, "RayService")["metadata"]["annotations"][
        "ray.io/gcs-ft-deletion-timeout"
    ]
    assert int(timeout) > head_pod(expected)["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(("replicas", "available"), [(1, 1), (2, 2), (4, 4)])
def test_with_a_store_an_eviction_takes_the_head_or_one_replica(
    replicas: int, available: int
) -> None:
    expected = rendered({**WITH_STORE, "scaling": {"minReplicas": replicas}})

    budget = one(expected, "PodDisruptionBudget")["spec"]

    # Replicas and the head, but one of them.
    assert budget["minAvailable"] == available
    assert budget["selector"]["matchLabels"] == {"serving.tandem.dev/service": "tiny"}


@pytest.mark.parametrize("spec", [{}, WITH_STORE], ids=["without", "with a store"])
def test_a_service_that_does_not_serve_keeps_no_node_from_being_drained(
    spec: dict[str, Any],
) -> None:
    budget = one(rendered({**spec, "scaling": {"minReplicas": 3}}), "PodDisruptionBudget")

    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_replicas_are_spread_over_nodes_where_there_are_some() -> None:
    (spread,) = worker_pod(rendered())["topologySpreadConstraints"]

    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "cards may be on one node alone"
    labels = worker_of(rendered())["template"]["metadata"]["labels"]
    assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
    assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "worker"
    assert spread["matchLabelKeys"] == ["ray.io/cluster"], "the old cluster's do not count"
    assert "topologySpreadConstraints" not in head_pod(rendered())
