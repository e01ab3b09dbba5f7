"""The highest rate that a replica carries within its targets, by serving its load in virtual time.

The production scheduler serves requests of the lengths that were asked about, at one rate after the
other, on a machine whose steps take what the replica's own model says. A formula of mean lengths
(`scheduler.latency.capacity`) cannot do it: where some prompts are much longer than the others it
says too little while they are few, and nearly twice too much when they are many.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle, islice, repeat
from math import inf, sqrt
from typing import Final

from tandem_engine.api.step import Step
from tandem_engine.async_engine.capacity_question import (
    CapacityQuestion,
    MeasuredCapacity,
    RequestLengths,
)
from tandem_engine.scheduler.latency.capacity import RequestShape, one_at_a_time
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import StepPrices
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.random_numbers import RandomNumbers
from tandem_engine.simulate.replica import Progress
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.workload import Arrival, Shape, clip_shape

NUM_REQUESTS: Final = 192
"""Judged in a trial, at least: the share that keeps the targets is known to about two per cent."""

_MOST_STEPS: Final = 6_000
"""Of a trial, about a second of a core; what it has seen by then is judged."""
_WARM_UP_REQUESTS: Final = 64
_WARM_UP_STAYS: Final = 2.0
"""Mean stays after which a replica is taken to be as it would be for ever."""
_MOST_WARM_UP_REQUESTS: Final = 4096
"""If none of them ever comes to an end, they come too fast."""
_GENERATIONS: Final = 4
"""As many requests are judged as are in process, this many times."""
_MAY_GROW: Final = 0.07
"""Share of the judged requests by which the queue may have grown, where chance does not do more."""
_CHECK_EVERY: Final = 32
_PRECISION: Final = 1.05
"""A rate that breaks the targets over one that keeps them, at the end of the search."""
_STRIDES: Final = (1.15, 1.3, 1.6)
"""Factors by which the search goes away from its guess; the last one is repeated."""
_MOST_TRIALS: Final = 40
"""From a guess that is a million times too low. Steps that take no time end no search else."""
_LEAST_SHARE: Final = 0.01
"""Of the guess: where less than it breaks the targets, nothing keeps them."""


def measure_capacity(
    question: CapacityQuestion, make_rng: Callable[[], RandomNumbers]
) -> MeasuredCapacity:
    """Search the highest rate at which enough requests keep all targets, and no queue grows.

    `make_rng` returns the same random numbers each time: trials differ by their rate alone.
    """
    rng = make_rng()
    requests = sorted(question.requests, key=lambda _: rng.random())
    low, high, concurrency = 0.0, inf, 0.0
    guess = question.guess or one_at_a_time(question.prices, RequestShape.mean_of(requests))
    rate, strides = guess, chain(_STRIDES, repeat(_STRIDES[-1]))
    room = question.num_blocks * question.schedule.cache_block_size
    for _ in range(_MOST_TRIALS):
        if high <= max(low * _PRECISION, guess * _LEAST_SHARE):
            break
        trial = _Trial(question, _PricedMachine(question.prices, requests, make_rng()))
        if trial.keeps_targets(_arrivals(requests, rate, room, make_rng())):
            low, concurrency = rate, trial.concurrency
        else:
            high = rate
        if low and high < inf:
            rate = sqrt(low * high)
        else:
            rate = rate * next(strides) if low else rate / next(strides)
    return MeasuredCapacity(requests_per_s=low, concurrency=concurrency)


def _arrivals(
    requests: Sequence[RequestLengths], rate: float, room: int, rng: RandomNumbers
) -> Iterator[Arrival]:
    """Yield Poisson arrivals of the requests, again and again.

    One that still runs has the length of another's answer: together they may be more tokens than
    the KV cache has `room` for, and would wait for ever.
    """
    now = 0.0
    for each in cycle(requests):
        now += rng.expovariate(rate)
        shape = Shape(max(1, each.prompt - each.cached), max(1, each.output))
        yield Arrival(now, clip_shape(shape, room))


class _PricedMachine:
    """Takes for a step what a replica's model says, more or less.

    Prompts of a trial have no cached prefix; what reading it costs is added here.
    """

    def __init__(
        self, prices: StepPrices, requests: Sequence[RequestLengths], rng: RandomNumbers
    ) -> None:
        self._prices, self._rng, self._noise = prices, rng, Noise()
        self._cached = [each.cached for each in requests]

    def seconds(self, step: Step) -> float:
        """Seconds of the step."""
        names, tokens, num_decodes = step.sequence_ids, step.num_tokens, step.num_decodes
        starts = [
            start + self._cached_of(name) for name, start in zip(names, step.starts, strict=True)
        ]
        load = StepLoad(
            num_tokens=sum(tokens),
            num_rows=len(tokens),
            chunk_context=sum(
                tokens[row] * (starts[row] + tokens[row] / 2.0)
                for row in range(num_decodes, len(tokens))
            ),
            decode_context=sum(starts[:num_decodes]),
        )
        return self._prices.predict(load) * self._noise.factor(self._rng)

    def _cached_of(self, sequence_id: str) -> int:
        # A SchedulerReplica calls its requests r0, r1 and so on.
        return self._cached[int(sequence_id[1:]) % len(self._cached)]


class _Trial:
    """Requests at one rate on a replica of their own."""

    def __init__(self, question: CapacityQuestion, machine: _PricedMachine) -> None:
        slo = question.slo
        # All prompts are of one token, and would be found in the cache.
        schedule = question.schedule.model_copy(update={"enable_prefix_cache": False})
        self._replica = SchedulerReplica(schedule, slo, machine, num_blocks=question.num_blocks)
        given = [target for target in (slo.ttft, slo.tpot) if target is not None]
        self._may_miss = 1.0 - min(target.percentile for target in given) / 100.0
        self._ttft_s = inf if slo.ttft_s is None else slo.ttft_s
        self._tpot_s = inf if slo.tpot_s is None else slo.tpot_s
        self._num_arrived = self._num_ended = 0
        self._stays_s = 0.0
        # When the last request came that is not judged; of the others, those with a first token,
        # and those that missed a target.
        self._since = inf
        self._num_begun = self._num_missed = 0
        self.concurrency = 0.0
        """Requests in process or waiting, on average, while others are judged."""

    def keeps_targets(self, arrivals: Iterator[Arrival]) -> bool:
        """Serve a load; False as soon as it is known that it is too much."""
        return self._becomes_steady(arrivals) and self._stays_steady(arrivals)

    def _becomes_steady(self, arrivals: Iterator[Arrival]) -> bool:
        most_steps = _MOST_STEPS // 4
        for arrival in islice(arrivals, _MOST_WARM_UP_REQUESTS):
            self._run_until(arrival.due_s, most_steps)
            self._submit(arrival)
            if self._replica.num_steps >= most_steps or self._is_steady():
                self._since = arrival.due_s
                return True
        return False

    def _is_steady(self) -> bool:
        if min(self._num_arrived, self._num_ended) < _WARM_UP_REQUESTS:
            return False
        return self._replica.now >= _WARM_UP_STAYS * self._stays_s / self._num_ended

    def _stays_steady(self, arrivals: Iterator[Arrival]) -> bool:
        before = self._num_ongoing
        count = max(NUM_REQUESTS, _GENERATIONS * before)
        most_missed = self._may_miss * count
        ongoing = [before]
        for arrival in islice(arrivals, count):
            if not self._run_until(arrival.due_s, _MOST_STEPS, most_missed):
                return False
            if self._replica.num_steps >= _MOST_STEPS:
                break
            self._submit(arrival)
            ongoing.append(self._num_ongoing)
        self.concurrency = sum(ongoing) / len(ongoing)
        if self._num_ongoing - before > max(_MAY_GROW * len(ongoing), 2.0 * sqrt(before + 1)):
            return False
        if not self._run_until(inf, _MOST_STEPS, most_missed):
            return False
        num_late = self._num_late()
        return self._num_missed + num_late <= self._may_miss * (self._num_begun + num_late)

    @property
    def _num_ongoing(self) -> int:
        return self._num_arrived - self._num_ended

    def _submit(self, arrival: Arrival) -> None:
        self._replica.submit(arrival)
        self._num_arrived += 1

    def _run_until(self, time_s: float, most_steps: int, most_missed: float = inf) -> bool:
        """Compute the steps that begin before a time; False: too many have missed a target."""
        replica = self._replica
        while replica.next_step_s < time_s and replica.num_steps < most_steps:
            self._note(replica.step())
            is_due = replica.num_steps % _CHECK_EVERY == 0
            if is_due and self._num_missed + self._num_late() > most_missed:
                return False
        return True

    def _note(self, progress: Progress) -> None:
        for first in progress.first_tokens:
            if first.at_s - first.ttft_s > self._since:
                self._num_begun += 1
                self._num_missed += first.ttft_s > self._ttft_s
        for ended in progress.completions:
            self._num_ended += 1
            self._stays_s += ended.at_s - ended.arrived_s
            if ended.arrived_s > self._since and ended.ttft_s <= self._ttft_s:
                self._num_missed += (ended.tpot_s or 0.0) > self._tpot_s

    def _num_late(self) -> int:
        """Requests whose first token cannot come in time any more."""
        latest = self._replica.now - self._ttft_s
        return sum(self._since < each < latest for each in self._replica.waiting_since)
