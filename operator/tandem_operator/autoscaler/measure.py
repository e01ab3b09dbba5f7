"""Signals and replicas of one service → the observation that is decided on; pure."""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from tandem_operator.autoscaler.aggregate import (
    aggregate,
    find_doubts,
    is_stalled,
    within_slots,
)
from tandem_operator.autoscaler.agreement import Doubt
from tandem_operator.autoscaler.remarks import NO_REMARKS, Remarks
from tandem_operator.autoscaler.signals import Signals
from tandem_operator.scaling_law.observation import (
    LatencySignal,
    Observation,
    SignalProblem,
    finite,
    is_amount,
)

FRESH_S: Final = 60.0
"""Seconds for which a replica that has begun to answer may be unknown to Prometheus."""

_ENGINE: Final = ("tpot_pace_ratio", "token_budget", "token_budget_used_ratio")
_MAX_SAMPLES: Final = 1e12
_LAGS: Final = 4.0
"""Multiple of the usual age of a queue from which on a replica's is told."""

_NO_REPLICA: Final = (
    "Prometheus has no replica of the service; it must scrape port 9464 of the replicas' pods and "
    "give their series the labels namespace and inference_service (with honorLabels or its own "
    "relabelings they may be called exported_…)"
)


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica that has a pod."""

    pod: str
    is_ready: bool
    is_fresh: bool
    """True for one that has begun to answer within `FRESH_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Targets of the SLO in seconds; None: there is none."""

    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An observation, and what is told about it."""

    observation: Observation
    note: str = ""
    """A sentence about the reason for not trusting it."""

    remarks: Remarks = NO_REMARKS
    engine: Mapping[str, float | None] = field(default_factory=dict)
    """State of the replicas' own means to keep the targets, which come first."""

    def with_overdue(self, names: Sequence[str]) -> "Measured":
        """Return it with the replicas that are waited for no longer."""
        return replace(
            self,
            observation=replace(self.observation, overdue=len(names)),
            remarks=replace(self.remarks, overdue=tuple(names)),
        )


def unmeasured(doubt: Doubt, replicas: Sequence[Replica], desired: int) -> Measured:
    """Return what is known of a service without any signal."""
    ready = sum(replica.is_ready for replica in replicas)
    return Measured(
        observation=Observation(
            ready=ready, starting=len(replicas) - ready, desired=desired, problem=doubt.problem
        ),
        note=doubt.message,
    )


def at_zero(refused: int | None, replicas: Sequence[Replica]) -> Measured:
    """Return what is known of a service without replicas, of which there is nothing to measure."""
    note = ""
    if refused is None:
        note = (
            "the proxy on the Ray head does not show how many requests it has refused; see the log "
            "of the head's pod, and whether its NetworkPolicy lets the operator in"
        )
    return Measured(
        observation=Observation(
            ready=0,
            starting=len(replicas),
            desired=0,
            refused=refused,
            problem=SignalProblem.MISSING if refused is None else None,
        ),
        note=note,
    )


def measure(
    signals: Signals,
    targets: Targets,
    replicas: Sequence[Replica],
    desired: int,
    *,
    max_age_s: float,
    slots: int | None = None,
    disagreeing: Mapping[str, Doubt] | None = None,
    strangers: Sequence[str] = (),
) -> Measured:
    """Return the observation that signals and pods give together.

    While at least half of the replicas that answer can be trusted, they decide; the others are
    unseen. `slots` are the sequences that a replica takes; `disagreeing` has the replicas whose own
    metrics differ from Prometheus, by pod. `strangers` are pods of Prometheus that have never been
    of this service: what comes to them is no demand.
    """
    ready = [
        replica.pod
        for replica in replicas
        if replica.is_ready and not _is_unmeasured(replica, signals)
    ]
    doubts = find_doubts(ready, signals, disagreeing or {}, max_age_s=max_age_s)
    observation = Observation(
        ready=len(ready), starting=len(replicas) - len(ready), desired=desired, unseen=len(doubts)
    )
    if (doubt := _doubt(signals, targets, ready, doubts)) is not None:
        return Measured(
            observation=replace(observation, unseen=0, problem=doubt.problem), note=doubt.message
        )
    seen = {pod: signals.pods[pod] for pod in ready if pod not in doubts}
    stalled = [pod for pod, sample in seen.items() if is_stalled(sample, max_age_s)]
    working = [sample for pod, sample in seen.items() if pod not in stalled]
    figures = within_slots(aggregate([*seen.values()], working or [*seen.values()]), slots)
    old_s = max(max_age_s, _LAGS * (figures.queue_age_s or 0.0))
    lagging = [pod for pod, sample in seen.items() if (sample.queue_age_s or 0.0) > old_s]
    newest = max((sample.scraped_at for sample in seen.values()), default=math.nan)
    age_s = signals.evaluated_at - newest
    return Measured(
        observation=replace(
            observation,
            stalled=len(stalled),
            ttft=_latency(signals, "ttft", targets.ttft_s, age_s),
            tpot=_latency(signals, "tpot", targets.tpot_s, age_s),
            queue_age_s=figures.queue_age_s,
            arrival_rate=figures.arrival_rate + _rate_elsewhere(signals, {*ready, *strangers}),
            refused_rate=figures.refused_rate,
            capacity_per_replica=figures.capacity,
            ongoing_requests=figures.ongoing_requests,
            concurrency_per_replica=figures.concurrency,
            zero_load_ttft_s=figures.zero_load_ttft_s,
            zero_load_tpot_s=figures.zero_load_tpot_s,
            kv_usage=figures.kv_usage,
            busiest=figures.busiest,
        ),
        remarks=Remarks(
            unseen=tuple(doubt.message for doubt in doubts.values()),
            stalled=tuple(stalled),
            lagging=tuple(pod for pod in lagging if pod not in stalled),
            # Of those that have ended it is not known since when: they may be its own.
            strangers=tuple(pod for pod in strangers if pod in signals.pods),
            warnings=signals.warnings,
        ),
        engine={name: finite(signals.get(name)) for name in _ENGINE},
    )


def _is_unmeasured(replica: Replica, signals: Signals) -> bool:
    """Return True for a replica that is too young to have been scraped twice."""
    if not replica.is_fresh:
        return False
    sample = signals.pods.get(replica.pod)
    return sample is None or sample.arrival_rate is None


def _doubt(
    signals: Signals, targets: Targets, ready: Sequence[str], doubts: Mapping[str, Doubt]
) -> Doubt | None:
    """Return the reason for trusting none of the figures; None: enough can be trusted."""
    if not signals.pods:
        return Doubt(SignalProblem.MISSING, _NO_REPLICA)
    if 2 * len(doubts) > len(ready):
        first = next(iter(doubts.values()))
        text = f"{len(doubts)} of {len(ready)} replicas cannot be judged; {first.message}"
        return Doubt(first.problem, text if len(ready) > 1 else first.message)
    needed = ["ttft_s", "ttft_samples"] if targets.ttft_s is not None else []
    needed += ["tpot_s", "tpot_samples"] if targets.tpot_s is not None else []
    for name in needed:
        if signals.get(name) is None:
            text = f"Prometheus gives no {name} of the service: the window needs two scrapes"
            return Doubt(SignalProblem.MISSING, f"{text} at least")
    samples = (signals.get("ttft_samples"), signals.get("tpot_samples"))
    if any(count is not None and not 0 <= count < _MAX_SAMPLES for count in samples):
        return Doubt(SignalProblem.NOT_A_NUMBER, "the number of requests in the window is none")
    return None


def _rate_elsewhere(signals: Signals, others: AbstractSet[str]) -> float:
    """Return the requests a second that came to replicas which start or end: demand, too."""
    scraped = {pod: sample.arrival_rate or 0.0 for pod, sample in signals.pods.items()}
    rates = {**scraped, **signals.ended}
    return sum(rate for pod, rate in rates.items() if pod not in others and is_amount(rate))


def _latency(
    signals: Signals, name: str, target_s: float | None, age_s: float
) -> LatencySignal | None:
    value, samples = signals.get(f"{name}_s"), signals.get(f"{name}_samples")
    if target_s is None or value is None:
        return None
    num_samples = round(samples) if samples is not None and 0 <= samples < _MAX_SAMPLES else 0
    return LatencySignal(value, target_s, num_samples, age_s)
