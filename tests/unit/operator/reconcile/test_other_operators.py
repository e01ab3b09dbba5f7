"""Services of other operators: told apart, told of once, and in no loop of this one."""

from typing import Any

import pytest

from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.event_correlator import NewEvent
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.reconcile.other_operators import OtherOperators, served_by
from tests.unit.operator.autoscaler.fake_api import service

OWN, OTHER = "tandem-system", "team-a"


class Recorder(EventRecorder):
    """Keeps the Events."""

    def __init__(self) -> None:
        self.events: list[NewEvent] = []

    async def post(self, about: Any, new_events: list[NewEvent], now: float) -> None:  # noqa: ARG002
        self.events += new_events


def isvc(operator: str | None, name: str = "tiny") -> dict[str, Any]:
    item = service()
    item["metadata"] |= {"name": name, "resourceVersion": "1"}
    return item | ({"status": {"operator": operator}} if operator else {})


@pytest.mark.parametrize("operator", [None, OWN])
async def test_a_new_service_and_an_own_one_are_served(operator: str | None) -> None:
    recorder = Recorder()
    item = isvc(operator)

    assert not await OtherOperators(recorder, own=OWN).serve(item, NamespacedName.of(item))
    assert not recorder.events


async def test_whose_a_service_is_is_said_once_and_again_when_it_changes() -> None:
    recorder = Recorder()
    others = OtherOperators(recorder, own=OWN)
    item = isvc(OTHER)
    key = NamespacedName.of(item)

    assert [await others.serve(item, key) for _ in range(3)] == [True] * 3
    assert not await others.serve(isvc(None), key)
    assert await others.serve(item, key)

    assert [event.reason for event in recorder.events] == ["OtherOperator"] * 2
    assert f"the operator of namespace '{OTHER}' serves it" in recorder.events[0].message


def test_only_own_services_are_in_the_loops() -> None:
    cache = ObjectCache([INFERENCE_SERVICE])
    items = [isvc(OWN, "own"), isvc(OTHER, "other"), isvc(None, "new")]
    cache.replace(INFERENCE_SERVICE, None, items, "2")

    assert [key.name for key in served_by(OWN, cache)] == ["own"]
