"""Requests whose deadline is over: they end by the next step, in any queue."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request
from tandem_engine.scheduler.deadlines import Deadlines
from tests.unit.engine.scheduling import STEP_S, Bench, counting, mix, request, rows, standard


def until(deadline: float, one: Request) -> Request:
    return replace(one, deadline=deadline)


def with_async(schedule: ScheduleConfig) -> ScheduleConfig:
    return schedule.model_copy(update={"async_scheduling_enable": True})


ONE_ROW: dict[str, Any] = {"max_batch_size": 1, "max_prefill_batch_size": 1}


@pytest.mark.parametrize(
    "schedule",
    [mix(32), with_async(mix(32)), standard(), with_async(standard())],
    ids=["splitfuse", "splitfuse, async", "continuous", "continuous, async"],
)
def test_one_that_runs_ends_and_its_blocks_are_free(schedule: ScheduleConfig) -> None:
    late = until(1.0, request("late", 20, 40))
    bench = Bench(schedule, late, request("near", 20, 12))
    # The first step is at 0 s: those at 0, ¼, ½ and ¾ s are in time.
    progresses = [bench.step() for _ in range(5)]

    assert [list(each.expired) for each in progresses] == [[], [], [], [], ["late"]]
    assert bench.said["late"] == list(range(len(bench.said["late"])))
    bench.finish()
    assert bench.said["near"] == list(range(12))
    assert "late" not in bench.reasons
    assert bench.is_empty


def test_one_that_waits_is_never_computed() -> None:
    schedule = standard(**ONE_ROW)
    bench = Bench(schedule, request("first", 20, 12), until(0.6, request("late", 20, 4)))
    made = bench.run(4)

    assert all("late" not in each for each in made)
    assert bench.engine.stats().num_waiting == 0
    assert "late" not in bench.said
    bench.finish()
    assert bench.is_empty


def test_one_that_is_swapped_out_gives_back_its_host_blocks() -> None:
    schedule = mix(32, schedule={"max_preempt_count": 1})
    bench = Bench(schedule, request("a", 30, 60), num_blocks=6, num_host_blocks=8)
    bench.add(request("b", 46, 6, arrived=0.01))
    while not bench.engine.stats().num_swapped:
        bench.step()
    # Deadlines are of requests: the one that is out is as good as any.
    (out,) = bench.scheduler._queues.swapped
    again = Bench(schedule, num_blocks=6, num_host_blocks=8)
    again.add(until(bench.now, request("a", 30, 60)) if out == "a" else request("a", 30, 60))
    b = request("b", 46, 6, arrived=0.01)
    again.add(until(bench.now, b) if out == "b" else b)
    while again.now < bench.now:
        again.step()
    assert again.host.num_held > 0

    assert list(again.step().expired) == [out]
    assert again.host.num_held == 0
    again.finish()
    assert again.is_empty


@pytest.mark.parametrize("is_beams", [False, True])
@pytest.mark.parametrize("deadline", [0.2, 0.9])
def test_choices_and_beams_end_together(deadline: float, *, is_beams: bool) -> None:
    many = request("n", 40, 20, n=3, use_beam_search=is_beams)
    bench = Bench(mix(16), until(deadline, many), request("near", 20, 8))
    expired = [each for _ in range(6) for each in bench.step().expired]

    assert sorted(expired) == ["n0", "n1", "n2"]
    bench.finish()
    assert bench.said.keys() - set(expired) == {"near"}
    assert bench.is_empty


def test_a_choice_that_has_ended_is_not_told_again() -> None:
    many = request("n", 20, 20, n=2)
    bench = Bench(mix(32), until(1.0, many))
    bench.run(2)
    bench.engine.abort("n1")

    assert [each for _ in range(4) for each in bench.step().expired] == ["n0"]
    assert bench.is_empty


def test_a_batch_that_forms_is_not_waited_for_by_one_that_is_late() -> None:
    schedule = standard(strategy="static", max_batch_size=4)
    bench = Bench(schedule, until(0.4, request("late", 20, 4)))
    assert rows(bench.step()) == {}

    assert bench.engine.wake_at == 0.4
    bench.now = bench.engine.wake_at
    assert list(bench.step().expired) == ["late"]
    assert bench.is_empty


def test_a_request_that_is_done_in_time_notices_nothing() -> None:
    many = [until(100.0, request(name, 20, 8)) for name in "abc"]
    bench = Bench(mix(32), *many)
    bench.finish()

    assert bench.said == counting("abc", 8)
    assert bench.now < 100.0
    assert bench.engine.wake_at < inf or not bench.engine.has_work


def test_requests_that_have_ended_are_not_kept_until_their_deadline() -> None:
    bench = Bench(mix(32))
    for number in range(2000):
        bench.add(until(1e9, request(f"r{number}", 1, 1, arrived=bench.now)))
        bench.step()
    bench.finish()

    assert len(bench.scheduler._deadlines) < 100


@given(
    deadlines=st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 7.0, inf]), max_size=200),
    moments=st.lists(st.sampled_from([0.0, 0.5, 0.75, 1.0, 3.0, 9.0]), max_size=8),
    ends=st.sets(st.integers(0, 199)),
)
def test_each_expires_once_at_the_first_call_that_is_not_before_its_deadline(
    deadlines: list[float], moments: list[float], ends: set[int]
) -> None:
    known = {f"r{at}": deadline for at, deadline in enumerate(deadlines)}
    kept = Deadlines(known.__contains__)
    for at, deadline in enumerate(deadlines):
        kept.add(until(deadline, request(f"r{at}", 1)), len(known))
    for at in ends:
        known.pop(f"r{at}", None)
    for now in sorted(moments):
        assert kept.next_at == min(known.values(), default=inf)
        over = kept.pop_expired(now)
        assert sorted(over) == sorted(name for name, at in known.items() if at <= now)
        for name in over:
            del known[name]


def test_steps_of_one_whose_time_was_over_before_it_came_are_none() -> None:
    bench = Bench(mix(32), until(0.0, request("late", 20, 4)))

    progress = bench.step(STEP_S)
    assert (list(progress.expired), rows(progress)) == (["late"], {})
    assert bench.is_empty
