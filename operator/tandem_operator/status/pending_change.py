"""A change of the spec that the service has not taken over yet, and its class; pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tandem_operator.k8s import names
from tandem_operator.render.fingerprint import version_of
from tandem_serve.api.changes import ChangeClass, class_of, costliest, differing_paths, leaves
from tandem_serve.api.spec import InferenceService


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingChange:
    """The fields that the next write will change, and their class."""

    change_class: ChangeClass
    """The costliest of its fields."""

    fields: tuple[str, ...]
    """The paths that differ, such as spec.engine.dtype."""

    @classmethod
    def joined(cls, changes: Iterable[Self]) -> Self:
        """Return one change with the fields of all of `changes`."""
        changes = list(changes)
        fields = {field for change in changes for field in change.fields}
        return cls(
            change_class=costliest(change.change_class for change in changes),
            fields=tuple(sorted(fields)),
        )

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the change that `pendingChange` of a status describes."""
        return cls(change_class=ChangeClass(document["class"]), fields=tuple(document["fields"]))

    def document(self) -> dict[str, Any]:
        """Return the change as `pendingChange` of a status."""
        return {"class": self.change_class.value, "fields": list(self.fields)}


def pending_change(
    service: InferenceService, ray_service: Mapping[str, Any] | None
) -> PendingChange | None:
    """Compare `service` with the version that `ray_service` was rendered from.

    None: they are equal but for the number of replicas, or there is no RayService yet.
    """
    before = _rendered_spec(ray_service or {})
    if before is None:
        return None
    old = dict(leaves(version_of(before), "spec"))
    new = dict(leaves(version_of(service.resolved()["spec"]), "spec"))
    fields = tuple(differing_paths(new, old))
    if not fields:
        return None
    return PendingChange(change_class=costliest(map(_class_of, fields)), fields=fields)


def _rendered_spec(ray_service: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the spec that `ray_service` was rendered from; None: it does not say so any more."""
    text = ray_service.get("metadata", {}).get("annotations", {}).get(names.SPEC)
    try:
        spec = json.loads(text or "null")
    except json.JSONDecodeError:
        return None
    return spec if isinstance(spec, Mapping) else None


def _class_of(path: str) -> ChangeClass:
    """Return the class of a change of `path`; a field that this version lacks may cost all."""
    try:
        return class_of(path)
    except KeyError:
        return ChangeClass.REPLACE
