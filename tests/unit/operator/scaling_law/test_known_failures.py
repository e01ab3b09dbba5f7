"""Failures that other autoscalers had in production: each one is held off by a rule of ours."""

from dataclasses import fields, replace

from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import DecisionReason as Reason
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.observation import Observation
from tests.unit.operator.scaling_law.measurements import (
    POLICY,
    Loop,
    idle,
    observed,
    tpot,
    ttft,
)


def test_one_idle_request_above_its_target_adds_no_replica() -> None:
    """Dynamo took ceil(latency / target) as a floor: replicas cannot speed up one request."""
    alone = observed(1, ttft=ttft(3.0, 1), arrival_rate=0.02, kv_usage=0.01)
    slow = replace(alone, ttft=ttft(3.0), zero_load_ttft_s=2.9)

    assert {decision.desired for decision in Loop().steps(alone, 600)} == {1}
    assert Loop().run(slow, 600).reason is Reason.SLO_INFEASIBLE


def test_a_floor_by_latency_does_not_outlive_the_traffic() -> None:
    """Dynamo's floor pinned a pool at two replicas for ever after traffic had stopped."""
    loop = Loop()
    loop.run(observed(2, ttft=ttft(3.0), zero_load_ttft_s=2.9), 600)

    assert loop.run(idle(2, zero_load_ttft_s=2.9), 330).desired == 1


def test_saturation_shows_in_arrivals_and_queue_age_not_in_completions() -> None:
    """Completions stop at capacity: a law that counts them sees a load that just fits."""
    saturated = observed(2, arrival_rate=40.0, ttft=ttft(0.9), queue_age_s=0.5)

    assert not [field.name for field in fields(Observation) if "complet" in field.name]
    assert Loop().run(saturated, 30).desired > 2
    assert (
        Loop().run(replace(saturated, capacity_per_replica=None, queue_age_s=9.0), 30).desired > 2
    )


def test_a_growing_queue_adds_replicas_though_each_request_is_computed_fast() -> None:
    """Dynamo's estimate of service times stayed at 0.3 s while requests waited for 160 s."""
    waiting = observed(2, ttft=ttft(0.3, 0), queue_age_s=160.0, arrival_rate=10.0)
    decision = decide(waiting, POLICY, History(), 0.0)

    assert decision.desired == 3
    assert decision.reason is Reason.QUEUE_AGE_ABOVE_TARGET


def test_two_replicas_do_not_go_to_one_and_back() -> None:
    """A flat threshold oscillates between two and one: one replica has twice the load of two."""
    half = observed(2, arrival_rate=10.0, ttft=ttft(0.5), tpot=tpot(0.05), kv_usage=0.3)

    assert {decision.desired for decision in Loop().steps(half, 3600)} == {2}


def test_replicas_on_their_way_are_not_asked_for_again() -> None:
    """AIBrix went from 2 to 4, 8 and 16 while pods were loading the model."""
    loop = Loop(replace(POLICY, max_replicas=64))
    missed = observed(2, ttft=ttft(6.0), queue_age_s=20.0, arrival_rate=30.0)
    desired = loop.step(missed).desired
    numbers = set()
    for _ in range(40):
        missed = replace(missed, desired=desired, starting=desired - 2)
        desired = loop.step(missed).desired
        numbers.add(desired)

    assert numbers == {4}


def test_without_a_known_capacity_they_are_not_either() -> None:
    loop = Loop(replace(POLICY, max_replicas=64))
    missed = observed(2, ttft=ttft(6.0), queue_age_s=20.0, capacity_per_replica=None)
    desired = loop.step(missed).desired
    for _ in range(40):
        missed = replace(missed, desired=desired, starting=desired - 2)
        desired = loop.step(missed).desired

    assert desired == 4


def test_nothing_is_learnt_from_a_cold_start() -> None:
    """Dynamo's correction factors learnt from starting replicas, and over-compensated."""
    loop = Loop()
    loop.run(observed(3, ready=2, starting=1, ttft=ttft(9.0)), 300)
    decisions = loop.steps(observed(3), 900)

    assert {decision.desired for decision in decisions} == {3}


def test_latencies_from_before_the_new_replicas_answered_add_no_more() -> None:
    loop = Loop()
    loop.run(observed(3, ready=2, starting=1, ttft=ttft(4.0)), 120)

    decisions = loop.steps(observed(3, ttft=ttft(4.0)), 45)
    assert {decision.reason for decision in decisions} == {Reason.STABILIZING}


def test_a_latency_at_the_knee_counts_as_twice_its_target() -> None:
    """Ten to ninety times the target, as it happens near saturation, poisoned averages."""
    beyond = observed(4, ttft=ttft(135.0), capacity_per_replica=None)
    decision = decide(beyond, replace(POLICY, max_replicas=999), History(), 0.0)

    assert decision.inputs["ttft_ratio"] == 2.0
    assert decision.desired == 8


def test_one_hanging_replica_does_not_ask_for_all_nodes() -> None:
    """The age of a request that is never scheduled grows for ever."""
    hanging = observed(4, queue_age_s=86_400.0)

    assert decide(hanging, replace(POLICY, max_replicas=999), History(), 0.0).desired <= 8


def test_every_threshold_can_be_reached() -> None:
    """LLMKube compared a gauge that ends at 1 with a target of 2: it never scaled."""
    full = observed(2, kv_usage=1.0, arrival_rate=2.0, ttft=ttft(0.4), tpot=tpot(0.042))
    decision = Loop().run(full, 600)

    assert decision.desired == 2
    assert decision.inputs["fewest"] == 3


def test_a_demand_that_lost_its_labels_is_no_zero() -> None:
    """A relabelled series is empty, and a sum over nothing was read as no demand."""
    unlabelled = observed(4, arrival_rate=0.0)

    assert Loop().run(unlabelled, 900).reason is Reason.METRICS_DISAGREE
    assert Loop().run(idle(4, queue_age_s=3.0), 900).reason is Reason.METRICS_DISAGREE


def test_one_spike_of_a_query_adds_nothing() -> None:
    """One answer of a collector, a hundred times too high, moved llm-d's autoscaler."""
    loop = Loop()
    loop.run(observed(2), 300)
    decision = loop.step(observed(2, arrival_rate=1400.0))

    assert (decision.desired, decision.reason) == (2, Reason.STABILIZING)
    assert loop.step(observed(2)).desired == 2


def test_one_drop_of_a_query_removes_nothing() -> None:
    loop = Loop()
    loop.run(observed(4), 300)

    assert loop.step(idle(4)).desired == 4
    assert loop.run(observed(4), 300).desired == 4


def test_the_end_of_a_drop_is_no_rise() -> None:
    loop = Loop()
    loop.run(observed(4), 300)
    loop.step(observed(4, arrival_rate=0.1))

    assert loop.run(observed(4), 300).desired == 4


def test_stale_series_move_nothing_however_bad_they_are() -> None:
    stale = observed(2, ttft=ttft(9.0, age_s=301.0), arrival_rate=99.0)

    assert {decision.reason for decision in Loop().steps(stale, 600)} == {Reason.METRICS_STALE}


def test_no_load_adds_no_replica_in_any_cycle() -> None:
    """llm-d's autoscaler grew in every cycle without a request."""
    decisions = Loop().steps(idle(1), 3600)

    assert {(one.desired, one.reason) for one in decisions} == {(1, Reason.NO_TRAFFIC)}


def test_the_latency_of_whole_requests_is_no_input() -> None:
    """It depends on how long answers are: OPEA took it out."""
    assert not [one.name for one in fields(Observation) if "e2e" in one.name]


def test_after_an_outage_of_the_metrics_a_whole_window_is_seen_again() -> None:
    """Prometheus away, then zero for a moment: nothing may be removed by that."""
    loop = Loop()
    loop.run(observed(4), 300)
    loop.run(observed(4, arrival_rate=None), 60)

    assert loop.run(idle(4), 285).reason is Reason.STABILIZING


def test_a_loop_that_was_away_begins_its_windows_again() -> None:
    loop = Loop()
    loop.run(idle(4), 285)
    loop.now += 3600

    assert loop.run(idle(4), 285).reason is Reason.STABILIZING


def test_a_clock_that_is_set_back_removes_nothing_by_old_windows() -> None:
    loop = Loop()
    loop.run(idle(4), 285)
    loop.now -= 7200

    assert loop.run(idle(4), 285).reason is Reason.STABILIZING
    assert loop.run(idle(4), 60).desired == 3


def test_a_decision_whose_record_was_lost_is_not_taken_twice() -> None:
    """The operator ends between its write and its record; the next one finds the number."""
    missed = observed(2, ttft=ttft(4.0), capacity_per_replica=None)
    written = decide(missed, POLICY, History(), 0.0).desired
    after = replace(missed, desired=written)

    assert written == 4
    assert decide(after, POLICY, History(), 1.0).reason is Reason.REPLICAS_STARTING
