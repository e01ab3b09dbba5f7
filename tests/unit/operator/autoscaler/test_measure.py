"""Signals and pods → the observation, and the first reason for not trusting it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.autoscaler.agreement import Doubt
from tandem_operator.autoscaler.measure import Measured, Replica, Targets, measure
from tandem_operator.autoscaler.signals import PodSample, Signals
from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.load import load_of
from tandem_operator.scaling_law.observation import SignalProblem
from tandem_operator.scaling_law.policy import ScalingPolicy
from tests.unit.operator.autoscaler.fake_prometheus import (
    HEALTHY,
    NOW_S,
    OF_REPLICAS,
    of_service,
    shared_out,
)

TARGETS = Targets(ttft_s=1.5, tpot_s=0.08)
READY = [Replica("a", is_ready=True, is_fresh=False), Replica("b", is_ready=True, is_fresh=False)]
MAX_AGE_S = 60.0


def sample(at_s: float = NOW_S - 5, exposed_at: float | None = None, **own: float) -> PodSample:
    return PodSample(
        received=100, scraped_at=at_s, exposed_at=exposed_at or at_s, started_at=1.0, **own
    )


def signals(
    pods: Mapping[str, PodSample] | None = None, without: str = "", **values: Any
) -> Signals:
    """Return the figures of a service over the healthy ones; its replicas have their part."""
    figures = {name: one for name, one in (HEALTHY | values).items() if name != without}
    known = {"a": sample(), "b": sample()} if pods is None else pods
    parts = shared_out(figures, max(len(known), 1))
    shared = {pod: replace(one, **(parts | own_figures(one))) for pod, one in known.items()}
    return Signals(values=of_service(figures), pods=shared, evaluated_at=NOW_S)


def own_figures(one: PodSample) -> dict[str, float]:
    return {field.name: value for field in fields(one) if (value := getattr(one, field.name))}


def measured(found: Signals, replicas: list[Replica] = READY) -> Measured:
    return measure(found, TARGETS, replicas, len(replicas), max_age_s=MAX_AGE_S)


def problem(found: Signals, replicas: list[Replica] = READY) -> SignalProblem | None:
    return measured(found, replicas).observation.find_problem(MAX_AGE_S)


def test_a_healthy_service_is_measured() -> None:
    observation = measured(signals()).observation

    assert problem(signals()) is None
    assert (observation.ready, observation.starting, observation.desired) == (2, 0, 2)
    assert observation.ttft is not None
    assert (observation.ttft.value_s, observation.ttft.target_s) == (0.6, 1.5)
    assert observation.ttft.num_samples == 100
    assert observation.ttft.age_s == 5
    assert observation.capacity_per_replica == 10
    assert (observation.ongoing_requests, observation.concurrency_per_replica) == (16, 20)


def test_the_engines_own_means_are_told() -> None:
    engine = measured(signals(token_budget=math.nan)).engine

    assert engine == {
        "tpot_pace_ratio": 0.95, "token_budget": None, "token_budget_used_ratio": 0.7
    }  # fmt: skip


def test_a_service_that_prometheus_does_not_know_is_missing() -> None:
    found = measured(Signals())

    assert found.observation.problem is SignalProblem.MISSING
    assert "exported_" in found.note
    assert found.observation.ready == 2


def of_many(number: int, **values: Any) -> tuple[Signals, list[Replica]]:
    """Return the figures of so many replicas, each with its part, and the replicas."""
    names = [f"r{index:03}" for index in range(number)]
    found = signals({name: sample() for name in names}, "", **values)
    return found, [Replica(name, is_ready=True, is_fresh=False) for name in names]


def with_pod(found: Signals, pod: str, **values: Any) -> Signals:
    """Return the figures with others of one replica."""
    return replace(found, pods={**found.pods, pod: replace(found.pods[pod], **values)})


def without_pod(found: Signals, pod: str) -> Signals:
    return replace(found, pods={name: one for name, one in found.pods.items() if name != pod})


def decided(found: Measured, history: History | None = None) -> Decision:
    policy = ScalingPolicy(max_replicas=300)
    return decide(found.observation, policy, history or History(), NOW_S)


def test_while_most_replicas_are_unseen_nothing_is_decided() -> None:
    found = measured(signals(pods={"a": sample(NOW_S - 90), "b": sample(NOW_S - 90)}))
    lonely = measured(without_pod(without_pod(of_many(3)[0], "r001"), "r002"), of_many(3)[1])

    assert found.observation.problem is SignalProblem.STALE
    assert found.note == (
        "2 of 2 replicas cannot be judged; replica a was last scraped 90 s ago, more than 60"
    )
    assert lonely.observation.problem is SignalProblem.MISSING


BLIND: dict[str, Callable[[Signals, str], Signals]] = {
    "not scraped": without_pod,
    "scraped long ago": lambda found, pod: with_pod(found, pod, scraped_at=NOW_S - 90),
    "shows an old text": lambda found, pod: with_pod(
        found, pod, exposed_at=NOW_S - 300, exposures=0.0
    ),
    "not a number": lambda found, pod: with_pod(found, pod, ongoing_requests=math.nan),
    "no rate yet": lambda found, pod: with_pod(found, pod, arrival_rate=None),
}


@pytest.mark.parametrize("fault", BLIND)
def test_one_blind_replica_of_a_hundred_blinds_the_service_no_more(fault: str) -> None:
    """Ninety-nine say that they drown, and the one that is not seen counts as idle."""
    found, replicas = of_many(100, arrival_rate=2000.0, ttft_s=3.0)
    blind = measured(BLIND[fault](found, "r042"), replicas)

    assert blind.observation.problem is None
    assert blind.observation.unseen == 1
    assert blind.observation.arrival_rate == pytest.approx(1980.0)
    assert decided(blind).reason is DecisionReason.PREDICTED_OVERLOAD
    assert decided(blind).desired > 100
    assert "r042" in blind.remarks.text


def test_a_clock_that_is_behind_blinds_no_replica() -> None:
    """The moments that it shows are old, and move on."""
    found, replicas = of_many(3)
    behind = with_pod(found, "r001", exposed_at=NOW_S - 66, exposures=4.0)

    assert measured(behind, replicas).observation.unseen == 0


def test_unseen_replicas_count_as_the_busiest_before_one_is_removed() -> None:
    """Two of five are seen idle, two are busy: what the fifth has may be as much."""
    found, replicas = of_many(5, arrival_rate=0.0, ongoing_requests=0.0)
    found = with_pod(found, "r000", arrival_rate=9.0, kv_usage=0.8)
    blind = measured(without_pod(found, "r004"), replicas).observation
    most = blind.at_most()

    assert blind.arrival_rate == 9.0
    assert most.arrival_rate == 18.0
    assert blind.kv_usage == pytest.approx((0.8 + 3 * 0.5) / 4)
    assert most.kv_usage == pytest.approx((0.8 + 3 * 0.5 + 0.8) / 5, abs=0.05)


def test_of_an_idle_service_the_unseen_replicas_stay() -> None:
    idle = {"arrival_rate": 0.0, "ongoing_requests": 0.0, "kv_usage": 0.0}
    found, replicas = of_many(4, **idle)
    policy = ScalingPolicy(min_replicas=0, max_replicas=9)

    assert load_of(measured(found, replicas).observation, policy, asked=(0.0, 0.0)).fewest == 0
    blind = measured(without_pod(found, "r000"), replicas)
    assert load_of(blind.observation, policy, asked=(0.0, 0.0)).fewest == 1


def test_one_hanging_request_is_named_and_not_fed() -> None:
    """The age of this one queue grows for ever, those of the others are 0."""
    found, replicas = of_many(4, arrival_rate=28.0)
    sick = measured(with_pod(found, "r002", queue_age_s=5000.0), replicas)

    assert sick.observation.queue_age_s == 0.0
    assert decided(sick).reason is DecisionReason.WITHIN_TARGETS
    assert sick.remarks.text == ("the queue of replica r002 is old, that of most replicas is not")


@pytest.mark.parametrize(
    "work", [{"queue_age_s": 90.0, "least_running": 0.0}, {"queue_age_s": 0.0}]
)
def test_a_replica_that_computes_no_step_though_it_has_work_is_stalled(
    work: dict[str, float],
) -> None:
    found, replicas = of_many(4)
    stalled = measured(
        with_pod(found, "r002", steps=0.0, ongoing_requests=300.0, kv_usage=1.0, **work), replicas
    )

    assert stalled.observation.stalled == 1
    assert stalled.observation.ongoing_requests == 12.0
    assert stalled.remarks.lost == "replica r002 computes no step though requests wait there"


@pytest.mark.parametrize(
    "work",
    [
        {"queue_age_s": 0.0, "least_running": 0.0},
        {"queue_age_s": 3.0, "least_running": 0.0},
        {"queue_age_s": 90.0, "steps": 1.0},
    ],
)
def test_one_that_is_idle_or_slow_is_not(work: dict[str, float]) -> None:
    found, replicas = of_many(4)
    values = {"steps": 0.0, **work}

    assert measured(with_pod(found, "r002", **values), replicas).observation.stalled == 0


def test_a_stalled_replica_is_replaced_where_the_others_cannot_carry_the_load() -> None:
    """Four replicas of 10 requests/s for 30, 1.25 times as many: 3.75 must work."""
    found, replicas = of_many(4, arrival_rate=30.0, ttft_s=2.0)
    full = measured(found, replicas)
    stalled = measured(with_pod(found, "r002", steps=0.0, queue_age_s=500.0), replicas)
    light = of_many(4, arrival_rate=16.0)[0]
    enough = measured(with_pod(light, "r002", steps=0.0, queue_age_s=500.0), replicas)

    assert decided(full).inputs["needed"] == 4
    assert decided(stalled).desired == 5
    assert decided(enough).desired == 4


def test_one_of_twenty_replicas_whose_estimate_is_off_changes_nothing() -> None:
    found, replicas = of_many(20, arrival_rate=300.0)
    odd = measured(with_pod(found, "r003", zero_load_ttft_s=1.6), replicas)

    assert odd.observation.infeasible_targets == ()
    assert decided(odd).reason is DecisionReason.PREDICTED_OVERLOAD


def test_the_capacity_is_that_of_the_slots() -> None:
    """Else a replica that refuses for want of slots would be removed as soon as none is refused."""
    found, replicas = of_many(3)
    few, many = (
        measure(found, TARGETS, replicas, 3, max_age_s=MAX_AGE_S, slots=slots).observation
        for slots in (5, 3000)
    )

    assert (few.concurrency_per_replica, few.capacity_per_replica) == (5.0, 5.0)
    assert (many.concurrency_per_replica, many.capacity_per_replica) == (20.0, 10.0)


def test_replicas_that_differ_are_left_out_until_half_of_them_do() -> None:
    found, replicas = of_many(4)
    doubt = Doubt(SignalProblem.DISAGREEING, "Prometheus has 9 requests of replica r000")

    def problem_with(*pods: str) -> SignalProblem | None:
        differing = dict.fromkeys(pods, doubt)
        return measure(
            found, TARGETS, replicas, 4, max_age_s=MAX_AGE_S, disagreeing=differing
        ).observation.problem

    assert problem_with("r000") is None
    assert problem_with("r000", "r001", "r002") is SignalProblem.DISAGREEING


def test_a_replica_that_has_just_begun_counts_as_starting() -> None:
    """Prometheus needs two scrapes; meanwhile it is no reason to distrust the others."""
    young = [READY[0], Replica("b", is_ready=True, is_fresh=True)]
    found = measured(signals(pods={"a": sample()}), young).observation

    assert found.problem is None
    assert (found.ready, found.starting) == (1, 1)


def test_a_new_service_waits_for_two_scrapes_and_is_not_blamed() -> None:
    young = [Replica("a", is_ready=True, is_fresh=True)]
    found = measured(signals(pods={"a": sample()}, without="arrival_rate"), young).observation

    assert (found.ready, found.starting) == (0, 1)
    decision = decide(found, ScalingPolicy(max_replicas=4), History(), NOW_S)
    assert decision.reason is DecisionReason.REPLICAS_STARTING


@pytest.mark.parametrize(
    ("name", "of_whom"),
    [
        ("queue_age_s", "replica a"),
        ("arrival_rate", "replica a"),
        ("ttft_s", "the service"),
        ("ttft_samples", "the service"),
        ("tpot_s", "the service"),
        ("tpot_samples", "the service"),
    ],
)
def test_a_needed_figure_that_is_absent_is_missing_and_not_zero(name: str, of_whom: str) -> None:
    found = measured(signals(without=name))

    assert found.observation.problem is SignalProblem.MISSING
    assert f"gives no {name} of {of_whom}" in found.note


@pytest.mark.parametrize(
    "name", ["capacity", "concurrency", "ongoing_requests", "kv_usage", "zero_load_ttft_s"]
)
def test_predictions_may_be_absent(name: str) -> None:
    assert problem(signals(without=name)) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    "name",
    [
        "queue_age_s",
        "arrival_rate",
        "ongoing_requests",
        "capacity",
        "kv_usage",
        "ttft_s",
        "ttft_samples",
    ],
)
def test_what_is_no_amount_is_not_a_number(name: str, value: float) -> None:
    figures: dict[str, Any] = {name: value}

    assert problem(signals(**figures)) is SignalProblem.NOT_A_NUMBER


def test_no_samples_make_a_latency_without_a_value() -> None:
    assert problem(signals(ttft_s=math.nan, ttft_samples=0.0)) is None


def test_the_series_of_a_replica_that_is_gone_are_no_reason() -> None:
    gone = {"a": sample(), "b": sample(), "gone": sample(NOW_S - 200)}

    assert problem(signals(pods=gone)) is None


FIGURES = st.dictionaries(st.sampled_from(sorted(of_service(HEALTHY))), st.floats(), max_size=13)
OWN = {name: st.none() | st.floats() for name in sorted(OF_REPLICAS - {"received", "scraped_at"})}
TIMES = st.floats() | st.floats(NOW_S - 100, NOW_S)
PODS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        PodSample,
        received=st.floats(),
        scraped_at=TIMES,
        **{**OWN, "exposed_at": st.none() | TIMES, "started_at": st.none() | TIMES},
    ),
)


@given(values=FIGURES, pods=PODS, evaluated_at=TIMES, fresh=st.booleans())
def test_any_figures_give_a_decision_and_bad_ones_none_that_changes_the_number(
    *, values: dict[str, float], pods: dict[str, PodSample], evaluated_at: float, fresh: bool
) -> None:
    replicas = [READY[0], Replica("b", is_ready=True, is_fresh=fresh)]
    found = measured(Signals(values=values, pods=pods, evaluated_at=evaluated_at), replicas)

    decision = decide(found.observation, ScalingPolicy(max_replicas=8), History(), NOW_S)
    assert 1 <= decision.desired <= 8
    if found.observation.find_problem(MAX_AGE_S) is not None:
        assert decision.desired == 2
        assert decision.reason.is_hold
