"""One observation as ratios and predicted numbers of replicas; pure."""

import math
from dataclasses import dataclass
from typing import Final

from tandem_operator.autoscale.decision import DecisionReason
from tandem_operator.autoscale.observation import LatencySignal, Observation
from tandem_operator.autoscale.policy import ScalingPolicy

MAX_RATIO: Final = 2.0
"""Multiple of a target from which on a miss says no more about the load: near saturation
latencies grow without bound."""

_ROUNDING: Final = 1e-9
_MAX_NUMBER: Final = 1e6
"""More replicas than there can be: a capacity near zero would ask for infinitely many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one service, compared with its targets and with its replicas' capacity."""

    ttft_ratio: float | None
    tpot_ratio: float | None
    queue_age_ratio: float | None
    needed_by_rate: int | None
    """Fewest replicas whose capacity is enough for the requests that arrive and for the queue;
    None: their capacity is unknown."""

    needed_by_ongoing: int | None
    """Fewest replicas whose concurrency at their capacity is enough for the ongoing requests; None:
    it is unknown, or more are ongoing than the load needs: replicas are on their way, or work off
    what has piled up."""

    fewest: int | None
    """Fewest replicas that are predicted to keep targets and KV cache with hysteresis on top of
    headroom; None: unknown."""

    @property
    def needed(self) -> int | None:
        """Fewest replicas that are predicted to keep the targets; None: it is unknown."""
        if self.needed_by_rate is None or self.needed_by_ongoing is None:
            return self.needed_by_rate
        return max(self.needed_by_rate, self.needed_by_ongoing)

    @property
    def confirmed(self) -> int:
        """Replicas that two signals ask for; 0: there are no two."""
        if self.needed is not None and self.is_missed:
            return self.needed
        if self.needed_by_rate is None or self.needed_by_ongoing is None:
            return 0
        return min(self.needed_by_rate, self.needed_by_ongoing)

    @property
    def worst(self) -> tuple[float, DecisionReason]:
        """The largest ratio, with the reason that it would be."""
        ratios = (
            (self.ttft_ratio or 0.0, DecisionReason.TTFT_ABOVE_TARGET),
            (self.tpot_ratio or 0.0, DecisionReason.TPOT_ABOVE_TARGET),
            (self.queue_age_ratio or 0.0, DecisionReason.QUEUE_AGE_ABOVE_TARGET),
        )
        return max(ratios, key=lambda pair: pair[0])

    @property
    def is_missed(self) -> bool:
        """True when a target is missed."""
        return self.worst[0] > 1


def load_of(
    observation: Observation, policy: ScalingPolicy, ongoing_before: float | None = None
) -> Load:
    """Return the load that trusted measurements show.

    `ongoing_before` is the number of ongoing requests at the decision before; None: unknown.
    """
    ttft = observation.ttft
    queue_age_s = observation.queue_age_s or 0.0
    return Load(
        ttft_ratio=_ratio(ttft, policy),
        tpot_ratio=_ratio(observation.tpot, policy),
        queue_age_ratio=min(queue_age_s / ttft.target_s, MAX_RATIO) if ttft else None,
        needed_by_rate=_needed_by_rate(observation, policy, queue_age_s),
        needed_by_ongoing=_needed_by_ongoing(observation, policy, ongoing_before),
        fewest=_fewest_of_all(observation, policy, queue_age_s),
    )


def _ratio(signal: LatencySignal | None, policy: ScalingPolicy) -> float | None:
    if signal is None or signal.num_samples < policy.min_samples:
        return None
    return min(signal.ratio, MAX_RATIO)


def _needed_by_rate(
    observation: Observation, policy: ScalingPolicy, queue_age_s: float
) -> int | None:
    rate, capacity = observation.arrival_rate or 0.0, observation.capacity_per_replica
    if not capacity:
        return None
    # By Little's law the queue has the requests that arrived since its oldest one. One replica
    # that hangs makes that age grow for ever, so it counts up to the time to drain.
    backlog = rate * min(queue_age_s, policy.drain_s)
    return max(
        _ceil(rate * policy.headroom / capacity),
        _ceil((rate + backlog / policy.drain_s) / capacity),
    )


def _needed_by_ongoing(
    observation: Observation, policy: ScalingPolicy, before: float | None
) -> int | None:
    if observation.pending:
        return None
    if before is not None and (observation.ongoing_requests or 0.0) < before:
        return None
    return _by_ongoing(observation, policy, policy.headroom)


def _by_ongoing(observation: Observation, policy: ScalingPolicy, headroom: float) -> int | None:
    """Return the fewest replicas whose concurrency is enough for the ongoing requests.

    A request stays longer the more are beside it, so that about the square of the rate is ongoing.
    """
    ongoing, most = observation.ongoing_requests, observation.concurrency_per_replica
    capacity = observation.capacity_per_replica
    if ongoing is None or not most or not capacity:
        return None
    # Their number varies by chance, as a Poisson number does; so small fleets would follow it.
    sure = max(0.0, ongoing - math.sqrt(ongoing))
    # More than the replicas can hold is a queue: it says nothing more about the load.
    held = min(sure, most * observation.ready)
    return _ceil(held * headroom**2 / most + (sure - held) / (capacity * policy.drain_s))


def _fewest_of_all(
    observation: Observation, policy: ScalingPolicy, queue_age_s: float
) -> int | None:
    """Return the fewest replicas with the most load that there may be."""
    fewest = _fewest(observation.at_most(), policy, queue_age_s)
    return None if fewest is None else max(fewest, observation.unseen)


def _fewest(observation: Observation, policy: ScalingPolicy, queue_age_s: float) -> int | None:
    rate, capacity = observation.arrival_rate or 0.0, observation.capacity_per_replica
    if rate == 0:
        return 0
    if not capacity or observation.kv_usage is None:
        return None
    ready = observation.ready
    by_signals = (
        _fewest_by_latency(signal, zero_load_s, ready, policy)
        for signal, zero_load_s in (
            (observation.ttft, observation.zero_load_ttft_s),
            (observation.tpot, observation.zero_load_tpot_s),
        )
        if signal is not None and signal.num_samples >= policy.min_samples
    )
    ttft = observation.ttft
    by_queue = _ceil(queue_age_s * ready * policy.hysteresis / ttft.target_s) if ttft else 0
    margin = policy.headroom * policy.hysteresis
    return max(
        _ceil(rate * margin / capacity),
        _by_ongoing(observation, policy, margin) or 0,
        math.floor(observation.kv_usage * ready / policy.max_kv_usage) + 1,
        by_queue,
        *by_signals,
    )


def _fewest_by_latency(
    signal: LatencySignal, zero_load_s: float | None, ready: int, policy: ScalingPolicy
) -> int:
    """Return the replicas at which the part of a latency that is due to load still fits.

    With N - 1 replicas each has N/(N - 1) times the load; the part of an idle replica stays.
    """
    idle_s = min(zero_load_s or 0.0, signal.value_s)
    left_s = signal.target_s / policy.hysteresis - idle_s
    if left_s <= 0:
        return ready
    return min(_ceil((signal.value_s - idle_s) * ready / left_s), ready + 1)


def _ceil(value: float) -> int:
    """Round up, but not for an error of floating point."""
    return math.ceil(min(value, _MAX_NUMBER) - _ROUNDING)
