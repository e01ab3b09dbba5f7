"""The status of a service whose number of replicas changes, and the parts of it by writer."""

from dataclasses import replace

from tandem_operator.status.conditions import find_condition
from tandem_operator.status.document import own_part, status_document, unknown_document
from tandem_operator.status.transitions import transitions
from tests.unit.operator.samples import (
    FORBIDDEN,
    HEAD,
    T1,
    T2,
    answer,
    digest,
    facts,
    pod,
    ray_service,
    reconciled,
    service,
    serving,
    view,
)


def test_a_service_that_is_scaled_stays_reconciled_and_ready() -> None:
    """KubeRay has not observed the new number yet, then Ray starts the replica."""
    unobserved = replace(serving(generation=2), is_observed=False)
    found = ray_service(active=digest("old", "DEPLOYING"), endpoints=1, generation=2)
    scaling = view(
        found, HEAD, pod("w"), old=answer("RUNNING", "STARTING", status="DEPLOYING", target=2)
    )
    for ray in (unobserved, scaling):
        status = status_document(
            facts(previous=reconciled(), generation=2, service=service(2), ray=ray, now=T2)
        )

        assert find_condition(status, "Progressing")["reason"] == "Reconciled"
        assert find_condition(status, "Ready")["reason"] == "Serving"
        assert status["observedGeneration"] == 2
        assert status["replicas"]["summary"] == "1/2"
        assert transitions(reconciled(), status) == []


def test_the_autoscaler_s_part_of_a_status_is_not_the_reconciler_s() -> None:
    theirs = {"type": "ScalingActive", "status": "True", "lastTransitionTime": T1}
    whole = reconciled()
    whole["conditions"] = [*whole["conditions"], theirs]
    whole["scaling"] = {"desiredReplicas": 3}

    assert own_part(whole) == reconciled()
    unknown = unknown_document(whole, FORBIDDEN, generation=1, now=T2)
    assert "scaling" not in unknown
    assert theirs not in unknown["conditions"]
