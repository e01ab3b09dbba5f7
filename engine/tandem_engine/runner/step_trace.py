"""The trace of one step on one rank: its jobs, and their times."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tandem_engine.api.timeline import SliceKind, TimelineSlice
from tandem_engine.device.streams import Job, Span, Stream
from tandem_engine.microbatch.overlap import StepOverlap
from tandem_engine.model.stages import Collective, StageName

_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
WHOLE_STEP: Final = "all layers"
"""Name of the one stage of a rank that shares its layers with no other."""
END: Final = "end"
"""Name of what is computed behind the last collective."""


class _Carried(NamedTuple):
    """A collective, without its tensor: a trace keeps no memory of the step."""

    operation: str
    num_bytes: int
    stage: StageName
    """In front of it."""


class _Entry(NamedTuple):
    job: Job[Any]
    stream: str
    half: int | None
    after: Sequence[Job[Any]]
    carried: _Carried | None
    """None: it computes a stage."""

    @property
    def kind(self) -> SliceKind:
        return "stage" if self.carried is None else "collective"


class StepTrace:
    """The jobs of one step, in the order in which they are begun; their times come at its end."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add(
        self,
        job: Job[Any],
        stream: Stream,
        *,
        of: Collective | None = None,
        half: int | None = None,
        after: Sequence[Job[Any]] = (),
    ) -> None:
        """Note a job.

        Args:
            job: Just begun.
            stream: Its stream.
            of: The collective that it carries out; None: it computes a stage.
            half: The half that it is of; None: the step is whole.
            after: The jobs that it waits for.
        """
        carried = None
        if of is not None:
            carried = _Carried(type(of).__name__, of.tensor.nbytes, of.stage)
        self._entries.append(_Entry(job, stream.name, half, after, carried))

    def wait(self) -> None:
        """Wait until the step is done."""
        last = {(entry.stream, entry.half): entry.job for entry in self._entries}
        for job in last.values():
            job.wait()

    def span(self) -> Span:
        """Return begin and end of the step; it is done, and has a job."""
        spans = [entry.job.span() for entry in self._entries]
        return Span(min(span.begin_s for span in spans), max(span.end_s for span in spans))

    def overlap(self) -> StepOverlap:
        """Return what the step took; it is done.

        Stages of two halves take turns, and so do collectives: neither is counted twice. All time
        of the step in which no stage runs counts as communication that nothing is computed under,
        as far as there was that much: so what handing over costs is not left out.
        """
        computed_s = communicated_s = 0.0
        begin_s, end_s = self.span()
        for entry in self._entries:
            span = entry.job.span()
            if entry.kind == "stage":
                computed_s += span.end_s - span.begin_s
            else:
                communicated_s += span.end_s - span.begin_s
        return StepOverlap(
            compute_s=computed_s,
            communication_s=communicated_s,
            exposed_s=min(communicated_s, max(0.0, end_s - begin_s - computed_s)),
        )

    def slices(self) -> tuple[TimelineSlice, ...]:
        """Return the jobs as slices; the step is done."""
        places = {id(entry.job): place for place, entry in enumerate(self._entries)}
        return tuple(self._slice(place, places) for place in range(len(self._entries)))

    def _slice(self, place: int, places: dict[int, int]) -> TimelineSlice:
        entry = self._entries[place]
        carried = entry.carried
        span = entry.job.span()
        waited = [places[id(job)] for job in entry.after if id(job) in places]
        return TimelineSlice(
            stream=entry.stream,
            kind=entry.kind,
            name=self._stage_name(place) if carried is None else _snake_case(carried.operation),
            half=entry.half,
            begin_s=span.begin_s,
            end_s=span.end_s,
            num_bytes=0 if carried is None else carried.num_bytes,
            after=tuple(
                number for number in waited if self._entries[number].stream != entry.stream
            ),
        )

    def _stage_name(self, place: int) -> str:
        """The name that the collective behind a stage has for it."""
        half = self._entries[place].half
        for later in self._entries[place + 1 :]:
            if later.half == half:
                return END if later.carried is None else str(later.carried.stage)
        return WHOLE_STEP if len(self._entries) == 1 else END


def _snake_case(name: str) -> str:
    """`AllReduce` as all_reduce."""
    return _WORD.sub("_", name).lower()
