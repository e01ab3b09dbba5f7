"""observation, policy, history, now → the number of replicas, with its reason; pure.

More replicas: as many as the rule asks for that would have kept the promises with the fewest so
far, on the load by the replicas' own model; one more when a target is missed for longer than a
cold start. Fewer: only if they are predicted to keep targets and KV cache, for all of a window that
is no shorter than a cold start. Whatever cannot be trusted leaves the number as it is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.hindsight import (
    FIRST,
    PastLoad,
    Rule,
    choose,
    is_due,
    lasting_load,
    replicas_by,
)
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.load import Load, load_of
from tandem_operator.scaling_law.observation import Observation, SignalProblem, finite
from tandem_operator.scaling_law.policy import ScalingPolicy

_REASON_OF: Final = {
    SignalProblem.MISSING: DecisionReason.METRICS_MISSING,
    SignalProblem.STALE: DecisionReason.METRICS_STALE,
    SignalProblem.NOT_A_NUMBER: DecisionReason.METRICS_INVALID,
    SignalProblem.DISAGREEING: DecisionReason.METRICS_DISAGREE,
    SignalProblem.UNREACHABLE: DecisionReason.METRICS_UNREACHABLE,
}


_REPLACED_SHARE: Final = 0.1
"""Of the replicas, those in whose place others are asked for when they are lost."""

_TURN_S: Final = 300.0
"""Seconds after a change in which the number turns where the load does, beyond chance."""
_KEPT_DEVIATIONS: Final = 2.0
_KEPT_SHARE: Final = 0.1
"""More replicas than the load asks for that are kept so long: by chance, and of a rule that asks
for a tenth less from now on."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    desired: int
    reason: DecisionReason
    recommended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The arguments of one decision."""

    observation: Observation
    policy: ScalingPolicy
    history: History
    now: float

    @property
    def current(self) -> int:
        return self.observation.desired

    @property
    def cold_start_s(self) -> float:
        """Seconds after which a replica that is added shows in the figures, at least."""
        return max(self.history.cold_start_s, self.policy.settle_s)

    @property
    def down_window_s(self) -> float:
        return max(self.policy.down_window_s, self.history.cold_start_s)

    @property
    def replaced(self) -> int:
        """Lost replicas in whose place others are asked for: one, of many a tenth.

        Where more are lost the cause is not theirs, and others would be lost, too.
        """
        most = max(1, math.floor(self.current * _REPLACED_SHARE))
        return min(self.observation.lost, most)

    def hold(self, reason: DecisionReason, recommended: int | None = None) -> _Verdict:
        return _Verdict(self.current, reason, self.current if recommended is None else recommended)


def decide(
    observation: Observation, policy: ScalingPolicy, history: History, now: float
) -> Decision:
    """Decide how many replicas there are to be. `now` is in seconds, as the history's moments."""
    bounded = min(max(observation.desired, policy.min_replicas), policy.max_replicas)
    case = _Case(
        observation=replace(observation, desired=bounded), policy=policy, history=history, now=now
    )
    problem = observation.find_problem(policy.max_age_s)
    load, rule, trusted = None, None, None
    if problem is None:
        trusted = observation.load_at(now)
        rule = _chosen(case)
        load = _load(case, rule or history.rule, trusted)
    verdict = _by_trust(case, problem)
    if verdict is None and load is not None:
        verdict = _by_load(case, load)
    if verdict is None:
        verdict = case.hold(DecisionReason.METRICS_MISSING)
    if bounded != observation.desired:
        verdict = _by_bounds(case, verdict)
    return Decision(
        desired=verdict.desired,
        reason=verdict.reason,
        recommended=verdict.recommended,
        load=trusted,
        rule=rule,
        inputs=_inputs(observation, load, rule or history.rule, case.down_window_s),
    )


def _chosen(case: _Case) -> Rule | None:
    """Return the rule that would have cost least; None: it is not time to compare them."""
    history = case.history
    if not is_due(history.loads, history.chosen_s, case.now):
        return None
    return choose(
        history.loads,
        history.rule,
        cold_start_s=case.cold_start_s,
        window_s=case.policy.settle_s,
        late_share=case.policy.late_share,
    )


def _load(case: _Case, rule: Rule, trusted: PastLoad | None) -> Load:
    loads = case.history.loads_at(case.now, trusted)
    asked = replicas_by(rule, loads, case.now)
    return load_of(
        case.observation,
        case.policy,
        asked=None if asked is None else _turned(case, asked),
        lasting=lasting_load(loads, case.now, case.cold_start_s),
        cold_start_s=case.cold_start_s,
    )


def _turned(case: _Case, asked: float) -> tuple[float, float]:
    """Return the replicas that are asked for, at least for more of them, at most for fewer.

    Requests that come at random are Poisson's, and a load between two numbers would take the fleet
    back and forth. Additions wait for less than removals: what they are late for is missed.
    """
    history, now = case.history, case.now
    num_arrived = (case.observation.arrival_rate or 0.0) * case.policy.settle_s
    chance = asked / math.sqrt(max(num_arrived, 1.0))
    at_least = asked - chance if history.since_fall_s(now) < _TURN_S else asked
    if history.since_growth_s(now) >= _TURN_S:
        return at_least, asked
    return at_least, asked + max(_KEPT_DEVIATIONS * chance, _KEPT_SHARE * asked)


def _by_bounds(case: _Case, verdict: _Verdict) -> _Verdict:
    """Follow the bounds at once: they are orders, and need no measurement."""
    if verdict.desired > case.current:
        return verdict
    recommended = max(verdict.recommended, case.current)
    return _Verdict(case.current, DecisionReason.BOUNDS_CHANGED, recommended)


def _by_trust(case: _Case, problem: SignalProblem | None) -> _Verdict | None:
    """Hold while the measurements say nothing about the load."""
    observation = case.observation
    if observation.is_at_zero:
        return _at_zero(case)
    if observation.ready == 0:
        is_lost = observation.pending == 0
        reason = DecisionReason.REPLICAS_LOST if is_lost else DecisionReason.REPLICAS_STARTING
        return case.hold(reason)
    if problem is not None:
        return case.hold(_REASON_OF[problem])
    if observation.arrival_rate == 0 and _has_arrivals(case):
        # The demand is not zero, its series is missing.
        return case.hold(DecisionReason.METRICS_DISAGREE)
    return None


def _has_arrivals(case: _Case) -> bool:
    """Return True when requests wait that came within the window, or had their first token in it.

    Answers that end say nothing where TTFT is known: they may have run for long.
    """
    observation = case.observation
    if 0 < (observation.queue_age_s or 0.0) < case.policy.settle_s:
        return True
    answered = observation.ttft or observation.tpot
    return answered is not None and answered.num_samples >= case.policy.min_samples


def _at_zero(case: _Case) -> _Verdict:
    """Add the first replica for a request that was refused, however many there were."""
    if case.observation.refused is None:
        return case.hold(DecisionReason.METRICS_MISSING)
    if case.observation.refused == 0:
        return case.hold(DecisionReason.NO_TRAFFIC)
    return _grow(case, 1, DecisionReason.REQUEST_AT_ZERO, 0.0)


def _by_load(case: _Case, load: Load) -> _Verdict:
    needed = None if load.needed is None else load.needed + case.replaced
    if needed is not None and needed > case.current:
        # Two signals agree; the window is there for one that is wrong once.
        window_s = 0.0 if load.is_missed else case.policy.up_window_s
        return _grow(case, needed, DecisionReason.PREDICTED_OVERLOAD, window_s)
    if load.is_missed:
        return _after_a_miss(case, load)
    return _shrink(case, load)


def _after_a_miss(case: _Case, load: Load) -> _Verdict:
    """Add replicas for a missed target, unless those on their way may be enough."""
    observation, history, now = case.observation, case.history, case.now
    if observation.pending:
        return case.hold(DecisionReason.REPLICAS_STARTING)
    if observation.lost > case.replaced:
        return case.hold(DecisionReason.REPLICAS_LOST)
    settle_s = case.policy.settle_s
    recovers = history.is_draining(now, observation.queue_age_s or 0.0, settle_s)
    if recovers and history.since_growth_s(now) < case.down_window_s + history.cold_start_s:
        # The replicas that were added for this queue are shortening it.
        return case.hold(DecisionReason.STABILIZING)
    ratio, reason = load.worst
    more = case.current + 1
    if load.needed is None:
        more = max(more, math.ceil(observation.ready * ratio))
    if history.settled_for_s(now) < settle_s:
        # The latencies reach back to the time before the replicas answered.
        return case.hold(DecisionReason.STABILIZING, more)
    # What is over before a replica answers is the rule's to judge.
    return _grow(case, more, reason, max(case.policy.up_window_s, history.cold_start_s))


def _grow(case: _Case, recommended: int, reason: DecisionReason, window_s: float) -> _Verdict:
    """Add replicas up to `recommended`, as far as window, step, nodes and bounds allow.

    `window_s` is the time for which they must have been recommended.
    """
    policy, current = case.policy, case.current
    lasting = min((*case.history.within(case.now, window_s), recommended))
    if lasting <= current:
        return case.hold(DecisionReason.STABILIZING, recommended)
    limits = [(policy.max_replicas, DecisionReason.AT_MAXIMUM)]
    if case.observation.room is not None:
        limits.append((current + case.observation.room, DecisionReason.CAPACITY_UNAVAILABLE))
    limits.append((current + _step_up(case), DecisionReason.STABILIZING))
    limit, limited_by = min(limits, key=lambda pair: pair[0])
    if limit <= current:
        return case.hold(limited_by, recommended)
    return _Verdict(min(lasting, limit), reason, recommended)


def _step_up(case: _Case) -> int:
    """Return the replicas that may be added now, of those that a window may have."""
    policy = case.policy
    grown = case.history.grown_by(case.now, policy.up_window_s)
    base = max(case.current - grown, 0)
    return max(max(policy.max_step_up, math.floor(base * (policy.max_growth - 1))) - grown, 0)


def _shrink(case: _Case, load: Load) -> _Verdict:
    """Remove replicas that have been superfluous for all of the window."""
    policy, history, current = case.policy, case.history, case.current
    fewest = current
    if load.fewest is not None:
        fewest = max(load.fewest + case.replaced, policy.min_replicas)
    if fewest >= current:
        return case.hold(_reason_to_stay(case, load))
    window_s = case.down_window_s
    if fewest == 0 and current == 1:
        window_s = max(window_s, policy.idle_window_s)
    if history.since_growth_s(case.now) < window_s:
        is_pending = case.observation.pending > 0
        reason = DecisionReason.REPLICAS_STARTING if is_pending else DecisionReason.STABILIZING
        return case.hold(reason, fewest)
    is_seen = history.covers(case.now, window_s) and _has_past(case)
    if not is_seen or history.since_change_s(case.now) < policy.settle_s:
        return case.hold(DecisionReason.STABILIZING, fewest)
    lasting = max((*history.within(case.now, window_s), fewest))
    if lasting >= current:
        return case.hold(DecisionReason.STABILIZING, fewest)
    step = max(policy.max_step_down, math.floor(current * policy.max_shrink))
    desired = max(lasting, current - step)
    return _Verdict(desired, DecisionReason.UNDERUSED, fewest)


def _has_past(case: _Case) -> bool:
    """Return False while so little of the past is known that a burst in it may be forgotten."""
    loads = case.history.loads
    return not loads or case.now - loads[0].at_s >= FIRST.window_s


def _reason_to_stay(case: _Case, load: Load) -> DecisionReason:
    """Return the reason for keeping a number that is neither too low nor too high."""
    if case.observation.demand == 0:
        return DecisionReason.NO_TRAFFIC
    if not case.observation.is_feasible:
        return DecisionReason.SLO_INFEASIBLE
    if load.fewest is not None and load.fewest < case.current:
        return DecisionReason.AT_MINIMUM
    if any(signal.num_samples < case.policy.min_samples for signal in case.observation.signals()):
        return DecisionReason.TOO_FEW_SAMPLES
    return DecisionReason.WITHIN_TARGETS


def _inputs(
    observation: Observation, load: Load | None, rule: Rule, down_window_s: float
) -> Mapping[str, float | None]:
    inputs: dict[str, float | None] = {
        "ready": observation.ready,
        "pending": observation.pending,
        "lost": observation.lost,
        "unseen": observation.unseen,
        "current": observation.desired,
        "room": observation.room,
        "arrival_rate": observation.arrival_rate,
        "refused_rate": observation.refused_rate,
        "capacity_per_replica": observation.capacity_per_replica,
        "ongoing_requests": observation.ongoing_requests,
        "concurrency_per_replica": observation.concurrency_per_replica,
        "queue_age_s": observation.queue_age_s,
        "kv_usage": observation.kv_usage,
        "refused": observation.refused,
        "zero_load_ttft_s": observation.zero_load_ttft_s,
        "zero_load_tpot_s": observation.zero_load_tpot_s,
        "ttft_ratio": load.ttft_ratio if load else None,
        "tpot_ratio": load.tpot_ratio if load else None,
        "queue_age_ratio": load.queue_age_ratio if load else None,
        "refused_ratio": load.refused_ratio if load else None,
        "needed": load.needed if load else None,
        "fewest": load.fewest if load else None,
        "load": observation.load,
        "rule_window_s": rule.window_s,
        "rule_factor": rule.factor,
        "down_window_s": down_window_s,
    }
    return {name: finite(value) for name, value in inputs.items()}
