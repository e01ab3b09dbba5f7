"""Prometheus metrics of one engine. Names and buckets are MindIE's, with `tandem_` in front.

TTFT, TPOT and queue time are per request, ITL per token; all begin when the engine takes the
request, so they hold no network time.

The engine's thread only counts; series are made of the counts at a scrape.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem_engine.api.output import EngineStats
from tandem_engine.async_engine.histogram import Histogram
from tandem_engine.async_engine.timeline import Timeline
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.records.records import StepRecord

_TTFT: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
)
_TPOT: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
)
_E2E: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 40, 50, 60)
_STEP: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)
_TOKENS: Final = (
    10,
    50,
    100,
    200,
    500,
    1000,
    2000,
    5000,
    10000,
    16000,
    20000,
    32000,
    50000,
    64000,
    128000,
)
_STEP_TOKENS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Actual over predicted time: 1 is a prediction that came true.
_RATIO: Final = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4)
_SHARE: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1)

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


class EngineMetrics(Collector):
    """One engine's series in a registry of their own; all have the model's name as a label.

    Everything but `text` is called by the engine's thread alone.
    """

    def __init__(self, model_name: str) -> None:
        self._model = model_name
        self._counts = dict.fromkeys(_COUNTERS, 0.0)
        self._stats: EngineStats | None = None
        self._waited_s = _NO_WAITS
        self._queue = Histogram("request_queue_time_seconds", "Arrival to first step.", _TTFT)
        self._ttft = Histogram("time_to_first_token_seconds", "TTFT.", _TTFT)
        self._tpot = Histogram("time_per_output_token_seconds", "TPOT of a request.", _TPOT)
        self._itl = Histogram("inter_token_latency_seconds", "Token to token.", _TPOT)
        self._e2e = Histogram("e2e_request_latency_seconds", "Arrival to last token.", _E2E)
        self._prompts = Histogram("request_prompt_tokens", "Prompt length.", _TOKENS)
        self._outputs = Histogram("request_generation_tokens", "Output length.", _TOKENS)
        self._step = Histogram("step_duration_seconds", "One engine step.", _STEP)
        self._predicted = Histogram("step_predicted_seconds", "Predicted step time.", _STEP)
        self._ratio = Histogram(
            "step_prediction_ratio", "Actual step time over the predicted one.", _RATIO
        )
        self._step_tokens = Histogram("step_tokens", "Tokens of a step.", _STEP_TOKENS)
        self._budget = Histogram(
            "step_token_budget", "Tokens that a step might have, where it is limited.", _STEP_TOKENS
        )
        self._used = Histogram(
            "step_token_budget_used_ratio", "Share of a step's token budget that was used.", _SHARE
        )
        self._chunks = Histogram(
            "prefill_chunk_tokens", "Prompt tokens that one sequence got from a step.", _STEP_TOKENS
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def received(self, num_requests: int) -> None:
        """Count requests that were taken."""
        self._counts["request_received"] += num_requests

    def scheduled(self, timeline: Timeline) -> None:
        """Note that a request is in its first step."""
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

    def next_tokens(self, since_last: Sequence[float]) -> None:
        """Note the gaps before tokens that are not the first, those of one step."""
        self._itl.observe_all(since_last)

    def finished(self, timeline: Timeline, now: float) -> None:
        """Note that a request ended well."""
        self._counts["request_success"] += 1
        self._outputs.observe(timeline.num_tokens)
        self._e2e.observe(now - timeline.arrived)
        if timeline.tpot is not None:
            self._tpot.observe(timeline.tpot)

    def failed(self, num_requests: int = 1) -> None:
        """Note that requests died."""
        self._counts["request_failed"] += num_requests

    def aborted(self) -> None:
        """Note that a client left its request."""
        self._counts["request_aborted"] += 1

    def expired(self) -> None:
        """Note that a request was not done by its deadline."""
        self._counts["request_expired"] += 1

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

    def state(self, stats: EngineStats, waited_s: Mapping[Reason, float] = _NO_WAITS) -> None:
        """Note queues and cache as they are after a step.

        Args:
            stats: The engine's.
            waited_s: Request-seconds by what was waited for; it may go on growing, but gets no
                more keys.
        """
        self._stats = stats
        self._waited_s = waited_s

    def text(self) -> bytes:
        """All series in Prometheus' text format; on any thread."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All series, made of the counts of this moment."""
        for name, text in _COUNTERS.items():
            yield self._counter(name, text, self._counts[name])
        for histogram in self._histograms():
            yield histogram.family(self._model)
        yield self._labelled(
            "request_wait_seconds",
            "Request-seconds spent waiting, by the reason of the first in line.",
            "reason",
            {reason.value: seconds for reason, seconds in self._waited_s.items()},
        )
        if self._stats is not None:
            yield from self._state(self._stats)

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
        yield self._counter(
            "prefix_cache_queried_tokens",
            "Tokens of the admitted sequences, looked up in the prefix cache.",
            stats.num_queried_tokens,
        )
        yield self._counter(
            "prefix_cache_hit_tokens",
            "Looked-up tokens found in the prefix cache.",
            stats.num_hit_tokens,
        )
        if stats.tpot_pace is not None:
            yield self._gauge(
                "tpot_pace_ratio",
                "Share of the TPOT target that decode rows are paced by.",
                stats.tpot_pace,
            )

    def _queues(self, stats: EngineStats) -> Iterator[Metric]:
        yield self._gauge(
            "num_requests_running", "Sequences that hold KV blocks.", stats.num_running
        )
        yield self._gauge(
            "num_requests_waiting", "Sequences that wait for KV blocks.", stats.num_waiting
        )
        yield self._gauge(
            "num_requests_swapped", "Sequences whose KV blocks are on the host.", stats.num_swapped
        )
        yield self._counter(
            "num_preemptions", "Times that a sequence lost its KV blocks.", stats.num_preemptions
        )
        yield self._labelled(
            "preemptions",
            "Preemptions by kind: blocks recomputed, or swapped to the host.",
            "kind",
            {"recompute": stats.num_preemptions - stats.num_swaps, "swap": stats.num_swaps},
        )

    def _blocks(self, stats: EngineStats) -> Iterator[Metric]:
        num_held = stats.num_kv_blocks - stats.num_free_kv_blocks
        num_held_on_host = stats.num_host_blocks - stats.num_free_host_blocks
        yield self._gauge(
            "kv_cache_usage_ratio",
            "Share of KV blocks that sequences hold, 0 to 1.",
            num_held / max(1, stats.num_kv_blocks),
        )
        yield self._gauge("kv_cache_blocks", "KV blocks of the replica.", stats.num_kv_blocks)
        by_state = GaugeMetricFamily(
            "tandem_kv_cache_blocks_by_state",
            "KV blocks that are free and empty, free and cached, or held by sequences.",
            labels=["model_name", "state"],
        )
        num_empty = stats.num_free_kv_blocks - stats.num_cached_kv_blocks
        by_state.add_metric([self._model, "free"], num_empty)
        by_state.add_metric([self._model, "cached"], stats.num_cached_kv_blocks)
        by_state.add_metric([self._model, "held"], num_held)
        yield by_state
        yield self._counter(
            "kv_cache_evictions", "Cached KV blocks that were evicted.", stats.num_evicted_blocks
        )
        yield self._gauge("host_cache_blocks", "KV blocks in host memory.", stats.num_host_blocks)
        yield self._gauge(
            "host_cache_usage_ratio",
            "Share of host blocks that swapped sequences hold, 0 to 1.",
            num_held_on_host / max(1, stats.num_host_blocks),
        )

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"tandem_{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"tandem_{name}", text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _labelled(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        """A counter with one more label."""
        family = CounterMetricFamily(f"tandem_{name}", text, labels=["model_name", label])
        for value, number in values.items():
            family.add_metric([self._model, value], number)
        return family
