"""The series that are recorded of a service with an SLO; pure.

They carry the labels `namespace` and `inference_service`, and stay without a value where there is
none: a ratio of no requests, a percentile of none.
"""

from collections.abc import Iterator
from typing import Final

from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_operator.render.promql import BY_SERVICE, RecordingRule, Selector

SHORT_WINDOWS: Final = ("5m", "30m", "1h", "2h")
LONG_WINDOWS: Final = ("6h", "1d", "3d")

REQUESTS: Final = "inference_service:tandem_slo_requests:rate{}"
"""Requests a second that ended, by `result`; {} is the window."""

ATTAINMENT: Final = "inference_service:tandem_slo_attainment:ratio_rate{}"
"""Share of the requests that met all targets."""

GOODPUT: Final = "inference_service:tandem_goodput:rate{}"
"""Requests a second that met all targets."""

MISSES: Final = "inference_service:tandem_slo_misses:ratio_rate{}"
"""Share of the requests that missed the target `target`, those that failed included."""

ARRIVALS: Final = "inference_service:tandem_request_received:rate5m"
ENDED: Final = "inference_service:tandem_request_success:rate5m"
TTFT: Final = "inference_service:tandem_time_to_first_token_seconds:percentile_rate5m"
TPOT: Final = "inference_service:tandem_time_per_output_token_seconds:percentile_rate5m"
QUEUE_AGE: Final = "inference_service:tandem_queue_age_seconds:max"
KV_USAGE: Final = "inference_service:tandem_kv_cache_usage_ratio:max"
WAITING: Final = "inference_service:tandem_request_wait_seconds:rate5m"
CAPACITY: Final = "inference_service:tandem_predicted_capacity_requests_per_second:sum"
SCRAPED: Final = "inference_service:tandem_replicas_scraped:sum"
DESIRED: Final = "inference_service:tandem_replicas_desired:max"
DIRECTION: Final = "inference_service:tandem_replicas_desired:direction"
"""1 when the last change of the desired replicas was a rise, -1 when it was a fall."""

READY: Final = "inference_service:tandem_replicas_ready:max"

_HISTOGRAMS: Final = {
    "ttft": (TTFT, "tandem_time_to_first_token_seconds"),
    "tpot": (TPOT, "tandem_time_per_output_token_seconds"),
}


def targets(slo: Slo) -> dict[str, LatencyTarget]:
    """Return the latency targets that are given, by name."""
    named = {"ttft": slo.ttft, "tpot": slo.tpot}
    return {name: target for name, target in named.items() if target is not None}


def slo_rules(select: Selector, slo: Slo, window: str) -> Iterator[RecordingRule]:
    """Yield what is recorded of the requests that ended within `window`."""
    requests = REQUESTS.format(window)
    # Without requests the ratio is 0/0: the filter leaves nothing to divide by, and so no value.
    all_requests = f"(sum {BY_SERVICE} ({select.of_replicas(requests)}) > 0)"
    rate = f"rate({select.of_replicas('tandem_slo_requests_total')}[{window}])"
    met = f"sum {BY_SERVICE} ({select.of_replicas(requests, result='met')})"
    yield RecordingRule(
        record=requests, expr=f"sum by (namespace, inference_service, result) ({rate})"
    )
    yield RecordingRule(record=ATTAINMENT.format(window), expr=f"{met} / {all_requests}")
    yield RecordingRule(record=GOODPUT.format(window), expr=met)
    for target in targets(slo):
        missed = select.of_replicas(requests, result=f"~{target}|both|failed")
        yield RecordingRule(
            record=MISSES.format(window),
            expr=f"sum {BY_SERVICE} ({missed}) / {all_requests}",
            labels={"target": target},
        )


def load_rules(select: Selector, slo: Slo) -> Iterator[RecordingRule]:
    """Yield demand, latencies, queues and KV cache."""
    yield _rate(select, ARRIVALS, "tandem_request_received_total")
    yield _rate(select, ENDED, "tandem_request_success_total")
    for name, target in targets(slo).items():
        record, series = _HISTOGRAMS[name]
        yield _percentile(select, record, series, target.percentile)
    waiting = f"rate({select.of_replicas('tandem_request_wait_seconds_total')}[5m])"
    yield RecordingRule(
        record=WAITING, expr=f"sum by (namespace, inference_service, reason) ({waiting})"
    )
    yield _of_replicas(select, QUEUE_AGE, "max", "tandem_queue_age_seconds")
    yield _of_replicas(select, KV_USAGE, "max", "tandem_kv_cache_usage_ratio")
    yield _of_replicas(select, CAPACITY, "sum", "tandem_predicted_capacity_requests_per_second")


def replica_rules(select: Selector) -> Iterator[RecordingRule]:
    """Yield the numbers of replicas: scraped, and as the operator has them."""
    yield _of_replicas(select, SCRAPED, "sum", "up")
    for record, series in (
        (DESIRED, "tandem_operator_autoscaler_desired_replicas"),
        (READY, "tandem_operator_autoscaler_ready_replicas"),
    ):
        # One operator leads; another that has led before may not have ended yet.
        yield RecordingRule(
            record=record,
            expr=f"max by (namespace) ({select.of_operator(series)})",
            labels={"inference_service": select.service},
        )
    desired = select.of_replicas(DESIRED)
    yield RecordingRule(
        record=DIRECTION,
        expr=f"(sgn({desired} - {desired} offset 1m) != 0) "
        f"or last_over_time({select.of_replicas(DIRECTION)}[1h])",
    )


def _rate(select: Selector, record: str, series: str) -> RecordingRule:
    rate = f"rate({select.of_replicas(series)}[5m])"
    return RecordingRule(record=record, expr=f"sum {BY_SERVICE} ({rate})")


def _of_replicas(select: Selector, record: str, aggregate: str, series: str) -> RecordingRule:
    expr = f"{aggregate} {BY_SERVICE} ({select.of_replicas(series)})"
    return RecordingRule(record=record, expr=expr)


def _percentile(select: Selector, record: str, series: str, percentile: int) -> RecordingRule:
    rate = f"rate({select.of_replicas(f'{series}_bucket')}[5m])"
    buckets = f"sum by (namespace, inference_service, le) ({rate})"
    return RecordingRule(
        record=record,
        # The percentile of no value is NaN, which no comparison keeps.
        expr=f"histogram_quantile({percentile / 100:g}, {buckets}) >= 0",
        labels={"percentile": str(percentile)},
    )
