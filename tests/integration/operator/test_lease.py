"""Two operators: one leads, the other stands by, and never do both."""

import time

import httpx
import pytest

from tests.figures import Figures
from tests.integration.operator.conftest import SECTION, StartOperator
from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    children_of,
    manifest,
    until,
)
from tests.patience import HANG_S

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LEASE_LOST = 3


def holder(namespace: Namespace) -> str | None:
    lease = namespace.get("lease", "tandem-operator")
    return lease["spec"].get("holderIdentity") if lease else None


def is_ready(operator: OperatorProcess) -> bool:
    try:
        path = f"http://127.0.0.1:{operator.port}/readyz"
        return httpx.get(path, trust_env=False, timeout=HANG_S).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def standby(operator: OperatorProcess, start_operator: StartOperator) -> OperatorProcess:
    """A second operator, beside the one that leads."""
    standby = start_operator("second")
    until(lambda: is_ready(standby), "it is ready")
    assert operator.health()["leader"]
    return standby


def test_a_standby_is_ready_and_does_nothing(
    namespace: Namespace, operator: OperatorProcess, standby: OperatorProcess
) -> None:
    namespace.apply(manifest())
    until(lambda: children_of("tiny") <= set(namespace.children("tiny")), "the leader works")

    assert holder(namespace) == "first"
    assert standby.health()["leader"] is False
    assert standby.value("leader") == 0
    assert operator.value("leader") == 1
    assert standby.writes() == 0


def test_a_leader_that_is_asked_to_end_hands_over(
    namespace: Namespace,
    operator: OperatorProcess,
    standby: OperatorProcess,
    figures: Figures,
) -> None:
    began = time.monotonic()
    assert operator.terminate() == 0
    figures.say(SECTION, f"SIGTERM → the leader has ended: {time.monotonic() - began:.1f} s")
    standby.wait_until_leading()
    figures.say(SECTION, f"SIGTERM → the next one leads: {time.monotonic() - began:.1f} s")

    namespace.apply(manifest())
    until(lambda: children_of("tiny") <= set(namespace.children("tiny")), "the next one works")
    assert holder(namespace) == "second"


def test_a_leader_that_is_killed_is_followed(
    namespace: Namespace,
    operator: OperatorProcess,
    standby: OperatorProcess,
    figures: Figures,
) -> None:
    began = time.monotonic()
    operator.kill()

    standby.wait_until_leading()
    figures.say(SECTION, f"SIGKILL → the next one leads: {time.monotonic() - began:.1f} s")
    assert holder(namespace) == "second"


def test_a_leader_that_has_lost_its_lease_ends(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.patch("lease", "tandem-operator", {"spec": {"holderIdentity": "a thief"}})

    assert operator.wait_for_end() == LEASE_LOST
    assert holder(namespace) == "a thief"


def test_the_end_waits_for_no_service(namespace: Namespace, operator: OperatorProcess) -> None:
    namespace.apply(*(manifest(f"tiny-{number}") for number in range(20)))

    assert operator.terminate() == 0
    assert not holder(namespace)


def test_a_standby_that_is_asked_to_end_ends(standby: OperatorProcess) -> None:
    assert standby.terminate() == 0
