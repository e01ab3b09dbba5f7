"""All services of some namespaces, side by side."""

from typing import Final

from tools.dashboards.parts import Board, Query, Row, Variable, lines, stat
from tools.dashboards.promql import RATE, quotient

_BY: Final = "namespace, inference_service"
_NAME: Final = "{{namespace}}/{{inference_service}}"
_OPERATOR_NAME: Final = "{{namespace}}/{{name}}"
_IN: Final = 'namespace=~"$namespace"'


def _rate(series: str, labels: str = _IN) -> str:
    return f"sum by ({_BY}) (rate({series}{{{labels}}}[{RATE}]))"


BOARD: Final = Board(
    uid="tandem-fleet",
    title="Tandem / fleet",
    text="All services: which keep their targets, and which need a look.",
    variables=(
        Variable(
            "namespace",
            "Namespace",
            "label_values(tandem_num_requests_running, namespace)",
            has_all=True,
        ),
    ),
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Services",
                    Query(f"count(tandem_operator_service_ready{{{_IN}}})"),
                ),
                stat("Services that answer", Query(f"sum(tandem_operator_service_ready{{{_IN}}})")),
                stat(
                    "Replicas scraped",
                    Query(f'sum(up{{{_IN}, inference_service!=""}})'),
                ),
                stat(
                    "Arrivals",
                    Query(f"sum(rate(tandem_request_received_total{{{_IN}}}[{RATE}]))"),
                    unit="reqps",
                ),
                stat(
                    "Goodput",
                    Query(f'sum(rate(tandem_slo_requests_total{{{_IN}, result="met"}}[{RATE}]))'),
                    unit="reqps",
                ),
                stat(
                    "Alerts",
                    Query(
                        f'count(ALERTS{{alertname=~"Tandem.*", alertstate="firing", {_IN}}}) '
                        "or vector(0)"
                    ),
                ),
            ),
        ),
        Row(
            "Targets",
            (
                lines(
                    "Attainment",
                    Query(
                        quotient(
                            _rate("tandem_slo_requests_total", f'{_IN}, result="met"'),
                            _rate("tandem_slo_requests_total"),
                        ),
                        _NAME,
                    ),
                    unit="percentunit",
                    text="Share of the requests that met all targets at once.",
                ),
                lines(
                    "Load over predicted capacity",
                    Query(
                        quotient(
                            _rate("tandem_request_received_total"),
                            f"sum by ({_BY}) "
                            f"(tandem_predicted_capacity_requests_per_second{{{_IN}}})",
                        ),
                        _NAME,
                    ),
                    unit="percentunit",
                    text="Above 100 % targets will be missed. No value where a single request "
                    "misses its target.",
                ),
                lines(
                    "Queue age",
                    Query(f"max by ({_BY}) (tandem_queue_age_seconds{{{_IN}}})", _NAME),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Load and replicas",
            (
                lines(
                    "Arrivals of each",
                    Query(_rate("tandem_request_received_total"), _NAME),
                    unit="reqps",
                ),
                lines(
                    "KV blocks in use, fullest replica",
                    Query(f"max by ({_BY}) (tandem_kv_cache_usage_ratio{{{_IN}}})", _NAME),
                    unit="percentunit",
                ),
                lines(
                    "Replicas desired",
                    Query(
                        "max by (namespace, name) "
                        f"(tandem_operator_autoscaler_desired_replicas{{{_IN}}})",
                        _OPERATOR_NAME,
                    ),
                    is_stacked=True,
                ),
            ),
        ),
    ),
)
