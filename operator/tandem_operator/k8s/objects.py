"""Objects of Kubernetes as plain data, their names and versions; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""

Selector = Mapping[str, str | None]
"""Labels that an object must have; None: any value."""


@dataclass(frozen=True, slots=True)
class NamespacedName:
    """The namespace and the name of an object."""

    namespace: str
    name: str

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Self:
        """Return the namespace and the name in the metadata of `item`."""
        return cls(item["metadata"]["namespace"], item["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def version_of(item: Mapping[str, Any]) -> str:
    """Return the resourceVersion of `item`."""
    version: str = item["metadata"]["resourceVersion"]
    return version


def is_older(version: str, than: str) -> bool:
    """Compare resource versions, which Kubernetes guarantees to grow."""
    return version_order(version) < version_order(than)


def version_order(version: str) -> tuple[int, str]:
    """Return the key by which resource versions are sorted: decimal numbers of any length."""
    return len(version), version


def has_identity(item: Mapping[str, Any]) -> bool:
    """Return True when `item` has what every object of the API server in a namespace has."""
    metadata = item.get("metadata")
    return isinstance(metadata, Mapping) and all(
        isinstance(metadata.get(name), str)
        for name in ("namespace", "name", "uid", "resourceVersion")
    )


def status_manifest(
    item: Mapping[str, Any], status: Mapping[str, Any], *, of_version: bool = False
) -> Object:
    """Return what an apply of `status` to `item` sends.

    The uid keeps it from another object that has taken the name meanwhile; with `of_version` the
    resourceVersion keeps it from one that has changed since, its spec or the rest of its status.
    """
    kept = ("name", "namespace", "uid", *(("resourceVersion",) if of_version else ()))
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "metadata": {name: item["metadata"][name] for name in kept},
        "status": status,
    }


def selector_text(labels: Selector) -> str:
    """Return a label or field selector as the API server's query has it."""
    return ",".join(key if value is None else f"{key}={value}" for key, value in labels.items())
