"""A timeline in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

A process for each rank; in it a thread for each stream, and one or more for the steps themselves.
"Trace Event Format", Google, 2016: complete events (X), flow events (s, f) and metadata (M).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tandem_engine.api.timeline import RankStep, Timeline, TimelineSlice
from tandem_serve.api.timeline_summary import TimelineSummary

Event = dict[str, Any]

STEP_CATEGORY: Final = "step"
FLOW_CATEGORY: Final = "wait"
_FIRST_STREAMS: Final = ("compute", "communication", "micro-batch 0", "micro-batch 1")
"""Streams that stand first, in this order."""
_THREADS_PER_RANK: Final = 1000
"""No two ranks share a thread id: some viewers would take them for one thread."""
_NS: Final = 1e9
_NS_PER_US: Final = 1000


def trace_head(summary: TimelineSummary) -> dict[str, Any]:
    """The document of a trace without its events, `traceEvents`."""
    return {"displayTimeUnit": "ms", "otherData": asdict(summary)}


def trace_document(timeline: Timeline, summary: TimelineSummary) -> dict[str, Any]:
    """The whole document of a trace."""
    events = [event for part in trace_events(timeline) for event in part]
    return {"traceEvents": events, **trace_head(summary)}


def trace_events(timeline: Timeline) -> Iterator[list[Event]]:
    """Yield the names of all tracks, then the events of each step on each rank.

    Times are in microseconds since the first begin, to the nanosecond.
    """
    tracks = _Tracks(timeline)
    yield tracks.metadata()
    clock = _Clock(timeline)
    num_flows = 0
    for step in timeline.steps:
        events = [_step_event(step, tracks, clock), *_slice_events(step, tracks, clock)]
        for source, target in _waits(step):
            flow = _flow(source, target, clock)
            if flow is not None:
                num_flows += 1
                events += _flow_events(step, (source, target), flow, num_flows, tracks)
        yield events


class _Clock:
    """Nanoseconds since the first begin of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        begins = [step.begin_s for step in timeline.steps]
        begins += [piece.begin_s for step in timeline.steps for piece in step.slices]
        self._origin_s = min(begins, default=0.0)

    def ns(self, seconds: float) -> int:
        """The moment of `time.perf_counter` on this clock."""
        return round((seconds - self._origin_s) * _NS)


class _Tracks:
    """Ids and names of the processes and threads of a trace."""

    def __init__(self, timeline: Timeline) -> None:
        self._lanes = _step_lanes(timeline.steps)
        num_lanes = 1 + max(self._lanes.values(), default=0)
        self._step_names = ["steps", *(f"steps {number}" for number in range(2, num_lanes + 1))]
        self._streams = _streams(timeline.steps)
        self._ranks = sorted({step.rank for step in timeline.steps})

    def of_step(self, step: RankStep) -> Event:
        """Process and thread of a step."""
        return self._track(step.rank, self._lanes[step.rank, step.number])

    def of_slice(self, rank: int, stream: str) -> Event:
        """Process and thread of a stream."""
        return self._track(rank, len(self._step_names) + self._streams.index(stream))

    def metadata(self) -> list[Event]:
        """Names and order of all processes and threads."""
        return [event for rank in self._ranks for event in self._metadata_of(rank)]

    def _metadata_of(self, rank: int) -> Iterator[Event]:
        process = self._track(rank, 0)
        yield _metadata(process, "process_name", {"name": f"rank {rank}"})
        yield _metadata(process, "process_sort_index", {"sort_index": rank})
        for place, name in enumerate((*self._step_names, *self._streams)):
            thread = self._track(rank, place)
            yield _metadata(thread, "thread_name", {"name": name})
            yield _metadata(thread, "thread_sort_index", {"sort_index": place})

    @staticmethod
    def _track(rank: int, place: int) -> Event:
        # Process 0 and thread 0 are the idle ones to Perfetto.
        process = rank + 1
        return {"pid": process, "tid": process * _THREADS_PER_RANK + place}


def _metadata(track: Event, name: str, args: Mapping[str, Any]) -> Event:
    return {"ph": "M", "ts": 0, **track, "name": name, "args": dict(args)}


def _streams(steps: Sequence[RankStep]) -> list[str]:
    """All streams, those of `_FIRST_STREAMS` first, the others as they come."""
    streams = dict.fromkeys(piece.stream for step in steps for piece in step.slices)
    first = [name for name in _FIRST_STREAMS if name in streams]
    return [*first, *(name for name in streams if name not in first)]


def _step_lanes(steps: Sequence[RankStep]) -> dict[tuple[int, int], int]:
    """Tracks of the steps, by rank and number: with pipeline stages several run at one time."""
    lanes: dict[tuple[int, int], int] = {}
    ends_s: dict[int, list[float]] = {}
    for step in sorted(steps, key=lambda step: step.begin_s):
        ends = ends_s.setdefault(step.rank, [])
        lane = next((i for i, end_s in enumerate(ends) if end_s <= step.begin_s), len(ends))
        ends[lane:] = [step.end_s, *ends[lane + 1 :]]
        lanes[step.rank, step.number] = lane
    return lanes


def _step_event(step: RankStep, tracks: _Tracks, clock: _Clock) -> Event:
    args = {
        "step": step.number,
        "rows": step.num_rows,
        "decode_rows": step.num_decode_rows,
        "tokens": step.num_tokens,
        "halves": [{"rows": half.num_rows, "tokens": half.num_tokens} for half in step.halves],
        "whole_because": step.whole_because,
    }
    times = _complete(clock.ns(step.begin_s), clock.ns(step.end_s))
    name = f"step {step.number}"
    return {"name": name, "cat": STEP_CATEGORY, **times, **tracks.of_step(step), "args": args}


def _slice_events(step: RankStep, tracks: _Tracks, clock: _Clock) -> Iterator[Event]:
    for piece in step.slices:
        times = _complete(clock.ns(piece.begin_s), clock.ns(piece.end_s))
        track = tracks.of_slice(step.rank, piece.stream)
        yield {
            "name": piece.name,
            "cat": piece.kind,
            **times,
            **track,
            "args": _slice_args(step, piece),
        }


def _slice_args(step: RankStep, piece: TimelineSlice) -> dict[str, Any]:
    args: dict[str, Any] = {"step": step.number, "half": piece.half, "kind": piece.kind}
    if piece.kind == "collective":
        args["bytes"] = piece.num_bytes
    part = step if piece.half is None else step.halves[piece.half]
    return {**args, "rows": part.num_rows, "tokens": part.num_tokens}


def _complete(begin_ns: int, end_ns: int) -> Event:
    return {
        "ph": "X",
        "ts": begin_ns / _NS_PER_US,
        "dur": max(0, end_ns - begin_ns) / _NS_PER_US,
    }


def _waits(step: RankStep) -> Iterator[tuple[TimelineSlice, TimelineSlice]]:
    """Yield each slice that another one waited for, and that other one."""
    for target in step.slices:
        for place in target.after:
            yield step.slices[place], target


def _flow(source: TimelineSlice, target: TimelineSlice, clock: _Clock) -> tuple[int, int] | None:
    """Moments of an arrow's ends, inside the two slices; None: the target was over before.

    A viewer binds an end to the slice that encloses it, and at its very end a slice encloses
    nothing any more: the last moment is one nanosecond before.
    """
    source_begin, source_last = _moments(source, clock)
    target_begin, target_last = _moments(target, clock)
    begin = min(source_last, target_last)
    return (begin, max(begin, target_begin)) if begin >= source_begin else None


def _moments(piece: TimelineSlice, clock: _Clock) -> tuple[int, int]:
    """The first and the last nanosecond of a slice."""
    begin = clock.ns(piece.begin_s)
    return begin, max(begin, clock.ns(piece.end_s) - 1)


def _flow_events(
    step: RankStep,
    slices: tuple[TimelineSlice, TimelineSlice],
    flow: tuple[int, int],
    number: int,
    tracks: _Tracks,
) -> tuple[Event, Event]:
    start, finish = (
        {
            "name": "waits for", "cat": FLOW_CATEGORY, "id": number, "ts": moment / _NS_PER_US,
            **tracks.of_slice(step.rank, piece.stream),
        }
        for piece, moment in zip(slices, flow, strict=True)
    )  # fmt: skip
    return {"ph": "s", **start}, {"ph": "f", "bp": "e", **finish}
