"""Cost of the scheduler itself: CPU time of a step, and memory of a request.

The load is a steady one: so many requests run, so many wait, and for each that ends another comes.
Prompts are as long as is needed for the step to have chunks all the time. Virtual time moves by a
fixed step; only `schedule` and `complete` are timed, as CPU time of the thread, so that other
processes of the machine do not count. Garbage is collected as it is where an engine serves.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final

from benchmarks.serving.statistics import percentile
from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.async_engine.gc_threshold import raise_gc_threshold
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.records.records import Records
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner

_BLOCK: Final = 128
_PROMPT: Final = 384
_OUTPUTS: Final = (100, 150, 200, 250, 300)
_BLOCKS_PER_REQUEST: Final = 6
_STEP_S: Final = 0.03
_SHARED: Final = 128
_WARM_UP_STEPS: Final = 100
# A queue of thousands stands for minutes: most of those in it have missed the target TTFT long ago.
_QUEUED_FOR_S: Final = 60.0
_MILLISECONDS: Final = 1e3
_LARGEST_BUDGET: Final = 8192
_REFERENCE_LOOPS: Final = 100_000

SIZES: Final = ((64, 500), (256, 2_000), (512, 5_000), (1_024, 20_000))
"""Running and waiting requests; the second and the last have goals."""

GOALS_MS: Final[Mapping[tuple[int, int], float]] = MappingProxyType({
    (256, 2_000): 0.5,
    (1_024, 20_000): 2.0,
})  # fmt: skip
GOAL_BYTES: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to schedule."""

    name: str
    mixes: bool
    """SplitFuse; else the strategy continuous."""
    caches: bool
    """Prefix caching."""
    has_slo: bool
    """An SLO, which makes SplitFuse choose its budget."""

    def schedule(self, num_running: int) -> ScheduleConfig:
        """Settings for a batch of `num_running`."""
        chunks = max(1, num_running // 200) * 2 * _PROMPT
        budget = min(_LARGEST_BUDGET, -(-(num_running + chunks) // 16) * 16)
        if not self.mixes:
            return ScheduleConfig(
                max_batch_size=num_running,
                enable_prefix_cache=self.caches,
                max_queue_delay_microseconds=500,
            )
        return ScheduleConfig(
            template_type="Mix",
            max_batch_size=num_running,
            enable_prefix_cache=self.caches,
            split_fuse=SplitFuseConfig(split_chunk_tokens=budget, split_start_batch_size=0),
        )

    @property
    def slo(self) -> Slo:
        """A target that the load meets."""
        if not self.has_slo:
            return Slo()
        return Slo(ttft=LatencyTarget(target="5s"), tpot=LatencyTarget(target="100ms"))


SETTINGS: Final = (
    Setting(name="splitfuse", mixes=True, caches=False, has_slo=False),
    Setting(name="splitfuse, prefix cache", mixes=True, caches=True, has_slo=False),
    Setting(name="splitfuse, SLO", mixes=True, caches=False, has_slo=True),
    Setting(name="splitfuse, prefix cache, SLO", mixes=True, caches=True, has_slo=True),
    Setting(name="continuous", mixes=False, caches=False, has_slo=False),
    Setting(name="continuous, prefix cache", mixes=False, caches=True, has_slo=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """CPU time of `schedule` and `complete` together, in milliseconds a step."""

    setting: str
    num_running: int
    num_waiting: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    schedule_ms: float
    """`schedule` alone, on average."""
    complete_ms: float
    """`complete` alone, on average."""
    goal_ms: float | None
    steps: int
    mean_rows: float
    """Rows of a step, as they came out."""
    reference_ms: float
    """CPU time of the fixed loop, right after (`reference_ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost:
    """Memory of the scheduler, the prompts not counted, in bytes a request."""

    setting: str
    waiting_bytes: float
    """While it waits."""
    running_bytes: float
    """While it holds the blocks of a prompt of 1,280 tokens; the ring of the last steps' records,
    which does not grow with them, is left out."""


def measure_step(setting: Setting, num_running: int, num_waiting: int, *, steps: int) -> StepCost:
    """Time `steps` steps of a steady load."""
    raise_gc_threshold()
    bench = _Bench(setting, num_running)
    bench.fill(num_running, num_waiting)
    for _ in range(_WARM_UP_STEPS):
        bench.step()
    gc.collect()
    bench.forget_times()
    for _ in range(steps):
        bench.step()
    both = sorted(map(sum, zip(bench.schedule_s, bench.complete_s, strict=True)))
    return StepCost(
        setting=setting.name,
        num_running=num_running,
        num_waiting=num_waiting,
        mean_ms=sum(both) / len(both) * _MILLISECONDS,
        p50_ms=percentile(both, 50) * _MILLISECONDS,
        p99_ms=percentile(both, 99) * _MILLISECONDS,
        schedule_ms=sum(bench.schedule_s) / steps * _MILLISECONDS,
        complete_ms=sum(bench.complete_s) / steps * _MILLISECONDS,
        goal_ms=GOALS_MS.get((num_running, num_waiting)),
        steps=steps,
        mean_rows=bench.num_rows / steps,
        reference_ms=reference_ms(),
    )


def measure_memory(setting: Setting, *, count: int = 1_000, prompt: int = 1_280) -> MemoryCost:
    """Count the bytes that the scheduler takes for each of `count` requests."""
    requests = list(islice(_requests(prompt), count))
    waiting = _traced(lambda: _waiting(setting, requests))
    # The pool is there before the first request, and is as large as the memory is.
    pool = _pool_for(requests)
    running = _traced(lambda: _running(setting, requests, pool))
    return MemoryCost(
        setting=setting.name, waiting_bytes=waiting / count, running_bytes=running / count
    )


def reference_ms() -> float:
    """CPU time of a fixed loop, which shows how slow the machine is at this hour.

    A machine whose cores are shared gives a process the same CPU seconds with less done in them.
    """
    begin = time.thread_time()
    total = 0
    for number in range(_REFERENCE_LOOPS):
        total += number * number
    return (time.thread_time() - begin) * _MILLISECONDS


class _Bench:
    """A scheduler with a steady load."""

    def __init__(self, setting: Setting, num_running: int) -> None:
        self.scheduler = _scheduler(setting, num_running)
        self._runner = CountingRunner(block_size=_BLOCK, checks=False)
        self._coming = _requests(_PROMPT)
        self._now = 0.0
        self.schedule_s: list[float] = []
        self.complete_s: list[float] = []
        self.num_rows = 0

    def fill(self, num_running: int, num_waiting: int) -> None:
        """Let `num_running` requests decode and `num_waiting` wait."""
        for _ in range(num_running):
            self._add()
        while self.scheduler.stats().num_waiting:
            self.step()
        for _ in range(num_waiting):
            self._add()
        self._now += _QUEUED_FOR_S

    def forget_times(self) -> None:
        """Drop the times so far."""
        self.schedule_s, self.complete_s, self.num_rows = [], [], 0

    def step(self) -> None:
        """Compute a step, and let a request come for each that ended."""
        begin = time.thread_time()
        step = self.scheduler.schedule(self._now)
        middle = time.thread_time()
        result = self._runner.run(step)
        self._now += _STEP_S
        again = time.thread_time()
        self.scheduler.complete(step, result, self._now)
        end = time.thread_time()
        self.schedule_s.append(middle - begin)
        self.complete_s.append(end - again)
        self.num_rows += len(step.sequence_ids)
        for sequence_id in self.scheduler.take_ended():
            self._runner.remove(sequence_id)
            self._add()

    def _add(self) -> None:
        request = next(self._coming)
        self._runner.add(request)
        self.scheduler.add(_arriving(request, self._now))


def _scheduler(setting: Setting, num_running: int) -> Scheduler:
    pool = BlockPool((num_running + 4) * _BLOCKS_PER_REQUEST, _BLOCK)
    return Scheduler(setting.schedule(num_running), pool, slo=setting.slo)


def _requests(prompt: int) -> Iterator[Request]:
    number = 0
    while True:
        output = _OUTPUTS[number % len(_OUTPUTS)]
        # A shared block at the beginning, the rest of their own: the prefix cache has work.
        own = tuple(range(number * 7, number * 7 + prompt - _SHARED))
        yield Request(
            request_id=f"r{number}",
            prompt_token_ids=(*range(_SHARED), *own),
            sampling=SamplingParams(max_tokens=output),
            max_new_tokens=output,
        )
        number += 1


def _arriving(request: Request, now: float) -> Request:
    return Request(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling=request.sampling,
        max_new_tokens=request.max_new_tokens,
        arrived=now,
    )


def _waiting(setting: Setting, requests: Sequence[Request]) -> Scheduler:
    scheduler = _scheduler(setting, 16)
    for request in requests:
        scheduler.add(request)
    return scheduler


def _pool_for(requests: Sequence[Request]) -> BlockPool:
    longest = max(len(request.prompt_token_ids) + request.max_new_tokens for request in requests)
    return BlockPool(len(requests) * (-(-longest // _BLOCK) + 1), _BLOCK)


def _running(setting: Setting, requests: Sequence[Request], pool: BlockPool) -> Scheduler:
    """All of them run and decode; the records of the steps so far are left out."""
    schedule = setting.schedule(len(requests))
    scheduler = Scheduler(schedule, pool, slo=setting.slo)
    runner = CountingRunner(block_size=_BLOCK, checks=False)
    for request in requests:
        runner.add(request)
        scheduler.add(request)
    now = 0.0
    for _ in range(1_000):
        stats = scheduler.stats()
        if not stats.num_waiting:
            break
        step = scheduler.schedule(now)
        now += _STEP_S
        scheduler.complete(step, runner.run(step), now)
    scheduler.records = Records()
    return scheduler


def _traced(make: Callable[[], Scheduler]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        kept = make()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    return size
