"""A budget of NPUs acts in the loop, once replicas take cards.

The spec and the CRD refuse cards until a device computes on them, so a service gets its cards here
after its manifest was read.
"""

import time
from typing import Any

import pytest

from tandem_operator.autoscaler import autoscaler
from tandem_operator.crd.parse import parse_object
from tandem_operator.k8s.objects import NamespacedName
from tandem_serve.api.spec import InferenceService
from tests.unit.operator.autoscaler import fake_prometheus
from tests.unit.operator.autoscaler.fake_api import pod, service
from tests.unit.operator.autoscaler.fake_prometheus import HEALTHY
from tests.unit.operator.autoscaler.test_autoscaler import OVERLOAD
from tests.unit.operator.autoscaler.world import World, with_status
from tests.unit.operator.render.services import with_cards

CARDS = 8


@pytest.fixture(autouse=True)
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each replica take cards."""

    def parse(found: dict[str, Any]) -> InferenceService:
        return with_cards(parse_object(found), CARDS, None)

    monkeypatch.setattr(autoscaler, "parse_object", parse)


def under_load(world: World, **replicas: int) -> None:
    """Have so many replicas of each service, and more load on each than it carries."""
    now = time.time()
    names = {name: [f"{name}-{n}" for n in range(count)] for name, count in replicas.items()}
    world.api.has_pods(*(pod(one, now, name) for name, pods in names.items() for one in pods))
    every = [one for pods in names.values() for one in pods]
    scraped = fake_prometheus.scraped(every, now - 5, arrival_rate=OVERLOAD["arrival_rate"])
    world.prometheus.body = fake_prometheus.answer(HEALTHY | OVERLOAD, scraped, now)
    world.shows(200.0)


def reason(world: World, name: str) -> str:
    return str(world.api.status(name)["scaling"]["decisions"][-1]["reason"])


def message(world: World, name: str) -> str:
    return str(world.api.status(name)["scaling"]["decisions"][-1]["message"])


def desired(world: World, name: str) -> int:
    return int(world.api.status(name)["scaling"]["desiredReplicas"])


def limited(world: World, npus: int) -> None:
    world.settings = {"budgets": {"demo": npus}, "checkNodes": False}


async def test_a_service_grows_as_far_as_the_budget_goes(world: World) -> None:
    limited(world, 3 * CARDS)
    world.api.put(with_status(service(), desiredReplicas=2))
    under_load(world, tiny=2)

    await world.operator().step(NamespacedName("demo", "tiny"))

    assert desired(world, "tiny") == 3


async def test_what_others_have_counts_before_their_first_step(world: World) -> None:
    limited(world, 4 * CARDS)
    world.api.put(with_status(service(), desiredReplicas=2))
    world.api.put(service("other", mode="Manual", replicas=2))
    under_load(world, tiny=2)

    await world.operator().step(NamespacedName("demo", "tiny"))

    assert (desired(world, "tiny"), reason(world, "tiny")) == (2, "BudgetExhausted")


async def test_a_service_yields_to_one_of_higher_priority(world: World) -> None:
    limited(world, 5 * CARDS)
    world.api.put(with_status(service("batch", priority=1), desiredReplicas=4))
    world.api.put(with_status(service("chat", priority=9), desiredReplicas=1))
    under_load(world, batch=4, chat=1)
    operator = world.operator()

    # The first step of a service tells the others its minimum.
    for name in ("batch", "chat", "batch"):
        await operator.step(NamespacedName("demo", name))
        world.api.deliver(name)

    assert desired(world, "chat") == 4
    assert (desired(world, "batch"), reason(world, "batch")) == (1, "BudgetReclaimed")
    assert "before it: 'chat' (priority 9)" in message(world, "batch")


async def test_a_namespace_without_a_budget_is_not_limited(world: World) -> None:
    world.settings = {"budgets": {"another": 0}, "checkNodes": False}
    world.api.put(with_status(service(), desiredReplicas=2))
    under_load(world, tiny=2)

    await world.operator().step(NamespacedName("demo", "tiny"))

    assert desired(world, "tiny") > 2
