"""An InferenceService → KEDA's ScaledObject, from the same SLO and the same signals; pure.

Each trigger is a ratio of a latency to its target. KEDA hands it to an HPA, which multiplies the
ready replicas by the largest of them (metric type Value, threshold 1).
"""

from collections.abc import Iterator
from typing import Any, Final

from tandem_operator.autoscaler.signals import Scope, service_expressions
from tandem_operator.render.settings import AutoscalingSettings
from tandem_operator.scaling_law.load import MAX_RATIO
from tandem_operator.scaling_law.policy import ScalingPolicy
from tandem_serve.api.scaling import ScaleDownSpec, ScaleUpSpec, ScalingSpec
from tandem_serve.api.spec import API_VERSION, KIND, InferenceService

_MAX_PERIOD_S: Final = 1800
"""Longest period of an HPA's policy."""

Document = dict[str, Any]


class NotExportable(Exception):
    """The service cannot be scaled by KEDA as it is; the text is one sentence with a way out."""


def scaled_object(service: InferenceService, namespace: str, prometheus_url: str) -> Document:
    """Return the ScaledObject of a service.

    Raises:
        NotExportable: the service has no SLO, another owner of the number, or no maximum.
    """
    _check(service, namespace)
    scaling = service.spec.scaling
    queries = _queries(service, namespace)
    triggers = [_trigger(name, query, prometheus_url) for name, query in queries]
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": service.name, "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": API_VERSION, "kind": KIND, "name": service.name},
            "pollingInterval": AutoscalingSettings().period_seconds,
            "minReplicaCount": scaling.min_replicas,
            # Before the last replica goes; the HPA's windows are for the others.
            **({"cooldownPeriod": _idle_window_s(scaling)} if scaling.allows_zero else {}),
            "maxReplicaCount": scaling.max_replicas,
            "advanced": {
                # Deleting the ScaledObject leaves the number as it is.
                "restoreToOriginalReplicaCount": False,
                "horizontalPodAutoscalerConfig": {"behavior": _behavior(scaling)},
            },
            "triggers": triggers,
        },
    }


def _check(service: InferenceService, namespace: str) -> None:
    spec, name = service.spec, service.name
    if not spec.slo.is_given:
        raise NotExportable(
            f"{namespace}/{name} has no spec.slo, of which the triggers are made; add a target, "
            "such as spec.slo.ttft.target: 1.5s"
        )
    if spec.scaling.mode != "External":
        raise NotExportable(
            f"{namespace}/{name} has spec.scaling.mode {spec.scaling.mode}, in which the number "
            "has another owner than KEDA; set it to External: kubectl patch isvc "
            f"{name} -n {namespace} --type=merge "
            """-p '{"spec": {"scaling": {"mode": "External"}}}'"""
        )
    if spec.scaling.max_replicas is None:
        raise NotExportable(
            f"{namespace}/{name} has no spec.scaling.maxReplicas, and KEDA would go up to 100 "
            "replicas; add it"
        )


def _queries(service: InferenceService, namespace: str) -> Iterator[tuple[str, str]]:
    slo = service.spec.slo
    window_s = AutoscalingSettings().window_seconds
    scope = Scope.of(namespace, service.name, slo, window_s=window_s)
    of = service_expressions(scope)
    for name, target in (("ttft", slo.ttft), ("tpot", slo.tpot)):
        if target is not None:
            yield name, _latency_ratio(name, target.target_s, of)
    if slo.ttft is not None:
        yield "queue-age", _ratio(of["queue_age_s"], slo.ttft.target_s)
    if service.spec.scaling.allows_zero:
        yield "refused", _refused(namespace, service.name)


def _refused(namespace: str, name: str) -> str:
    """Return the query of the trigger that KEDA takes for a service without replicas: 1 or 0.

    The replicas' own series are absent there, and their triggers are errors, which KEDA ignores
    beside one that is active. The operator's own namespace may be in the label.
    """
    selectors = (
        f'{{{label}="{namespace}",name="{name}"}}' for label in ("exported_namespace", "namespace")
    )
    series = " or ".join(
        f"tandem_operator_autoscaler_refused_requests{selector}" for selector in selectors
    )
    return f"clamp_max(sum({series}), 1) or vector(0)"


def _latency_ratio(name: str, target_s: float, of: dict[str, str]) -> str:
    """Return the query of a latency over its target.

    With too few requests for a percentile it is 1, at which an HPA holds; without any it is 0.
    Without the series it has no result, which KEDA takes for an error, and an HPA holds.
    """
    min_samples = ScalingPolicy(max_replicas=1).min_samples
    ratio = _ratio(of[f"{name}_s"], target_s)
    return f"({ratio} and {of[f'{name}_samples']} >= {min_samples}) or sgn({of['arrival_rate']})"


def _ratio(expression: str, target_s: float) -> str:
    return f"clamp_max({expression} / {target_s:g}, {MAX_RATIO:g})"


def _trigger(name: str, query: str, prometheus_url: str) -> Document:
    return {
        "type": "prometheus",
        "name": name,
        "metricType": "Value",
        "metadata": {
            "serverAddress": prometheus_url,
            "query": query,
            "threshold": "1",
            # An empty answer is an error, no zero.
            "ignoreNullValues": "false",
        },
    }


def _behavior(scaling: ScalingSpec) -> Document:
    up, down = scaling.behavior.scale_up, scaling.behavior.scale_down
    step = {"type": "Pods", "value": up.max_step, "periodSeconds": _period_s(up)}
    double = {"type": "Percent", "value": 100, "periodSeconds": _period_s(up)}
    remove = {"type": "Pods", "value": down.max_step, "periodSeconds": _period_s(down)}
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": up.stabilization_window_seconds,
            "selectPolicy": "Max",
            "policies": [step, double],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": down.stabilization_window_seconds,
            "policies": [remove],
        },
    }


def _idle_window_s(scaling: ScalingSpec) -> int:
    window_s = scaling.behavior.scale_down.stabilization_window_seconds
    return max(window_s, round(ScalingPolicy(max_replicas=1).idle_window_s))


def _period_s(limits: ScaleUpSpec | ScaleDownSpec) -> int:
    """Return the period in which one step may be taken: latencies reach back for the window."""
    settled_s = AutoscalingSettings().window_seconds
    return min(max(limits.stabilization_window_seconds, settled_s), _MAX_PERIOD_S)
