"""RayClusters as KubeRay would make them, and what they control; no KubeRay runs beside."""

from collections.abc import Mapping
from typing import Any, Final

from tests.integration.operator.process import Namespace

CLUSTER: Final = "tiny-abcde"


def make_cluster(
    namespace: Namespace, ray_service: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A RayCluster; None: no RayService controls it."""
    spec = {
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {"spec": {"containers": [{"name": "ray-head", "image": "none"}]}},
        }
    }
    owner = controlled_by(ray_service) if ray_service else {}
    namespace.apply(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": CLUSTER, **owner},
            "spec": spec,
        }
    )
    found = namespace.get("raycluster", CLUSTER)
    assert found
    return found


def controlled_by(owner: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an object's metadata that says which object controls it."""
    metadata = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return {"ownerReferences": [reference]}
