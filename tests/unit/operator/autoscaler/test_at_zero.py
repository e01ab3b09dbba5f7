"""Steps of the autoscaler for a service without replicas."""

import pytest

from tests.unit.operator.autoscaler.fake_api import service
from tests.unit.operator.autoscaler.world import KEY, World, with_status


async def test_the_first_request_to_a_service_without_replicas_starts_one(world: World) -> None:
    world.api.put(with_status(service(minReplicas=0), desiredReplicas=0))
    world.refuses(0)
    operator = world.operator()

    await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 0
    assert world.last["reason"] == "NoTraffic"
    assert world.api.condition("ScalingActive") == ("True", "ValidMetrics")
    assert not world.prometheus.queries, "there is nothing to ask for"

    world.api.deliver()
    world.refuses(25_000)
    await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 1
    assert world.last["reason"] == "RequestAtZero"
    assert world.last["inputs"]["refused"] == 25_000
    assert world.event_reasons() == ["ScaledUp"]

    world.api.deliver()
    await operator.step(KEY)
    assert world.scaling["desiredReplicas"] == 1, "a flood starts one replica"


async def test_an_operator_that_was_away_finds_the_requests_of_that_time(world: World) -> None:
    world.api.put(with_status(service(minReplicas=0), desiredReplicas=0))
    world.refuses(1)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 1


async def test_a_proxy_that_does_not_say_is_a_problem_of_the_metrics(world: World) -> None:
    world.api.put(with_status(service(minReplicas=0), desiredReplicas=0))
    world.refuses(None)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 0
    assert world.api.condition("ScalingActive") == ("False", "MetricsMissing")
    assert "the proxy on the Ray head does not show" in world.last["message"]


async def test_a_pod_that_only_has_the_labels_of_a_head_is_not_asked(world: World) -> None:
    world.api.put(with_status(service(minReplicas=0), desiredReplicas=0))
    world.refuses(25_000, controlled=False)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 0
    assert world.api.condition("ScalingActive") == ("False", "MetricsMissing")


@pytest.mark.parametrize("mode", ["Manual", "External"])
async def test_other_owners_see_the_requests_as_a_metric(world: World, mode: str) -> None:
    world.api.put(service(mode=mode, minReplicas=0, replicas=0))
    world.refuses(3)

    await world.operator().step(KEY)

    assert world.scaling["desiredReplicas"] == 0
    assert 'refused_requests{name="tiny",namespace="demo"} 3.0' in (
        world.metrics.exposition().decode()
    )
    world.load(pods=1)
    world.api.put(service(mode=mode, minReplicas=0, replicas=1))
    await world.operator().step(KEY)
    assert "refused_requests{" not in world.metrics.exposition().decode()
