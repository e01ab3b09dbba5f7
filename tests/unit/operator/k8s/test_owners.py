"""The service that an object belongs to."""

from typing import Any

import pytest

from tandem_operator.k8s.owners import owner_reference, ray_cluster_of, service_of

OWNER = {
    "apiVersion": "serving.tandem.dev/v1alpha1",
    "kind": "InferenceService",
    "name": "tiny",
    "controller": True,
}
RAY_CLUSTER = owner_reference(
    api_version="ray.io/v1", kind="RayCluster", name="tiny-abcde", uid="u"
)


def item(kind: str, name: str = "x", **metadata: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": "demo", **metadata}}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (item("InferenceService", "tiny"), "tiny"),
        (item("RayService", ownerReferences=[OWNER]), "tiny"),
        (item("Pod", labels={"serving.tandem.dev/service": "tiny"}), "tiny"),
        (item("RayService", ownerReferences=[{**OWNER, "controller": False}]), None),
        (item("RayService", ownerReferences=[{**OWNER, "kind": "Else"}]), None),
        (item("RayService", ownerReferences=[{**OWNER, "apiVersion": "serving.kserve.io/v1"}]),
         None),
        (item("RayService"), None),
    ],
    ids=["itself", "its child", "its pod", "a guest", "another kind", "another group", "no owner"],
)  # fmt: skip
def test_the_service_of_an_object(found: dict[str, Any], name: str | None) -> None:
    assert service_of(found) == (None if name is None else ("demo", name))


@pytest.mark.parametrize(
    ("metadata", "cluster"),
    [
        ({"ownerReferences": [RAY_CLUSTER]}, "tiny-abcde"),
        ({"labels": {"ray.io/cluster": "tiny-abcde"}}, None),
        ({"ownerReferences": [{**RAY_CLUSTER, "controller": False}]}, None),
        ({"ownerReferences": [{**RAY_CLUSTER, "kind": "RayJob"}]}, None),
        ({"ownerReferences": [{**RAY_CLUSTER, "apiVersion": "example.com/v1"}]}, None),
    ],
    ids=["controlled", "labelled alone", "a guest", "another kind", "another group"],
)
def test_the_ray_cluster_of_a_pod(metadata: dict[str, Any], cluster: str | None) -> None:
    assert ray_cluster_of(item("Pod", **metadata)) == cluster
