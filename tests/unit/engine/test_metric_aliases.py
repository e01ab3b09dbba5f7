"""The same values under the names of vLLM and MindIE."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem_engine.async_engine.metric_aliases import (
    MINDIE,
    MINDIE_GAUGES,
    MINDIE_RATIOS,
    VLLM,
)
from tandem_engine.async_engine.metrics import EngineMetrics
from tests.unit.engine.test_metrics import STATS, samples
from tests.unit.engine.test_slo_metrics import end


def filled(*aliases: str) -> EngineMetrics:
    metrics = EngineMetrics("tiny", aliases=aliases)  # type: ignore[arg-type]  # names of a test
    metrics.received(num_prompt=300, num_choices=4)
    metrics.failed()
    metrics.next_tokens([0.25, 0.25])
    end(metrics, ttft_s=0.3, tpot_s=0.02)
    metrics.state(STATS)
    return metrics


def test_without_aliases_all_names_are_tandems() -> None:
    assert all(name.startswith("tandem_") for name, *_ in samples(filled()))


@pytest.mark.parametrize(("alias", "names"), [("vllm", VLLM), ("mindie", MINDIE)])
def test_each_alias_has_the_type_labels_and_values_of_its_series(
    alias: str, names: dict[str, str]
) -> None:
    text = filled(alias).text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}

    for source, name in names.items():
        own, other = families[source], families[name]
        assert other.type == own.type
        assert [(s.name.removeprefix(name), s.labels, s.value) for s in other.samples] == [
            (s.name.removeprefix(source), s.labels, s.value) for s in own.samples
        ]


def test_names_are_those_that_dashboards_query() -> None:
    told = {name for name, *_ in samples(filled("vllm", "mindie"))}

    assert told >= {
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prefix_cache_hits_total",
        "vllm:iteration_tokens_total_sum",
        "request_received_total",
        "time_to_first_token_seconds_bucket",
        "npu_cache_usage_perc",
    }


def test_mindies_gauges_are_computed_from_counters() -> None:
    told = samples(filled("mindie"))

    assert told["all_radix_match_num",] == 100.0
    assert told["npu_radix_match_hit_num",] == 64.0
    assert told["npu_prefix_cache_hit_rate",] == pytest.approx(0.64)
    assert told["failed_request_perc",] == pytest.approx(0.25)
    assert told["cpu_cache_usage_perc",] == pytest.approx(0.25)


def test_a_quotient_of_nothing_is_zero_and_missing_series_have_no_alias() -> None:
    told = samples(EngineMetrics("tiny", aliases=("mindie", "vllm")))

    assert told["failed_request_perc",] == 0.0
    assert ("npu_prefix_cache_hit_rate",) not in told
    assert ("vllm:kv_cache_usage_perc",) not in told


def test_no_name_comes_twice() -> None:
    text = filled("vllm", "mindie").text().decode()

    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert {*VLLM.values(), *MINDIE.values(), *MINDIE_GAUGES.values(), *MINDIE_RATIOS} <= {
        name.removesuffix("_total") if name != "vllm:iteration_tokens_total" else name
        for name in names
    }
