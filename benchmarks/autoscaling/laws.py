"""Laws of other autoscalers, each as it decides by default, with the signature of `decide`. Pure.

They get what their own metrics would show. Their windows and steps are those of their defaults, so
of the policy only the bounds count.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import Observation
from tandem_operator.scaling_law.policy import ScalingPolicy

TOLERANCE: Final = 0.1
"""Deviation from its target that an HPA, and AIBrix, leave alone."""

HPA_DOWN_WINDOW_S: Final = 300.0
HPA_PERIOD_S: Final = 15.0
HPA_STEP: Final = 4
"""Replicas that an HPA may always add in a period; it may always double them."""

LLMD_UP: Final = 0.55
LLMD_DOWN: Final = 0.40
LLMD_AVERAGE_S: Final = 45.0
LLMD_MAX_RATIO: Final = 2.0
LLMD_UP_WINDOW_S: Final = 30.0
LLMD_UP_PERIOD_S: Final = 60.0
LLMD_DOWN_WINDOW_S: Final = 180.0
LLMD_DOWN_PERIOD_S: Final = 120.0

RAY_UP_DELAY_S: Final = 30.0
RAY_DOWN_DELAY_S: Final = 600.0

APA_MAX_RATE: Final = 2.0
APA_COOLDOWN_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObservation(Observation):
    """An observation with what the other laws read."""

    num_running: float = 0.0
    """Requests that are computed, of all replicas."""

    num_waiting: float = 0.0
    """Requests that wait, of all replicas."""

    busy: float = 0.0
    """Share of the time that the ready replicas compute, as CPU use is for a web server."""


Law = Callable[[FleetObservation, ScalingPolicy, History, float], Decision]


def hpa_on_use(
    observation: FleetObservation,
    policy: ScalingPolicy,
    history: History,
    now: float,
    *,
    target: float = 0.8,
) -> Decision:
    """Decide as an HPA on CPU use: desired = ceil(n·m/T), unless m/T is within 10 % of 1.

    Replicas that start count as idle when more are asked for.
    """
    ready, current = observation.ready, observation.desired
    if not ready:
        return _decision(observation, policy, current, current)
    counted, ratio = ready, observation.busy / target
    if ratio > 1 and observation.pending:
        counted = ready + observation.pending
        ratio *= ready / counted
        # With the starting ones it is no longer a reason for more.
        ratio = max(ratio, 1.0)
    raw = current if abs(ratio - 1) <= TOLERANCE else math.ceil(_exact(counted * ratio))
    return _as_hpa(observation, policy, history, now, raw)


def keda_on_waiting(
    observation: FleetObservation,
    policy: ScalingPolicy,
    history: History,
    now: float,
    *,
    threshold: float = 5.0,
) -> Decision:
    """Decide as KEDA on waiting requests: desired = ceil(waiting/threshold), through an HPA."""
    current = observation.desired
    ratio = observation.num_waiting / (threshold * max(1, current))
    is_close = abs(ratio - 1) <= TOLERANCE
    raw = current if is_close else math.ceil(_exact(observation.num_waiting / threshold))
    return _as_hpa(observation, policy, history, now, raw)


def ray_serve(
    observation: FleetObservation,
    policy: ScalingPolicy,
    history: History,
    now: float,
    *,
    target_ongoing_requests: float = 2.0,
) -> Decision:
    """Decide as Ray Serve: ceil(ongoing/target), once that has lasted for 30 s up or 600 s down."""
    ongoing = observation.num_running + observation.num_waiting
    raw = _bounded(math.ceil(_exact(ongoing / target_ongoing_requests)), policy)
    current = observation.desired
    if raw == current:
        return _decision(observation, policy, raw, current)
    delay_s = RAY_UP_DELAY_S if raw > current else RAY_DOWN_DELAY_S
    recent = [*history.within(now, delay_s), raw]
    lasts = all((past > current) == (raw > current) and past != current for past in recent)
    is_over = history.covers(now, delay_s) and history.since_change_s(now) >= delay_s
    return _decision(observation, policy, raw, raw if lasts and is_over else current)


def llmd_slo(
    observation: FleetObservation,
    policy: ScalingPolicy,
    history: History,
    now: float,
    *,
    up_at: float = LLMD_UP,
) -> Decision:
    """Decide as llm-d's guide for SLOs, through KEDA and an HPA.

    s is the mean over 45 s of the larger of P90 TTFT and TPOT over their targets, at most 2 each.
    Above 0.55: n + ceil(n·(s·c/0.55 - 1)) with c = ready/n; below 0.40: n - floor(n·(1 - s/0.40)).
    Another `up_at` than 0.55 moves 0.40 in proportion.
    """
    current, down_at = observation.desired, LLMD_DOWN * up_at / LLMD_UP
    s = _llmd_signal(observation, history, now)
    raw = current
    if s > up_at and current:
        credit = min(1.0, observation.ready / current)
        raw = current + max(0, math.ceil(_exact(current * (s * credit / up_at - 1))))
    elif s < down_at:
        raw = current - math.floor(current * (1 - s / down_at))
    raw = _bounded(raw, policy)
    up = min((raw, *history.within(now, LLMD_UP_WINDOW_S)))
    down = max((raw, *history.within(now, LLMD_DOWN_WINDOW_S)))
    if up > current:
        limit = _hpa_limit(current, history.grown_by(now, LLMD_UP_PERIOD_S))
        return _decision(observation, policy, raw, max(current, min(up, limit)))
    if down < current and history.since_change_s(now) >= LLMD_DOWN_PERIOD_S:
        return _decision(observation, policy, raw, current - 1)
    return _decision(observation, policy, raw, current)


def aibrix_apa(
    observation: FleetObservation,
    policy: ScalingPolicy,
    history: History,
    now: float,
    *,
    target: float = 0.5,
) -> Decision:
    """Decide as AIBrix' APA on KV use: ceil(n·m/T) outside of 10 %, at most twice or half of n.

    Replicas that start are not considered.
    """
    current = observation.desired
    ratio = (observation.kv_usage or 0.0) / target
    raw = current
    if ratio > 1 + TOLERANCE:
        raw = min(math.ceil(_exact(current * ratio)), math.ceil(APA_MAX_RATE * current))
    elif ratio < 1 - TOLERANCE:
        raw = max(math.ceil(_exact(current * ratio)), math.floor(current / APA_MAX_RATE))
    raw = _bounded(raw, policy)
    if raw < current and history.since_change_s(now) < APA_COOLDOWN_S:
        return _decision(observation, policy, raw, current)
    return _decision(observation, policy, raw, raw)


def _llmd_signal(observation: FleetObservation, history: History, now: float) -> float:
    ratios = [signal.ratio for signal in observation.signals() if signal.num_samples]
    known = [ratio for ratio in ratios if math.isfinite(ratio)]
    past = [
        sample.latency_ratio for sample in history.samples if now - sample.at_s < LLMD_AVERAGE_S
    ]
    clamped = [min(ratio, LLMD_MAX_RATIO) for ratio in (*past, max(known, default=0.0))]
    return sum(clamped) / len(clamped)


def _as_hpa(
    observation: FleetObservation,
    policy: ScalingPolicy,
    history: History,
    now: float,
    raw: int,
) -> Decision:
    """Apply an HPA's default behaviour: at most double or four more, fewer only after 300 s."""
    raw, current = _bounded(raw, policy), observation.desired
    if raw > current:
        limit = _hpa_limit(current, history.grown_by(now, HPA_PERIOD_S - 1))
        return _decision(observation, policy, raw, max(current, min(raw, limit)))
    lasting = max((raw, *history.within(now, HPA_DOWN_WINDOW_S)))
    return _decision(observation, policy, raw, min(current, lasting))


def _hpa_limit(current: int, grown: int) -> int:
    """Return the replicas that a period may reach that began with `grown` fewer."""
    base = current - grown
    return base + max(base, HPA_STEP)


def _decision(
    observation: Observation, policy: ScalingPolicy, recommended: int, desired: int
) -> Decision:
    current, desired = observation.desired, _bounded(desired, policy)
    if desired > current:
        reason = DecisionReason.PREDICTED_OVERLOAD
    elif desired < current:
        reason = DecisionReason.UNDERUSED
    elif recommended != current:
        reason = DecisionReason.STABILIZING
    else:
        reason = DecisionReason.WITHIN_TARGETS
    return Decision(desired=desired, reason=reason, recommended=recommended)


def _bounded(replicas: int, policy: ScalingPolicy) -> int:
    return min(max(replicas, policy.min_replicas), policy.max_replicas)


def _exact(value: float) -> float:
    """Take away an error of floating point before rounding up."""
    return value - 1e-9


LAWS: Final[dict[str, Law]] = {
    "HPA on use": hpa_on_use,
    "KEDA on waiting": keda_on_waiting,
    "Ray Serve": ray_serve,
    "llm-d SLO": llmd_slo,
    "AIBrix APA": aibrix_apa,
}
"""The laws by the names that tables and plots have."""
