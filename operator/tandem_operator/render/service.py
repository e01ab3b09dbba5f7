"""One InferenceService → its desired objects; pure."""

from collections.abc import Mapping
from typing import Any

from tandem_operator.k8s import names
from tandem_operator.k8s.kinds import PROMETHEUS_RULE
from tandem_operator.k8s.owners import owner_reference
from tandem_operator.ray.token import RayToken
from tandem_operator.render.desired import Desired, RenderError
from tandem_operator.render.disruption_budget import disruption_budget
from tandem_operator.render.fingerprint import fingerprint
from tandem_operator.render.network_policies import head_policy, worker_policy
from tandem_operator.render.prometheus_rules import no_rules, prometheus_rule
from tandem_operator.render.ray_service import ray_service
from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.spec import API_VERSION, KIND, InferenceService


def render(
    service: InferenceService, *, uid: str, settings: OperatorSettings, token: RayToken
) -> Desired:
    """Render the objects of `service`, whose object in Kubernetes has the id `uid`.

    Policies come first, so that no pod runs without them.

    Raises:
        RenderError: the service requests something that `settings` cannot give.
    """
    _check_name(service.name)
    rule = prometheus_rule(service, settings)
    objects = (
        head_policy(service, settings),
        worker_policy(service, settings),
        disruption_budget(service, settings),
        ray_service(service, settings, token.secret),
        # Last: a service is served, whatever becomes of its rules.
        *([rule] if rule else []),
    )
    enabled = settings.prometheus_rule.enabled
    is_left_over = rule is None and enabled is not False
    emptied = (no_rules(service),) if is_left_over else ()
    return Desired(
        objects=tuple(_owned(manifest, service, uid) for manifest in objects),
        emptied=tuple(_owned(manifest, service, uid) for manifest in emptied),
        may_lack=frozenset({PROMETHEUS_RULE.name} if enabled == "auto" else ()),
        token=token,
    )


def _check_name(name: str) -> None:
    if len(name) > names.MAX_NAME_LENGTH:
        raise RenderError(
            f"metadata.name '{name}' has {len(name)} characters; KubeRay, which appends to it, "
            f"takes at most {names.MAX_NAME_LENGTH}: shorten it"
        )


def _owned(manifest: Mapping[str, Any], service: InferenceService, uid: str) -> dict[str, Any]:
    """Return `manifest` with namespace, labels, owner, and the hash of it all."""
    metadata = {
        **manifest["metadata"],
        "namespace": service.metadata.namespace or "default",
        "labels": {**manifest["metadata"].get("labels", {}), **names.object_labels(service.name)},
        "ownerReferences": [
            owner_reference(api_version=API_VERSION, kind=KIND, name=service.name, uid=uid)
        ],
    }
    whole = {**manifest, "metadata": metadata}
    annotations = {**metadata.get("annotations", {}), names.APPLIED: fingerprint(whole)}
    return {**whole, "metadata": {**metadata, "annotations": annotations}}
