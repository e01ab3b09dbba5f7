"""Time of the last change of a RayService, but for its number of replicas; pure.

The number is part of a text, the Serve document, so the API server's own record of who wrote which
field and when cannot tell a service that is scaled from one that gets another version.
"""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from tandem_operator.k8s import names
from tandem_operator.reconcile.plan import is_within
from tandem_operator.status.progress import last_change

# In C where PyYAML has it.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_OF_THE_NUMBER: Final = ("num_replicas", "autoscaling_config")
_EXCLUDES_HEAD: Final = "excludeHeadPodFromServeSvc"
_DOCUMENT: Final = "serveConfigV2"
_HASHES: Final = (names.APPLIED, names.CHANGED_AT)


def stamped(
    manifest: Mapping[str, Any], live: Mapping[str, Any] | None, now: str
) -> dict[str, Any]:
    """Return the RayService `manifest` with the time of its last change.

    It is `now`, unless only the number of replicas differs from the RayService `live`.
    """
    changed_at = last_change(live) if live and is_scaled(manifest, live) else now
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.CHANGED_AT: changed_at or now}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def is_scaled(manifest: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return True when the RayServices differ in nothing but the number of replicas."""
    if not is_within(_without_number(manifest), _without_number(live)):
        return False
    text, text_found = (each["spec"].get(_DOCUMENT, "") for each in (manifest, live))
    # Mostly they are the same, and then neither has to be parsed.
    return text == text_found or is_within(
        _document_without_number(text), _document_without_number(text_found)
    )


def _without_number(ray_service: Mapping[str, Any]) -> dict[str, Any]:
    metadata, spec = ray_service["metadata"], ray_service["spec"]
    annotations = metadata.get("annotations", {})
    kept = {name: text for name, text in annotations.items() if name not in _HASHES}
    # A service at zero, or that may be, has its head behind the endpoint; the document is compared
    # by itself.
    kept_spec = {
        name: value for name, value in spec.items() if name not in {_EXCLUDES_HEAD, _DOCUMENT}
    }
    return {"annotations": kept, "spec": kept_spec}


def _document_without_number(text: str) -> Any:
    """Return the Serve document without all that depends on the number; its text, if it is none."""
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506  # both loaders are safe
        for application in document["applications"]:
            del application["route_prefix"]
            for deployment in application["deployments"]:
                for name in _OF_THE_NUMBER:
                    deployment.pop(name, None)
    except (yaml.YAMLError, LookupError, TypeError, AttributeError):
        return text
    return document
