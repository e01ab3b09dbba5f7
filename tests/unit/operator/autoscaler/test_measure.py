"""Signals and pods → the observation, and the first reason for not trusting it."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.autoscale.decide import decide
from tandem_operator.autoscale.decision import DecisionReason
from tandem_operator.autoscale.history import History
from tandem_operator.autoscale.observation import SignalProblem
from tandem_operator.autoscale.policy import ScalingPolicy
from tandem_operator.autoscaler.measure import Measured, Replica, Targets, measure
from tandem_operator.autoscaler.signals import PodSample, Signals
from tests.unit.operator.autoscaler.fake_prometheus import HEALTHY, NOW_S

TARGETS = Targets(ttft_s=1.5, tpot_s=0.08)
READY = [Replica("a", is_ready=True, is_fresh=False), Replica("b", is_ready=True, is_fresh=False)]
MAX_AGE_S = 60.0


def sample(at_s: float = NOW_S - 5, exposed_at: float | None = None) -> PodSample:
    return PodSample(received=100, scraped_at=at_s, exposed_at=exposed_at or at_s, started_at=1.0)


def signals(
    pods: Mapping[str, PodSample] | None = None, without: str = "", **values: float
) -> Signals:
    figures = {name: one for name, one in (HEALTHY | values).items() if name != without}
    known = {"a": sample(), "b": sample()} if pods is None else pods
    return Signals(values=figures, pods=known, evaluated_at=NOW_S)


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


def test_a_replica_that_is_not_scraped_is_missing() -> None:
    found = measured(signals(pods={"a": sample()}))

    assert found.observation.problem is SignalProblem.MISSING
    assert found.note == "Prometheus has 1 of 2 replicas that answer; it lacks b"


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
    "name", ["queue_age_s", "arrival_rate", "ttft_s", "ttft_samples", "tpot_s", "tpot_samples"]
)
def test_a_needed_figure_that_is_absent_is_missing_and_not_zero(name: str) -> None:
    found = measured(signals(without=name))

    assert found.observation.problem is SignalProblem.MISSING
    assert f"gives no {name}" in found.note


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
    found = Signals(values=HEALTHY | {name: value}, pods=signals().pods, evaluated_at=NOW_S)

    assert problem(found) is SignalProblem.NOT_A_NUMBER


def test_no_samples_make_a_latency_without_a_value() -> None:
    assert problem(signals(ttft_s=math.nan, ttft_samples=0.0)) is None


def test_old_scrapes_are_stale() -> None:
    found = measured(signals(pods={"a": sample(), "b": sample(NOW_S - 90)}))

    assert found.observation.problem is SignalProblem.STALE
    assert found.note == "replica b was last scraped 90 s ago, more than 60"


def test_a_stuck_replica_is_stale() -> None:
    stuck = sample(NOW_S - 5, exposed_at=NOW_S - 300)

    assert problem(signals(pods={"a": sample(), "b": stuck})) is SignalProblem.STALE


def test_the_series_of_a_replica_that_is_gone_are_no_reason() -> None:
    gone = {"a": sample(), "b": sample(), "gone": sample(NOW_S - 200)}

    assert problem(signals(pods=gone)) is None


FIGURES = st.dictionaries(st.sampled_from(sorted(HEALTHY)), st.floats(), max_size=13)
TIMES = st.floats() | st.floats(NOW_S - 100, NOW_S)
PODS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        PodSample,
        received=st.floats(),
        scraped_at=TIMES,
        exposed_at=st.none() | TIMES,
        started_at=st.none() | TIMES,
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
