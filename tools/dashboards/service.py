"""One service: its targets, its load, who waits and why, and its replicas with the decisions."""

from typing import Final

from tandem_operator.scaling_law.decision import DecisionReason
from tools.dashboards.parts import Annotation, Board, Query, Row, Variable, lines, stat
from tools.dashboards.promql import (
    OPERATOR,
    RANGE,
    SERVICE,
    budget_left,
    per_second,
    percentile,
    quotient,
)

NAMESPACES: Final = Variable(
    "namespace", "Namespace", "label_values(tandem_num_requests_running, namespace)"
)
SERVICES: Final = Variable(
    "service",
    "Service",
    'label_values(tandem_num_requests_running{namespace="$namespace"}, inference_service)',
)
_TTFT: Final = "tandem_time_to_first_token_seconds"
_TPOT: Final = "tandem_time_per_output_token_seconds"
_MISSES: Final = "inference_service:tandem_slo_misses:ratio_rate"
_SCALES: Final = "|".join(reason for reason in DecisionReason if not reason.is_hold)


def _latency(histogram: str, target: str) -> tuple[Query, ...]:
    return (
        *(
            Query(percentile(share, histogram, SERVICE), f"P{100 * share:g}")
            for share in (0.5, 0.9, 0.99)
        ),
        Query(f'max(tandem_slo_target_seconds{{{SERVICE}, target="{target}"}})', "target"),
        Query(f"max(tandem_predicted_zero_load_{target}_seconds{{{SERVICE}}})", "without load"),
    )


_MET: Final = {
    "met": "green",
    "ttft": "orange",
    "tpot": "yellow",
    "both": "red",
    "failed": "purple",
}
_CODES: Final = {"2..": "green", "4..|refused slots": "orange", "5..": "red"}
_TARGET: Final = {"target": "red", "without load": "purple"}
_KEPT: Final = {DecisionReason.WITHIN_TARGETS, DecisionReason.NO_TRAFFIC}
_QUIET: Final = {
    DecisionReason.UNDERUSED,
    DecisionReason.STABILIZING,
    DecisionReason.AT_MINIMUM,
    DecisionReason.TOO_FEW_SAMPLES,
}


def _reason_colors() -> dict[str, str]:
    """Green: targets are kept; blue: nothing urgent; orange: replicas are added; red: a fault."""
    others = set(DecisionReason) - _KEPT - _QUIET
    more = {reason for reason in others if not reason.is_hold} | {DecisionReason.REPLICAS_STARTING}
    colors = {"green": _KEPT, "blue": _QUIET, "orange": more, "red": others - more}
    return {"|".join(sorted(reasons)): color for color, reasons in colors.items()}


def _decisions() -> str:
    total = (
        "sum by (reason) (tandem_operator_autoscaler_decisions_total"
        f'{{{OPERATOR}, reason=~"{_SCALES}"}}%s)'
    )
    # A reason that comes for the first time has no sample before.
    return f"({total % ''} - ({total % ' offset 1m'} or {total % ''} * 0)) > 0"


BOARD: Final = Board(
    uid="tandem-service",
    title="Tandem / service",
    text="The latency targets of one service, its load, and its replicas.",
    variables=(NAMESPACES, SERVICES),
    annotations=(
        Annotation("decisions that change the number", _decisions(), "blue"),
        Annotation(
            "alerts",
            'ALERTS{alertname=~"Tandem.*", alertstate="firing", namespace="$namespace", '
            'inference_service="$service"}',
            "red",
        ),
    ),
    rows=(
        Row(
            "Targets",
            (
                stat(
                    "Attainment",
                    Query(
                        quotient(
                            f'sum(increase(tandem_slo_requests_total{{{SERVICE}, result="met"}}'
                            f"[{RANGE}]))",
                            f"sum(increase(tandem_slo_requests_total{{{SERVICE}}}[{RANGE}]))",
                        )
                    ),
                    unit="percentunit",
                    text="Share of the requests of the time shown that met all targets at once.",
                ),
                stat(
                    "Goodput",
                    Query(per_second("tandem_slo_requests_total", f'{SERVICE}, result="met"')),
                    unit="reqps",
                    text="Requests a second that met all targets.",
                ),
                stat(
                    "Budget left: TTFT",
                    Query(budget_left("ttft")),
                    unit="percentunit",
                    good_from=0.0,
                    text="Share of the requests that may miss the target within the time shown "
                    "and have not. Below 0 the target is broken.",
                ),
                stat(
                    "Budget left: TPOT",
                    Query(budget_left("tpot")),
                    unit="percentunit",
                    good_from=0.0,
                ),
                stat(
                    "Replicas desired",
                    Query(f"max(tandem_operator_autoscaler_desired_replicas{{{OPERATOR}}})"),
                ),
                stat(
                    "Replicas ready",
                    Query(f"max(tandem_operator_autoscaler_ready_replicas{{{OPERATOR}}})"),
                ),
                lines(
                    "TTFT",
                    *_latency(_TTFT, "ttft"),
                    unit="s",
                    colors=_TARGET,
                    text="Above the target without load, no number of replicas keeps it.",
                ),
                lines("TPOT", *_latency(_TPOT, "tpot"), unit="s", colors=_TARGET),
                lines(
                    "Requests by the targets that they met",
                    Query(per_second("tandem_slo_requests_total", SERVICE, "result"), "{{result}}"),
                    unit="reqps",
                    is_stacked=True,
                    colors=_MET,
                    text="met is the goodput.",
                ),
                lines(
                    "Misses of each target by window",
                    *(
                        Query(f"{_MISSES}{window}{{{SERVICE}}}", f"{{{{target}}}} {window}")
                        for window in ("5m", "1h", "6h", "3d")
                    ),
                    unit="percentunit",
                    text="What the alerts about error budgets look at. Recorded by the service's "
                    "PrometheusRule.",
                ),
                lines(
                    "Queue age",
                    Query(f"max(tandem_queue_age_seconds{{{SERVICE}}})", "oldest request"),
                    Query(
                        percentile(0.9, "tandem_request_queue_time_seconds", SERVICE),
                        "P90 of the time in the queue",
                    ),
                    unit="s",
                ),
                lines(
                    "Responses by code",
                    Query(
                        per_second(
                            "tandem_http_requests_total", f'{SERVICE}, path=~"/v1/.*"', "code"
                        ),
                        "{{code}}",
                    ),
                    Query(
                        per_second("tandem_http_requests_refused_total", SERVICE), "refused slots"
                    ),
                    unit="reqps",
                    colors=_CODES,
                ),
            ),
        ),
        Row(
            "Load",
            (
                lines(
                    "Demand and capacity",
                    Query(per_second("tandem_request_received_total", SERVICE), "arrivals"),
                    Query(per_second("tandem_request_success_total", SERVICE), "ended well"),
                    Query(
                        f"sum(tandem_predicted_capacity_requests_per_second{{{SERVICE}}})",
                        "predicted capacity",
                    ),
                    unit="reqps",
                    colors={"arrivals": "blue", "ended well": "green", "predicted capacity": "red"},
                    text="Arrivals above the capacity that the replicas predict of themselves will "
                    "miss targets.",
                ),
                lines(
                    "Waiting, by the reason",
                    Query(
                        per_second("tandem_request_wait_seconds_total", SERVICE, "reason"),
                        "{{reason}}",
                    ),
                    is_stacked=True,
                    text="Mean length of the queue, by what its first request waits for.",
                ),
                lines(
                    "Requests in the engines",
                    Query(f"sum(tandem_num_requests_running{{{SERVICE}}})", "running"),
                    Query(f"sum(tandem_num_requests_waiting{{{SERVICE}}})", "waiting"),
                    Query(f"sum(tandem_num_requests_swapped{{{SERVICE}}})", "swapped"),
                    Query(
                        f"sum(tandem_predicted_capacity_concurrency{{{SERVICE}}})",
                        "predicted at capacity",
                    ),
                    text="As many as predicted at the capacity, or more: the replicas are full.",
                ),
                lines(
                    "KV blocks in use",
                    Query(f"max by (pod) (tandem_kv_cache_usage_ratio{{{SERVICE}}})", "{{pod}}"),
                    unit="percentunit",
                ),
                lines(
                    "Tokens",
                    Query(per_second("tandem_prompt_tokens_total", SERVICE), "prompts"),
                    Query(per_second("tandem_generation_tokens_total", SERVICE), "outputs"),
                    unit="short",
                    text="Tokens a second.",
                ),
                lines(
                    "Lengths",
                    Query(percentile(0.5, "tandem_request_prompt_tokens", SERVICE), "prompt, P50"),
                    Query(percentile(0.9, "tandem_request_prompt_tokens", SERVICE), "prompt, P90"),
                    Query(
                        percentile(0.5, "tandem_request_generation_tokens", SERVICE), "output, P50"
                    ),
                    Query(
                        percentile(0.9, "tandem_request_generation_tokens", SERVICE), "output, P90"
                    ),
                    text="Tokens of a request.",
                ),
            ),
        ),
        Row(
            "Replicas",
            (
                lines(
                    "Replicas",
                    Query(
                        f"max(tandem_operator_autoscaler_desired_replicas{{{OPERATOR}}})", "desired"
                    ),
                    Query(
                        f"max(tandem_operator_autoscaler_recommended_replicas{{{OPERATOR}}})",
                        "recommended",
                    ),
                    Query(f"max(tandem_operator_autoscaler_ready_replicas{{{OPERATOR}}})", "ready"),
                    Query(f"sum(up{{{SERVICE}}})", "scraped"),
                ),
                lines(
                    "Decisions by reason",
                    Query(
                        "sum by (reason) (rate(tandem_operator_autoscaler_decisions_total"
                        f"{{{OPERATOR}}}[$__rate_interval])) * 60",
                        "{{reason}}",
                    ),
                    is_stacked=True,
                    colors=_reason_colors(),
                    text="Decisions a minute. Most of them hold.",
                ),
                lines(
                    "Load of each replica",
                    Query(per_second("tandem_request_received_total", SERVICE, "pod"), "{{pod}}"),
                    unit="reqps",
                    text="Arrivals. Replicas that differ much are balanced badly.",
                ),
            ),
        ),
    ),
)
