"""Object → the one that controls it, and the InferenceService that it belongs to; pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_operator.k8s.names import SERVICE


def service_of(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Namespace and name of the service that `item` is, is controlled by, or is labelled with."""
    metadata = item["metadata"]
    name = _own_name(item) or _owner_name(metadata) or metadata.get("labels", {}).get(SERVICE)
    return (metadata["namespace"], name) if name else None


def controllers(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The reference to the object that controls another one: at most one."""
    return (one for one in metadata.get("ownerReferences", ()) if one.get("controller"))


def owned_by(item: Mapping[str, Any] | None, uid: str) -> bool:
    """Whether the object whose id is `uid` controls `item`."""
    return item is not None and any(one.get("uid") == uid for one in controllers(item["metadata"]))


def _own_name(item: Mapping[str, Any]) -> str | None:
    is_service = item.get("kind") == INFERENCE_SERVICE.name
    return item["metadata"]["name"] if is_service else None


def _owner_name(metadata: Mapping[str, Any]) -> str | None:
    for owner in metadata.get("ownerReferences", ()):
        group, _, _ = owner.get("apiVersion", "").partition("/")
        is_service = group == INFERENCE_SERVICE.group and owner["kind"] == INFERENCE_SERVICE.name
        if owner.get("controller") and is_service:
            name: str = owner["name"]
            return name
    return None
