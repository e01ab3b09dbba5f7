"""From outcomes to figures. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from benchmarks.serving.outcome import Outcome
from benchmarks.serving.settings import LatencyTargets


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One load, carried out."""

    name: str
    outcomes: Sequence[Outcome]
    wall_s: float
    """From its beginning to the end of its last answer."""
    client_cpu_s: float
    """CPU time of the load generator itself in that time."""
    num_clipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and percentiles of values, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Requests that failed for one reason."""

    reason: str
    count: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that met every target; one that failed met none."""

    share: float
    requests_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one load; latencies are those of requests that succeeded."""

    name: str
    num_requests: int
    num_failed: int
    num_clipped: int
    wall_s: float
    client_cpu_share: float
    """Of one core."""
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    events_per_token: float | None
    """Events that brought a part of an answer; well below 1, TTFT and ITL are not of each token."""
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    goodput: Goodput | None
    failures: tuple[FailureCount, ...]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `ordered` lie, linear between neighbours (as numpy)."""
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def spread_ms(seconds: Iterable[float]) -> Spread | None:
    """Mean and percentiles of `seconds`; None when there are none."""
    ordered = sorted(value * 1000 for value in seconds)
    if not ordered:
        return None
    return Spread(
        mean=fsum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
    )


def summarize(seen: Measurement, targets: LatencyTargets) -> Summary:
    """The figures of a measurement."""
    good = [outcome for outcome in seen.outcomes if outcome.failure is None]
    num_output = sum(outcome.shape.num_output for outcome in good)
    num_tokens = sum(outcome.shape.num_tokens for outcome in good)
    return Summary(
        name=seen.name,
        num_requests=len(seen.outcomes),
        num_failed=len(seen.outcomes) - len(good),
        num_clipped=seen.num_clipped,
        wall_s=seen.wall_s,
        client_cpu_share=seen.client_cpu_s / seen.wall_s,
        requests_per_s=len(good) / seen.wall_s,
        output_tokens_per_s=num_output / seen.wall_s,
        total_tokens_per_s=num_tokens / seen.wall_s,
        events_per_token=_events_per_token(good),
        ttft_ms=spread_ms(outcome.ttft_s for outcome in good),
        tpot_ms=spread_ms(outcome.tpot_s for outcome in good if outcome.tpot_s is not None),
        itl_ms=spread_ms(gap for outcome in good for gap in outcome.gaps_s),
        e2e_ms=spread_ms(outcome.e2e_s for outcome in good),
        goodput=_goodput(good, seen, targets) if targets else None,
        failures=_count_failures(seen.outcomes),
    )


def _events_per_token(good: Sequence[Outcome]) -> float | None:
    num_output = sum(outcome.shape.num_output for outcome in good)
    return sum(len(outcome.event_times_s) for outcome in good) / num_output if good else None


def _goodput(good: Sequence[Outcome], seen: Measurement, targets: LatencyTargets) -> Goodput:
    num_kept = sum(meets(outcome, targets) for outcome in good)
    return Goodput(
        share=num_kept / len(seen.outcomes) if seen.outcomes else 0.0,
        requests_per_s=num_kept / seen.wall_s,
    )


def meets(outcome: Outcome, targets: LatencyTargets) -> bool:
    """True when a request met every target."""
    tpot_s = outcome.tpot_s
    in_time = targets.ttft_ms is None or outcome.ttft_s * 1000 <= targets.ttft_ms
    # An answer of one token has no time per further token to be late with.
    at_pace = targets.tpot_ms is None or tpot_s is None or tpot_s * 1000 <= targets.tpot_ms
    return in_time and at_pace


def _count_failures(outcomes: Sequence[Outcome]) -> tuple[FailureCount, ...]:
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    examples = {failure.reason: failure.message for failure in reversed(failures)}
    counts = Counter(failure.reason for failure in failures)
    return tuple(
        FailureCount(reason=reason, count=count, example=examples[reason])
        for reason, count in counts.most_common()
    )
