"""Traces of timelines, held against the Trace Event Format: phases, tracks, nesting and arrows."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.timeline import Half, RankStep, Timeline, TimelineSlice
from tandem_serve.api.timeline_summary import summary_of
from tandem_serve.api.trace_events import trace_document, trace_events
from tandem_serve.fake_timeline import FAKE_TIMELINE

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "pid", "tid", "ts", "id", "bp"},
}
"""Phase → fields that its events must have."""
NAMES = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}

Event = dict[str, Any]


def events_of(timeline: Timeline) -> list[Event]:
    document = trace_document(timeline, summary_of(timeline, "tiny"))
    events: list[Event] = document["traceEvents"]
    return events


def of_phase(events: list[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def ns(microseconds: float) -> int:
    """The nanoseconds of a time, which must be a whole number of them."""
    assert abs(microseconds * 1000 - round(microseconds * 1000)) < 1e-3
    return round(microseconds * 1000)


def span(event: Event) -> tuple[int, int]:
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


def check_format(timeline: Timeline) -> None:
    """Hold the trace of `timeline` against the format and against the timeline."""
    events = events_of(timeline)
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    check_tracks(events)
    check_nesting(events)
    check_flows(events, timeline)
    kinds = Counter(event["cat"] for event in of_phase(events, "X"))
    slices = [one for step in timeline.steps for one in step.slices]
    assert kinds == Counter(one.kind for one in slices) + Counter(step=len(timeline.steps))


def check_tracks(events: list[Event]) -> None:
    """Every track has a name and a place, once, and threads belong to one process."""
    named = Counter((e["name"], e["pid"], e["tid"]) for e in of_phase(events, "M"))
    assert {name for name, _, _ in named} <= NAMES
    assert set(named.values()) <= {1}
    threads = {(e["pid"], e["tid"]) for e in events}
    for kind in ("thread_name", "thread_sort_index"):
        assert {(pid, tid) for name, pid, tid in named if name == kind} == threads
    for kind in ("process_name", "process_sort_index"):
        assert sorted(pid for name, pid, _ in named if name == kind) == sorted(
            {pid for pid, _ in threads}
        )
    assert len({tid for _, tid in threads}) == len(threads)


def check_nesting(events: list[Event]) -> None:
    """Two slices of one track are apart, or one is inside the other."""
    tracks: dict[int, list[tuple[int, int]]] = {}
    for event in of_phase(events, "X"):
        tracks.setdefault(event["tid"], []).append(span(event))
    for spans in tracks.values():
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            assert end <= begin


def check_flows(events: list[Event], timeline: Timeline) -> None:
    """Each wait has an arrow from inside one slice to inside another, forwards in time."""
    starts, finishes = of_phase(events, "s"), of_phase(events, "f")
    assert len({event["id"] for event in starts}) == len(starts)
    assert [event["id"] for event in starts] == [event["id"] for event in finishes]
    assert len(starts) == sum(len(one.after) for step in timeline.steps for one in step.slices)
    found: Counter[tuple[Any, Any]] = Counter()
    for start, finish in zip(starts, finishes, strict=True):
        assert finish["bp"] == "e"
        assert (start["cat"], start["name"]) == (finish["cat"], finish["name"])
        assert start["ts"] <= finish["ts"]
        found[slice_at(start, events), slice_at(finish, events)] += 1
    assert found == Counter(waits_of(timeline))


def slice_at(end: Event, events: list[Event]) -> tuple[int, str, int, int]:
    """The slice that encloses one end of an arrow: rank, name and half, and its begin."""
    [one] = [
        event
        for event in of_phase(events, "X")
        if (event["pid"], event["tid"]) == (end["pid"], end["tid"])
        and span(event)[0] <= ns(end["ts"]) < span(event)[1]
    ]
    return one["pid"] - 1, one["name"], one["args"]["half"], one["args"]["step"]


def waits_of(timeline: Timeline) -> list[tuple[Any, Any]]:
    """Source and target of each wait, as `slice_at` names slices."""
    return [
        tuple((step.rank, of.name, of.half, step.number) for of in (step.slices[place], one))  # type: ignore[misc]  # two of them
        for step in timeline.steps
        for one in step.slices
        for place in one.after
    ]


@st.composite
def rank_steps(draw: st.DrawFn, *, rank: int, number: int) -> RankStep:
    """A step whose slices follow each other on each stream, and wait for those that are over."""
    begin_us = draw(st.integers(0, 10**6))
    halves = draw(st.sampled_from([(), (Half(num_rows=2, num_tokens=9),) * 2]))
    ends_us: dict[str, int] = {}
    slices: list[TimelineSlice] = []
    for place in range(draw(st.integers(0, 12))):
        stream = draw(st.sampled_from(["compute", "communication", "copies"]))
        at_us = ends_us.get(stream, begin_us) + draw(st.integers(0, 50))
        end_us = at_us + draw(st.integers(1, 200))
        over = [
            i
            for i, one in enumerate(slices)
            if one.stream != stream and one.begin_s * 1e6 < end_us - 1
        ]
        slices.append(
            TimelineSlice(
                stream=stream,
                kind=draw(st.sampled_from(["stage", "collective"])),
                name=f"part {place}",
                half=draw(st.sampled_from([0, 1])) if halves else None,
                begin_s=at_us / 1e6,
                end_s=end_us / 1e6,
                after=tuple(draw(st.sets(st.sampled_from(over), max_size=2))) if over else (),
            )
        )
        ends_us[stream] = end_us
    return RankStep(
        rank=rank,
        number=number,
        begin_s=begin_us / 1e6,
        end_s=max([begin_us, *ends_us.values()]) / 1e6,
        num_rows=4,
        num_decode_rows=1,
        num_tokens=18,
        halves=halves,
        whole_because=None if halves else "off",
        slices=tuple(slices),
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Timelines of up to three ranks, whose steps come one after the other on each."""
    num_ranks, num_steps = draw(st.integers(1, 3)), draw(st.integers(0, 4))
    steps: list[RankStep] = []
    for number in range(num_steps):
        for rank in range(num_ranks):
            step = draw(rank_steps(rank=rank, number=number))
            last_s = max((one.end_s for one in steps if one.rank == rank), default=0.0)
            steps.append(moved(step, round(last_s, 6)))
    return Timeline(steps=tuple(steps))


def moved(step: RankStep, by_s: float) -> RankStep:
    slices = tuple(
        replace(one, begin_s=one.begin_s + by_s, end_s=one.end_s + by_s) for one in step.slices
    )
    return replace(step, begin_s=step.begin_s + by_s, end_s=step.end_s + by_s, slices=slices)


@given(timelines())
def test_every_timeline_gives_a_trace_of_the_format(timeline: Timeline) -> None:
    check_format(timeline)


def test_the_worked_out_timeline_gives_a_trace_of_the_format() -> None:
    check_format(FAKE_TIMELINE)


def test_an_empty_timeline_gives_an_empty_trace() -> None:
    document = trace_document(Timeline(steps=()), summary_of(Timeline(steps=()), "tiny"))

    assert document["traceEvents"] == []
    assert document["otherData"]["num_steps"] == 0


def test_each_rank_has_a_track_of_steps_and_one_for_each_stream() -> None:
    events = events_of(FAKE_TIMELINE)

    names = [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert names == [
        (1, "steps"), (1, "compute"), (1, "communication"),
        (2, "steps"), (2, "compute"), (2, "communication"),
    ]  # fmt: skip
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["rank 0", "rank 1"]


def test_streams_of_micro_batches_stand_before_others() -> None:
    step = FAKE_TIMELINE.steps[0]
    streams = ("copies", "micro-batch 1", "micro-batch 0", "compute")
    slices = tuple(
        replace(one, stream=stream, after=())
        for one, stream in zip(step.slices, streams, strict=True)
    )

    events = events_of(Timeline(steps=(replace(step, slices=slices),)))

    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["steps", "compute", "micro-batch 0", "micro-batch 1", "copies"]


def test_times_are_microseconds_since_the_first_begin() -> None:
    steps = [event for event in of_phase(events_of(FAKE_TIMELINE), "X") if event["cat"] == "step"]

    assert [(step["pid"], step["ts"], step["dur"]) for step in steps] == [
        (1, 0.0, 4000.0),
        (2, 250.0, 4000.0),
        (1, 5000.0, 5000.0),
        (2, 5250.0, 5000.0),
    ]


def test_a_step_shows_its_rows_its_halves_and_why_it_is_whole() -> None:
    steps = [event for event in of_phase(events_of(FAKE_TIMELINE), "X") if event["cat"] == "step"]

    assert steps[0]["name"] == "step 0"
    assert steps[0]["args"] == {
        "step": 0, "rows": 16, "decode_rows": 16, "tokens": 16, "halves": [],
        "whole_because": "decode_only",
    }  # fmt: skip
    assert steps[2]["args"] == {
        "step": 1, "rows": 5, "decode_rows": 3, "tokens": 64,
        "halves": [{"rows": 4, "tokens": 33}, {"rows": 1, "tokens": 31}],
        "whole_because": None,
    }  # fmt: skip


def test_a_slice_shows_its_half_and_what_is_in_it() -> None:
    slices = [e for e in of_phase(events_of(FAKE_TIMELINE), "X") if e["args"]["step"] == 1]
    of_half_1 = [event for event in slices if event["args"].get("half") == 1]

    assert [event["name"] for event in of_half_1[:2]] == ["attention 0", "all_reduce"]
    assert of_half_1[0]["args"] == {
        "step": 1, "half": 1, "kind": "stage", "rows": 1, "tokens": 31
    }  # fmt: skip
    assert of_half_1[1]["args"] == {
        "step": 1, "half": 1, "kind": "collective", "bytes": 8192, "rows": 1, "tokens": 31
    }  # fmt: skip


def test_steps_that_run_at_one_time_have_tracks_of_their_own() -> None:
    first = FAKE_TIMELINE.steps[2]
    second = replace(moved(first, 0.002), number=2, slices=())
    third = replace(moved(first, 0.006), number=3, slices=())

    events = events_of(Timeline(steps=(first, second, third)))

    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    steps = [event for event in of_phase(events, "X") if event["cat"] == "step"]
    assert [names[step["tid"]] for step in steps] == ["steps", "steps 2", "steps"]
    check_format(Timeline(steps=(first, second, third)))


def test_a_target_that_was_over_before_its_source_began_has_no_arrow() -> None:
    step = FAKE_TIMELINE.steps[0]
    slices = (replace(step.slices[0], after=(3,)), *step.slices[1:])

    events = events_of(Timeline(steps=(replace(step, slices=slices),)))

    assert len(of_phase(events, "s")) == len(of_phase(events, "f")) == 3


def test_an_arrow_ends_inside_a_target_that_began_before_its_source_ended() -> None:
    step = FAKE_TIMELINE.steps[0]
    early = replace(step.slices[1], begin_s=step.slices[0].begin_s + 1e-4, end_s=1000.5e-3)
    timeline = Timeline(steps=(replace(step, slices=(step.slices[0], early)),))

    check_format(timeline)
    [start] = of_phase(events_of(timeline), "s")
    assert start["ts"] == pytest.approx(499.999)


def test_events_come_a_step_at_a_time() -> None:
    parts = list(trace_events(FAKE_TIMELINE))

    assert len(parts) == 1 + len(FAKE_TIMELINE.steps)


def test_the_summary_counts_and_says_how_much_was_hidden() -> None:
    summary = summary_of(FAKE_TIMELINE, "tiny")

    assert (summary.num_ranks, summary.num_steps, summary.num_cut_steps) == (2, 2, 1)
    assert summary.num_slices == 24
    # Of four milliseconds of communication on each of two ranks, three have computation beside.
    assert summary.communication_s == pytest.approx(8e-3)
    assert summary.hidden_s == pytest.approx(6e-3)
    assert summary.overlap == pytest.approx(0.75)


def test_without_a_cut_step_there_is_no_overlap() -> None:
    whole = Timeline(steps=FAKE_TIMELINE.steps[:2])

    assert summary_of(whole, "tiny").overlap is None
    assert summary_of(whole, "tiny").communication_s == 0.0


def test_computation_of_the_same_half_hides_nothing() -> None:
    step = FAKE_TIMELINE.steps[2]
    slices = tuple(replace(one, half=0) for one in step.slices)

    assert summary_of(Timeline(steps=(replace(step, slices=slices),)), "tiny").hidden_s == 0.0


@given(timelines())
def test_no_more_is_hidden_than_there_is(timeline: Timeline) -> None:
    summary = summary_of(timeline, "tiny")

    assert 0.0 <= summary.hidden_s <= summary.communication_s + 1e-9
    assert summary.overlap is None or 0.0 <= summary.overlap <= 1.0
