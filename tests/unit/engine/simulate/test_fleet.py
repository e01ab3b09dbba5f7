"""A fleet: no request is lost or served before it came, whatever the controller does."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tandem_engine.simulate.account import FleetResult
from tandem_engine.simulate.fleet import FleetSettings
from tandem_engine.simulate.fluid_replicas import FluidReplicas
from tandem_engine.simulate.replica import Replica
from tandem_engine.simulate.router import LeastConnections
from tandem_engine.simulate.workload import Arrival
from tests.unit.engine.simulate.fleets import (
    CURVE,
    SHAPE,
    Follows,
    flow,
    flows,
    run,
    scheduler_replica,
    schedulers,
    settings,
    steady,
)

Make = Callable[[int, float], Sequence[Replica]]
KINDS = pytest.mark.parametrize("kind", ["scheduler", "flow"])


def load_of(kind: str, rate: float, duration_s: float) -> list[tuple[Arrival, float]]:
    return steady(rate, duration_s) if kind == "scheduler" else flow(rate, duration_s)


def make_of(kind: str) -> Make:
    return schedulers(3) if kind == "scheduler" else flows


# An example takes a second or two: 5 of the same, 20 drawn ones.
@KINDS
@hypothesis_settings(max_examples=hypothesis_settings().max_examples // 10)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    rate=st.floats(0.5, 12.0),
    failures=st.lists(st.floats(0.0, 100.0), max_size=3),
    cold_start_s=st.floats(0.0, 40.0),
)
def test_every_request_completes_or_fails_with_its_replica(
    kind: str, counts: list[int], rate: float, failures: list[float], cold_start_s: float
) -> None:
    controller = Follows(lambda now: counts[int(now / 10.0) % len(counts)])
    result = run(
        load_of(kind, rate, 100.0),
        100.0,
        controller,
        make=make_of(kind),
        cold_start_s=cold_start_s,
        fleet=settings(period_s=10.0, failures_s=failures),
    )

    assert result.num_completed + result.num_failed == pytest.approx(result.num_arrived)
    assert result.num_met <= result.num_completed + 1e-6
    assert result.num_failed == 0.0 or failures
    assert result.replica_hours > 0.0
    assert len(result.moments) == 10
    assert all(1 <= moment.desired <= 8 for moment in result.moments)
    times = [moment.now_s for moment in result.moments]
    assert times == sorted(times)


@KINDS
def test_a_removed_replica_ends_its_requests_first(kind: str) -> None:
    controller = Follows(lambda now: 4 if now < 30.0 else 1)
    result = run(
        load_of(kind, 6.0, 60.0),
        60.0,
        controller,
        make=make_of(kind),
        fleet=settings(initial_replicas=4, period_s=10.0),
    )

    assert result.num_failed == 0.0
    assert result.num_completed == pytest.approx(result.num_arrived)
    before, after = controller.observations[2], controller.observations[3]
    assert (before.ready, after.ready) == (4, 1)
    # Three drain until their last requests end, and count as long.
    assert 4 * 30 + 30 <= result.replica_hours * 3600 < 4 * 30 + 30 + 3 * 30


def run_seeded(seed: int) -> FleetResult:
    return run(steady(6.0, 40.0), 40.0, Follows(lambda _: 2), make=schedulers(seed))


def test_the_same_seed_gives_the_same_result() -> None:
    assert run_seeded(1) == run_seeded(1)
    assert run_seeded(1) != run_seeded(2)


@KINDS
def test_a_started_replica_serves_after_its_cold_start(kind: str) -> None:
    controller = Follows(lambda _: 3)
    run(
        load_of(kind, 2.0, 100.0),
        100.0,
        controller,
        make=make_of(kind),
        cold_start_s=25.0,
        fleet=settings(period_s=10.0),
    )

    seen = [(observation.ready, observation.starting) for observation in controller.observations]
    assert seen[:5] == [(1, 0), (1, 2), (1, 2), (3, 0), (3, 0)]


def test_a_start_that_is_not_needed_any_more_is_ended() -> None:
    controller = Follows(lambda now: 5 if now < 15.0 else 1)
    result = run(flow(1.0, 60.0), 60.0, controller, make=flows, fleet=settings(period_s=10.0))

    assert [observation.starting for observation in controller.observations] == [0, 4, 0, 0, 0, 0]
    assert result.replica_hours * 3600 == pytest.approx(60.0 + 4 * 10.0)


def test_nodes_that_are_full_start_no_more() -> None:
    controller = Follows(lambda _: 8)
    run(flow(1.0, 60.0), 60.0, controller, make=flows, fleet=settings(room=3, period_s=10.0))

    assert controller.observations[-1].ready == 3
    assert controller.observations[-1].room == 0
    assert controller.observations[-1].desired == 8


@KINDS
def test_a_replica_that_fails_loses_its_requests_and_is_started_again(kind: str) -> None:
    controller = Follows(lambda _: 2)
    result = run(
        load_of(kind, 8.0, 60.0),
        60.0,
        controller,
        make=make_of(kind),
        fleet=settings(initial_replicas=2, failures_s=(15.25,), period_s=10.0),
    )

    assert 0.0 < result.num_failed < 12.0
    seen = [(observation.ready, observation.starting) for observation in controller.observations]
    assert seen[:4] == [(2, 0), (1, 1), (1, 1), (2, 0)]


@KINDS
def test_requests_wait_while_no_replica_is_ready(kind: str) -> None:
    controller = Follows(lambda _: 1)
    result = run(
        load_of(kind, 1.0, 60.0),
        60.0,
        controller,
        make=make_of(kind),
        fleet=settings(min_replicas=0, initial_replicas=0, period_s=10.0),
    )

    assert result.num_failed == 0.0
    assert controller.observations[0].queue_age_s == pytest.approx(9.5, abs=0.5)
    assert controller.observations[0].num_waiting == pytest.approx(10.0)
    assert 0.0 < result.attainment < 1.0


@KINDS
def test_a_replica_that_hangs_keeps_what_it_takes_and_shows_an_old_queue(kind: str) -> None:
    controller = Follows(lambda _: 3)
    result = run(
        load_of(kind, 4.0, 120.0),
        120.0,
        controller,
        make=make_of(kind),
        fleet=settings(initial_replicas=3, hangs_s=(30.25,), period_s=10.0),
    )
    (last,) = [one for one in controller.observations[-1].replicas if one.size == 1][-1:]

    assert 0.0 < result.num_failed < 20.0
    assert result.num_completed + result.num_failed == pytest.approx(result.num_arrived)
    assert last.state.queue_age_s > 60.0
    assert controller.observations[-1].ready == 3


@KINDS
def test_a_start_that_is_lost_never_answers(kind: str) -> None:
    controller = Follows(lambda now: 2 if now < 20.0 else 4)
    run(
        load_of(kind, 2.0, 120.0),
        120.0,
        controller,
        make=make_of(kind),
        fleet=settings(initial_replicas=2, lost_starts=1, period_s=10.0),
    )
    last = controller.observations[-1]

    assert (last.ready, last.starting) == (3, 1)
    assert last.starts == ((20.0, 1),)


@KINDS
def test_what_finds_no_slot_is_refused(kind: str) -> None:
    controller = Follows(lambda _: 2)
    result = run(
        load_of(kind, 40.0, 60.0),
        60.0,
        controller,
        make=make_of(kind),
        fleet=settings(initial_replicas=2, slots=3, period_s=10.0),
    )

    assert result.num_failed > 0.0
    assert result.num_completed + result.num_failed == pytest.approx(result.num_arrived)
    assert controller.observations[-1].refused_rate > 5.0


@KINDS
def test_signals_are_those_of_the_window(kind: str) -> None:
    controller = Follows(lambda _: 2)
    result = run(
        load_of(kind, 4.0, 120.0),
        120.0,
        controller,
        make=make_of(kind),
        fleet=settings(initial_replicas=2, window_s=30.0),
    )
    last = controller.observations[-1]

    assert last.arrival_rate == pytest.approx(4.0, rel=0.05)
    assert last.ttft is not None
    assert last.tpot is not None
    assert 0.05 < last.ttft.value_s < 1.0
    assert 0.01 < last.tpot.value_s < 0.1
    assert last.ttft.num_samples == pytest.approx(120, abs=5)
    assert last.ttft.age_s <= 1.0
    assert last.queue_age_s < 0.2
    assert last.kv_usage is not None
    assert 0.0 < last.kv_usage < 0.6
    assert 0.2 < last.busy <= 1.0
    assert result.attainment == pytest.approx(1.0)


def test_a_count_that_falls_and_rises_within_a_window_is_a_flap() -> None:
    counts = [3, 2, 3, 3, 3, 2, 2, 2, 2, 3]
    controller = Follows(lambda now: counts[int(now / 10.0) - 1])
    result = run(
        flow(1.0, 100.0),
        100.0,
        controller,
        make=flows,
        fleet=settings(initial_replicas=3, period_s=10.0),
    )

    assert (result.num_ups, result.num_downs) == (2, 2)
    assert result.num_flaps(15.0) == 1
    assert result.num_flaps(60.0) == 2


def test_a_fleet_begins_within_its_bounds() -> None:
    with pytest.raises(ValueError, match=r"initial_replicas is 9; it must be from .* max_replicas"):
        settings(initial_replicas=9)
    assert isinstance(settings(), FleetSettings)


# ── the router ───────────────────────────────────────────────────────────────────────────────


def test_a_request_goes_where_the_fewest_are_and_equals_take_turns() -> None:
    router = LeastConnections()
    replicas = [scheduler_replica() for _ in range(3)]
    replicas[1].submit(Arrival(0.0, SHAPE))
    for _ in range(5):
        router.pick(replicas).submit(Arrival(0.0, SHAPE))

    assert [replica.num_ongoing for replica in replicas] == [2, 2, 2]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.0, 50.0)), min_size=1, max_size=6),
    st.floats(0.01, 1000.0),
)
def test_a_flow_fills_replicas_up_to_one_level(
    given_replicas: list[tuple[int, float]], count: float
) -> None:
    replicas = []
    for size, ongoing in given_replicas:
        replicas.append(FluidReplicas(CURVE, size))
        replicas[-1].submit(Arrival(0.0, SHAPE), ongoing * size)
    shares = LeastConnections().share(replicas, count)
    for replica, part in shares:
        assert part >= 0.0
        replica.submit(Arrival(0.0, SHAPE), part)

    assert sum(part for _, part in shares) == pytest.approx(count)
    levels = [replica.num_ongoing for replica, _ in shares]
    assert max(levels) == pytest.approx(min(levels))
    assert all(replica.num_ongoing >= min(levels) - 1e-6 for replica in replicas)
