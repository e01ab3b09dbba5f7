"""Figures of single replicas → those of their service; pure.

No single replica decides: what is judged is that of the replica in the middle, what is shared is a
sum or a mean, and a replica that cannot be trusted is left out by name.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tandem_operator.autoscaler.agreement import Doubt, stuck_sample
from tandem_operator.autoscaler.signals import PodSample, Signals
from tandem_operator.scaling_law.observation import ReplicaLoad, SignalProblem, is_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Figures of the replicas that can be trusted; None: no one has it."""

    queue_age_s: float | None
    arrival_rate: float
    refused_rate: float
    ongoing_requests: float | None
    kv_usage: float | None
    capacity: float | None
    concurrency: float | None
    zero_load_ttft_s: float | None
    zero_load_tpot_s: float | None
    busiest: ReplicaLoad


def aggregate(seen: Sequence[PodSample], working: Sequence[PodSample]) -> Aggregate:
    """Return the figures of the replicas `seen`, of which `working` compute steps."""
    ongoing = _known(sample.ongoing_requests for sample in working)
    kv_usages = _known(sample.kv_usage for sample in working)
    return Aggregate(
        queue_age_s=lower_median(_known(sample.queue_age_s for sample in working)),
        arrival_rate=sum(_known(sample.arrival_rate for sample in seen)),
        refused_rate=sum(_known(sample.refused_rate for sample in seen)),
        ongoing_requests=sum(ongoing) if ongoing else None,
        kv_usage=_mean(kv_usages),
        capacity=_mean(_known(sample.capacity for sample in working)),
        concurrency=_mean(_known(sample.concurrency for sample in working)),
        zero_load_ttft_s=lower_median(_known(sample.zero_load_ttft_s for sample in working)),
        zero_load_tpot_s=lower_median(_known(sample.zero_load_tpot_s for sample in working)),
        busiest=ReplicaLoad(
            arrival_rate=max(_known(sample.arrival_rate for sample in working), default=None),
            ongoing_requests=max(ongoing, default=None),
            kv_usage=max(kv_usages, default=None),
        ),
    )


def within_slots(figures: Aggregate, slots: int | None) -> Aggregate:
    """Return it with the concurrency that the replicas' slots allow; None: they are not known.

    About the square of the rate is ongoing, so the capacity falls with the root of the concurrency.
    """
    capacity, concurrency = figures.capacity, figures.concurrency
    if slots is None or capacity is None or concurrency is None or concurrency <= slots:
        return figures
    less = math.sqrt(slots / concurrency)
    return replace(figures, capacity=capacity * less, concurrency=float(slots))


def find_doubts(
    ready: Iterable[str],
    signals: Signals,
    disagreeing: Mapping[str, Doubt],
    *,
    max_age_s: float,
) -> dict[str, Doubt]:
    """Return the replicas whose own figures cannot be trusted, with the reason."""
    doubts = {}
    for pod in ready:
        doubt = disagreeing.get(pod) or _doubt(pod, signals, max_age_s)
        if doubt is not None:
            doubts[pod] = doubt
    return doubts


def _doubt(pod: str, signals: Signals, max_age_s: float) -> Doubt | None:
    sample = signals.pods.get(pod)
    if sample is None:
        return Doubt(SignalProblem.MISSING, f"Prometheus does not scrape replica {pod}")
    if doubt := stuck_sample(pod, sample, max_age_s):
        return doubt
    if (age_s := signals.evaluated_at - sample.scraped_at) > max_age_s:
        text = f"replica {pod} was last scraped {age_s:.0f} s ago, more than {max_age_s:.0f}"
        return Doubt(SignalProblem.STALE, text)
    for name in ("queue_age_s", "arrival_rate"):
        if getattr(sample, name) is None:
            text = f"Prometheus gives no {name} of replica {pod}: the window needs two scrapes"
            return Doubt(SignalProblem.MISSING, f"{text} at least")
    is_share = sample.kv_usage is None or sample.kv_usage <= 1
    if not is_share or any(not is_amount(figure) for figure in sample.figures()):
        text = f"a figure of replica {pod} is not a number, infinite, negative or above 1"
        return Doubt(SignalProblem.NOT_A_NUMBER, text)
    return None


def is_stalled(sample: PodSample, waits_s: float) -> bool:
    """Return True for a replica that has computed no step in the window, though it has work.

    Its oldest request has waited for more than `waits_s`, or sequences have been in process at
    every scrape.
    """
    if sample.steps is None or sample.steps > 0:
        return False
    return (sample.queue_age_s or 0.0) > waits_s or (sample.least_running or 0.0) > 0


def lower_median(values: Sequence[float]) -> float | None:
    """Return the value in the middle, of two the lower one; None: there is none."""
    return sorted(values)[(len(values) - 1) // 2] if values else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
