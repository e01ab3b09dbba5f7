"""What Prometheus learns of one engine. Names and buckets are MindIE's, with `tandem_` in front.

TTFT, TPOT and queue time are per request, ITL per token; all begin when the engine takes the
request, so they hold no network time.
"""

from collections.abc import Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from tandem_engine.api.output import EngineStats
from tandem_engine.front.timeline import Timeline

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


class EngineMetrics:
    """One engine's series in a registry of their own; the only label is the model's name."""

    def __init__(self, model_name: str) -> None:
        # They are a second series for each counter and histogram, of no use here.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no type there
        self._registry = CollectorRegistry()
        self._model = model_name
        self._received = self._counter("request_received", "Requests taken.")
        self._success = self._counter("request_success", "Requests finished.")
        self._failed = self._counter("request_failed", "Requests that died while running.")
        self._aborted = self._counter("request_aborted", "Requests that their client left.")
        self._preemptions = self._counter("num_preemptions", "Requests that lost their KV blocks.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished prefills.")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._running = self._gauge("num_requests_running", "Requests that hold KV blocks.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for KV blocks.")
        self._usage = self._gauge("kv_cache_usage_ratio", "Share of KV blocks in use, 0 to 1.")
        self._blocks = self._gauge("kv_cache_blocks", "KV blocks of the replica.")
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to first step.", _TTFT)
        self._ttft = self._histogram("time_to_first_token_seconds", "TTFT.", _TTFT)
        self._tpot = self._histogram("time_per_output_token_seconds", "TPOT of a request.", _TPOT)
        self._itl = self._histogram("inter_token_latency_seconds", "Token to token.", _TPOT)
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _E2E)
        self._step = self._histogram("step_duration_seconds", "One engine step.", _STEP)
        self._step_tokens = self._histogram("step_tokens", "Tokens of a step.", _STEP_TOKENS)
        self._prompts = self._histogram("request_prompt_tokens", "Prompt length.", _TOKENS)
        self._outputs = self._histogram("request_generation_tokens", "Output length.", _TOKENS)
        self._known_preemptions = 0

    def received(self, num_requests: int) -> None:
        """Count requests that were taken."""
        self._received.inc(num_requests)

    def scheduled(self, timeline: Timeline) -> None:
        """Note that a request is in its first step."""
        if timeline.queue_time is not None:
            self._queue.observe(timeline.queue_time)

    def first_token(self, timeline: Timeline, num_prompt_tokens: int) -> None:
        """Note that a prompt is done."""
        self._prompt_tokens.inc(num_prompt_tokens)
        self._prompts.observe(num_prompt_tokens)
        if timeline.ttft is not None:
            self._ttft.observe(timeline.ttft)

    def next_token(self, since_last: float) -> None:
        """Note the gap before a token that is not the first."""
        self._itl.observe(since_last)

    def finished(self, timeline: Timeline, now: float) -> None:
        """Note that a request ended well."""
        self._success.inc()
        self._outputs.observe(timeline.num_tokens)
        self._e2e.observe(now - timeline.arrived)
        if timeline.tpot is not None:
            self._tpot.observe(timeline.tpot)

    def failed(self) -> None:
        """Note that a request died."""
        self._failed.inc()

    def aborted(self) -> None:
        """Note that a client left its request."""
        self._aborted.inc()

    def step(self, *, duration: float, num_tokens: int, num_sampled: int) -> None:
        """Note one step."""
        self._step.observe(duration)
        self._step_tokens.observe(num_tokens)
        self._generation_tokens.inc(num_sampled)

    def state(self, stats: EngineStats) -> None:
        """Note queues and cache as they are after a step."""
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._blocks.set(stats.num_kv_blocks)
        self._usage.set(1.0 - stats.num_free_kv_blocks / max(1, stats.num_kv_blocks))
        self._preemptions.inc(stats.num_preemptions - self._known_preemptions)
        self._known_preemptions = stats.num_preemptions

    def text(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        family = Counter(f"tandem_{name}", text, ["model_name"], registry=self._registry)
        return family.labels(self._model)

    def _gauge(self, name: str, text: str) -> Gauge:
        family = Gauge(f"tandem_{name}", text, ["model_name"], registry=self._registry)
        return family.labels(self._model)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(
            f"tandem_{name}", text, ["model_name"], registry=self._registry, buckets=buckets
        )
        return family.labels(self._model)
