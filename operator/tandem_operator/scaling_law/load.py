"""One observation as ratios and predicted numbers of replicas; pure."""

import math
from dataclasses import dataclass
from typing import Final

from tandem_operator.scaling_law.decision import DecisionReason
from tandem_operator.scaling_law.observation import LatencySignal, Observation
from tandem_operator.scaling_law.policy import ScalingPolicy

MAX_RATIO: Final = 2.0
"""Multiple of a target from which on a miss says no more about the load: near saturation
latencies grow without bound."""

_ROUNDING: Final = 1e-9
_REFUSED_SHARE: Final = 0.01
"""Share of the demand that may be refused for want of slots."""

_MAX_NUMBER: Final = 1e6
"""More replicas than there can be: a capacity near zero would ask for infinitely many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one service, compared with its targets and with its replicas' capacity."""

    ttft_ratio: float | None
    """None: too few requests, no target, or one that no number of replicas keeps."""

    tpot_ratio: float | None
    queue_age_ratio: float | None
    refused_ratio: float | None
    """1 and the share of the demand that is refused for want of slots; None: none is, or so few
    that it may be chance."""

    needed: int | None
    """Fewest replicas that the rule in force asks for, or that carry a load and a queue which have
    lasted for longer than a cold start; None: their capacity is unknown."""

    fewest: int | None
    """Fewest replicas that are predicted to keep targets and KV cache with a margin; None:
    unknown."""

    @property
    def worst(self) -> tuple[float, DecisionReason]:
        """The largest ratio, with the reason that it would be."""
        ratios = (
            (self.ttft_ratio or 0.0, DecisionReason.TTFT_ABOVE_TARGET),
            (self.tpot_ratio or 0.0, DecisionReason.TPOT_ABOVE_TARGET),
            (self.queue_age_ratio or 0.0, DecisionReason.QUEUE_AGE_ABOVE_TARGET),
            (self.refused_ratio or 0.0, DecisionReason.REQUESTS_REFUSED),
        )
        return max(ratios, key=lambda pair: pair[0])

    @property
    def is_missed(self) -> bool:
        """True when a target is missed."""
        return self.worst[0] > 1


def load_of(
    observation: Observation,
    policy: ScalingPolicy,
    *,
    asked: tuple[float, float] | None,
    lasting: float = 0.0,
    cold_start_s: float = 0.0,
) -> Load:
    """Return the load that trusted measurements show.

    Args:
        observation: The measurements.
        policy: Margins.
        asked: Replicas that the rule in force asks for, at least and at most; None: unknown.
        lasting: Replicas that the load took for all of a cold start.
        cold_start_s: After which an added replica answers.
    """
    ttft = observation.ttft
    queue_age_s = observation.queue_age_s or 0.0
    needed = None
    # The capacity is that within both targets.
    if asked is not None and observation.load is not None and observation.is_feasible:
        # A younger queue came before a replica for it could answer.
        old_s = min(max(queue_age_s - cold_start_s, 0.0), policy.drain_s)
        needed = _ceil(max(asked[0], lasting + observation.load * old_s / policy.drain_s))
    return Load(
        ttft_ratio=_ratio(ttft, policy) if _is_in_reach("ttft", observation) else None,
        tpot_ratio=_ratio(observation.tpot, policy) if _is_in_reach("tpot", observation) else None,
        queue_age_ratio=min(queue_age_s / ttft.target_s, MAX_RATIO) if ttft else None,
        refused_ratio=_refused_ratio(observation, policy),
        needed=needed,
        fewest=_fewest_of_all(observation, policy, queue_age_s, asked and asked[1]),
    )


def _is_in_reach(name: str, observation: Observation) -> bool:
    """Return False for a target that no number of replicas keeps.

    Without any capacity it is one of them, and where no estimate tells which, it may be either.
    """
    missed = observation.infeasible_targets
    return name not in missed if missed else observation.is_feasible


def _refused_ratio(observation: Observation, policy: ScalingPolicy) -> float | None:
    refused = (observation.refused_rate or 0.0) * policy.settle_s
    demand = (observation.arrival_rate or 0.0) * policy.settle_s + refused
    sure = refused - math.sqrt(refused)
    return 1.0 + refused / demand if refused and sure > _REFUSED_SHARE * demand else None


def _ratio(signal: LatencySignal | None, policy: ScalingPolicy) -> float | None:
    if signal is None or signal.num_samples < policy.min_samples:
        return None
    return min(signal.ratio, MAX_RATIO)


def _by_ongoing(observation: Observation, policy: ScalingPolicy) -> int | None:
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
    return _ceil(held * policy.hysteresis**2 / most + (sure - held) / (capacity * policy.drain_s))


def _fewest_of_all(
    observation: Observation, policy: ScalingPolicy, queue_age_s: float, asked: float | None
) -> int | None:
    """Return the fewest replicas with the most load that there may be."""
    most = observation.at_most()
    if most.demand:
        fewest = _fewest(most, policy, queue_age_s, asked)
    else:
        fewest = _fewest_running(most, policy)
    return None if fewest is None else max(fewest, observation.unseen)


def _fewest(
    observation: Observation, policy: ScalingPolicy, queue_age_s: float, asked: float | None
) -> int | None:
    load = observation.load
    if load is None or asked is None or observation.kv_usage is None:
        return None
    if not observation.is_feasible:
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
    return max(
        _ceil(asked),
        _ceil(load * policy.hysteresis),
        _by_ongoing(observation, policy) or 0,
        _by_kv_usage(observation, policy),
        by_queue,
        *by_signals,
    )


def _fewest_running(observation: Observation, policy: ScalingPolicy) -> int | None:
    """Return the fewest replicas that hold the running answers, while no request arrives."""
    known = (observation.ongoing_requests, observation.kv_usage)
    if known == (None, None):
        return None
    if not any(known):
        return 0
    return max(1, _by_ongoing(observation, policy) or 0, _by_kv_usage(observation, policy))


def _by_kv_usage(observation: Observation, policy: ScalingPolicy) -> int:
    """Return the fewest replicas whose KV cache holds what is in use."""
    usage = observation.kv_usage or 0.0
    return math.floor(usage * observation.ready / policy.max_kv_usage) + 1


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
