"""Properties of the schema's nodes that the pydantic spec does not have.

Lengths keep the CEL rules cheap: the API server refuses a CRD whose rules could cost too much, and
counts a text without `maxLength` as megabytes. Each is the limit of the thing itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from tandem_serve.api.pods import LONGEST_SUBDOMAIN

_LABEL: Final = {"maxLength": 63}
_SUBDOMAIN: Final = {"maxLength": LONGEST_SUBDOMAIN}
_PATH: Final = {"maxLength": 4096}


def _text(description: str, limit: Mapping[str, int]) -> Mapping[str, Any]:
    return {"description": description, "type": "string", **limit}


def _map_by(*keys: str) -> Mapping[str, Any]:
    """Return a list whose elements are identified by `keys`; duplicates are refused."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def _open_object(**properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object with required `properties`; Kubernetes' pods define the others."""
    return {
        "required": list(properties),
        "properties": properties,
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _secret_key(credential: str) -> dict[str, Mapping[str, Any]]:
    at = f"{credential}.valueFrom.secretKeyRef"
    return {f"{at}.name": _SUBDOMAIN, f"{at}.key": {"maxLength": 253}}


LIMITS: Final[Mapping[str, Mapping[str, Any]]] = {
    "spec.model.name": {"maxLength": 256},
    "spec.model.source": _PATH,
    "spec.slo.ttft.target": {"maxLength": 16},
    "spec.slo.tpot.target": {"maxLength": 16},
    "spec.server.apiKeysSecret": _SUBDOMAIN,
    "spec.resources.memory": {"maxLength": 32},
    "spec.resources.npuProfile": _LABEL,
    "spec.runtime.image": {"maxLength": 1024},
    "spec.runtime.imagePullSecrets": {"x-kubernetes-list-type": "set"},
    "spec.runtime.imagePullSecrets[]": _SUBDOMAIN,
    "spec.runtime.env": _map_by("name"),
    "spec.runtime.env[].name": {"maxLength": 256},
    "spec.runtime.env[].value": {"maxLength": 32768},
    "spec.runtime.volumes": _map_by("name"),
    "spec.runtime.volumes[]": _open_object(
        name=_text("Name of the volume, by which volumeMounts ask for it.", _LABEL)
    ),
    "spec.runtime.volumeMounts": _map_by("mountPath"),
    "spec.runtime.volumeMounts[]": _open_object(
        name=_text("Name of one of the volumes.", _LABEL),
        mountPath=_text("Absolute path at which the containers see it.", {"minLength": 1, **_PATH}),
    ),
    "spec.runtime.nodeSelector": {"maxProperties": 64},
    "spec.runtime.nodeSelector{}": _LABEL,
    "spec.runtime.tolerations": {"x-kubernetes-list-type": "atomic"},
    "spec.runtime.tolerations[].key": {"maxLength": 317},
    "spec.runtime.tolerations[].value": _LABEL,
    "spec.runtime.gcsFaultToleranceOptions.redisAddress": {"maxLength": 270},
    **_secret_key("spec.runtime.gcsFaultToleranceOptions.redisUsername"),
    **_secret_key("spec.runtime.gcsFaultToleranceOptions.redisPassword"),
}
"""Path in the schema → further properties of its node."""
