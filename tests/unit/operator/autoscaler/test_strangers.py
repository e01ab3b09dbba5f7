"""Pods of Prometheus that are of another service of the same namespace and name."""

import time

from tests.unit.operator.autoscaler.fake_api import pod, service
from tests.unit.operator.autoscaler.fake_prometheus import HEALTHY, answer, scraped
from tests.unit.operator.autoscaler.world import KEY, World, with_status


async def test_pods_of_another_cluster_are_named_and_their_load_is_none(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load({"arrival_rate": 160.0}, pods=8)
    now = time.time()
    world.api.has_pods(*(pod(f"replica-{number}", now) for number in range(2)))

    await world.operator().step(KEY)

    assert world.last["inputs"]["arrivalRate"] == 40, "20 of each of the two"
    assert world.api.condition("ScalingActive") == ("True", "PartialMetrics")
    text = world.api.message("ScalingActive")
    assert "pod replica-2 and 5 more of a service with the same namespace and name" in text
    assert "autoscaling.prometheus.matchers" in text


async def test_a_pod_that_only_has_the_labels_of_a_replica_is_none(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load({"arrival_rate": 40.0}, pods=2)
    world.has_active_cluster()
    now = time.time()
    labelled = pod("replica-2", now, ready=False)
    labelled["metadata"]["labels"]["ray.io/cluster"] = "cluster"
    del labelled["metadata"]["ownerReferences"]
    world.api.has_pods(*(pod(f"replica-{number}", now) for number in range(2)), labelled)

    await world.operator().step(KEY)

    assert world.last["inputs"]["ready"] == 2
    assert world.last["inputs"]["pending"] == 0


async def test_a_pod_that_has_ended_is_no_stranger(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load(pods=3)
    operator = world.operator()
    await operator.step(KEY)
    now = time.time()
    world.api.has_pods(*(pod(f"replica-{number}", now) for number in range(2)))
    world.api.deliver()

    await operator.step(KEY)

    assert world.api.condition("ScalingActive") == ("True", "ValidMetrics")


async def test_what_came_to_an_ended_pod_is_demand_of_its_own_service_alone(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load({"arrival_rate": 60.0}, pods=3)
    operator = world.operator()
    await operator.step(KEY)
    now = time.time()
    left = [f"replica-{number}" for number in range(2)]
    world.api.has_pods(*(pod(name, now) for name in left))
    ended = {"replica-2": {"arrival_rate": 20.0}, "of-another-cluster": {"arrival_rate": 500.0}}
    world.prometheus.body = answer(HEALTHY, scraped(left, now - 5, arrival_rate=20.0) | ended, now)
    world.api.deliver()

    await operator.step(KEY)

    assert world.last["inputs"]["arrivalRate"] == 60
    assert world.api.condition("ScalingActive") == ("True", "ValidMetrics")


async def test_matchers_are_in_each_selector(world: World) -> None:
    prometheus = {"url": world.prometheus_url, "matchers": {"cluster": 'ea"st'}}
    world.settings = {"prometheus": prometheus}
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load()

    await world.operator().step(KEY)

    (query,) = world.prometheus.queries
    selectors = query.count('inference_service="tiny"')
    assert query.count('inference_service="tiny",cluster="ea\\"st"}') == selectors > 20
