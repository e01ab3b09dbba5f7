"""The hand-over: of two halves of a step one computes while the other communicates.

    compute  A1 B1 A2 B2 A3 B3
    link        A1 B1 A2 B2 A3 B3

At each collective a half waits for the other half's last collective, communicates, and goes on
when the other half has computed. So at most one half computes and at most one communicates,
collectives are in the one order that all ranks have, and a half goes on only when all ranks have
its sum. All of it is said by what each job waits for; streams see to the rest. Models know nothing
of it: their stages are generators.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from torch import Tensor

from tandem_engine.device.streams import Job, Stream, StreamLayout
from tandem_engine.microbatch.overlap import StepOverlap
from tandem_engine.model.stages import Collective, Collectives, Stages, carry_out
from tandem_engine.runner.step_trace import StepTrace

_CLOCK: Final = time.perf_counter


class _Driver:
    """The stages of a step, or of one half of it; its last job of either kind."""

    def __init__(self, stages: Stages, trace: StepTrace, number: int | None = None) -> None:
        self.is_over = False
        self.result: Tensor | None = None
        self.computed: Job[Collective | None] | None = None
        self.communicated: Job[Tensor | None] | None = None
        self._stages = stages
        self._trace = trace
        self.number = number

    def compute(self, stream: Stream, *, after: Sequence[Job[Any] | None]) -> Collective | None:
        """Compute the next stage; return the collective behind it, None: it was the last one."""
        jobs = _present(self.communicated, *after)
        self.computed = stream.run(partial(self._advance, self.communicated), after=jobs)
        self._trace.add(self.computed, stream, half=self.number, after=jobs)
        return self.computed.result()

    def communicate(
        self,
        collective: Collective,
        collectives: Collectives,
        stream: Stream,
        *,
        after: Sequence[Job[Any] | None] = (),
    ) -> None:
        """Carry out the collective behind the stage that was computed."""
        jobs = _present(self.computed, *after)
        self.communicated = stream.run(partial(carry_out, collective, collectives), after=jobs)
        self._trace.add(self.communicated, stream, of=collective, half=self.number, after=jobs)

    def close(self) -> None:
        """Give the memory of the stages back, once no work reads or writes it.

        At the end of all stages what comes next is queued behind them; where one has failed, the
        host waits.
        """
        if not self.is_over:
            for job in _present(self.computed, self.communicated):
                # What it failed of is raised where its result is asked for.
                with suppress(Exception):
                    job.wait()
        self._stages.close()

    def _advance(self, communicated: Job[Tensor | None] | None) -> Collective | None:
        received = None if communicated is None else communicated.result()
        try:
            return self._stages.send(received)
        except StopIteration as end:
            self.is_over, self.result = True, end.value
            return None


def drive_halves(
    first: Stages,
    second: Stages,
    collectives: Collectives,
    streams: StreamLayout,
    trace: StepTrace,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the stages of both halves in turns; return what the last stage of each gives.

    The second half may read what the first has written in the same stage: it always comes later.
    No memory of a half is given back while work is under way in it: where a half raises, that of
    the other is waited for.

    Args:
        first: Stages of the half that begins.
        second: Those of the other one.
        collectives: Of this rank; no other thread may use them meanwhile.
        streams: Of this rank.
        trace: Takes all jobs.

    Raises:
        Exception: A half cannot go on; then neither does.
    """
    halves = _Driver(first, trace, 0), _Driver(second, trace, 1)
    begin = streams.current.run(_nothing)
    with ExitStack() as stack:
        for half in halves:
            stack.callback(half.close)
        while not all(half.is_over for half in halves):
            for half, other in (halves, halves[::-1]):
                if not half.is_over:
                    _hand_over(half, other, collectives, streams, begin=begin)
        streams.current.run(_nothing, after=_present(*(half.computed for half in halves)))
    return halves[0].result, halves[1].result


def _hand_over(
    half: _Driver,
    other: _Driver,
    collectives: Collectives,
    streams: StreamLayout,
    *,
    begin: Job[None],
) -> None:
    """Compute a stage behind the other half's, and begin its collective behind the other's."""
    number = half.number or 0
    collective = half.compute(streams.compute[number], after=(begin, other.computed))
    if collective is not None:
        link = streams.communication[number]
        half.communicate(collective, collectives, link, after=(other.communicated,))


def drive_traced(
    stages: Stages, collectives: Collectives, stream: Stream, trace: StepTrace
) -> Tensor | None:
    """Compute a whole step as `stages.drive` does, on one stream, and note its jobs."""
    driver = _Driver(stages, trace)
    try:
        while (collective := driver.compute(stream, after=())) is not None:
            driver.communicate(collective, collectives, stream)
    finally:
        driver.close()
    return driver.result


def drive_timed(stages: Stages, collectives: Collectives) -> tuple[Tensor | None, StepOverlap]:
    """Compute a whole step on a processor as `stages.drive` does, and measure it.

    Unlike a trace it has no job for each stage: a step of decodes would be 1 to 2 % slower.
    """
    received: Tensor | None = None
    communicated_s, begin_s = 0.0, _CLOCK()
    try:
        while True:
            collective = stages.send(received)
            started_s = _CLOCK()
            received = carry_out(collective, collectives)
            communicated_s += _CLOCK() - started_s
    except StopIteration as end:
        compute_s = max(0.0, _CLOCK() - begin_s - communicated_s)
        measured = StepOverlap(
            compute_s=compute_s, communication_s=communicated_s, exposed_s=communicated_s
        )
        return end.value, measured
    finally:
        stages.close()


def _present(*jobs: Job[Any] | None) -> list[Job[Any]]:
    return [job for job in jobs if job is not None]


def _nothing() -> None:
    """Work that only has a place in a stream."""
