"""Steps of the autoscaler against a fake API server, a fake Prometheus and a fake replica."""

import copy
import time

import pytest

from tandem_operator.k8s.errors import NotLeading
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tests.unit.operator.autoscaler.fake_api import pod, service
from tests.unit.operator.autoscaler.world import KEY, World, ready_node, with_status

OVERLOAD = {"arrival_rate": 40.0, "ttft_s": 3.0}


async def test_a_healthy_service_is_left_alone_and_told_about(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load()
    operator = world.operator()

    await operator.step(KEY)
    await operator.step(KEY)

    assert len(world.api.writes) == 1, "the second step has nothing new to say"
    kind, manager, body = world.api.writes[0]
    assert (kind, manager) == ("status", "tandem-autoscaler")
    assert body["metadata"]["resourceVersion"] == "11"
    assert world.scaling["desiredReplicas"] == 2
    assert world.scaling["coldStartSeconds"] == 40
    assert world.last["inputs"]["arrivalRate"] == 14
    assert world.last["inputs"]["tpotPaceRatio"] == 0.95
    assert world.api.condition("ScalingActive") == ("True", "ValidMetrics")
    assert world.api.condition("SLOFeasible") == ("True", "TargetsFeasible")
    assert world.api.condition("CapacityAvailable") == ("True", "EnoughCapacity")
    assert world.event_reasons() == []


async def test_more_load_adds_replicas_and_says_why(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 5
    assert world.last["reason"] == "PredictedOverload"
    assert world.last["message"].startswith("40 requests/s arrive, a replica is predicted to carry")
    assert world.event_reasons() == ["ScaledUp"]
    assert (
        "from 2 to 5 replicas, PredictedOverload: 40 requests/s" in (world.api.events[0]["message"])
    )


async def test_a_conflict_drops_the_decision_and_another_is_due_at_once(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)
    operator = world.operator()
    # Another process has decided; the watch of this one is behind.
    world.api.put(with_status(service(), desiredReplicas=6), is_cached=False)

    assert await operator.step(KEY), "a period is long for a burst"
    assert world.scaling["desiredReplicas"] == 6
    assert world.event_reasons() == []

    world.api.deliver()
    assert not await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 6
    assert world.last["replicas"] == 6


async def test_two_that_fight_for_a_service_have_a_period_between_tries(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)
    operator = world.operator()
    world.api.put(with_status(service(), desiredReplicas=6), is_cached=False)

    due = [await operator.step(KEY) for _ in range(6)]

    assert due == [True, True, True, False, False, False]
    world.api.deliver()
    await operator.step(KEY)
    world.api.put(with_status(service(), desiredReplicas=3), is_cached=False)
    world.load({"arrival_rate": 100.0})
    assert await operator.step(KEY), "a write that is taken ends the fight"


async def test_a_warning_of_prometheus_is_a_condition_and_the_figures_decide(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)
    world.prometheus.body |= {"warnings": ["store 10.0.0.7 is unavailable"], "isPartial": True}

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 5
    assert world.api.condition("ScalingActive") == ("True", "PartialMetrics")
    text = world.api.message("ScalingActive")
    assert "incomplete: store 10.0.0.7 is unavailable" in text


async def test_an_operator_that_is_killed_before_the_write_steps_once(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)

    with pytest.raises(NotLeading):
        await world.operator(may_write=False).step(KEY)
    assert world.scaling["desiredReplicas"] == 2

    await world.operator().step(KEY)
    assert world.scaling["desiredReplicas"] == 5


async def test_an_operator_that_is_killed_after_the_write_steps_once(world: World) -> None:
    """Its history is gone; the status and the replicas on their way are not."""
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load({**OVERLOAD, "arrival_rate": 60.0})
    await world.operator().step(KEY)
    first = world.scaling["desiredReplicas"]
    world.api.deliver()

    for _ in range(3):
        await world.operator().step(KEY)
        world.api.deliver()

    assert first == 6, "at most four more within the window"
    assert world.scaling["desiredReplicas"] == first


async def test_two_leaders_step_once(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)
    first, second = world.operator(), world.operator()
    before = copy.deepcopy(world.api.objects["tiny"])

    await first.step(KEY)
    world.api.cache.replace(  # The second one's cache still has the object of before.
        INFERENCE_SERVICE, None, [before], before["metadata"]["resourceVersion"]
    )
    await second.step(KEY)

    assert world.scaling["desiredReplicas"] == 5
    assert world.event_reasons() == ["ScaledUp"]


async def test_prometheus_away_holds_says_so_and_goes_on(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load()
    operator = world.operator()
    await operator.step(KEY)

    world.prometheus.code = 503
    await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 2
    assert world.api.condition("ScalingActive") == ("False", "MetricsUnreachable")
    assert "503" in world.last["message"]

    world.prometheus.code = 200
    world.load()
    await operator.step(KEY)
    assert world.api.condition("ScalingActive") == ("True", "ValidMetrics")
    assert world.event_reasons() == ["MetricsUnreachable", "ValidMetrics"]


async def test_a_prometheus_that_lies_is_not_followed(world: World) -> None:
    """The replica has taken fewer requests than Prometheus says: it scrapes something else."""
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)
    world.shows(7.0)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 2
    assert world.last["reason"] == "MetricsDisagree"
    assert "Prometheus has 100 requests of replica replica-0" in world.last["message"]


async def test_replicas_are_checked_in_turn_one_a_step(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load()
    operator = world.operator()
    for _ in range(3):
        world.shows(200.0 + world.reads)
        await operator.step(KEY)

    assert world.reads == 3


async def test_a_replica_that_cannot_be_read_proves_nothing(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)
    world.exposition = "nothing of ours\n"

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 5


async def test_a_stalled_replica_is_named_in_decision_and_condition(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=4))
    world.load({"arrival_rate": 16.0}, pods=4)
    world.has_odd("replica-2", steps=0.0, queue_age_s=700.0)

    await world.operator().step(KEY)

    text = "replica replica-2 computes no step though requests wait there"
    assert world.scaling["desiredReplicas"] == 4
    assert text in world.last["message"]
    assert world.last["inputs"]["lost"] == 1
    assert world.api.condition("CapacityAvailable") == ("False", "ReplicasStalled")


async def test_a_replica_that_never_answers_is_no_credit_and_named(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=3, coldStartSeconds=40))
    world.load({"arrival_rate": 24.0, "ttft_s": 3.0})
    now = time.time()
    ready = [pod(f"replica-{number}", now) for number in range(2)]
    world.api.has_pods(*ready, pod("young", now, ready=False, created_at=now - 50))
    operator = world.operator()
    await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 3
    assert world.api.condition("CapacityAvailable") == ("True", "EnoughCapacity")

    world.api.has_pods(*ready, pod("broken", now, ready=False, created_at=now - 200))
    world.api.deliver()
    await operator.step(KEY)

    assert world.scaling["desiredReplicas"] == 4
    assert world.api.condition("CapacityAvailable") == ("False", "ReplicasOverdue")
    text = "replica broken has not answered for longer than a start takes"
    assert text in world.last["message"]


async def test_a_replica_that_gets_no_pod_is_no_credit_either(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=3, coldStartSeconds=40))
    world.load({"arrival_rate": 24.0, "ttft_s": 3.0})
    operator = world.operator()
    await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 3

    world.api.deliver()
    operator._memories[KEY].short_since = time.time() - 100
    await operator.step(KEY)

    assert world.scaling["desiredReplicas"] == 4
    assert "replica that has no pod has not answered" in world.last["message"]


async def test_refused_requests_add_replicas(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load({"refused_rate": 6.0})

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 3
    assert world.last["inputs"]["refusedRate"] == 6


async def test_a_blind_replica_is_named_and_the_others_decide(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=4))
    world.load({"arrival_rate": 60.0, "ttft_s": 3.0}, pods=4)
    world.has_odd("replica-2", queue_age_s=float("nan"))

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 8, "45 requests/s of 60 are seen, of three in four"
    assert world.api.condition("ScalingActive") == ("True", "PartialMetrics")
    assert "one replica is left out: a figure of replica replica-2" in world.last["message"]


async def test_one_replica_that_differs_leaves_the_others_in_trust(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=4))
    world.load({"arrival_rate": 28.0}, pods=4)
    operator = world.operator()
    for received in (200.0, 201.0, 202.0, 7.0):
        world.shows(received)
        await operator.step(KEY)

    assert world.last["reason"] != "MetricsDisagree"
    assert "Prometheus has 100 requests of replica replica-3" in world.last["message"]


async def test_no_replica_is_asked_for_that_no_node_can_hold(world: World) -> None:
    world.settings = {"checkNodes": True}
    world.api.put(with_status(service(), desiredReplicas=2))
    world.api.nodes = [ready_node("4", "20Gi")]
    world.load(OVERLOAD)

    await world.operator().step(KEY)

    # A replica takes 2 CPUs and 5 GiB with what Ray needs.
    assert world.scaling["desiredReplicas"] == 4
    world.api.nodes = [ready_node("1", "20Gi")]
    world.load({**OVERLOAD, "arrival_rate": 90.0}, pods=4)
    other = world.operator()
    world.api.put(with_status(service(), desiredReplicas=4))
    await other.step(KEY)
    assert world.api.condition("CapacityAvailable") == ("False", "CapacityUnavailable")
    assert "1 of the 2 cpu that a replica requests" in world.last["message"]


async def test_without_the_right_to_see_nodes_their_room_is_unknown(world: World) -> None:
    world.settings = {"checkNodes": True}
    world.api.put(with_status(service(), desiredReplicas=2))
    world.api.answers_nodes = False
    world.load(OVERLOAD)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 5


async def test_nodes_are_not_asked_by_default_since_more_of_them_may_come(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.api.nodes = [ready_node("1", "1Gi")]
    world.load(OVERLOAD)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 5


async def test_an_infeasible_target_is_told_and_adds_no_replica(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load({**OVERLOAD, "zero_load_ttft_s": 2.0})

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 2
    assert world.api.condition("SLOFeasible") == ("False", "SLOInfeasible")
    condition = next(c for c in world.api.status()["conditions"] if c["type"] == "SLOFeasible")
    assert condition["message"] == (
        "the predicted TTFT of a request that has a replica for itself is 2 s, its target 1.5 s; "
        "raise the target"
    )


async def test_recommend_writes_what_it_would_do_and_changes_nothing(world: World) -> None:
    world.api.put(service(mode="Recommend", replicas=2))
    world.load(OVERLOAD)
    operator = world.operator()
    for _ in range(3):
        await operator.step(KEY)
        world.api.deliver()

    assert world.scaling["mode"] == "Recommend"
    assert world.scaling["desiredReplicas"] == 2
    assert world.scaling["recommendedReplicas"] == 5
    assert world.last["reason"] == "PredictedOverload"
    assert [decision["recommended"] for decision in world.scaling["decisions"]] == [5]
    assert world.event_reasons() == []


async def test_manual_writes_down_the_number_of_the_spec(world: World) -> None:
    world.api.put(service(mode="Manual", replicas=3))
    operator = world.operator()
    await operator.step(KEY)
    await operator.step(KEY)

    assert world.scaling == {"mode": "Manual", "desiredReplicas": 3}
    assert world.api.status()["conditions"] == []
    assert len(world.api.writes) == 1
    assert world.prometheus.queries == []


async def test_external_without_a_number_gets_one_through_the_scale_subresource(
    world: World,
) -> None:
    world.api.put(service(mode="External", minReplicas=2))
    operator = world.operator()

    assert await operator.step(KEY), "the next step is due at once"
    assert not await operator.step(KEY)

    assert [write[:2] for write in world.api.writes] == [
        ("scale", "tandem-autoscaler"), ("status", "tandem-autoscaler")
    ]  # fmt: skip
    assert world.api.objects["tiny"]["spec"]["scaling"]["replicas"] == 2
    assert world.scaling == {"mode": "External", "desiredReplicas": 2}


async def test_leaving_auto_keeps_the_number_of_now(world: World) -> None:
    world.api.put(with_status(service(replicas=2), desiredReplicas=2))
    world.load(OVERLOAD)
    operator = world.operator()
    await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 5

    manual = copy.deepcopy(world.api.objects["tiny"])
    manual["spec"]["scaling"]["mode"] = "Manual"
    manual["metadata"]["generation"] += 1
    world.api.put(manual)
    while await operator.step(KEY):
        pass

    assert world.api.objects["tiny"]["spec"]["scaling"]["replicas"] == 5
    assert world.scaling["mode"] == "Manual"
    assert world.scaling["desiredReplicas"] == 5
    assert world.scaling["decisions"], "what led to the number is kept"


async def test_bounds_that_move_take_the_number_along(world: World) -> None:
    world.api.put(with_status(service(maxReplicas=3), desiredReplicas=6))
    world.load(pods=6)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 3
    assert world.last["reason"] == "BoundsChanged"
    assert world.event_reasons() == ["ScaledDown"]


async def test_a_schedule_raises_the_minimum(world: World) -> None:
    always = {"start": "* * * * *", "duration": "10h", "minReplicas": 4}
    world.api.put(with_status(service(schedule=[always]), desiredReplicas=2))
    world.load()

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 4


async def test_a_minimum_in_an_unknown_time_zone_is_left_out_and_told(world: World) -> None:
    always = {"start": "* * * * *", "duration": "10h", "timeZone": "Europe/Berln"}
    schedule = [always | {"minReplicas": 6}, always | {"minReplicas": 4, "timeZone": "UTC"}]
    world.api.put(with_status(service(schedule=schedule), desiredReplicas=2))
    world.load()

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 4
    assert world.api.condition("ScalingLimited") == ("True", "UnknownTimeZone")
    assert "spec.scaling.schedule does not hold: 'Europe/Berln' is not" in world.last["message"]


async def test_a_service_that_is_gone_leaves_no_series(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load()
    world.prometheus.code = 500
    operator = world.operator()
    await operator.step(KEY)
    assert b'hold{name="tiny",namespace="demo",reason="MetricsUnreachable"} 1.0' in (
        world.metrics.exposition()
    )

    operator.forget(KEY)

    assert b'name="tiny"' not in world.metrics.exposition()
    assert operator.known == frozenset()


async def test_an_invalid_spec_is_left_to_the_reconciler(world: World) -> None:
    broken = service()
    broken["spec"]["model"]["source"] = "nowhere"
    world.api.put(broken)

    assert not await world.operator().step(KEY)
    assert world.api.writes == []


async def test_nothing_is_decided_before_the_cache_is_filled(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(OVERLOAD)
    world.api.cache.forget(INFERENCE_SERVICE, None)

    assert await world.operator().step(KEY), "it is tried again soon"
    assert world.api.writes == []
