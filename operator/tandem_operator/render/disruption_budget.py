"""The PodDisruptionBudget of a service; pure."""

from typing import Any

from tandem_operator.k8s import names
from tandem_operator.render.head_store import store_of
from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.spec import InferenceService


def disruption_budget(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return the PodDisruptionBudget: evictions take one pod at a time.

    With a store that outlives the head, head and replicas are one budget: replicas serve without a
    head, and end their requests by it, so neither leaves before the other is back. Without one
    nothing could keep the head's end from ending the service, and a budget over it alone would
    only keep its node from ever being drained.

    `maxUnavailable: 1` would say just that, but Kubernetes works it out from the owner's scale,
    and a RayCluster has none: it then allows no eviction at all.
    """
    replicas = service.replicas
    if store_of(service, settings) is None:
        least, selector = max(replicas - 1, 0), names.pod_selector(service.name, names.WORKER)
    else:
        least, selector = replicas, {names.SERVICE: service.name}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": names.disruption_budget(service.name)},
        "spec": {
            "minAvailable": least,
            "selector": {"matchLabels": selector},
            # Pods that do not serve may go: a service that does not start must not keep its nodes
            # from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
