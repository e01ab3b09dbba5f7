"""The highest load that a policy sustains. Pure but for what it is given to run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from benchmarks.serving.outcome import Outcome
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.statistics import Spread, meets, spread_ms

SHARE: Final = 0.9
"""Of the requests that must keep both targets: P90."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The figures of one load under one policy."""

    rate: float
    """Requests a second that came."""
    goodput: float
    """Requests a second that met both targets."""
    sustained: bool
    """True when SHARE of the requests met both targets."""
    ttft_ms: Spread | None
    tpot_ms: Spread | None
    output_tokens_per_s: float
    total_tokens_per_s: float
    num_requests: int
    num_preemptions: int = 0
    num_steps: int = 0


def figures(
    outcomes: Sequence[Outcome],
    targets: LatencyTargets,
    *,
    rate: float,
    wall_s: float,
    num_requests: int | None = None,
    num_preemptions: int = 0,
    num_steps: int = 0,
) -> Run:
    """Compute the figures of outcomes.

    Goodput is the share of good requests times the rate at which they came, so that the quiet end
    of a run, when the last answers are finished, does not count against it. A load is sustained
    when SHARE of the `num_requests` ended and met both targets (Zhong et al., "DistServe", 2024):
    by two separate P90s, up to a fifth might miss one or the other.
    """
    num_requests = len(outcomes) if num_requests is None else num_requests
    num_good = sum(meets(outcome, targets) for outcome in outcomes)
    num_output = sum(outcome.shape.num_output for outcome in outcomes)
    num_tokens = sum(outcome.shape.num_tokens for outcome in outcomes)
    ttft = spread_ms(outcome.ttft_s for outcome in outcomes)
    tpot = spread_ms(outcome.tpot_s for outcome in outcomes if outcome.tpot_s is not None)
    return Run(
        rate=rate,
        goodput=rate * num_good / num_requests if num_requests else 0.0,
        sustained=num_good >= SHARE * num_requests,
        ttft_ms=ttft,
        tpot_ms=tpot,
        output_tokens_per_s=num_output / wall_s if wall_s else 0.0,
        total_tokens_per_s=num_tokens / wall_s if wall_s else 0.0,
        num_requests=num_requests,
        num_preemptions=num_preemptions,
        num_steps=num_steps,
    )


def highest_sustained(
    run: Callable[[float], Run | None],
    *,
    start: float,
    precision: float = 0.02,
    most: float = inf,
) -> Run | None:
    """The run with the highest rate that is sustained, to within a share of `precision`.

    Halves `start` until a rate is sustained, then raises it by half, or goes half-way
    (geometrically) to one that is not sustained, whichever is less.

    Args:
        run: Carries out a rate; None: it was broken off, and is not sustained.
        start: The first rate to try, in requests a second.
        precision: Distance of the two rates at the end, as a share.
        most: A rate that is not tried: a load at it is over too soon to tell.

    Returns:
        None when a rate of `start` / 256 is too much already.
    """
    best: Run | None = None
    low, high, rate = 0.0, most, min(start, most / 2.0)
    while high > (1.0 + precision) * low:
        seen = run(rate)
        if seen is not None and seen.sustained:
            low, best = rate, seen
        else:
            high = rate
        if high < start / 256.0:
            return None
        rate = high / 2.0 if low == 0.0 else min(low * 1.5, (low * high) ** 0.5)
    return best
