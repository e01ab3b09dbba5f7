"""Object → its controller, the InferenceService it belongs to, and its deletion; pure."""

from collections.abc import Mapping
from typing import Any

from tandem_operator.k8s.kinds import INFERENCE_SERVICE, RAY_CLUSTER, Kind
from tandem_operator.k8s.names import SERVICE


def service_of(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the service that `item` is, is controlled by, or is labelled with."""
    metadata = item["metadata"]
    owner = _controlling(item, INFERENCE_SERVICE)
    name = _own_name(item) or owner or metadata.get("labels", {}).get(SERVICE)
    return (metadata["namespace"], name) if name else None


def ray_cluster_of(pod: Mapping[str, Any]) -> str | None:
    """Name of the RayCluster that controls `pod`; None: none does.

    Any pod can carry KubeRay's labels; one whose controller is not there Kubernetes deletes.
    """
    return _controlling(pod, RAY_CLUSTER)


def controller_of(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Reference to the object that controls `item`; None: no object does."""
    owners = item["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def owned_by(item: Mapping[str, Any] | None, uid: str) -> bool:
    """Return True when the object whose id is `uid` controls `item`."""
    owner = controller_of(item) if item is not None else None
    return owner is not None and owner.get("uid") == uid


def operator_of(isvc: Mapping[str, Any]) -> str | None:
    """Namespace of the operator that serves an InferenceService; None: none has begun."""
    operator: str | None = isvc.get("status", {}).get("operator")
    return operator


def owner_reference(*, api_version: str, kind: str, name: str, uid: str) -> dict[str, Any]:
    """Reference by which the object of this name and id controls another one."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_being_deleted(item: Mapping[str, Any]) -> bool:
    """Return True from the request to delete `item` until it is gone."""
    return "deletionTimestamp" in item["metadata"]


def _own_name(item: Mapping[str, Any]) -> str | None:
    is_service = item.get("kind") == INFERENCE_SERVICE.name
    return item["metadata"]["name"] if is_service else None


def _controlling(item: Mapping[str, Any], kind: Kind) -> str | None:
    """Name of the object of this kind that controls `item`."""
    owner = controller_of(item)
    if owner is None:
        return None
    group, _, _ = owner.get("apiVersion", "").partition("/")
    return owner["name"] if (group, owner["kind"]) == (kind.group, kind.name) else None
