"""Operators of two namespaces that see the same service: one serves it, always the same."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.operator.conftest import StartOperator
from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    manifest,
    settle,
    until,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MANY = [f"tiny-{number}" for number in range(6)]


@pytest.fixture
def home(namespace: Namespace) -> Iterator[Namespace]:
    """The namespace of the other operator's Lease."""
    second = Namespace(namespace.cluster, f"{namespace.name}-home")
    second.kubectl("create", "namespace", second.name)
    yield second
    second.kubectl("delete", "namespace", second.name, "--wait=false")


@pytest.fixture
def other(home: Namespace, start_operator: StartOperator) -> OperatorProcess:
    """An operator with a Lease of its own, which sees the services of the first one's namespace."""
    lease = f"--lease-namespace={home.name}"
    return start_operator("other", options=(lease,)).wait_until_leading()


def status_of(namespace: Namespace, name: str = "tiny") -> dict[str, Any]:
    status: dict[str, Any] = (namespace.get("isvc", name) or {}).get("status") or {}
    return status


def wait_for_autoscaler(namespace: Namespace, name: str) -> None:
    """Until an autoscaler has written its part of the status."""
    until(lambda: "scaling" in status_of(namespace, name), "its autoscaler has been there")


def operator_of(namespace: Namespace, name: str = "tiny") -> str | None:
    return status_of(namespace, name).get("operator")


def events(namespace: Namespace) -> list[dict[str, Any]]:
    return [one for one in namespace.list("events") if one["reason"] == "OtherOperator"]


def test_a_service_that_is_served_is_left_alone_until_it_is_handed_over(
    namespace: Namespace,
    home: Namespace,
    operator: OperatorProcess,
    start_operator: StartOperator,
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)
    wait_for_autoscaler(namespace, "tiny")
    assert operator_of(namespace) == namespace.name
    before = namespace.versions()

    lease = f"--lease-namespace={home.name}"
    other = start_operator("other", options=(lease,)).wait_until_leading()
    until(lambda: events(namespace), "the other one says whose it is")
    other.wait_for_resyncs(2)

    after = namespace.versions()
    assert {name: after[name] for name in before} == before
    (event,) = events(namespace)
    assert f"the operator of namespace '{namespace.name}' serves it" in event["message"]
    assert event["count"] == 1

    operator.terminate()
    (hand_over,) = re.findall(r"run: kubectl (.*)$", event["message"])
    namespace.kubectl(*hand_over.replace("'", "").split())
    until(lambda: operator_of(namespace) == home.name, "the other one serves it")
    settle(namespace, other)


def test_services_that_both_see_first_are_served_by_one_each(
    namespace: Namespace, home: Namespace, operator: OperatorProcess, other: OperatorProcess
) -> None:
    namespace.apply(*(manifest(name) for name in MANY))
    for name in MANY:
        settle(namespace, operator, name)
        wait_for_autoscaler(namespace, name)
    until(other.is_idle, "nothing waits")
    owners = {name: operator_of(namespace, name) for name in MANY}
    assert set(owners.values()) <= {namespace.name, home.name}
    before = operator.writes(), other.writes(), namespace.versions()

    for each in (operator, other):
        each.wait_for_resyncs(2)

    assert {name: operator_of(namespace, name) for name in MANY} == owners
    assert (operator.writes(), other.writes(), namespace.versions()) == before
