"""The same comparison on a real model, in this process and in real time.

Each repeat serves the same load with every policy, one after the other, in an order that turns
round from repeat to repeat; ratios are taken within a repeat, since a machine that others use too
is not the same one a minute later.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from benchmarks.scheduling.capacity import Run, figures
from benchmarks.scheduling.policies import Policy, policies_for, static
from benchmarks.scheduling.trial import Trial
from benchmarks.scheduling.workload import at_rate
from benchmarks.serving.outcome import Outcome
from benchmarks.serving.settings import LatencyTargets
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.registry import open_device
from tandem_engine.engine import Engine
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.model.decoder import Decoder, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.runner.executor import LocalExecutor
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.simulate.workload import Arrival, Shape

_BLOCK: Final = 128
_PATIENCE: Final = 3.0
"""A run is broken off after so many times the span of its arrivals."""
_IDLE_S: Final = 0.001
_CALIBRATION: Final = 24
"""Requests that are sent all at once to find out what the machine can do."""


class Bench:
    """A model that serves loads, each with a fresh scheduler.

    Args:
        folder: The checkpoint.
        num_blocks: KV blocks of 128 tokens.
        num_threads: Compute threads.
    """

    def __init__(self, folder: Path, *, num_blocks: int, num_threads: int) -> None:
        self._runtime = open_device("cpu")
        self._runtime.set_num_threads(num_threads)
        self._decoder: Decoder = load_decoder(folder, runtime=self._runtime)
        self._runtime.begin_steps()
        self._num_blocks = num_blocks
        self._kv_cache = allocate_kv_cache(
            self._decoder.cache_layout(_BLOCK), num_blocks=num_blocks, device=self._decoder.device
        )

    @property
    def max_seq_len(self) -> int:
        """Longest prompt and answer together."""
        return min(self._decoder.max_positions, self._num_blocks * _BLOCK // 4)

    def engine(self, policy: Policy) -> Engine:
        """An engine that has seen nothing."""
        executor = LocalExecutor(self._decoder, self._kv_cache)
        runner = ModelRunner(executor, runtime=self._runtime, block_size=_BLOCK)
        pool = BlockPool(self._num_blocks, _BLOCK)
        return Engine(Scheduler(policy.schedule, pool, slo=policy.slo), runner)

    def requests(self, load: Sequence[Arrival]) -> Iterator[Request]:
        """The load with prompts by chance; answers have the length that the load says."""
        rng = Random(0)  # noqa: S311  # load, not secrets
        vocabulary = self._decoder.config.vocab_size
        for number, arrival in enumerate(load):
            shape = arrival.shape
            yield Request(
                request_id=f"r{number}",
                prompt_token_ids=tuple(rng.choices(range(vocabulary), k=shape.num_input)),
                sampling=SamplingParams(max_tokens=shape.num_output, temperature=0.0),
                max_new_tokens=shape.num_output,
                arrived=arrival.due_s,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Capacity of the machine."""

    requests_per_s: float
    """Of the load, all at once, with a static chunk of 512."""
    tpot_s: float
    """Median TPOT then."""


def calibrate(bench: Bench, load: Sequence[Arrival]) -> Calibration:
    """Send the first requests of a load all at once; it also warms the kernels up."""
    burst = [Arrival(0.0, arrival.shape) for arrival in load[:_CALIBRATION]]
    # Once for first-use costs, once to be measured.
    serve(bench, static(512), burst[:4], patience_s=60.0)
    outcomes, wall_s = serve(bench, static(512), burst, patience_s=120.0)
    paces = [outcome.tpot_s for outcome in outcomes if outcome.tpot_s is not None]
    return Calibration(
        requests_per_s=len(outcomes) / wall_s, tpot_s=median(paces) if paces else wall_s
    )


def compare_policies(
    bench: Bench,
    load: Sequence[Arrival],
    targets: LatencyTargets,
    *,
    chunks: Sequence[int],
    capacity: float,
    shares: Sequence[float],
    repeats: int,
    note: Callable[[Trial], None],
) -> list[Trial]:
    """Serve the load at shares of the capacity (requests/s) with every policy, `repeats` times.

    Args:
        bench: The model.
        load: The requests.
        targets: Latency targets of every request.
        chunks: Static chunks that compare_policies.
        capacity: Requests a second that the machine can do.
        shares: Loads, as shares of it.
        repeats: Number of repeats.
        note: Called with each trial as it ends.
    """
    trials: list[Trial] = []
    for repeat in range(repeats):
        order = policies_for(targets, chunks)
        if repeat % 2:
            order.reverse()
        for share in shares:
            for policy in order:
                run = _measure(bench, policy, load, targets, rate=share * capacity)
                trial = Trial(
                    policy=policy.name,
                    is_static=policy.is_static,
                    repeat=repeat,
                    load_share=share,
                    run=run,
                )
                trials.append(trial)
                note(trial)
    return trials


def serve(
    bench: Bench, policy: Policy, load: Sequence[Arrival], *, patience_s: float
) -> tuple[list[Outcome], float]:
    """Serve a load in real time; return the requests that ended, and the seconds that it took."""
    engine = bench.engine(policy)
    coming = list(bench.requests(load))
    coming.reverse()
    recorder = _Recorder({f"r{number}": arrival.shape for number, arrival in enumerate(load)})
    begin = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - begin

    while (coming or engine.has_work) and clock() < patience_s:
        while coming and coming[-1].arrived <= clock():
            request = coming.pop()
            recorder.arrived[request.request_id] = request.arrived
            engine.add(request)
        if not engine.has_work:
            time.sleep(max(0.0, coming[-1].arrived - clock()))
            continue
        progress = engine.step(clock)
        if progress.failed:
            raise RuntimeError(f"the engine failed: {next(iter(progress.failed.values()))}")
        now = clock()
        for advance in progress.advances:
            recorder.note(advance.sequence_id, now, ended=advance.finish_reason is not None)
        if not progress.step.sequence_ids:
            time.sleep(_IDLE_S)
    return recorder.outcomes, clock()


class _Recorder:
    def __init__(self, shapes: dict[str, Shape]) -> None:
        self._shapes = shapes
        self.arrived: dict[str, float] = {}
        self._firsts: dict[str, float] = {}
        self.outcomes: list[Outcome] = []

    def note(self, name: str, now: float, *, ended: bool) -> None:
        first = self._firsts.setdefault(name, now)
        if ended:
            self.outcomes.append(
                Outcome(
                    shape=self._shapes[name],
                    due_s=self.arrived[name],
                    end_s=now,
                    event_times_s=(first, now),
                )
            )


def _measure(
    bench: Bench, policy: Policy, load: Sequence[Arrival], targets: LatencyTargets, *, rate: float
) -> Run:
    timed = at_rate(load, rate)
    outcomes, wall_s = serve(bench, policy, timed, patience_s=_PATIENCE * timed[-1].due_s)
    return figures(outcomes, targets, rate=rate, wall_s=wall_s, num_requests=len(load))
