"""The inside of engines: steps, their prediction, the KV cache, preemption."""

from typing import Final

from tools.dashboards.parts import Board, Query, Row, Variable, lines
from tools.dashboards.promql import PODS, mean, per_second, percentile, quotient
from tools.dashboards.service import NAMESPACES, SERVICES

_STEP: Final = "tandem_step_duration_seconds"
_PREDICTED: Final = "tandem_step_predicted_seconds"

BOARD: Final = Board(
    uid="tandem-engine",
    title="Tandem / engine",
    text="What the engines of a service do, step by step.",
    variables=(
        NAMESPACES,
        SERVICES,
        Variable(
            "pod",
            "Replica",
            'label_values(tandem_num_requests_running{namespace="$namespace", '
            'inference_service="$service"}, pod)',
            has_all=True,
        ),
    ),
    rows=(
        Row(
            "Steps",
            (
                lines(
                    "Time of a step",
                    *(
                        Query(percentile(share, _STEP, PODS), f"P{100 * share:g}")
                        for share in (0.5, 0.9, 0.99)
                    ),
                    Query(mean(_PREDICTED, PODS), "predicted, mean"),
                    unit="s",
                ),
                lines(
                    "Steps", Query(per_second(f"{_STEP}_count", PODS, "pod"), "{{pod}}"), unit="ops"
                ),
                lines(
                    "Tokens of a step",
                    Query(mean("tandem_step_tokens", PODS), "tokens, mean"),
                    Query(mean("tandem_step_token_budget", PODS), "budget, mean"),
                    Query(mean("tandem_prefill_chunk_tokens", PODS), "prompt chunk, mean"),
                ),
                lines(
                    "Budget used",
                    Query(mean("tandem_step_token_budget_used_ratio", PODS, "pod"), "{{pod}}"),
                    unit="percentunit",
                ),
                lines(
                    "Time over prediction",
                    *(
                        Query(
                            percentile(share, "tandem_step_prediction_ratio", PODS),
                            f"P{100 * share:g}",
                        )
                        for share in (0.1, 0.5, 0.9)
                    ),
                    text="1: the step took what was predicted.",
                ),
                lines(
                    "Error of the prediction",
                    Query(
                        quotient(
                            per_second("tandem_step_prediction_error_seconds_total", PODS, "pod"),
                            per_second(f"{_PREDICTED}_sum", PODS, "pod"),
                        ),
                        "{{pod}}",
                    ),
                    unit="percentunit",
                    text="Mean absolute error, of the predicted time.",
                ),
            ),
        ),
        Row(
            "Latencies",
            (
                lines(
                    "Pace of decodes",
                    Query(f"max by (pod) (tandem_tpot_pace_ratio{{{PODS}}})", "{{pod}}"),
                    unit="percentunit",
                    text="Share of the TPOT target that steps may take.",
                ),
                lines(
                    "ITL",
                    *(
                        Query(
                            percentile(share, "tandem_inter_token_latency_seconds", PODS),
                            f"P{100 * share:g}",
                        )
                        for share in (0.5, 0.9, 0.99)
                    ),
                    unit="s",
                ),
                lines(
                    "End to end",
                    *(
                        Query(
                            percentile(share, "tandem_e2e_request_latency_seconds", PODS),
                            f"P{100 * share:g}",
                        )
                        for share in (0.5, 0.9, 0.99)
                    ),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Micro-batches",
            (
                lines(
                    "Overlap, last hour",
                    Query(f"max by (pod) (tandem_micro_batch_overlap_ratio{{{PODS}}})", "{{pod}}"),
                    unit="percentunit",
                    text="Hidden communication over the lesser of communication and computation, "
                    "of steps that were cut.",
                ),
                lines(
                    "Communication",
                    Query(
                        per_second("tandem_communication_seconds_total", PODS, "visibility"),
                        "{{visibility}}",
                    ),
                    unit="s",
                    is_stacked=True,
                    text="Seconds of each second; hidden under computation, or waited for.",
                ),
                lines(
                    "Steps in two halves",
                    Query(per_second("tandem_micro_batch_splits_total", PODS), "cut"),
                    Query(
                        per_second("tandem_micro_batch_refusals_total", PODS, "reason"),
                        "not cut: {{reason}}",
                    ),
                    unit="ops",
                ),
                lines(
                    "Gate",
                    Query(
                        f"min by (pod, phase) (tandem_micro_batch_state{{{PODS}}})",
                        "{{pod}} {{phase}}",
                    ),
                    text="1: steps of the phase are cut where that is predicted to pay.",
                ),
                lines(
                    "KV blocks that halves cost",
                    Query(f"max by (pod) (tandem_micro_batch_kv_blocks{{{PODS}}})", "{{pod}}"),
                ),
            ),
        ),
        Row(
            "Draft tokens",
            (
                lines(
                    "Drafts that were right",
                    Query(
                        quotient(
                            per_second("tandem_accepted_draft_tokens_total", PODS, "method"),
                            per_second("tandem_draft_tokens_total", PODS, "method"),
                        ),
                        "{{method}}",
                    ),
                    unit="percentunit",
                    text="Share of the draft tokens that steps checked.",
                ),
                lines(
                    "Draft tokens",
                    Query(
                        per_second("tandem_draft_tokens_total", PODS, "method"),
                        "{{method}} checked",
                    ),
                    Query(
                        per_second("tandem_accepted_draft_tokens_total", PODS, "method"),
                        "{{method}} right",
                    ),
                    unit="ops",
                ),
                lines(
                    "Right by position",
                    Query(
                        per_second("tandem_accepted_draft_tokens_total", PODS, "position"),
                        "{{position}}",
                    ),
                    unit="ops",
                    text="0 is the first draft of a sequence in a step.",
                ),
            ),
        ),
        Row(
            "KV cache",
            (
                lines(
                    "Blocks",
                    Query(
                        f"sum by (state) (tandem_kv_cache_blocks_by_state{{{PODS}}})", "{{state}}"
                    ),
                    is_stacked=True,
                ),
                lines(
                    "Hits of the prefix cache",
                    Query(
                        quotient(
                            per_second("tandem_prefix_cache_hit_tokens_total", PODS, "pod"),
                            per_second("tandem_prefix_cache_queried_tokens_total", PODS, "pod"),
                        ),
                        "{{pod}}",
                    ),
                    unit="percentunit",
                    text="Share of the prompts' tokens that need not be computed.",
                ),
                lines(
                    "Lost blocks",
                    Query(
                        per_second("tandem_preemptions_total", PODS, "kind"), "preempted: {{kind}}"
                    ),
                    Query(
                        per_second("tandem_kv_cache_evictions_total", PODS),
                        "evicted from the cache",
                    ),
                    unit="ops",
                ),
                lines(
                    "Host memory in use",
                    Query(f"max by (pod) (tandem_host_cache_usage_ratio{{{PODS}}})", "{{pod}}"),
                    unit="percentunit",
                    text="Blocks of swapped sequences.",
                ),
                lines(
                    "Sequences",
                    Query(
                        f"sum by (pod) (tandem_num_requests_running{{{PODS}}})", "{{pod}} running"
                    ),
                    Query(
                        f"sum by (pod) (tandem_num_requests_waiting{{{PODS}}})", "{{pod}} waiting"
                    ),
                ),
                lines(
                    "HTTP slots",
                    Query(f"sum by (pod) (tandem_http_requests_in_flight{{{PODS}}})", "{{pod}}"),
                    text="Slots that are taken, of maxLinkNum.",
                ),
            ),
        ),
    ),
)
