"""A replica with the real scheduler, and replicas as flows, by the same rules."""

from collections.abc import Callable
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_engine.simulate.fluid_replicas import FluidReplicas
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.performance_curve import calibrate
from tandem_engine.simulate.replica import Completion, Replica
from tandem_engine.simulate.workload import Arrival, Shape
from tests.unit.engine.simulate.fleets import CURVE, PLAIN, SHAPE, TICK_S, flow, scheduler_replica

QUIET = Noise(spread=0.0, outliers=0.0)
MAKERS: list[Callable[[], Replica]] = [scheduler_replica, lambda: FluidReplicas(CURVE, 1)]

arrivals = st.lists(
    st.tuples(st.floats(0.0, 5.0), st.integers(1, 700), st.integers(1, 40)), min_size=1, max_size=15
)


@pytest.mark.parametrize("make", MAKERS, ids=["scheduler", "flow"])
@settings(max_examples=settings().max_examples // 2)
@given(given_arrivals=arrivals, ticks=st.floats(0.05, 3.0))
def test_every_request_ends_once_and_time_does_not_go_back(
    make: Callable[[], Replica], given_arrivals: list[tuple[float, int, int]], ticks: float
) -> None:
    replica = make()
    ended: list[Completion] = []
    num_first, now, next_tick = 0.0, 0.0, ticks
    for due_s, num_input, num_output in sorted(given_arrivals):
        while next_tick < due_s:
            progress = replica.advance(next_tick)
            ended += progress.completions
            num_first += sum(each.num_requests for each in progress.first_tokens)
            assert all(now < each.at_s <= next_tick for each in progress.first_tokens)
            assert all(each.at_s <= next_tick for each in progress.completions)
            now, next_tick = next_tick, next_tick + ticks
        progress = replica.advance(due_s)
        ended += progress.completions
        num_first += sum(each.num_requests for each in progress.first_tokens)
        now = due_s
        replica.submit(Arrival(due_s, Shape(num_input, num_output)))
    while replica.num_ongoing > 1e-6:
        now += 1.0
        progress = replica.advance(now)
        ended += progress.completions
        num_first += sum(each.num_requests for each in progress.first_tokens)
        assert now < 1000.0

    assert sum(each.num_requests for each in ended) == pytest.approx(len(given_arrivals))
    assert num_first == pytest.approx(len(given_arrivals))
    assert all(each.ttft_s > 0.0 for each in ended)
    assert all(each.tpot_s is None or each.tpot_s > 0.0 for each in ended)
    lengths = sorted((one.arrived_s, one.shape) for one in ended)
    assert set(lengths) == {(due_s, Shape(*shape)) for due_s, *shape in given_arrivals}


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[Completion]:
        replica = scheduler_replica(seed)
        for number in range(20):
            replica.advance(0.1 * number)
            replica.submit(Arrival(0.1 * number, SHAPE))
        return list(replica.advance(inf).completions)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_step_does_not_begin_before_the_last_one_ended() -> None:
    replica = scheduler_replica(noise=QUIET)
    replica.submit(Arrival(0.0, Shape(200, 1)))
    replica.advance(0.1)
    replica.submit(Arrival(0.1, Shape(50, 1)))
    first, second = replica.advance(inf).completions

    # 10 + 200 + 4 ms, and 10 + 50 + 4 ms after it.
    assert [first.at_s, second.at_s] == pytest.approx([0.214, 0.278])


def test_what_ends_later_is_not_seen_yet() -> None:
    replica = scheduler_replica(noise=QUIET)
    replica.submit(Arrival(0.0, Shape(200, 1)))

    assert not replica.advance(0.1).completions
    assert replica.num_ongoing == 1
    assert len(replica.advance(0.3).completions) == 1
    assert replica.num_ongoing == 0


def test_the_age_of_the_queue_is_that_of_the_oldest_without_a_step() -> None:
    replica = scheduler_replica(noise=QUIET)
    replica.submit(Arrival(0.0, Shape(256, 1)))
    replica.advance(0.1)
    assert replica.state().queue_age_s == 0.0
    replica.submit(Arrival(0.1, Shape(256, 1)))
    replica.advance(0.25)

    assert replica.state().queue_age_s == pytest.approx(0.15)
    assert replica.state().busy_s == pytest.approx(0.25)


def test_a_replica_with_a_scheduler_takes_one_request_at_a_time_and_has_no_parts() -> None:
    with pytest.raises(ValueError, match="count is 2; a SchedulerReplica takes one request"):
        scheduler_replica().submit(Arrival(0.0, SHAPE), 2.0)
    with pytest.raises(ValueError, match="size is 1; a SchedulerReplica is one replica"):
        scheduler_replica().split(1)
    assert not scheduler_replica().absorb(scheduler_replica())


# ── flows ────────────────────────────────────────────────────────────────────────────────────


def run_flow(replicas: FluidReplicas, rate: float, begin: int, seconds: int) -> list[Completion]:
    ended: list[Completion] = []
    for arrival, count in flow(rate, float(seconds)):
        due_s = begin + arrival.due_s
        replicas.submit(Arrival(due_s, SHAPE), count)
        ended += replicas.advance(due_s + TICK_S / 2.0).completions
    return ended


def test_a_steady_flow_comes_to_the_load_of_the_curve() -> None:
    replicas = FluidReplicas(CURVE, 10)
    ended = run_flow(replicas, 25.0, 0, 60)

    last = [each for each in ended if each.at_s > 50.0]
    assert sum(each.num_requests for each in last) == pytest.approx(25.0 * 10.0, rel=0.05)
    assert replicas.state().queue_age_s == 0.0
    # Little's law: n = 2.5 · (0.3 + 0.7 · f) where f = (n − 0.3) / 3.7 is the position between the
    # two points: f = 0.23.
    assert last[-1].ttft_s == pytest.approx(0.1 + 0.4 * 0.23, abs=0.02)
    assert replicas.num_ongoing == pytest.approx(1.15, rel=0.2)


def test_in_an_overload_the_queue_ages_and_is_served_later() -> None:
    replicas = FluidReplicas(CURVE, 2)
    run_flow(replicas, 40.0, 0, 60)
    late = replicas.state()
    run_flow(replicas, 0.5, 60, 300)

    assert late.queue_age_s > 10.0
    assert late.num_waiting > 100.0
    assert replicas.state().queue_age_s == 0.0
    assert replicas.state().num_waiting == 0.0


def test_parts_and_the_whole_have_the_same_requests() -> None:
    replicas = FluidReplicas(CURVE, 10)
    run_flow(replicas, 30.0, 0, 20)
    ongoing = replicas.num_ongoing
    part = replicas.split(3)

    assert (part.size, replicas.size) == (3, 7)
    assert part.num_ongoing == pytest.approx(ongoing)
    assert replicas.num_ongoing == pytest.approx(ongoing)
    assert replicas.absorb(part)
    assert replicas.size == 10
    assert replicas.num_ongoing == pytest.approx(ongoing)
    assert not replicas.absorb(FluidReplicas(CURVE, 1))
    with pytest.raises(ValueError, match="size is 10; it must be from 1 to 9"):
        replicas.split(10)


def test_a_longer_prompt_is_more_work_and_has_a_longer_ttft() -> None:
    short, long = FluidReplicas(CURVE, 1), FluidReplicas(CURVE, 1)
    short.submit(Arrival(0.5, SHAPE), 1.0)
    long.submit(Arrival(0.5, Shape(400, 11)), 1.0)

    (first, *_), (later, *_) = short.advance(1.0).first_tokens, long.advance(1.0).first_tokens
    # 300 tokens more, 1 ms each, twice as long beside decode rows.
    assert later.ttft_s == pytest.approx(first.ttft_s + 0.6)
    assert CURVE.work(SHAPE) == pytest.approx(1.0)
    assert CURVE.work(Shape(400, 11)) == pytest.approx(0.455 / 0.155)


def test_a_curve_is_measured_on_the_real_scheduler() -> None:
    curve = calibrate(
        scheduler_replica,
        [Shape(80, 10), Shape(120, 12)],
        PLAIN,
        Random(1),
        ttft_s=1.0,
        tpot_s=0.1,
        num_requests=120,
    )

    # A prompt and ten decode rows take about 0.1 + 10 · 5 ms: six a second at the most.
    assert 2.0 < curve.capacity <= curve.overload_rate < 7.0
    assert curve.overload_rate <= curve.burst_rate
    assert curve.mean_shape == Shape(100, 11)
    ongoing = [point.num_ongoing for point in curve.points]
    assert ongoing == sorted(ongoing)
    assert curve.at(0.0) == curve.points[0]
    assert curve.at(1e6) == curve.points[-1]
