"""Kinds of the spec's lists, which pydantic does not know: what makes two elements the same."""

from collections.abc import Mapping
from typing import Any, Final


def _map_by(*keys: str) -> Mapping[str, Any]:
    """Return a list whose elements are identified by `keys`; duplicates are refused."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


LIST_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "spec.runtime.imagePullSecrets": {"x-kubernetes-list-type": "set"},
    "spec.runtime.env": _map_by("name"),
    "spec.runtime.volumes": _map_by("name"),
    "spec.runtime.volumeMounts": _map_by("mountPath"),
    "spec.scaling.schedule": {"x-kubernetes-list-type": "atomic"},
    "spec.observability.metricAliases": {"x-kubernetes-list-type": "set"},
    "spec.runtime.tolerations": {"x-kubernetes-list-type": "atomic"},
}
"""Path in the schema → further properties of its node."""
