"""Loads: a trace at another rate, or Poisson arrivals with the trace's lengths. Pure.

A load is made once for a rate of 1 a second and stretched to any other, so that two policies, and
two rates, see the same requests in the same order.
"""

from collections.abc import Sequence
from itertools import islice
from random import Random

from benchmarks.serving.arrivals import poisson_arrivals
from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.workload import Arrival, speed_up


def at_rate(load: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The same requests, `rate` a second on average."""
    return speed_up(load, rate * span_s(load) / len(load))


def span_s(load: Sequence[Arrival]) -> float:
    """Seconds from the beginning to the last arrival.

    Raises:
        WrongUsage: all come at once, so that there is no rate.
    """
    span = load[-1].due_s if load else 0.0
    if span <= 0.0:
        raise WrongUsage(
            f"A load of {len(load)} requests within 0 s has no rate; take more rows of the trace."
        )
    return span


def window(trace: Sequence[Arrival], *, first: int, count: int) -> list[Arrival]:
    """`count` requests of a trace from number `first` on, with their own gaps; time begins at 0.

    Raises:
        WrongUsage: the trace has not so many.
    """
    rows = trace[first : first + count]
    if len(rows) < count:
        raise WrongUsage(
            f"The trace has {len(trace)} requests, not the {count} from number {first} on; "
            "lower --requests or --first."
        )
    return [Arrival(row.due_s - rows[0].due_s, row.shape) for row in rows]


def with_poisson_arrivals(trace: Sequence[Arrival], *, count: int, seed: int) -> list[Arrival]:
    """`count` Poisson arrivals, each with prompt and answer of a row drawn from the trace."""
    rng = Random(seed)  # noqa: S311  # load, not secrets
    times = islice(poisson_arrivals(1.0, seed), count)
    return [Arrival(due_s, rng.choice(trace).shape) for due_s in times]
