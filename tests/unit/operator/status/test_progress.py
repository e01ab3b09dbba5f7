"""Since when a change is under way, and when it is over."""

from typing import Any

import pytest

from tandem_operator.status.progress import change_start, is_complete, last_change
from tests.unit.operator.samples import (
    T0,
    T1,
    T2,
    T3,
    answer,
    digest,
    facts,
    pod,
    ray_service,
    service,
    serving,
    view,
)


def progressing(status: str, reason: str, since: str, generation: int = 1) -> dict[str, Any]:
    return {
        "conditions": [
            {
                "type": "Progressing",
                "status": status,
                "reason": reason,
                "lastTransitionTime": since,
                "observedGeneration": generation,
            }
        ]
    }


@pytest.mark.parametrize(
    ("previous", "written", "expected"),
    [
        ({}, None, T3),
        (progressing("True", "Starting", T1), None, T1),
        (progressing("True", "Updating", T1), T0, T1),
        (progressing("True", "Updating", T1), T2, T2),
        (progressing("False", "Reconciled", T1), T2, T3),
        (progressing("False", "ProgressDeadlineExceeded", T1), T0, None),
        (progressing("False", "ProgressDeadlineExceeded", T1), T2, T2),
        (progressing("False", "ProgressDeadlineExceeded", T1, generation=0), T0, T3),
    ],
    ids=[
        "a new service begins now",
        "a change began with its condition",
        "an older write does not count",
        "a later write begins a later change",
        "what was reconciled begins now",
        "what was overdue stays so",
        "a write after it was overdue begins again",
        "a new spec after it was overdue begins again",
    ],
)
def test_the_start_of_a_change(
    previous: dict[str, Any], written: str | None, expected: str | None
) -> None:
    assert change_start(previous, written=written, generation=1, now=T3) == expected


def test_the_last_write_is_the_operators_own() -> None:
    entries = [
        {"manager": "tandem-operator", "operation": "Apply", "time": T1},
        {"manager": "kubectl", "operation": "Update", "time": T3},
        {"manager": "tandem-operator", "subresource": "status", "time": T2},
    ]

    assert last_change({"metadata": {"managedFields": entries}}) == T1
    assert last_change({"metadata": {}}) is None


def test_a_service_that_serves_as_desired_is_complete() -> None:
    assert is_complete(facts())


@pytest.mark.parametrize(
    "changes",
    [
        {"service": None},
        {"ray": None},
        {"is_applied": False},
        {"service": service(replicas=2)},
        {"ray": serving(generation=2, seen=1)},
        {
            "ray": view(
                ray_service(active=digest("old", "RUNNING"), pending=digest("new"), endpoints=1),
                pod("w"),
                old=answer("RUNNING"),
            )
        },
        {"ray": view(ray_service(active=digest("old", "RUNNING")), old=answer("RUNNING"))},
    ],
    ids=[
        "its spec cannot be read",
        "there is no RayService",
        "something is to be written",
        "a replica is missing",
        "KubeRay has not seen the change",
        "a new cluster starts",
        "no pod stands behind the endpoint",
    ],
)
def test_it_is_not_complete_while(changes: dict[str, Any]) -> None:
    assert not is_complete(facts(**changes))
