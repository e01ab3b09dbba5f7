"""The operator: its services, its reconciles, its requests, and the autoscaler's loop."""

from typing import Final

from tools.dashboards.parts import Board, Query, Row, lines, stat
from tools.dashboards.promql import RATE

_P: Final = "tandem_operator"


def _rate(series: str, by: str = "") -> str:
    grouped = f"by ({by}) " if by else ""
    return f"sum {grouped}(rate({_P}_{series}[{RATE}]))"


def _p90(histogram: str) -> str:
    return f"histogram_quantile(0.9, {_rate(f'{histogram}_bucket', 'le')}) >= 0"


BOARD: Final = Board(
    uid="tandem-operator",
    title="Tandem / operator",
    text="The operator and its autoscaler. Services go on without them; changes do not.",
    rows=(
        Row(
            "Now",
            (
                stat("Leaders", Query(f"sum({_P}_leader)"), text="1 is right."),
                stat("Services", Query(f"sum({_P}_services)")),
                stat(
                    "Services that do not answer",
                    Query(f"count({_P}_service_ready == 0) or vector(0)"),
                ),
                stat(
                    "Last resync",
                    Query(f"time() - max({_P}_last_resync_timestamp_seconds)"),
                    unit="s",
                ),
                stat(
                    "Oldest decision",
                    Query(f"time() - min({_P}_autoscaler_last_decision_timestamp_seconds)"),
                    unit="s",
                ),
                stat(
                    "Services held",
                    Query(f"sum({_P}_autoscaler_hold) or vector(0)"),
                    text="The autoscaler keeps their number: it cannot trust their metrics.",
                ),
            ),
        ),
        Row(
            "Reconciles",
            (
                lines(
                    "Services by phase",
                    Query(f"sum by (phase) ({_P}_services)", "{{phase}}"),
                    is_stacked=True,
                ),
                lines(
                    "Reconciles",
                    Query(_rate("reconcile_total", "result"), "{{result}}"),
                    Query(_rate("reconcile_errors_total", "reason"), "failed: {{reason}}"),
                    unit="ops",
                ),
                lines(
                    "Time of a reconcile",
                    Query(_p90("reconcile_duration_seconds"), "P90"),
                    unit="s",
                ),
                lines(
                    "Queue",
                    Query(f"sum({_P}_queue_depth)", "due"),
                    Query(f"sum({_P}_queue_running)", "running"),
                ),
                lines(
                    "Requests to the API server",
                    Query(_rate("api_requests_total", "verb, code"), "{{verb}} {{code}}"),
                    unit="reqps",
                ),
                lines(
                    "Requests to Ray",
                    Query(_rate("ray_requests_total", "result"), "{{result}}"),
                    unit="reqps",
                ),
            ),
        ),
        Row(
            "Autoscaler",
            (
                lines(
                    "Decisions",
                    Query(f"{_rate('autoscaler_decisions_total', 'reason')} * 60", "{{reason}}"),
                    is_stacked=True,
                    text="A minute, of all services.",
                ),
                lines(
                    "Time of a decision",
                    Query(_p90("autoscaler_duration_seconds"), "P90"),
                    unit="s",
                ),
                lines(
                    "Queries to Prometheus, and cross-checks",
                    Query(_rate("autoscaler_queries_total", "result"), "query: {{result}}"),
                    Query(
                        _rate("autoscaler_cross_checks_total", "result"), "cross-check: {{result}}"
                    ),
                    Query(_rate("autoscaler_conflicts_total"), "dropped: the service had changed"),
                    unit="ops",
                ),
            ),
        ),
    ),
)
