"""The same series under the names of other engines, for dashboards and autoscalers that exist."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from tandem_engine.api.config import MetricAlias

VLLM: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tandem_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
        "tandem_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
        "tandem_inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
        "tandem_e2e_request_latency_seconds": "vllm:e2e_request_latency_seconds",
        "tandem_request_queue_time_seconds": "vllm:request_queue_time_seconds",
        "tandem_request_prompt_tokens": "vllm:request_prompt_tokens",
        "tandem_request_generation_tokens": "vllm:request_generation_tokens",
        "tandem_step_tokens": "vllm:iteration_tokens_total",
        "tandem_num_requests_running": "vllm:num_requests_running",
        "tandem_num_requests_waiting": "vllm:num_requests_waiting",
        "tandem_kv_cache_usage_ratio": "vllm:kv_cache_usage_perc",
        "tandem_num_preemptions": "vllm:num_preemptions",
        "tandem_prompt_tokens": "vllm:prompt_tokens",
        "tandem_generation_tokens": "vllm:generation_tokens",
        "tandem_request_success": "vllm:request_success",
        "tandem_prefix_cache_queried_tokens": "vllm:prefix_cache_queries",
        "tandem_prefix_cache_hit_tokens": "vllm:prefix_cache_hits",
        "tandem_draft_tokens": "vllm:spec_decode_num_draft_tokens",
        "tandem_accepted_draft_tokens": "vllm:spec_decode_num_accepted_tokens_per_pos",
    }
)
"""Names of vLLM's v1 engine; counters without `_total`."""

MINDIE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tandem_request_received": "request_received",
        "tandem_request_success": "request_success",
        "tandem_request_failed": "request_failed",
        "tandem_num_preemptions": "num_preemptions",
        "tandem_prompt_tokens": "prompt_tokens",
        "tandem_generation_tokens": "generation_tokens",
        "tandem_num_requests_running": "num_requests_running",
        "tandem_num_requests_waiting": "num_requests_waiting",
        "tandem_num_requests_swapped": "num_requests_swapped",
        "tandem_kv_cache_usage_ratio": "npu_cache_usage_perc",
        "tandem_host_cache_usage_ratio": "cpu_cache_usage_perc",
        "tandem_time_to_first_token_seconds": "time_to_first_token_seconds",
        "tandem_time_per_output_token_seconds": "time_per_output_token_seconds",
        "tandem_e2e_request_latency_seconds": "e2e_request_latency_seconds",
        "tandem_request_prompt_tokens": "request_prompt_tokens",
        "tandem_request_generation_tokens": "request_generation_tokens",
    }
)
"""Names of MindIE; counters without `_total`."""

MINDIE_GAUGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tandem_prefix_cache_queried_tokens": "all_radix_match_num",
        "tandem_prefix_cache_hit_tokens": "npu_radix_match_hit_num",
    }
)
"""Counters that are gauges in MindIE."""

MINDIE_RATIOS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "failed_request_perc": ("tandem_request_failed", "tandem_request_received"),
        "npu_prefix_cache_hit_rate": (
            "tandem_prefix_cache_hit_tokens",
            "tandem_prefix_cache_queried_tokens",
        ),
    }
)
"""Gauges that are the quotient of two counters since the start; 0 where the second one is 0."""


def aliases_of(alias: MetricAlias, own: Sequence[Metric]) -> Iterator[Metric]:
    """Yield the series that an engine has as well, with its names and the same values."""
    yield from _ENGINES[alias]({family.name: family for family in own})


def _vllm(own: Mapping[str, Metric]) -> Iterator[Metric]:
    yield from _renamed(own, VLLM)


def _mindie(own: Mapping[str, Metric]) -> Iterator[Metric]:
    yield from _renamed(own, MINDIE)
    for source, name in MINDIE_GAUGES.items():
        if source in own:
            yield _gauge(name, own[source], _value(own[source]))
    for name, (part, whole) in MINDIE_RATIOS.items():
        if part in own and whole in own:
            total = _value(own[whole])
            yield _gauge(name, own[part], _value(own[part]) / total if total else 0.0)


_ENGINES: Final[Mapping[MetricAlias, Callable[[Mapping[str, Metric]], Iterator[Metric]]]] = (
    MappingProxyType({"vllm": _vllm, "mindie": _mindie})
)


def _renamed(own: Mapping[str, Metric], names: Mapping[str, str]) -> Iterator[Metric]:
    for source, name in names.items():
        family = own.get(source)
        if family is None:
            continue
        renamed = Metric(name, family.documentation, family.type)
        # Of a histogram or counter, samples have a suffix.
        renamed.samples = [
            sample._replace(name=name + sample.name.removeprefix(source))
            for sample in family.samples
        ]
        yield renamed


def _gauge(name: str, source: Metric, value: float) -> Metric:
    family = GaugeMetricFamily(name, source.documentation, labels=["model_name"])
    family.add_metric([source.samples[0].labels["model_name"]], value)
    return family


def _value(counter: Metric) -> float:
    return float(counter.samples[0].value)
