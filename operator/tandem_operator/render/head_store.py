"""The store of Ray's control plane (GCS) outside the Ray head, which it outlives; pure.

KubeRay gives each RayCluster a namespace of its own in the store (its id), lets workers wait ten
minutes for a new head, and has a Job clear the namespace away when the RayCluster is deleted. The
Job is made of the head's pod template, with its labels, so that a policy which lets the head reach
the store lets in the Job.
"""

from collections.abc import Mapping
from typing import Any, Final

from tandem_operator.k8s import names
from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.draining import TERMINATION_GRACE_PERIOD_S
from tandem_serve.api.pods import GcsFaultToleranceOptions
from tandem_serve.api.spec import InferenceService

_DELETION_TIMEOUT: Final = "ray.io/gcs-ft-deletion-timeout"
# Time for the Job to start and end. It has no more: KubeRay ends its own wait, five minutes by
# default, with or without it, and the Job begins when the last request has ended.
_CLEANUP_S: Final = 60


def store_of(
    service: InferenceService, settings: OperatorSettings
) -> GcsFaultToleranceOptions | None:
    """Return the store of the service's control plane; None: it is in the head's memory."""
    own = service.spec.runtime.gcs_fault_tolerance_options
    return own or settings.replica.gcs_fault_tolerance_options


def gcs_fault_tolerance(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return the field of the RayCluster that names the store; empty without a store."""
    store = store_of(service, settings)
    if store is None:
        return {}
    options = store.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"gcsFaultToleranceOptions": options}


def cleanup_annotations(service: InferenceService, settings: OperatorSettings) -> dict[str, str]:
    """Return the annotation for RayClusters by which KubeRay waits for the cleanup Job."""
    if store_of(service, settings) is None:
        return {}
    return {_DELETION_TIMEOUT: str(TERMINATION_GRACE_PERIOD_S + _CLEANUP_S)}


def head_token(
    service: InferenceService, settings: OperatorSettings, token_secret: str
) -> list[Mapping[str, Any]]:
    """Return Ray's token for the head's environment, optional in place of KubeRay's required one.

    The Secret is deleted with the InferenceService, before the cleanup Job starts. The Job, which
    needs no token, would wait for a required one until its deadline.
    """
    if store_of(service, settings) is None:
        return []
    token = {"name": token_secret, "key": names.TOKEN_KEY, "optional": True}
    return [{"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": token}}]
