"""Turns options into the loads that are sent. Pure, but for the reading of a trace file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from benchmarks.serving.arrivals import poisson_arrivals
from benchmarks.serving.case import Case
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.settings import LoadSettings
from benchmarks.serving.trace import parse_trace
from tandem_engine.simulate.workload import Arrival, Shape, clip, speed_up


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """So many callers, each of which sends its next request when the last one is answered."""

    name: str
    shape: Shape
    concurrency: int
    num_requests: int | None
    """Number of requests; None for as many as `duration_s` holds."""
    duration_s: float
    """Seconds in which requests are sent; those in flight then are waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests that arrive at their own times, however many still wait for answers."""

    name: str
    arrivals: Sequence[Arrival]
    max_in_flight: int
    """Arrivals beyond it wait at the client, and the wait counts; 0 means unbounded."""
    num_clipped: int = 0
    """Requests of a trace that were longer than the model takes."""


Load = ClosedLoop | OpenLoop


def loads_of(options: LoadSettings, *, max_model_len: int | None) -> list[Load]:
    """The loads that `options` describes, for a model that takes `max_model_len` tokens.

    Raises:
        WrongUsage: a case is longer than that, or lacks what an open or closed loop needs.
        BenchmarkError: the trace cannot be used.
    """
    if options.trace is not None:
        return [_replay(options, options.trace, max_model_len)]
    for case in options.cases:
        _check_fits(case, max_model_len)
    if options.rate is None:
        return [_closed(options, case) for case in options.cases]
    return [_open(options, case, options.rate) for case in options.cases]


def shapes_of(load: Load) -> Sequence[Shape]:
    """The shapes of a load's first requests, which warm a server up for it."""
    match load:
        case ClosedLoop():
            return [load.shape]
        case OpenLoop():
            return [arrival.shape for arrival in load.arrivals[:16]]


def _check_fits(case: Case, max_model_len: int | None) -> None:
    if max_model_len is not None and case.shape.num_tokens > max_model_len:
        raise WrongUsage(
            f"The case {case} needs {case.shape.num_tokens} tokens a request; "
            f"the model takes {max_model_len}, prompt and answer together."
        )


def _closed(options: LoadSettings, case: Case) -> ClosedLoop:
    if case.concurrency == 0:
        raise WrongUsage(
            f"The case {case} has no callers; 0 means no bound on requests in flight, "
            "and goes with --rate."
        )
    return ClosedLoop(
        name=str(case),
        shape=case.shape,
        concurrency=case.concurrency,
        num_requests=options.num_requests,
        duration_s=math.inf if options.num_requests is not None else options.duration_s,
    )


def _open(options: LoadSettings, case: Case, rate: float) -> OpenLoop:
    times = poisson_arrivals(rate, options.seed)
    if options.num_requests is not None:
        times = islice(times, options.num_requests)
    elif math.isinf(rate):
        raise WrongUsage(
            "--rate inf sends all requests at once; give their number with --requests."
        )
    else:
        times = takewhile(lambda due_s: due_s < options.duration_s, times)
    arrivals = [Arrival(due_s, case.shape) for due_s in times]
    if not arrivals:
        raise WrongUsage(
            f"At {rate:g} requests a second none arrives within {options.duration_s:g} s; "
            "raise --rate or --duration."
        )
    return OpenLoop(name=f"{case} @ {rate:g}/s", arrivals=arrivals, max_in_flight=case.concurrency)


def _replay(options: LoadSettings, file: Path, max_model_len: int | None) -> OpenLoop:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            arrivals = parse_trace(lines, limit=options.limit)
    except OSError as error:
        raise BenchmarkError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BenchmarkError(f"{file} is not UTF-8 text.") from None
    num_clipped = 0
    if max_model_len is not None:
        arrivals, num_clipped = clip(arrivals, max_model_len)
    return OpenLoop(
        name=f"{file.stem} ×{options.speed:g}",
        arrivals=speed_up(arrivals, options.speed),
        max_in_flight=0,
        num_clipped=num_clipped,
    )
