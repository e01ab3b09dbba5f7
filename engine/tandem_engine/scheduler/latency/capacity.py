"""The load that a replica can carry within its latency targets, by its own step-time model; pure.

A fluid model of mixed steps in steady state. Requests arrive at rate λ with P prompt and O answer
tokens. By Little's law λ · (O − 1) · τ rows decode at a step time τ, and each request adds work W,
the seconds by which all of its tokens make steps longer, so τ = base / (1 − λ · W). Prompts queue
for what the TPOT target leaves of the steps; their wait is that of an M/G/1 queue. The highest λ
is sought at which step time, rows, KV blocks and the time to the first token keep their limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, log, sqrt
from typing import Final

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import Slo
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import StepPrices

SPREADS: Final = 1.28
"""Standard deviations above their mean that rows must fit with: about nine times in ten they do.

Rows share steps, so more of them stay longer: with a step time linear in the rows their number is
negative binomial, with 1 / (1 − λ · W) times the variance of a Poisson number.
"""

_LEAST_WORK_S: Final = 1e-9
"""Of a request, where a fit finds that nothing but the step itself costs."""

_HALVINGS: Final = 30
"""Of the interval in which the rate lies: it is known to a billionth of the upper limit."""


class CapacityBound(StrEnum):
    """The limit that a higher rate would break."""

    TTFT = "ttft"
    TPOT = "tpot"
    BATCH_SIZE = "batch_size"
    KV_BLOCKS = "kv_blocks"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """Mean lengths of requests, in tokens."""

    prompt: float
    """Of the prompt."""
    output: float
    """Of the answer; at least 1."""
    computed: float
    """Of the prompt, without what the prefix cache has."""
    pairs: float
    """Pairs of a computed prompt token and a token that it attends to: computed² / 2 for prompts
    of one length without a prefix, more where lengths vary."""
    context: float
    """Cached tokens that a decode row reads: prompt + output / 2 for answers of one length."""
    spread: float = 1.0
    """Mean square over squared mean of the prompts; 1: all are alike."""

    @classmethod
    def of(cls, prompt: float, output: float) -> "RequestShape":
        """Return the shape of requests that are all alike and share no prefix."""
        return cls(
            prompt=prompt,
            output=output,
            computed=prompt,
            pairs=prompt * prompt / 2.0,
            context=prompt + output / 2.0,
        )

    @classmethod
    def mean_of(cls, lengths: Sequence[tuple[int, int, int]]) -> "RequestShape":
        """Return the means of one request or more.

        Args:
            lengths: Tokens of a prompt, those of them that the prefix cache has, and of its answer.
        """
        num_requests = len(lengths)
        num_decodes = sum(output - 1 for _, _, output in lengths)
        read = sum((output - 1) * (prompt + output / 2) for prompt, _, output in lengths)
        pairs = sum((n - cached) * (cached + (n - cached) / 2) for n, cached, _ in lengths)
        prompt = sum(n for n, _, _ in lengths) / num_requests
        return cls(
            prompt=prompt,
            output=sum(output for _, _, output in lengths) / num_requests,
            computed=prompt - sum(cached for _, cached, _ in lengths) / num_requests,
            pairs=pairs / num_requests,
            context=read / num_decodes if num_decodes else prompt,
            spread=sum(n * n for n, _, _ in lengths) / num_requests / prompt**2,
        )

    @property
    def num_decodes(self) -> float:
        """Steps as a decode row; the first token comes with the prompt's last step."""
        return max(0.0, self.output - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """Limits of a replica that a load must stay within."""

    max_rows: int
    """maxBatchSize."""
    max_tokens: int
    """Tokens of a step at most: splitChunkTokens, or maxPrefillTokens where stages do not mix."""
    num_blocks: int
    block_size: int
    mixes: bool = True
    """True where decodes and prompt chunks share steps."""

    @classmethod
    def of(cls, schedule: ScheduleConfig, num_blocks: int) -> "ReplicaLimits":
        """Return the limits that a schedule in force sets."""
        mixes = schedule.batching == "splitfuse"
        split = schedule.split_fuse.split_chunk_tokens
        return cls(
            max_rows=schedule.max_batch_size,
            max_tokens=split if mixes else schedule.max_prefill_tokens,
            num_blocks=num_blocks,
            block_size=schedule.cache_block_size,
            mixes=mixes,
        )


@dataclass(frozen=True, slots=True)
class PredictedCapacity:
    """The highest arrival rate that keeps all targets."""

    requests_per_s: float
    """0: not even a single request keeps them."""
    bound_by: CapacityBound
    """The limit that a higher rate would break."""
    concurrency: float
    """Requests in process or waiting at that rate, on average; 0 where the rate is."""


def zero_load_ttft_s(prices: StepPrices, shape: RequestShape, limits: ReplicaLimits) -> float:
    """Return the TTFT of a mean request that has the replica for itself, in seconds.

    Its prompt is computed in steps of `max_tokens`, with nothing beside it.
    """
    left = max(1, round(shape.computed))
    seconds, start = 0.0, max(0, round(shape.prompt) - left)
    while left > 0:
        chunk = min(left, limits.max_tokens)
        load = StepLoad(
            num_tokens=chunk,
            num_rows=1,
            chunk_context=chunk * (start + chunk / 2.0),
            decode_context=0,
        )
        seconds += prices.predict(load)
        left, start = left - chunk, start + chunk
    return seconds


def zero_load_tpot_s(prices: StepPrices, shape: RequestShape) -> float:
    """Return the TPOT of a mean request that has the replica for itself, in seconds."""
    load = StepLoad(
        num_tokens=1, num_rows=1, chunk_context=0.0, decode_context=round(shape.context)
    )
    return prices.predict(load)


def one_at_a_time(prices: StepPrices, shape: RequestShape) -> float:
    """Return the requests a second of a replica that computes one after the other; above 0."""
    stay_s = prices.predict(
        StepLoad(
            num_tokens=round(shape.computed),
            num_rows=1,
            chunk_context=shape.pairs,
            decode_context=0,
        )
    ) + shape.num_decodes * zero_load_tpot_s(prices, shape)
    return 1.0 / max(stay_s, _LEAST_WORK_S)


def capacity(
    prices: StepPrices, shape: RequestShape, limits: ReplicaLimits, slo: Slo, *, pace: float = 1.0
) -> PredictedCapacity:
    """Return the highest rate of requests of one shape that is predicted to keep the targets.

    Args:
        prices: The replica's model of step times.
        shape: Mean lengths of the requests.
        limits: Limits of the replica.
        slo: The targets; a missing one is kept by any queue that does not grow without end.
        pace: Share of the TPOT target that steps may take.
    """
    load = _Load(prices, shape, limits, slo, pace)
    broken = load.broken_at_rest()
    if broken is not None:
        return PredictedCapacity(0.0, broken, 0.0)
    low, high = 0.0, load.highest_rate
    bound = CapacityBound.TTFT
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        broken = load.broken_at(middle)
        if broken is None:
            low = middle
        else:
            high, bound = middle, broken
    return PredictedCapacity(low, bound, load.concurrency_at(low))


class _Load:
    """One shape of requests on one replica, at any rate."""

    def __init__(
        self,
        prices: StepPrices,
        shape: RequestShape,
        limits: ReplicaLimits,
        slo: Slo,
        pace: float,
    ) -> None:
        self._prices, self._shape, self._limits = prices, shape, limits
        cost = self._cost = prices.coefficients
        self._ttft_limit_s = inf if slo.ttft_s is None else slo.ttft_s
        self._late = 1.0 - (90 if slo.ttft is None else slo.ttft.percentile) / 100.0
        """Share of requests that may miss the TTFT target."""
        self._tpot_s = inf if slo.tpot_s is None else pace * slo.tpot_s
        self._pair_s = cost.chunk_context * shape.pairs / max(1.0, shape.computed)
        """Attention of a prompt token."""
        num_chunks = max(1.0, shape.computed / limits.max_tokens)
        self._token_s = cost.token * (shape.computed + shape.num_decodes)
        self._other_s = (
            cost.chunk_context * shape.pairs
            + (cost.decode_context * shape.context + cost.row) * shape.num_decodes
            + cost.row * num_chunks
            + (0.0 if limits.mixes else cost.base * num_chunks)
        )

    @property
    def highest_rate(self) -> float:
        """Requests a second at which steps would never end."""
        return 1.0 / max(self._token_s + self._other_s, _LEAST_WORK_S)

    def broken_at_rest(self) -> CapacityBound | None:
        """Return the limit that a single request breaks."""
        shape, limits = self._shape, self._limits
        if shape.prompt + shape.output > limits.num_blocks * limits.block_size:
            return CapacityBound.KV_BLOCKS
        if zero_load_tpot_s(self._prices, shape) > self._tpot_s:
            return CapacityBound.TPOT
        return self.broken_at(0.0)

    def broken_at(self, rate: float) -> CapacityBound | None:
        """Return the limit that `rate` requests a second break; None: they keep all."""
        idle = 1.0 - rate * (self._token_s + self._other_s)
        if idle <= 0.0:
            return CapacityBound.TTFT if self._tpot_s == inf else CapacityBound.TPOT
        period = self._period_s(rate, idle)
        if period > self._tpot_s:
            return CapacityBound.TPOT
        rows = rate * self._shape.num_decodes * period
        broken = self._broken_by(rows + SPREADS * sqrt(rows / idle))
        is_late = self._ttft_s(rate, rows, period) > self._ttft_limit_s
        return CapacityBound.TTFT if broken is None and is_late else broken

    def concurrency_at(self, rate: float) -> float:
        """Return the mean number of requests in process or waiting at a rate that keeps the limits.

        By Little's law: the rate times the mean stay, a TTFT and the decode steps.
        """
        period = self._period_s(rate, 1.0 - rate * (self._token_s + self._other_s))
        rows = rate * self._shape.num_decodes * period
        service, own = self._prompt_s(rows)
        use = rate * service
        if not use < 1.0:
            # Without a TTFT target no wait is too long: as many as there are rows.
            return self._limits.max_rows
        wait = use * service * self._shape.spread / 2.0 / (1.0 - use)
        return rows + rate * (period / 2.0 + wait + own)

    def _broken_by(self, rows: float) -> CapacityBound | None:
        """Return the limit that a step of so many decode rows breaks."""
        if self._step_s(rows, 0.0) > self._tpot_s:
            return CapacityBound.TPOT
        if rows > self._limits.max_rows:
            return CapacityBound.BATCH_SIZE
        blocks = rows * (self._shape.context / self._limits.block_size + 0.5)
        return CapacityBound.KV_BLOCKS if blocks > self._limits.num_blocks else None

    def _period_s(self, rate: float, idle: float) -> float:
        """Return the mean step time: the fixed point of τ = base + rate · τ · work.

        Below the knee tokens cost as many as the knee has, above it their own; the larger holds.
        """
        cost = self._cost
        at_knee = cost.base + cost.token * self._prices.knee
        return max(cost.base / idle, at_knee / (1.0 - rate * self._other_s))

    def _step_s(self, rows: float, chunk: float) -> float:
        """Return the time of a step of decode rows and prompt tokens."""
        cost = self._cost
        return (
            cost.base
            + cost.token * max(rows + chunk, self._prices.knee)
            + self._pair_s * chunk
            + (cost.decode_context * self._shape.context + cost.row) * rows
            + (cost.row if chunk else 0.0)
        )

    def _chunk(self, rows: float) -> float:
        """Return the prompt tokens that fit into a step beside so many decode rows."""
        if not self._limits.mixes:
            return self._limits.max_tokens
        cost, limit_s = self._cost, self._tpot_s
        most = self._limits.max_tokens - rows
        if limit_s == inf:
            return most
        left_s = limit_s - self._step_s(rows, 0.0) - cost.row
        free = max(0.0, self._prices.knee - rows)
        if cost.token > 0.0:
            most = min(most, (left_s + cost.token * free) / (cost.token + self._pair_s))
        if self._pair_s > 0.0:
            most = min(most, left_s / self._pair_s)
        return most if left_s > 0.0 else 0.0

    def _ttft_s(self, rate: float, rows: float, period: float) -> float:
        """Return the TTFT at the target's percentile: a step under way, the queue, the prompt."""
        service, own = self._prompt_s(rows)
        use = rate * service
        if use >= 1.0:
            return inf
        return period + self._wait_s(use, service) + own

    def _prompt_s(self, rows: float) -> tuple[float, float]:
        """Return the time that a prompt takes from others, and the time that it takes itself."""
        chunk = self._chunk(rows)
        if chunk <= 0.0:
            return inf, inf
        beside = rows if self._limits.mixes else 0.0
        computed = max(1.0, self._shape.computed)
        service = computed / chunk * self._step_s(beside, chunk)
        return service, service if computed > chunk else self._step_s(beside, computed)

    def _wait_s(self, use: float, service: float) -> float:
        """Return the wait in an M/G/1 queue that the percentile of requests stays below.

        Its tail is taken to be exponential, with the mean of Pollaczek and Khinchine.
        """
        if use <= self._late:
            return 0.0
        mean_s = service * self._shape.spread / 2.0
        return mean_s / (1.0 - use) * log(use / self._late)
