"""Loads of the time before a restart, as Prometheus has them."""

import math
import time

from tandem_operator.clock import from_unix_s
from tests.unit.operator.autoscaler.fake_api import service
from tests.unit.operator.autoscaler.world import KEY, World, with_status


async def test_a_new_process_recalls_the_loads_of_the_hour(world: World) -> None:
    """A burst of four minutes ago is over, and the rule in force still carries it."""
    world.api.put(with_status(service(), desiredReplicas=4))
    world.load(pods=4)
    world.loaded_before(240.0, {"arrival_rate": 32.0}, pods=4)
    operator = world.operator()

    for _ in range(2):
        await operator.step(KEY)

    assert world.last["inputs"]["needed"] == 4, "1.25 times 3.2"
    (start, end, step), *more = world.prometheus.spans
    assert (round(end - start), step, more) == (3600, 30.0, [])


async def test_no_load_is_recalled_that_was_not_measured_well(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load({"arrival_rate": 7.0})
    world.loaded_before(300.0, {"arrival_rate": math.nan})
    world.loaded_before(240.0, {"arrival_rate": 90.0, "kv_usage": 7.0})
    world.loaded_before(180.0, {"arrival_rate": 90.0, "capacity": math.inf})

    await world.operator().step(KEY)

    assert world.last["inputs"]["needed"] == 1


async def test_without_an_answer_the_hour_stays_unknown(world: World) -> None:
    world.api.put(with_status(service(), desiredReplicas=2))
    world.load()
    world.loaded_before(240.0, {"arrival_rate": 90.0})
    world.prometheus.answers_spans = False

    await world.operator().step(KEY)

    assert world.last["inputs"]["needed"] == 2, "1.25 times 1.4"
    assert world.api.condition("ScalingActive") == ("True", "ValidMetrics")


async def test_a_new_service_has_not_the_past_of_another_of_its_name(world: World) -> None:
    isvc = with_status(service(), desiredReplicas=2)
    isvc["metadata"]["creationTimestamp"] = from_unix_s(time.time() - 200)
    world.api.put(isvc)
    world.load()
    world.loaded_before(240.0, {"arrival_rate": 90.0})

    await world.operator().step(KEY)

    assert world.last["inputs"]["needed"] == 2, "1.25 times 1.4"
