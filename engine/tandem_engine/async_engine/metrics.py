"""Prometheus metrics of one engine. Names and buckets are MindIE's, with `tandem_` in front.

TTFT, TPOT and queue time are per request, ITL per token; all begin when the engine takes the
request, so they hold no network time.

The engine's thread only counts; series are made of the counts at a scrape.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tandem_engine.api.config import MetricAlias, ScheduleConfig
from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.api.micro_batch_stats import MicroBatchStats
from tandem_engine.api.output import EngineStats
from tandem_engine.api.parallelism import ParallelismConfig
from tandem_engine.api.rank_bytes import RankBytes
from tandem_engine.api.request import LOWEST_PRIORITY
from tandem_engine.api.slo import Slo
from tandem_engine.async_engine import buckets
from tandem_engine.async_engine.capacity_question import (
    CapacityQuestion,
    MeasuredCapacity,
    Measurement,
)
from tandem_engine.async_engine.families import Families
from tandem_engine.async_engine.histogram import Histogram
from tandem_engine.async_engine.load_sample import LoadSample
from tandem_engine.async_engine.metric_aliases import aliases_of
from tandem_engine.async_engine.optional_metrics import (
    device_series,
    draft_series,
    micro_batch_series,
    rank_series,
)
from tandem_engine.async_engine.priority_metrics import PriorityMetrics
from tandem_engine.async_engine.recent_requests import RecentRequests
from tandem_engine.async_engine.slo_metrics import SloResults, predictions
from tandem_engine.async_engine.timeline import Timeline
from tandem_engine.scheduler.latency.capacity import ReplicaLimits
from tandem_engine.scheduler.latency.step_model import StepPrices
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.records.records import StepRecord

_COUNTERS: Final = MappingProxyType(
    {
        "request_received": "Requests taken.",
        "request_success": "Requests finished.",
        "request_failed": "Requests that failed while running.",
        "request_aborted": "Requests aborted by their client.",
        "request_expired": "Requests that exceeded their deadline.",
        "prompt_tokens": "Prompt tokens of finished prefills.",
        "generation_tokens": "Generated tokens.",
        "step_prediction_error_seconds": "Sum of |actual - predicted| over the predicted steps.",
    }
)
_NO_WAITS: Final[Mapping[Reason, float]] = MappingProxyType({})


def _no_micro_batches() -> None:
    return None


def _not_measured() -> None:
    return None


class EngineMetrics(Collector):
    """One engine's series in a registry of their own; all have the model's name as a label.

    Everything but `text` is called by the engine's thread alone.

    Args:
        model_name: The value of the label.
        schedule: The settings in force.
        slo: The targets in force.
        aliases: Other engines whose names the series have as well.
        parallelism: The ranks of the replica.
        ranks: The memory of each of them; empty: it is not known.
        device: Processor or card that they compute on; None: it is not shown.
    """

    def __init__(
        self,
        model_name: str,
        *,
        schedule: ScheduleConfig | None = None,
        slo: Slo | None = None,
        aliases: Sequence[MetricAlias] = (),
        parallelism: ParallelismConfig | None = None,
        ranks: Sequence[RankBytes] = (),
        device: DeviceFacts | None = None,
    ) -> None:
        self._model = model_name
        self._families = Families(model_name)
        self._aliases = tuple(aliases)
        self._parallelism = (parallelism or ParallelismConfig()).resolved()
        self._ranks = tuple(ranks)
        self._device = device
        self._queue_age_s: Callable[[], float] = float
        self._micro_batches: Callable[[], MicroBatchStats | None] = _no_micro_batches
        self._prices: StepPrices | None = None
        self._recent = RecentRequests()
        self._sample = LoadSample()
        self._asked: tuple[int, ScheduleConfig, Slo] | None = None
        self._measured: Callable[[], Measurement | None] = _not_measured
        self._counts = dict.fromkeys(_COUNTERS, 0.0)
        self._stats: EngineStats | None = None
        self._waited_s = _NO_WAITS
        self._queue = Histogram(
            "request_queue_time_seconds", "Arrival to first step.", buckets.TTFT
        )
        self._ttft = Histogram("time_to_first_token_seconds", "TTFT.", buckets.TTFT)
        self._tpot = Histogram("time_per_output_token_seconds", "TPOT of a request.", buckets.TPOT)
        self._itl = Histogram("inter_token_latency_seconds", "Token to token.", buckets.TPOT)
        self._e2e = Histogram("e2e_request_latency_seconds", "Arrival to last token.", buckets.E2E)
        self._prompts = Histogram("request_prompt_tokens", "Prompt length.", buckets.TOKENS)
        self._outputs = Histogram("request_generation_tokens", "Output length.", buckets.TOKENS)
        self._step = Histogram("step_duration_seconds", "One engine step.", buckets.STEP)
        self._predicted = Histogram("step_predicted_seconds", "Predicted step time.", buckets.STEP)
        self._ratio = Histogram(
            "step_prediction_ratio", "Actual step time over the predicted one.", buckets.RATIO
        )
        self._step_tokens = Histogram("step_tokens", "Tokens of a step.", buckets.STEP_TOKENS)
        self._budget = Histogram(
            "step_token_budget",
            "Tokens that a step might have, where it is limited.",
            buckets.STEP_TOKENS,
        )
        self._used = Histogram(
            "step_token_budget_used_ratio",
            "Share of a step's token budget that was used.",
            buckets.SHARE,
        )
        self._chunks = Histogram(
            "prefill_chunk_tokens",
            "Prompt tokens that one sequence got from a step.",
            buckets.STEP_TOKENS,
        )
        self._schedule = schedule or ScheduleConfig()
        self._slo_results = SloResults(slo or Slo())
        self._priorities = PriorityMetrics(model_name)
        self._set_edges()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def watch_queue(self, age_s: Callable[[], float]) -> None:
        """Ask `age_s` at each scrape for how long the oldest request has waited for a step."""
        self._queue_age_s = age_s

    def watch_micro_batches(self, stats: Callable[[], MicroBatchStats | None]) -> None:
        """Ask `stats` at each scrape for what micro-batches bring; None: they are off."""
        self._micro_batches = stats

    def watch_capacity(self, measured: Callable[[], Measurement | None]) -> None:
        """Ask `measured` at each scrape for what `capacity_question` was answered last."""
        self._measured = measured

    def reconfigure(self, schedule: ScheduleConfig, slo: Slo) -> None:
        """Judge requests by other targets from now on; each target is a bucket's bound."""
        self._schedule = schedule
        self._slo_results.set_slo(slo)
        self._set_edges()

    def _set_edges(self) -> None:
        slo = self._slo_results.slo
        self._priorities.set_edges(slo)
        for histogram in (self._queue, self._ttft):
            histogram.set_edge(slo.ttft_s)
        for histogram in (self._tpot, self._itl):
            histogram.set_edge(slo.tpot_s)

    def received(
        self,
        num_prompt: int,
        num_choices: int,
        *,
        priority: int = LOWEST_PRIORITY,
        timelines: Sequence[Timeline] = (),
    ) -> None:
        """Count the choices of a request that was taken, whose prompt has `num_prompt` tokens.

        Their `timelines` go on, and are a part of the load that capacity is measured by.
        """
        self._sample.arrived(num_prompt, timelines)
        self._counts["request_received"] += num_choices
        self._priorities.received(priority, num_choices)
        self._recent.arrived(num_prompt, num_choices)

    def admitted(self, num_prompt: int, num_cached: int, num_choices: int) -> None:
        """Note that a request is in its first step, with `num_cached` tokens from the cache."""
        self._recent.admitted(num_prompt, num_cached, num_choices)

    def scheduled(self, timeline: Timeline) -> None:
        """Note that a choice is in its first step."""
        if timeline.queue_time is not None:
            self._queue.observe(timeline.queue_time)

    def prompt_done(self, num_tokens: int) -> None:
        """Note that a prompt is done, however many choices it has."""
        self._counts["prompt_tokens"] += num_tokens
        self._prompts.observe(num_tokens)

    def first_token(self, timeline: Timeline) -> None:
        """Note that a choice has its first token."""
        if timeline.ttft is not None:
            self._ttft.observe(timeline.ttft)
        self._priorities.first_token(timeline)

    def next_tokens(self, since_last: Sequence[float]) -> None:
        """Note the gaps before tokens that are not the first, those of one step."""
        self._itl.observe_all(since_last)

    def finished(self, timeline: Timeline, now: float, num_prompt: int) -> None:
        """Note that a choice, of a prompt of `num_prompt` tokens, ended well."""
        tpot_s = timeline.tpot
        timeline.has_ended = True
        self._counts["request_success"] += 1
        self._outputs.observe(timeline.num_tokens)
        self._e2e.observe(now - timeline.arrived)
        if tpot_s is not None:
            self._tpot.observe(tpot_s)
        self._priorities.finished(timeline)
        self._slo_results.finished(timeline.ttft, tpot_s)
        self._recent.ended(num_prompt, timeline.num_tokens)

    def failed(self, num_requests: int = 1) -> None:
        """Note that requests died."""
        self._counts["request_failed"] += num_requests
        self._slo_results.failed(num_requests)

    def aborted(self) -> None:
        """Note that a client left its request."""
        self._counts["request_aborted"] += 1

    def expired(self) -> None:
        """Note that a request was not done by its deadline."""
        self._counts["request_expired"] += 1
        self._slo_results.failed()

    def step(self, record: StepRecord | None, *, num_sampled: int) -> None:
        """Note one step that is over; one that computed nothing is not counted.

        Args:
            record: The engine's last one.
            num_sampled: Tokens that it yielded.
        """
        if record is None or not record.step.sequence_ids:
            return
        step, seconds, num_tokens = record.step, record.seconds, record.load.num_tokens
        self._counts["generation_tokens"] += num_sampled
        self._step.observe(seconds)
        self._step_tokens.observe(num_tokens)
        if record.token_budget:
            self._budget.observe(record.token_budget)
            self._used.observe(num_tokens / record.token_budget)
        for chunk in step.num_tokens[step.num_decodes :]:
            self._chunks.observe(chunk)
        if record.predicted_s:
            self._predicted.observe(record.predicted_s)
            self._ratio.observe(seconds / record.predicted_s)
            self._counts["step_prediction_error_seconds"] += abs(seconds - record.predicted_s)

    def state(
        self,
        stats: EngineStats,
        waited_s: Mapping[Reason, float] = _NO_WAITS,
        prices: StepPrices | None = None,
    ) -> None:
        """Note queues and cache as they are after a step.

        Args:
            stats: The engine's.
            waited_s: Request-seconds by what was waited for; it may go on growing, but gets no
                more keys.
            prices: The scheduler's model of step times; None: it has none.
        """
        self._stats = stats
        self._waited_s = waited_s
        self._prices = prices

    def text(self) -> bytes:
        """All series in Prometheus' text format; on any thread."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All series, made of the counts of this moment."""
        own = list(self._own())
        yield from own
        for alias in self._aliases:
            yield from aliases_of(alias, own)

    def _own(self) -> Iterator[Metric]:
        for name, text in _COUNTERS.items():
            yield self._families.counter(name, text, self._counts[name])
        for histogram in self._histograms():
            yield histogram.family(self._model)
        yield from self._priorities.series(self._families)
        yield self._families.counters(
            "request_wait_seconds",
            "Request-seconds spent waiting, by the reason of the first in line.",
            "reason",
            {reason.value: seconds for reason, seconds in self._waited_s.items()},
        )
        yield self._families.gauge(
            "queue_age_seconds",
            "Age of the oldest request that has had no step yet; 0: there is none.",
            self._queue_age_s(),
        )
        if self._device is not None:
            yield device_series(self._families, self._device)
        yield from rank_series(self._families, self._parallelism, self._ranks)
        yield from self._slo_results.collect(self._families)
        if (micro_batches := self._micro_batches()) is not None:
            yield from micro_batch_series(self._families, micro_batches)
        if self._stats is not None:
            yield from self._state(self._stats)
            yield from self._predictions(self._stats)

    def _predictions(self, stats: EngineStats) -> Iterator[Metric]:
        shape, prices = self._recent.shape(), self._prices
        if shape is None or prices is None:
            return
        yield from predictions(
            self._families,
            prices=prices,
            shape=shape,
            limits=ReplicaLimits.of(self._schedule, stats.num_kv_blocks),
            slo=self._slo_results.slo,
            pace=stats.tpot_pace or 1.0,
            measured=self._measured_now(),
        )

    def capacity_question(self) -> CapacityQuestion | None:
        """Return the replica and its load; None: too little is known, or it is as it was.

        For the one thread that has the capacity measured.
        """
        stats, schedule, slo = self._stats, self._schedule, self._slo_results.slo
        asked = (self._sample.num_arrived, schedule, slo)
        requests, prices = self._sample.lengths(), self._prices
        if slo.ttft is None or not requests or prices is None or stats is None:
            return None
        if asked == self._asked:
            return None
        self._asked = asked
        measured = self._measured_now()
        return CapacityQuestion(
            prices=prices,
            requests=requests,
            schedule=schedule,
            slo=slo,
            num_blocks=stats.num_kv_blocks,
            guess=(measured and measured.requests_per_s) or None,
        )

    def _measured_now(self) -> MeasuredCapacity | None:
        """Return the capacity as it was measured with the settings in force; None: it was not."""
        measurement = self._measured()
        if measurement is None:
            return None
        question, answer = measurement
        is_current = (question.schedule, question.slo) == (self._schedule, self._slo_results.slo)
        return answer if is_current else None

    def _histograms(self) -> tuple[Histogram, ...]:
        return (
            *(self._queue, self._ttft, self._tpot, self._itl, self._e2e),
            *(self._prompts, self._outputs),
            *(self._step, self._predicted, self._ratio),
            *(self._step_tokens, self._budget, self._used, self._chunks),
        )

    def _state(self, stats: EngineStats) -> Iterator[Metric]:
        yield from self._queues(stats)
        yield from self._blocks(stats)
        yield self._families.counter(
            "prefix_cache_queried_tokens",
            "Tokens of the admitted sequences, looked up in the prefix cache.",
            stats.num_queried_tokens,
        )
        yield self._families.counter(
            "prefix_cache_hit_tokens",
            "Looked-up tokens found in the prefix cache.",
            stats.num_hit_tokens,
        )
        if stats.drafts:
            yield from draft_series(self._families, stats.drafts)
        if stats.tpot_pace is not None:
            yield self._families.gauge(
                "tpot_pace_ratio",
                "Share of the TPOT target that decode rows are paced by.",
                stats.tpot_pace,
            )

    def _queues(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._families.gauge(
            "num_requests_running", "Sequences that hold KV blocks.", stats.num_running
        )
        yield self._families.gauge(
            "num_requests_waiting", "Sequences that wait for KV blocks.", stats.num_waiting
        )
        yield self._families.gauge(
            "num_requests_swapped", "Sequences whose KV blocks are on the host.", stats.num_swapped
        )
        yield self._families.counter(
            "num_preemptions", "Times that a sequence lost its KV blocks.", stats.num_preemptions
        )
        yield self._families.counters(
            "preemptions",
            "Preemptions by kind: blocks recomputed, or swapped to the host.",
            "kind",
            {"recompute": stats.num_preemptions - stats.num_swaps, "swap": stats.num_swaps},
        )

    def _blocks(self, stats: EngineStats) -> Iterator[Metric]:
        num_held = stats.num_kv_blocks - stats.num_free_kv_blocks
        num_held_on_host = stats.num_host_blocks - stats.num_free_host_blocks
        yield self._families.gauge(
            "kv_cache_usage_ratio",
            "Share of KV blocks that sequences hold, 0 to 1.",
            num_held / max(1, stats.num_kv_blocks),
        )
        yield self._families.gauge(
            "kv_cache_blocks", "KV blocks of the replica.", stats.num_kv_blocks
        )
        yield self._families.gauges(
            "kv_cache_blocks_by_state",
            "KV blocks that are free and empty, free and cached, or held by sequences.",
            "state",
            {
                "free": stats.num_free_kv_blocks - stats.num_cached_kv_blocks,
                "cached": stats.num_cached_kv_blocks,
                "held": num_held,
            },
        )
        yield self._families.counter(
            "kv_cache_evictions", "Cached KV blocks that were evicted.", stats.num_evicted_blocks
        )
        yield self._families.gauge(
            "host_cache_blocks", "KV blocks in host memory.", stats.num_host_blocks
        )
        yield self._families.gauge(
            "host_cache_usage_ratio",
            "Share of host blocks that swapped sequences hold, 0 to 1.",
            num_held_on_host / max(1, stats.num_host_blocks),
        )
