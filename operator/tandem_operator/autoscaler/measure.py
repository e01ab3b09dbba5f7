"""Signals and replicas of one service → the observation that is decided on; pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tandem_operator.autoscale.observation import (
    LatencySignal,
    Observation,
    SignalProblem,
    finite,
)
from tandem_operator.autoscaler.agreement import Doubt, stuck_sample
from tandem_operator.autoscaler.signals import Signals

FRESH_S: Final = 60.0
"""Seconds for which a replica that has begun to answer may be unknown to Prometheus."""

_ENGINE: Final = ("tpot_pace_ratio", "token_budget", "token_budget_used_ratio")
_MAX_SAMPLES: Final = 1e12


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

    engine: Mapping[str, float | None] = field(default_factory=dict)
    """State of the replicas' own means to keep the targets, which come first."""

    def doubted(self, doubt: Doubt) -> "Measured":
        """Return it as not to be trusted, unless it is not already."""
        if self.observation.problem is not None:
            return self
        observation = replace(self.observation, problem=doubt.problem)
        return replace(self, observation=observation, note=doubt.message)


def unmeasured(doubt: Doubt, replicas: Sequence[Replica], desired: int) -> Measured:
    """Return what is known of a service without any signal."""
    ready = sum(one.is_ready for one in replicas)
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
) -> Measured:
    """Return the observation that signals and pods give together."""
    ready = [one for one in replicas if one.is_ready and not _is_unmeasured(one, signals)]
    doubt = _doubt(signals, targets, [one.pod for one in ready], max_age_s)
    if doubt is not None and doubt.problem is SignalProblem.MISSING:
        missing = unmeasured(doubt, replicas, desired)
        starting = len(replicas) - len(ready)
        return replace(
            missing,
            observation=replace(missing.observation, ready=len(ready), starting=starting),
        )
    age_s = _age_s(signals)
    observation = Observation(
        ready=len(ready),
        starting=len(replicas) - len(ready),
        desired=desired,
        ttft=_latency(signals, "ttft", targets.ttft_s, age_s),
        tpot=_latency(signals, "tpot", targets.tpot_s, age_s),
        queue_age_s=signals.get("queue_age_s"),
        arrival_rate=signals.get("arrival_rate"),
        capacity_per_replica=signals.get("capacity"),
        ongoing_requests=signals.get("ongoing_requests"),
        concurrency_per_replica=signals.get("concurrency"),
        zero_load_ttft_s=signals.get("zero_load_ttft_s"),
        zero_load_tpot_s=signals.get("zero_load_tpot_s"),
        kv_usage=signals.get("kv_usage"),
        problem=doubt.problem if doubt else None,
    )
    return Measured(
        observation=observation,
        note=doubt.message if doubt else "",
        engine={name: finite(signals.get(name)) for name in _ENGINE},
    )


def _is_unmeasured(replica: Replica, signals: Signals) -> bool:
    """Return True for a replica that is too young to have been scraped twice."""
    if not replica.is_fresh:
        return False
    return replica.pod not in signals.pods or signals.get("arrival_rate") is None


def _doubt(
    signals: Signals, targets: Targets, ready: Sequence[str], max_age_s: float
) -> Doubt | None:
    if missing := _missing(signals, targets, ready):
        return Doubt(SignalProblem.MISSING, missing)
    for pod in ready:
        sample = signals.pods[pod]
        if doubt := stuck_sample(pod, sample, max_age_s):
            return doubt
        if (age_s := signals.evaluated_at - sample.scraped_at) > max_age_s:
            text = f"replica {pod} was last scraped {age_s:.0f} s ago, more than {max_age_s:.0f}"
            return Doubt(SignalProblem.STALE, text)
    samples = (signals.get("ttft_samples"), signals.get("tpot_samples"))
    if any(one is not None and not 0 <= one < _MAX_SAMPLES for one in samples):
        return Doubt(SignalProblem.NOT_A_NUMBER, "the number of requests in the window is none")
    return None


def _missing(signals: Signals, targets: Targets, ready: Sequence[str]) -> str | None:
    """Return the sentence about the first series that is missing; None: none is."""
    if not signals.pods:
        return (
            "Prometheus has no replica of the service; it must scrape port 9464 of the replicas' "
            "pods and give their series the labels namespace and inference_service (with "
            "honorLabels or its own relabelings they may be called exported_…)"
        )
    unknown = [pod for pod in ready if pod not in signals.pods]
    if unknown:
        text = f"Prometheus has {len(ready) - len(unknown)} of {len(ready)} replicas that answer"
        return f"{text}; it lacks {unknown[0]}"
    needed = ["queue_age_s", "arrival_rate"]
    needed += ["ttft_s", "ttft_samples"] if targets.ttft_s is not None else []
    needed += ["tpot_s", "tpot_samples"] if targets.tpot_s is not None else []
    absent = [name for name in needed if signals.get(name) is None]
    if absent:
        return (
            f"Prometheus gives no {absent[0]} of the service: the window needs two scrapes at least"
        )
    return None


def _latency(
    signals: Signals, name: str, target_s: float | None, age_s: float
) -> LatencySignal | None:
    value, samples = signals.get(f"{name}_s"), signals.get(f"{name}_samples")
    if target_s is None or value is None:
        return None
    num_samples = round(samples) if samples is not None and 0 <= samples < _MAX_SAMPLES else 0
    return LatencySignal(value, target_s, num_samples, age_s)


def _age_s(signals: Signals) -> float:
    """Return the seconds since the newest scrape."""
    newest = max((one.scraped_at for one in signals.pods.values()), default=math.nan)
    return signals.evaluated_at - newest
