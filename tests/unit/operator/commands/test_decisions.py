"""Decisions of the autoscaler as `tandem explain` tells them."""

from typing import Any, Final

import pytest

from tandem_operator.commands.decisions import decision_lines, last_decision_text
from tests.unit.operator.commands.api_server import ApiServer, of_namespace, run
from tests.unit.operator.commands.api_server import service as stored

NOW: Final = "2026-11-21T14:00:00Z"
DECISIONS: Final[list[dict[str, Any]]] = [
    {
        "firstTime": "2026-11-21T13:30:00Z",
        "lastTime": "2026-11-21T13:50:00Z",
        "replicas": 1,
        "recommended": 1,
        "reason": "WithinTargets",
        "message": "the targets are kept",
        "inputs": {"arrivalRate": 3.256, "ready": 1},
    },
    {
        "firstTime": "2026-11-21T13:50:15Z",
        "lastTime": "2026-11-21T13:50:15Z",
        "replicas": 2,
        "recommended": 2,
        "reason": "PredictedOverload",
        "message": "12 requests/s arrive",
    },
]


def service(mode: str = "Auto", decisions: Any = DECISIONS) -> dict[str, Any]:
    found = stored("tiny")
    found["spec"]["scaling"] = {"mode": mode, "maxReplicas": 4}
    found["status"] = {"scaling": {"decisions": decisions}}
    return found


def test_the_newest_is_told_in_a_sentence() -> None:
    assert last_decision_text(service(), NOW) == (
        "the autoscaler decides for 2 since 9m45s ago (PredictedOverload: 12 requests/s arrive)"
    )
    assert "would take 2" in last_decision_text(service("Recommend"), NOW)


@pytest.mark.parametrize("mode", ["Manual", "External"])
def test_of_a_number_that_others_own_nothing_is_told(mode: str) -> None:
    assert last_decision_text(service(mode), NOW) == ""
    assert last_decision_text({}, NOW) == ""


def test_all_are_listed_the_newest_first_with_their_figures() -> None:
    assert list(decision_lines(service(), NOW)) == [
        "",
        "9m45s ago: 2 replicas, PredictedOverload: 12 requests/s arrive",
        "30m to 10m ago: 1 replica, WithinTargets: the targets are kept",
        "    arrivalRate 3.26",
    ]


@pytest.mark.usefixtures("kubeconfig")
def test_explain_lists_them(server: ApiServer) -> None:
    server.lists[of_namespace("models")] = [service()]

    done = run("explain", "tiny", "--decisions")

    assert done.exit_code == 0, done.stderr
    assert "The autoscaler decides for 2" not in done.stdout
    assert "; the autoscaler decides for 2 since " in done.stdout
    assert "PredictedOverload: 12 requests/s arrive" in done.stdout
    assert run("explain", "tiny").stdout.count("PredictedOverload") == 1
    server.lists[of_namespace("models")] = [service(decisions=[])]
    assert "has decided nothing" in run("explain", "tiny", "--decisions").stdout
