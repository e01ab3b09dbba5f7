"""The status of a service, from its first moment to its troubles."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.status.conditions import find_condition
from tandem_operator.status.document import status_document, unknown_document
from tandem_operator.status.facts import Facts, Problem
from tandem_operator.status.pending_change import PendingChange
from tandem_operator.status.pod_view import pod_view
from tandem_operator.status.progress import served_during_a_change
from tandem_operator.status.ray_view import ray_view
from tandem_operator.status.transitions import transitions
from tandem_serve.api.changes import ChangeClass
from tests.unit.operator.samples import (
    CAUSE,
    FORBIDDEN,
    HEAD,
    T0,
    T1,
    T2,
    TRACEBACK,
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

REPLACE = PendingChange(change_class=ChangeClass.REPLACE, fields=("spec.engine.dtype",))
LIVE = PendingChange(change_class=ChangeClass.LIVE, fields=("spec.engine.schedule.maxBatchSize",))
REFUSAL = Problem("InvalidSpec", "spec.resources.cpu: 0 is too small")

NEW_HEAD = pod("new-head", "new", head=True)
FAILING = answer("STARTING", status="DEPLOYING", message=TRACEBACK)


def upgrading(**new: Any) -> Any:
    """The old cluster serves while the new one starts."""
    found = ray_service(active=digest("old", "RUNNING"), pending=digest("new"), endpoints=1)
    return view(found, HEAD, pod("w"), NEW_HEAD, old=answer("RUNNING"), **new)


def starting(*pods: Any, **answers: Any) -> Any:
    """The first cluster starts."""
    return view(ray_service(pending=digest("new")), *pods, **answers)


CASES: dict[str, tuple[Facts, dict[str, tuple[str, str]]]] = {
    "it was created a moment ago": (
        facts(ray=None, is_applied=False),
        {
            "Ready": ("False", "NotCreated"),
            "Accepted": ("True", "Valid"),
            "RayReady": ("Unknown", "NotCreated"),
            "ModelLoaded": ("Unknown", "NotStarted"),
            "Progressing": ("True", "Starting"),
        },
    ),
    "KubeRay is not installed": (
        facts(ray=None, has_kuberay=False),
        {"Ready": ("False", "KubeRayMissing"), "RayReady": ("False", "KubeRayMissing")},
    ),
    "KubeRay has not observed it": (
        facts(ray=view(ray_service(seen=None))),
        {"Ready": ("False", "NotObserved"), "RayReady": ("Unknown", "NotObserved")},
    ),
    "KubeRay refuses it": (
        facts(ray=view(ray_service(ready_reason="ValidationFailed"))),
        {"Ready": ("False", "KubeRayRefused"), "RayReady": ("False", "KubeRayRefused")},
    ),
    "the head has no pod": (
        facts(ray=starting()),
        {"RayReady": ("False", "HeadMissing"), "ModelLoaded": ("False", "Loading")},
    ),
    "the head starts": (
        facts(ray=starting(pod("h", "new", head=True, ready=False))),
        {"RayReady": ("False", "HeadStarting")},
    ),
    "the head has no image": (
        facts(
            ray=starting(
                pod(
                    "h",
                    "new",
                    head=True,
                    ready=False,
                    containerStatuses=[
                        {
                            "name": "ray-head",
                            "image": "gone",
                            "state": {"waiting": {"reason": "ErrImagePull"}},
                        }
                    ],
                )
            )
        ),
        {"Ready": ("False", "HeadFailed"), "RayReady": ("False", "HeadFailed")},
    ),
    "the model loads": (
        facts(ray=starting(NEW_HEAD, new=answer("STARTING", status="DEPLOYING"))),
        {
            "Ready": ("False", "Loading"),
            "RayReady": ("True", "HeadReady"),
            "ModelLoaded": ("False", "Loading"),
        },
    ),
    "the replica fails": (
        facts(ray=starting(NEW_HEAD, new=FAILING)),
        {
            "Ready": ("False", "ReplicaFailed"),
            "ModelLoaded": ("False", "ReplicaFailed"),
            "Progressing": ("True", "Starting"),
        },
    ),
    "a replica's pod cannot be scheduled": (
        facts(
            ray=starting(
                NEW_HEAD,
                pod(
                    "w",
                    "new",
                    ready=False,
                    phase="Pending",
                    conditions=[
                        {"type": "PodScheduled", "reason": "Unschedulable", "message": "full"}
                    ],
                ),
                new=answer("STARTING", status="DEPLOYING"),
            )
        ),
        {"Ready": ("False", "PodFailed"), "ModelLoaded": ("False", "PodFailed")},
    ),
    "it runs behind no endpoint yet": (
        facts(ray=starting(NEW_HEAD, new=answer("RUNNING"))),
        {"Ready": ("False", "NoEndpoint"), "ModelLoaded": ("True", "Loaded")},
    ),
    "it serves": (
        facts(),
        {
            "Ready": ("True", "Serving"),
            "RayReady": ("True", "HeadReady"),
            "ModelLoaded": ("True", "Loaded"),
            "Progressing": ("False", "Reconciled"),
        },
    ),
    "it grows": (
        facts(service=service(3)),
        {"Ready": ("True", "Serving"), "Progressing": ("True", "Updating")},
    ),
    "a change is about to be written": (
        facts(is_applied=False, change=LIVE),
        {"Ready": ("True", "ServingPrevious"), "Progressing": ("True", "Updating")},
    ),
    "KubeRay has not seen the change": (
        facts(ray=serving(generation=2, seen=1)),
        {"Ready": ("True", "ServingPrevious"), "Progressing": ("True", "Updating")},
    ),
    "the new version starts": (
        facts(ray=upgrading(new=answer("STARTING", status="DEPLOYING"))),
        {
            "Ready": ("True", "ServingPrevious"),
            "ModelLoaded": ("False", "Loading"),
            "Progressing": ("True", "Updating"),
        },
    ),
    "the new version fails and the old one serves": (
        facts(ray=upgrading(new=FAILING)),
        {
            "Ready": ("True", "ServingPrevious"),
            "ModelLoaded": ("False", "ReplicaFailed"),
            "Progressing": ("True", "Updating"),
        },
    ),
    "the new version has failed for too long": (
        facts(ray=upgrading(new=FAILING), is_overdue=True),
        {
            "Ready": ("True", "ServingPrevious"),
            "Progressing": ("False", "ProgressDeadlineExceeded"),
        },
    ),
    "the spec is rejected and the last good version serves": (
        facts(service=None, problems=(REFUSAL,)),
        {
            "Ready": ("True", "ServingPrevious"),
            "Accepted": ("False", "InvalidSpec"),
            "Progressing": ("False", "Rejected"),
        },
    ),
    "the spec is rejected from the start": (
        facts(service=None, ray=None, problems=(REFUSAL,)),
        {"Ready": ("False", "InvalidSpec"), "Accepted": ("False", "InvalidSpec")},
    ),
    "it may not be written": (
        facts(ray=None, is_applied=False, write_failure=FORBIDDEN),
        {"Ready": ("False", "ApiForbidden"), "Progressing": ("True", "ApiForbidden")},
    ),
}


@pytest.mark.parametrize(("known", "expected"), CASES.values(), ids=CASES)
def test_the_conditions_say_how_it_is(known: Facts, expected: dict[str, tuple[str, str]]) -> None:
    conditions = status_document(known)["conditions"]

    said = {one["type"]: (one["status"], one["reason"]) for one in conditions}
    assert said | expected == said


@pytest.mark.parametrize("known", [known for known, _ in CASES.values()], ids=CASES)
def test_a_second_status_of_the_same_facts_is_equal(known: Facts) -> None:
    first = status_document(known)

    assert status_document(replace(known, previous=first, now=T2)) == first


@given(st.lists(st.sampled_from(list(CASES)), max_size=8))
def test_times_move_with_the_status_alone_whatever_happens(names: list[str]) -> None:
    status: dict[str, Any] = {}
    for minute, name in enumerate(names):
        now = f"2026-11-21T15:{minute:02}:00Z"
        known = replace(CASES[name][0], previous=status, now=now)
        after = status_document(known)
        for condition in after["conditions"]:
            before = find_condition(status, condition["type"])
            moved = condition["lastTransitionTime"] == now
            assert moved == (condition["status"] != before.get("status"))
        status = after


def test_a_replicas_own_error_is_the_reason() -> None:
    status = status_document(facts(ray=starting(NEW_HEAD, new=FAILING)))

    assert status["reason"] == "ReplicaFailed"
    assert status["message"] == CAUSE
    assert find_condition(status, "Progressing")["message"] == CAUSE


def test_while_the_old_version_serves_the_new_ones_error_is_said_as_well() -> None:
    status = status_document(facts(ray=upgrading(new=FAILING), is_overdue=True))

    assert CAUSE in status["message"]
    assert find_condition(status, "Progressing")["message"] == (
        f"not complete within progressDeadlineSeconds 600: {CAUSE}"
    )


def test_the_status_that_users_read_first() -> None:
    status = status_document(facts(service=service(2), ray=serving(2)))

    assert status["url"] == "http://tiny.demo.svc:8000"
    assert status["model"] == "tiny"
    assert status["replicas"] == {"desired": 2, "ready": 2, "summary": "2/2"}
    assert status["rayCluster"] == "old"
    assert status["selector"] == (
        "serving.tandem.dev/service=tiny,app.kubernetes.io/component=worker"
    )
    assert "pendingChange" not in status


def test_a_change_is_announced_with_its_class_before_it_is_made() -> None:
    status = status_document(facts(is_applied=False, change=REPLACE))

    assert status["pendingChange"] == {"class": "Replace", "fields": ["spec.engine.dtype"]}


def test_it_stays_announced_until_it_is_done() -> None:
    announced = status_document(facts(is_applied=False, change=REPLACE))
    under_way = status_document(facts(previous=announced, ray=upgrading(), now=T2))
    done = status_document(facts(previous=under_way, now=T2))

    assert under_way["pendingChange"] == announced["pendingChange"]
    assert "pendingChange" not in done


def test_a_second_change_joins_the_first_and_the_dearer_class_counts() -> None:
    announced = status_document(facts(is_applied=False, change=REPLACE))
    both = status_document(
        facts(previous=announced, ray=upgrading(), is_applied=False, change=LIVE, now=T2)
    )

    assert both["pendingChange"] == {
        "class": "Replace",
        "fields": ["spec.engine.dtype", "spec.engine.schedule.maxBatchSize"],
    }


def test_a_replica_that_fails_later_is_no_change() -> None:
    found = ray_service(active=digest("old", "RUNNING"), endpoints=1)
    ray = view(found, HEAD, pod("w"), old=answer("RUNNING", "STARTING", target=2))
    status = status_document(facts(previous=reconciled(), service=service(2), ray=ray, now=T2))

    assert find_condition(status, "Progressing")["reason"] == "Reconciled"
    assert status["replicas"]["summary"] == "1/2"


def test_a_write_after_that_is_one() -> None:
    status = status_document(
        facts(previous=reconciled(), ray=serving(generation=2), last_change=T2, now=T2)
    )

    assert find_condition(status, "Progressing")["status"] == "True"


def test_a_service_that_cannot_be_observed_is_unknown_and_keeps_the_rest() -> None:
    before = reconciled()
    status = unknown_document(before, FORBIDDEN, generation=1, now=T2)

    assert find_condition(status, "Ready")["status"] == "Unknown"
    assert status["reason"] == "ApiForbidden"
    assert find_condition(status, "ModelLoaded") == find_condition(before, "ModelLoaded")
    assert unknown_document(status, FORBIDDEN, generation=1, now=T2) == status


def reasons(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [note.reason for note in transitions(before, after)]


def test_events_tell_the_story() -> None:
    story: list[tuple[Callable[[dict[str, Any]], Facts], list[str]]] = [
        (lambda before: facts(previous=before, ray=None, is_applied=False), ["Accepted"]),
        (lambda before: facts(previous=before, ray=starting(NEW_HEAD, new=FAILING)),
         ["ReplicaFailed"]),
        (lambda before: facts(previous=before), ["Ready"]),
        (lambda before: facts(previous=before, is_applied=False, change=REPLACE), ["Replace"]),
        (lambda before: facts(previous=before, ray=upgrading(new=FAILING)), ["ReplicaFailed"]),
        (lambda before: facts(previous=before, ray=upgrading(new=FAILING), is_overdue=True),
         ["ProgressDeadlineExceeded"]),
        (lambda before: facts(previous=before), ["Updated"]),
        (lambda before: facts(previous=before, service=None, problems=(REFUSAL,)), ["Rejected"]),
        (lambda before: facts(previous=before), ["Accepted", "Updated"]),
        (lambda before: facts(previous=before, ray=None, has_kuberay=False),
         ["KubeRayMissing", "NotReady"]),
    ]  # fmt: skip
    status: dict[str, Any] = {}
    for known, expected in story:
        after = status_document(known(status))
        assert reasons(status, after) == expected
        assert reasons(after, after) == [], "what has been said is not said again"
        status = after


def switched(
    *, endpoints: int, previous: dict[str, Any], workers: Iterable[dict[str, Any]] | None = None
) -> Any:
    """The new cluster is the active one."""
    found = ray_service(active=digest("new", "RUNNING"), endpoints=endpoints)
    workers = [pod("new-w", "new")] if workers is None else workers
    views = [pod_view(one) for one in (NEW_HEAD, *workers)]
    return ray_view(
        found, views, {"new": answer("RUNNING")}, {},
        was_serving=served_during_a_change(previous),
    )  # fmt: skip


def test_a_clean_switch_of_versions_is_no_reason_to_be_not_ready() -> None:
    """KubeRay counts the pods behind the endpoint only after it has turned the endpoint to them."""
    change = {"generation": 2, "last_change": T2, "now": T2}
    before = status_document(facts(previous=reconciled(), ray=upgrading(), **change))
    moved = switched(endpoints=0, previous=before)
    at_the_switch = status_document(facts(previous=before, ray=moved, **change))
    counted = switched(endpoints=1, previous=at_the_switch)
    after = status_document(facts(previous=at_the_switch, ray=counted, **change))

    assert find_condition(at_the_switch, "Ready")["status"] == "True"
    assert find_condition(at_the_switch, "Progressing")["status"] == "True"
    assert reasons(before, at_the_switch) + reasons(at_the_switch, after) == ["Updated"]
    assert find_condition(after, "Progressing")["reason"] == "Reconciled"


def test_a_new_version_whose_pod_is_ready_a_moment_later_is_no_outage_either() -> None:
    """KubeRay goes by Ray, so it may move the endpoint before the pod's probe has succeeded."""
    change = {"generation": 2, "last_change": T2, "now": T2}
    before = status_document(facts(previous=reconciled(), ray=upgrading(), **change))

    def ready(*workers: dict[str, Any]) -> str:
        moved = switched(endpoints=0, previous=before, workers=workers)
        status = status_document(facts(previous=before, ray=moved, **change))
        return str(find_condition(status, "Ready")["status"])

    late = pod("new-w", "new", ready=False)
    assert ready(late, pod("old-w", "old")) == "True"
    assert ready(late) == "False"


def test_a_change_goes_on_until_the_new_version_s_own_pod_is_ready() -> None:
    """KubeRay counts the old pods behind the endpoint for a moment after it has moved."""
    change = {"generation": 2, "last_change": T2, "now": T2}
    before = status_document(facts(previous=reconciled(), ray=upgrading(), **change))
    late = (pod("new-w", "new", ready=False), pod("old-w", "old"))

    moved = switched(endpoints=1, previous=before, workers=late)
    moving = status_document(facts(previous=before, ray=moved, **change))
    counted = switched(endpoints=0, previous=moving, workers=late)
    after = status_document(facts(previous=moving, ray=counted, **change))

    assert find_condition(moving, "Progressing")["reason"] == "Updating"
    assert find_condition(after, "Ready")["status"] == "True"


def test_an_endpoint_that_is_lost_without_a_change_is_said() -> None:
    lost = status_document(
        facts(previous=reconciled(), ray=switched(endpoints=0, previous=reconciled()))
    )

    assert find_condition(lost, "Ready")["reason"] == "NoEndpoint"


def test_a_first_version_is_not_ready_before_its_endpoint_is() -> None:
    before = status_document(facts(ray=starting(NEW_HEAD, new=answer("RUNNING"))))
    status = status_document(facts(previous=before, ray=switched(endpoints=0, previous=before)))

    assert find_condition(status, "Ready")["reason"] == "NoEndpoint"


def is_current(status: dict[str, Any], generation: int) -> bool:
    """Result of `kubectl wait --for=condition=Ready`, kstatus and Argo's checks."""
    ready = find_condition(status, "Ready")
    seen = {status["observedGeneration"], ready["observedGeneration"]}
    assert len(seen) == 1, "they go by one or the other"
    return ready["status"] == "True" and seen == {generation}


def test_the_previous_version_is_not_taken_for_the_new_one() -> None:
    second = service(engine={"dtype": "float32"})
    story: list[tuple[dict[str, Any], bool]] = [
        ({"is_applied": False, "change": REPLACE}, False),
        ({"ray": serving(generation=2, seen=1)}, False),
        ({"ray": upgrading()}, False),
        ({"ray": upgrading(new=FAILING), "is_overdue": True}, False),
        ({"service": None, "problems": (REFUSAL,)}, False),
        ({}, True),
        ({"ray": view(ray_service(active=digest("old", "RUNNING"), endpoints=1), HEAD, pod("w"),
                      old=answer("STARTING"))}, False),
        ({}, True),
    ]  # fmt: skip
    status = reconciled()
    assert is_current(status, 1)
    for changes, expected in story:
        known = {"service": second, "generation": 2, "previous": status, "now": T2, **changes}
        status = status_document(facts(**known))
        assert is_current(status, 2) == expected
        assert find_condition(status, "Accepted")["observedGeneration"] == 2


def test_an_outage_in_the_middle_of_a_change_does_not_make_the_old_version_new() -> None:
    down = view(
        ray_service(active=digest("old", "RUNNING"), pending=digest("new"), endpoints=0),
        HEAD, NEW_HEAD, old=answer("STARTING"),
    )  # fmt: skip
    status = status_document(facts(previous=reconciled(), generation=2, ray=down))
    status = unknown_document(status, FORBIDDEN, generation=2, now=T2)
    status = status_document(facts(previous=status, generation=2, ray=upgrading()))

    assert find_condition(status, "Ready")["status"] == "True"
    assert not is_current(status, 2)


def test_a_first_version_speaks_of_itself_from_the_beginning() -> None:
    status = status_document(facts(ray=None, is_applied=False))

    assert status["observedGeneration"] == 1
    assert not is_current(status, 1)


def test_a_dashboard_that_is_silent_is_told_with_its_reason() -> None:
    views = [pod_view(one) for one in (HEAD, pod("w"))]
    found = ray_service(active=digest("old", "RUNNING"), endpoints=1)
    ray = ray_view(found, views, {}, {}, {"old": "it answers with the status 302"})

    said = find_condition(status_document(facts(ray=ray)), "RayReady")

    assert said["status"] == "True"
    assert said["message"].endswith("does not answer: it answers with the status 302")


def test_a_service_that_cannot_be_observed_gives_at_most_one_warning() -> None:
    assert reasons({}, unknown_document({}, FORBIDDEN, generation=1, now=T0)) == []
    assert reasons(
        reconciled(), unknown_document(reconciled(), FORBIDDEN, generation=1, now=T1)
    ) == ["NotReady"]
