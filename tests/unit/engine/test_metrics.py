"""Series that Prometheus scrapes, and that the documents name all of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.micro_batch_stats import GateState, MicroBatchStats
from tandem_engine.api.output import DraftCounts, EngineStats
from tandem_engine.api.parallelism import ParallelismConfig
from tandem_engine.api.rank_bytes import RankBytes
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.timeline import Timeline
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.records.records import StepRecord
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"

STATS = EngineStats(
    num_running=3,
    num_waiting=4,
    num_swapped=1,
    num_kv_blocks=10,
    num_free_kv_blocks=6,
    num_cached_kv_blocks=2,
    num_preemptions=7,
    num_swaps=2,
    num_host_blocks=8,
    num_free_host_blocks=6,
    num_queried_tokens=100,
    num_hit_tokens=64,
    num_evicted_blocks=5,
    drafts={"ngram": DraftCounts(num_drafted=9, accepted=(4, 2, 1))},
    tpot_pace=0.97,
)


def families(metrics: EngineMetrics) -> dict[str, Metric]:
    text = metrics.text().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(metrics: EngineMetrics) -> dict[tuple[str, ...], float]:
    """Name and labels but for the model's → value."""
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "model_name")): (
            sample.value
        )
        for family in families(metrics).values()
        for sample in family.samples
    }


def split_fuse(chunk: int) -> ScheduleConfig:
    return ScheduleConfig.model_validate(
        {
            "templateType": "Mix",
            "cacheBlockSize": 16,
            "splitFuse": {"splitChunkTokens": chunk, "splitStartBatchSize": 0},
        }
    )


def step_of(*, predicted_s: float | None, seconds: float) -> StepRecord:
    """A step with a budget of 512 tokens, of which 300 are a prompt's first chunk."""
    scheduler = Scheduler(split_fuse(512), BlockPool(64, 16))
    runner = CountingRunner(block_size=16)
    request = Request(
        request_id="r",
        prompt_token_ids=tuple(range(300)),
        sampling=SamplingParams(max_tokens=4),
        max_new_tokens=4,
    )
    runner.add(request)
    scheduler.add(request)
    step = scheduler.schedule(10.0)
    scheduler.complete(step, runner.run(step), 10.0 + seconds)
    record = scheduler.records.last
    assert record is not None
    record.predicted_s = predicted_s
    return record


def test_a_step_is_told_by_time_budget_tokens_and_chunks() -> None:
    metrics = EngineMetrics("tiny")

    metrics.step(step_of(predicted_s=0.02, seconds=0.03), num_sampled=1)

    told = samples(metrics)
    assert told["tandem_step_duration_seconds_sum",] == pytest.approx(0.03)
    assert told["tandem_step_predicted_seconds_sum",] == pytest.approx(0.02)
    assert told["tandem_step_prediction_ratio_sum",] == pytest.approx(1.5)
    assert told["tandem_step_prediction_error_seconds_total",] == pytest.approx(0.01)
    assert told["tandem_step_token_budget_sum",] == 512.0
    assert told["tandem_step_tokens_sum",] == 300.0
    assert told["tandem_step_token_budget_used_ratio_sum",] == pytest.approx(300 / 512)
    assert told["tandem_prefill_chunk_tokens_sum",] == 300.0
    assert told["tandem_generation_tokens_total",] == 1.0


def test_an_error_counts_whichever_way_it_goes() -> None:
    metrics = EngineMetrics("tiny")

    metrics.step(step_of(predicted_s=0.04, seconds=0.03), num_sampled=1)
    metrics.step(step_of(predicted_s=0.02, seconds=0.03), num_sampled=1)

    assert samples(metrics)["tandem_step_prediction_error_seconds_total",] == pytest.approx(0.02)


def test_a_step_without_a_predicted_time_has_no_prediction() -> None:
    metrics = EngineMetrics("tiny")

    metrics.step(step_of(predicted_s=None, seconds=0.03), num_sampled=1)

    assert samples(metrics)["tandem_step_prediction_ratio_count",] == 0.0
    assert samples(metrics)["tandem_step_duration_seconds_count",] == 1.0


def test_a_step_that_computed_nothing_is_not_counted() -> None:
    metrics = EngineMetrics("tiny")
    scheduler = Scheduler(split_fuse(512), BlockPool(64, 16))
    scheduler.complete(
        step := scheduler.schedule(0.0), CountingRunner(block_size=16).run(step), 0.0
    )

    metrics.step(scheduler.records.last, num_sampled=0)
    metrics.step(None, num_sampled=0)

    assert samples(metrics)["tandem_step_duration_seconds_count",] == 0.0


def test_blocks_are_free_cached_or_held_and_no_two_of_them() -> None:
    metrics = EngineMetrics("tiny")

    metrics.state(STATS)

    told = samples(metrics)
    by_state = {s: told["tandem_kv_cache_blocks_by_state", s] for s in ("free", "cached", "held")}
    assert by_state == {"free": 4.0, "cached": 2.0, "held": 4.0}
    assert sum(by_state.values()) == told["tandem_kv_cache_blocks",]
    assert told["tandem_kv_cache_usage_ratio",] == pytest.approx(0.4)
    assert told["tandem_host_cache_usage_ratio",] == pytest.approx(0.25)
    assert told["tandem_kv_cache_evictions_total",] == 5.0


def test_ranks_are_labels_with_every_degree_written() -> None:
    metrics = EngineMetrics("m", parallelism=ParallelismConfig(world_size=4, pp=2))
    one_rank = EngineMetrics("m")

    family = families(metrics)["tandem_parallelism_info"]
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        (
            {"model_name": "m", "world_size": "4", "tp": "2", "pp": "2", "dp": "1", "sp": "false"},
            1.0,
        )
    ]
    (sample,) = families(one_rank)["tandem_parallelism_info"].samples
    assert sample.labels["world_size"] == "1"


RANKS = (
    RankBytes(rank=0, process=100, weights=40, kv_cache=60, step=7),
    RankBytes(rank=1, process=90, weights=30, kv_cache=60, host_cache=8),
)


def test_the_memory_of_each_rank_is_shown_where_it_is_known() -> None:
    told = {key[1:]: value for key, value in samples(EngineMetrics("m", ranks=RANKS)).items()
            if key[0] == "tandem_rank_memory_bytes"}  # fmt: skip

    assert told == {
        ("process", "0"): 100,
        ("weights", "0"): 40,
        ("kv_cache", "0"): 60,
        ("step", "0"): 7,
        ("process", "1"): 90,
        ("weights", "1"): 30,
        ("kv_cache", "1"): 60,
        ("host_cache", "1"): 8,
    }
    assert not any("rank_memory" in name for name, *_ in samples(EngineMetrics("m")))


MICRO_BATCHES = MicroBatchStats(
    num_splits=12,
    refusals={"too_small": 3, "no_gain": 0},
    hidden_s=4.5,
    exposed_s=1.5,
    overlap=0.9,
    gates={
        "prefill": GateState(is_open=True, reason="it pays"),
        "decode": GateState(is_open=False, reason="it does not"),
    },
    num_kv_blocks=7,
)


def test_micro_batches_have_series_where_they_are_on() -> None:
    metrics = EngineMetrics("m")
    assert not {name for name, *_ in samples(metrics) if "micro_batch" in name}

    metrics.watch_micro_batches(lambda: MICRO_BATCHES)

    told = samples(metrics)
    seen = {
        key: value for key, value in told.items() if re.search("micro_batch|communication", key[0])
    }
    assert seen == {
        ("tandem_micro_batch_overlap_ratio",): 0.9,
        ("tandem_communication_seconds_total", "hidden"): 4.5,
        ("tandem_communication_seconds_total", "exposed"): 1.5,
        ("tandem_micro_batch_splits_total",): 12.0,
        ("tandem_micro_batch_refusals_total", "too_small"): 3.0,
        ("tandem_micro_batch_refusals_total", "no_gain"): 0.0,
        ("tandem_micro_batch_state", "prefill"): 1.0,
        ("tandem_micro_batch_state", "decode"): 0.0,
        ("tandem_micro_batch_kv_blocks",): 7.0,
    }


def test_micro_batches_that_cut_nothing_have_no_overlap() -> None:
    metrics = EngineMetrics("m")
    metrics.watch_micro_batches(lambda: replace(MICRO_BATCHES, overlap=None))

    assert ("tandem_micro_batch_overlap_ratio",) not in samples(metrics)
    assert ("tandem_micro_batch_splits_total",) in samples(metrics)


def test_a_pace_is_reported_where_there_is_a_tpot_target() -> None:
    metrics = EngineMetrics("tiny")
    metrics.state(STATS)
    assert samples(metrics)["tandem_tpot_pace_ratio",] == 0.97

    metrics.state(replace(STATS, tpot_pace=None))
    assert ("tandem_tpot_pace_ratio",) not in samples(metrics)


def test_preemptions_are_told_by_what_came_of_them() -> None:
    metrics = EngineMetrics("tiny")

    metrics.state(STATS)

    told = samples(metrics)
    assert told["tandem_preemptions_total", "recompute"] == 5.0
    assert told["tandem_preemptions_total", "swap"] == 2.0
    assert told["tandem_num_preemptions_total",] == 7.0


def test_the_last_state_counts_not_the_sum_of_states() -> None:
    metrics = EngineMetrics("tiny")

    metrics.state(STATS)
    metrics.state(STATS)

    told = samples(metrics)
    assert told["tandem_prefix_cache_queried_tokens_total",] == 100.0
    assert told["tandem_prefix_cache_hit_tokens_total",] == 64.0
    assert told["tandem_num_requests_swapped",] == 1.0


def test_waiting_is_told_by_reason_as_of_the_moment_of_asking() -> None:
    metrics = EngineMetrics("tiny")
    waited_s = dict.fromkeys(Reason, 0.0)

    metrics.state(STATS, waited_s)
    waited_s[Reason.NO_BLOCKS] += 2.5

    told = samples(metrics)
    assert told["tandem_request_wait_seconds_total", "kv_blocks"] == 2.5
    assert told["tandem_request_wait_seconds_total", "token_budget"] == 0.0


def test_each_priority_that_had_a_request_has_its_own_series() -> None:
    metrics = EngineMetrics("tiny", slo=Slo(ttft=LatencyTarget(target="700ms")))
    for priority, first_s in ((1, 0.25), (1, 0.7), (4, 8.0)):
        timeline = Timeline(arrived=10.0, priority=priority)
        metrics.received(num_prompt=3, num_choices=1, priority=priority)
        for now in (10.0 + first_s, 10.25 + first_s):
            timeline.token(now)
        metrics.first_token(timeline)
        metrics.finished(timeline, 20.0, num_prompt=3)
    metrics.received(num_prompt=3, num_choices=2, priority=4)

    values = samples(metrics)
    requests, ttft, tpot = (
        "tandem_request_received_by_priority_total",
        "tandem_time_to_first_token_by_priority_seconds",
        "tandem_time_per_output_token_by_priority_seconds",
    )
    assert {key[1:]: value for key, value in values.items() if key[0] == requests} == {
        ("1",): 2.0,
        ("4",): 3.0,
    }
    assert values[f"{ttft}_count", "1"] == values[f"{tpot}_count", "1"] == 2.0
    assert values[f"{ttft}_count", "4"] == values[f"{tpot}_count", "4"] == 1.0
    assert values[f"{ttft}_sum", "4"] == 8.0
    assert values[f"{ttft}_bucket", "0.7", "1"] == 2.0
    assert values[f"{ttft}_bucket", "0.7", "4"] == 0.0
    assert values["tandem_time_to_first_token_seconds_count",] == 3.0


def test_without_a_request_no_priority_has_series() -> None:
    assert not [name for name in families(EngineMetrics("tiny")) if "priority" in name]


def test_requests_are_counted_and_their_latencies_are_in_buckets() -> None:
    metrics = EngineMetrics("tiny")
    timeline = Timeline(arrived=10.0, scheduled=10.5)
    for now in (11.0, 11.25):
        timeline.token(now)

    metrics.received(num_prompt=300, num_choices=2)
    metrics.scheduled(timeline)
    metrics.prompt_done(300)
    metrics.first_token(timeline)
    metrics.next_tokens([0.25])
    metrics.finished(timeline, 11.25, num_prompt=300)
    metrics.aborted()
    metrics.failed()

    told = samples(metrics)
    assert told["tandem_request_received_total",] == 2.0
    assert told["tandem_request_success_total",] == 1.0
    assert told["tandem_request_aborted_total",] == told["tandem_request_failed_total",] == 1.0
    assert told["tandem_request_queue_time_seconds_bucket", "0.5"] == 1.0
    assert told["tandem_request_queue_time_seconds_bucket", "0.25"] == 0.0
    assert told["tandem_time_to_first_token_seconds_bucket", "1.0"] == 1.0
    assert told["tandem_inter_token_latency_seconds_sum",] == 0.25
    assert told["tandem_e2e_request_latency_seconds_sum",] == 1.25


def test_all_reasons_are_documented() -> None:
    documented = re.findall(r"^\| `([\w ]+)` \| [a-z`]", DOCUMENT.read_text(), re.MULTILINE)

    assert {reason.value for reason in Reason} <= set(documented)
