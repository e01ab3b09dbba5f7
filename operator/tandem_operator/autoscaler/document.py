"""A decision → status.scaling and the conditions of scaling; and the past, read back from there."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tandem_operator import reasons
from tandem_operator.autoscaler.messages import message_of
from tandem_operator.autoscaler.remarks import NO_REMARKS, Remarks
from tandem_operator.clock import seconds_between, to_unix_s
from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.history import MAX_DECISIONS, Change, History
from tandem_operator.scaling_law.mode import StatusScaling
from tandem_operator.scaling_law.observation import Observation
from tandem_operator.status.conditions import (
    Condition,
    ConditionStatus,
    ScalingConditionType,
    find_condition,
    merge_conditions,
)

REFRESH_S: Final = 300.0
"""Seconds after which the figures of an unchanged decision are written once more."""

_METRICS: Final = frozenset(
    {
        DecisionReason.METRICS_MISSING,
        DecisionReason.METRICS_STALE,
        DecisionReason.METRICS_INVALID,
        DecisionReason.METRICS_DISAGREE,
        DecisionReason.METRICS_UNREACHABLE,
    }
)
_LIMITS: Final = frozenset(
    {
        DecisionReason.AT_MAXIMUM,
        DecisionReason.AT_MINIMUM,
        DecisionReason.CAPACITY_UNAVAILABLE,
        DecisionReason.STABILIZING,
    }
)
_CHANGES: Final = frozenset(str(reason) for reason in DecisionReason if not reason.is_hold)
_DIGITS: Final = 4
_CURRENT: Final = "current"
"""Input of a decision: the number before it."""

_WORD: Final = re.compile(r"_([a-z])")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedDecision:
    """A decision with what status, log and Events say of it."""

    decision: Decision
    observation: Observation
    note: str = ""
    remarks: Remarks = NO_REMARKS
    engine: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The reason as a sentence, with what it leaves out."""
        text = message_of(self.decision, self.note)
        return f"{text}; {self.remarks.text}" if self.remarks.text else text

    @property
    def is_metrics_problem(self) -> bool:
        """True while the number is held because the metrics cannot be trusted."""
        return self.decision.reason in _METRICS


def scaling_document(
    numbers: StatusScaling, decisions: Sequence[Document], cold_start_s: float
) -> Document:
    """Return status.scaling."""
    document: Document = {**numbers.document()}
    if cold_start_s:
        document["coldStartSeconds"] = round(cold_start_s, 1)
    if decisions:
        document["decisions"] = list(decisions)
    return document


def with_decision(
    decisions: Iterable[Document], explained: ExplainedDecision, now: str
) -> list[Document]:
    """Return the decisions with one more, newest last; one like the newest goes on with it."""
    kept = list(decisions)
    decision = explained.decision
    entry: Document = {
        "firstTime": now,
        "lastTime": now,
        "replicas": decision.desired,
        "recommended": decision.recommended,
        "reason": str(decision.reason),
        "message": explained.message,
        "inputs": _inputs(explained),
    }
    if kept and (kept[-1]["replicas"], kept[-1]["reason"]) == (entry["replicas"], entry["reason"]):
        entry["firstTime"] = kept.pop()["firstTime"]
    return [*kept, entry][-MAX_DECISIONS:]


def scaling_conditions(
    explained: ExplainedDecision,
    previous: Iterable[Mapping[str, Any]],
    *,
    generation: int,
    now: str,
) -> list[Document]:
    """Return the conditions that a decision sets."""
    current = [_active(explained), _limited(explained), _feasible(explained), _capacity(explained)]
    return merge_conditions(previous, current, generation=generation, now=now)


def kept_history(
    status: Mapping[str, Any], *, settled_at: float | None, max_gap_s: float
) -> History:
    """Return the history that a status keeps: changes of the number, and the cold start.

    Windows of recommendations begin again. `settled_at` is the moment at which the youngest
    replica began to answer.
    """
    scaling = status.get("scaling") or {}
    changes = tuple(
        Change(to_unix_s(entry["firstTime"]), round(before), entry["replicas"])
        for entry in scaling.get("decisions") or ()
        if entry["reason"] in _CHANGES
        and (before := entry.get("inputs", {}).get(_CURRENT)) is not None
    )
    moments = [change.at_s for change in changes[-1:]] + (
        [] if settled_at is None else [settled_at]
    )
    cold_start_s = scaling.get("coldStartSeconds")
    return History(
        changes=changes,
        cold_starts_s=() if cold_start_s is None else (float(cold_start_s),),
        unsettled_s=max(moments, default=None),
        max_gap_s=max_gap_s,
    )


def is_due(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return True when `after` has other numbers, reasons or states, or much newer figures."""
    if _essence(before) != _essence(after):
        return True
    times = [
        part["scaling"]["decisions"][-1]["lastTime"]
        for part in (before, after)
        if part["scaling"].get("decisions")
    ]
    return bool(times) and seconds_between(times[0], times[-1]) >= REFRESH_S


def own_part(status: Mapping[str, Any]) -> Document:
    """Return the part of a status that the autoscaler writes."""
    conditions = [
        dict(condition)
        for kind in ScalingConditionType
        if (condition := find_condition(status, kind))
    ]
    return {"scaling": dict(status.get("scaling") or {}), "conditions": conditions}


def _essence(part: Mapping[str, Any]) -> Document:
    """Return what is written at once when it changes: numbers, reasons, states."""
    scaling = dict(part.get("scaling") or {})
    decisions = scaling.pop("decisions", ())
    return {
        **scaling,
        "decisions": [
            (entry["firstTime"], entry["replicas"], entry["reason"]) for entry in decisions
        ],
        "conditions": {
            condition["type"]: (condition["status"], condition.get("reason"))
            for condition in part.get("conditions", ())
        },
    }


def _active(explained: ExplainedDecision) -> Condition:
    kind, reason = ScalingConditionType.SCALING_ACTIVE, str(explained.decision.reason)
    if explained.is_metrics_problem:
        return Condition(kind, ConditionStatus.FALSE, reason, explained.message)
    if explained.observation.problem is not None:
        # No replica answers, so there is nothing to measure.
        return Condition(kind, ConditionStatus.UNKNOWN, reason, explained.message)
    if explained.observation.unseen or explained.remarks.strangers or explained.remarks.warnings:
        text = explained.remarks.left_out
        return Condition(kind, ConditionStatus.TRUE, reasons.PARTIAL_METRICS, text)
    text = "the metrics can be trusted"
    if explained.observation.is_at_zero:
        text = "without a replica there is nothing to measure; requests are counted"
    return Condition(kind, ConditionStatus.TRUE, reasons.VALID_METRICS, text)


def _limited(explained: ExplainedDecision) -> Condition:
    kind, reason = ScalingConditionType.SCALING_LIMITED, str(explained.decision.reason)
    if explained.remarks.time_zones:
        # It lasts until the spec changes; the limits come and go, and decisions name them.
        text = explained.remarks.schedule
        return Condition(kind, ConditionStatus.TRUE, reasons.UNKNOWN_TIME_ZONE, text)
    if explained.decision.reason in _LIMITS:
        return Condition(kind, ConditionStatus.TRUE, reason, explained.message)
    text = "no limit is in the way"
    return Condition(kind, ConditionStatus.FALSE, reasons.DESIRED_WITHIN_RANGE, text)


def _feasible(explained: ExplainedDecision) -> Condition:
    kind, observation = ScalingConditionType.SLO_FEASIBLE, explained.observation
    if explained.decision.reason is DecisionReason.SLO_INFEASIBLE or observation.infeasible_targets:
        reason = str(DecisionReason.SLO_INFEASIBLE)
        return Condition(kind, ConditionStatus.FALSE, reason, _infeasible_text(explained))
    estimates = (
        observation.zero_load_ttft_s if observation.ttft else 0.0,
        observation.zero_load_tpot_s if observation.tpot else 0.0,
    )
    if None in estimates or observation.problem is not None:
        text = "the replicas have no estimate of an idle replica's latencies yet"
        return Condition(kind, ConditionStatus.UNKNOWN, reasons.NO_ESTIMATE, text)
    text = "a request that has a replica for itself is predicted to keep the targets"
    return Condition(kind, ConditionStatus.TRUE, reasons.TARGETS_FEASIBLE, text)


def _infeasible_text(explained: ExplainedDecision) -> str:
    observation = explained.observation
    pairs = (
        ("TTFT", observation.ttft, observation.zero_load_ttft_s),
        ("TPOT", observation.tpot, observation.zero_load_tpot_s),
    )
    parts = [
        f"the predicted {name} of a request that has a replica for itself is {idle_s:.3g} s, its "
        f"target {signal.target_s:.3g} s"
        for name, signal, idle_s in pairs
        if signal and idle_s is not None and idle_s > signal.target_s
    ]
    return f"{'; '.join(parts)}; raise the target" if parts else explained.message


def _capacity(explained: ExplainedDecision) -> Condition:
    kind = ScalingConditionType.CAPACITY_AVAILABLE
    if explained.decision.reason is DecisionReason.CAPACITY_UNAVAILABLE:
        reason = str(explained.decision.reason)
        return Condition(kind, ConditionStatus.FALSE, reason, explained.message)
    if explained.observation.overdue:
        return Condition(
            kind, ConditionStatus.FALSE, reasons.REPLICAS_OVERDUE, explained.remarks.lost
        )
    if explained.observation.stalled:
        return Condition(
            kind, ConditionStatus.FALSE, reasons.REPLICAS_STALLED, explained.remarks.lost
        )
    text = "no replica is held back for want of room on the nodes"
    return Condition(kind, ConditionStatus.TRUE, reasons.ENOUGH_CAPACITY, text)


def _inputs(explained: ExplainedDecision) -> Document:
    """Return the figures by their names in the API; those that are unknown are left out."""
    observation = explained.observation
    inputs: dict[str, float | None] = dict(explained.decision.inputs)
    for name, signal in (("ttft", observation.ttft), ("tpot", observation.tpot)):
        if signal is not None:
            inputs[f"{name}_s"] = signal.value_s
            inputs[f"{name}_samples"] = signal.num_samples
    inputs |= explained.engine
    return {
        _camel(name): rounded
        for name, value in sorted(inputs.items())
        if (rounded := _rounded(value)) is not None
    }


def _rounded(value: float | None) -> float | int | None:
    """Return a number that JSON can hold, of few digits; None for another."""
    # NaN differs from itself, and infinity less itself is NaN.
    if value is None or value - value != 0:
        return None
    return float(f"{value:.{_DIGITS}g}")


def _camel(name: str) -> str:
    """Return the API's name of a figure: queueAgeSeconds for queue_age_s."""
    whole = f"{name.removesuffix('_s')}_seconds" if name.endswith("_s") else name
    return _WORD.sub(lambda match: match[1].upper(), whole)
