"""The PrometheusRule of a service with an SLO: recording rules and alerts; pure."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from tandem_operator.k8s import names
from tandem_operator.k8s.kinds import PROMETHEUS_RULE
from tandem_operator.render.alerts import (
    autoscaler_alerts,
    burn_alerts,
    flapping_alert,
    micro_batch_alert,
    replica_alerts,
)
from tandem_operator.render.promql import Alert, RecordingRule, Selector
from tandem_operator.render.recording_rules import (
    LONG_WINDOWS,
    SHORT_WINDOWS,
    load_rules,
    replica_rules,
    slo_rules,
)
from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.spec import InferenceService

_LONG_INTERVAL: Final = "2m"
"""Windows of hours move slowly, and take much to compute. A series ends after 5 minutes without a
sample, so it is less than that."""


def selector(service: InferenceService) -> Selector:
    """Return the labels by which the series of a service are found."""
    return Selector(service.metadata.namespace or "default", service.name)


def recording_rules(service: InferenceService, windows: Iterable[str]) -> list[RecordingRule]:
    """Return what is recorded of the requests in these windows."""
    select, slo = selector(service), service.spec.slo
    return list(chain.from_iterable(slo_rules(select, slo, window) for window in windows))


def state_rules(service: InferenceService) -> list[RecordingRule]:
    """Return what is recorded of load and replicas."""
    select = selector(service)
    return [*load_rules(select, service.spec.slo), *replica_rules(select)]


def alerts(service: InferenceService, settings: OperatorSettings) -> list[Alert]:
    """Return the alerts; those about the autoscaler and micro-batches where there are such."""
    select, period_s = selector(service), settings.autoscaling.period_seconds
    has_decisions = service.spec.scaling.mode in {"Auto", "Recommend"}
    return [
        *burn_alerts(select, service.spec.slo),
        *replica_alerts(select),
        *([micro_batch_alert(select)] if service.spec.engine.stream_options.micro_batch else ()),
        flapping_alert(select),
        *(autoscaler_alerts(select, period_s=period_s) if has_decisions else ()),
    ]


def prometheus_rule(service: InferenceService, settings: OperatorSettings) -> dict[str, Any] | None:
    """Return the PrometheusRule; None: the service has no SLO, or the settings want none."""
    rules = settings.prometheus_rule
    if rules.enabled is False or not service.spec.slo.is_given:
        return None
    short, long = (recording_rules(service, some) for some in (SHORT_WINDOWS, LONG_WINDOWS))
    groups = [
        _group("tandem-slo", [rule.manifest() for rule in short]),
        {
            **_group("tandem-slo-long", [rule.manifest() for rule in long]),
            "interval": _LONG_INTERVAL,
        },
        _group("tandem-state", [rule.manifest() for rule in state_rules(service)]),
        _group(
            "tandem-alerts",
            [alert.manifest(rules.runbook_url) for alert in alerts(service, settings)],
        ),
    ]
    return _manifest(service, groups, rules.labels)


def no_rules(service: InferenceService) -> dict[str, Any]:
    """Return the PrometheusRule of a service that has had an SLO: without rules."""
    return _manifest(service, [], {})


def _manifest(
    service: InferenceService, groups: list[dict[str, Any]], labels: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "apiVersion": PROMETHEUS_RULE.api_version,
        "kind": PROMETHEUS_RULE.name,
        "metadata": {
            "name": names.prometheus_rule(service.name),
            **({"labels": dict(labels)} if labels else {}),
        },
        "spec": {"groups": groups},
    }


def _group(name: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "rules": rules}
