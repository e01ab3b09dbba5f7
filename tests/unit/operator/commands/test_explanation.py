"""Five sentences for every situation that a service can be in."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tandem_operator.commands.explanation import explain
from tandem_operator.commands.text import age_between, sentence
from tandem_operator.status.document import status_document
from tandem_operator.status.pending_change import PendingChange
from tandem_serve.api.changes import ChangeClass
from tests.unit.operator import samples
from tests.unit.operator.samples import (
    CAUSE,
    TRACEBACK,
    answer,
    digest,
    facts,
    ray_service,
    serving,
    view,
)

NOW = "2026-11-21T14:00:00Z"
EARLIER = "2026-11-21T13:55:00Z"
URL = "http://tiny.models.svc:8000"
FIELDS = ["spec.model.source"]

Object = dict[str, Any]


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    return {
        "type": kind,
        "status": status,
        "observedGeneration": 2,
        "lastTransitionTime": EARLIER,
        "reason": reason,
        "message": message or reason.lower(),
    }


READY = condition("Ready", "True", "Serving", f"answers at {URL}")
PREVIOUS = condition("Ready", "True", "ServingPrevious", "the previous version answers meanwhile")
ACCEPTED = condition("Accepted", "True", "Valid")
HEAD_READY = condition("RayReady", "True", "HeadReady")
LOADED = condition("ModelLoaded", "True", "Loaded", "1 of 2 replicas run")
RECONCILED = condition("Progressing", "False", "Reconciled")


def not_ready(reason: str, message: str = "") -> Object:
    return condition("Ready", "False", reason, message)


def status(*conditions: Object, ready: int = 0, desired: int = 1, **more: Any) -> Object:
    return {
        "observedGeneration": 2,
        "conditions": list(conditions),
        "url": URL,
        "model": "tandem-tiny",
        "replicas": {"desired": desired, "ready": ready, "summary": f"{ready}/{desired}"},
        **more,
    }


def service(
    status: Mapping[str, Any] | None, *, generation: int = 2, desired: int = 1, **metadata: Any
) -> Object:
    found: Object = {
        "metadata": {
            "name": "tiny",
            "namespace": "models",
            "creationTimestamp": "2026-11-18T14:00:00Z",
            "generation": generation,
            "managedFields": [
                {"manager": "kubectl", "time": EARLIER, "fieldsV1": {"f:spec": {}}},
                {"manager": "tandem-operator", "time": NOW, "fieldsV1": {"f:status": {}}},
            ],
            **metadata,
        },
        "spec": {"model": {"source": "file:///m"}, "scaling": {"minReplicas": desired}},
    }
    return found if status is None else found | {"status": status}


def pod(name: str, **status: Any) -> Object:
    labels = {"app.kubernetes.io/component": "worker", "serving.tandem.dev/service": "tiny"}
    metadata = {"name": name, "labels": labels}
    return {"metadata": metadata, "status": status}


def event(reason: str, message: str, about: str, **more: Any) -> Object:
    return {
        "metadata": {"name": "e", "creationTimestamp": EARLIER},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "lastTimestamp": "2026-11-21T13:59:30Z",
        "involvedObject": {"kind": "Pod", "name": about},
        **more,
    }


CHANGED = event(
    "Live",
    "changes spec.engine.schedule.maxIterTimes",
    "tiny",
    type="Normal",
    source={"component": "tandem-operator"},
)
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient cpu.",
        }
    ],
}
IMAGE_MISSING = {
    "phase": "Pending",
    "containerStatuses": [
        {
            "name": "ray-worker",
            "image": "tandem:none",
            "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not present"}},
        }
    ],
}
REPLICA_FAILED = condition(
    "ModelLoaded", "False", "ReplicaFailed", "/m/model.safetensors is cut off"
)


def under_way(message: str, reason: str = "Updating") -> Object:
    return condition("Progressing", "True", reason, message)


def written(**known: Any) -> Object:
    """The status that the operator writes of what it knows."""
    return status_document(facts(**{"generation": 2, "now": EARLIER, **known}))


def change(kind: str, *fields: str) -> Object:
    return {"class": kind, "fields": list(fields)}


def lines(
    found: Object,
    *,
    pods: Sequence[Object] = (),
    events: Sequence[Object] = (),
    ray_service: Object | None = None,
) -> list[str]:
    said = explain(found, ray_service, pods, events, NOW)
    assert len(said) == 5
    assert all("\n" not in line and line.endswith(".") for line in said)
    return said


def test_a_service_that_is_ready() -> None:
    found = service(
        status(READY, ACCEPTED, HEAD_READY, LOADED, RECONCILED, ready=1, rayCluster="c1")
    )

    assert lines(found, pods=[pod("head", **RUNNING), pod("w", **RUNNING)]) == [
        "Service tiny in namespace models has been ready for 5m: "
        f"model tandem-tiny at {URL} answers.",
        "1 of 1 desired replica answers; Ray cluster c1; 2 pods.",
        "No change is under way; the spec was last written 5m ago by kubectl.",
        "Nothing is in the way.",
        "Send a request: kubectl port-forward -n models svc/tiny 8000, and beside it: "
        "tandem chat --url http://localhost:8000.",
    ]


def test_a_service_with_keys_is_talked_to_with_one() -> None:
    found = service(status(READY, ACCEPTED, HEAD_READY, LOADED, RECONCILED, ready=1))
    found["spec"]["server"] = {"apiKeysSecret": "keys"}

    assert lines(found)[4].endswith("--api-key KEY.")


def test_the_last_change_is_told_with_its_class() -> None:
    found = service(status(READY, ACCEPTED, HEAD_READY, LOADED, RECONCILED, ready=1))

    assert lines(found, events=[CHANGED])[2] == (
        "The last change was 30s ago: Live (running replicas apply it between two steps), which "
        "changes spec.engine.schedule.maxIterTimes."
    )


def test_a_service_that_was_never_reconciled() -> None:
    found = service(None, generation=1, creationTimestamp="2026-11-21T13:59:50Z", managedFields=[])

    assert lines(found) == [
        "Service tiny in namespace models was created 10s ago, and has not been reconciled yet.",
        "0 of 1 desired replica answers; 0 pods.",
        "The spec was written 10s ago, and has not been observed since.",
        "Waiting for the first reconcile of this spec.",
        "Wait, and watch it: kubectl get isvc -n models tiny -w.",
    ]


@pytest.mark.parametrize("seen", [None, status(READY, ACCEPTED, RECONCILED, ready=1)])
def test_an_unobserved_service_tells_that_the_operator_does_not_run(
    seen: Object | None,
) -> None:
    said = lines(service(seen, generation=3))

    assert said[2] == "The spec was written 5m ago by kubectl, and has not been observed since."
    assert said[3].startswith("The operator seems not to run: it has not observed")
    assert said[4] == (
        "Check its pods: kubectl get pods -A -l app.kubernetes.io/name=tandem-operator."
    )


def test_a_spec_that_is_refused() -> None:
    text = "spec.resources.npuProfile 'big' is not one of the operator's"
    refused = condition("Accepted", "False", "Unsatisfiable", text)
    progressing = condition("Progressing", "False", "Rejected")

    said = lines(service(status(not_ready("Unsatisfiable", text), refused, progressing)))

    assert said[0] == "Service tiny in namespace models has not been ready for 5m (Unsatisfiable)."
    assert said[2].startswith("Nothing changes while the spec is rejected; it was written 5m ago")
    assert said[3] == f"The spec is rejected: {text}."
    assert said[4] == "Correct the manifest and apply it again: kubectl apply -f FILE."


def test_a_refused_change_leaves_the_previous_version() -> None:
    refused = condition("Accepted", "False", "InvalidSpec", "spec.model.source: is relative")
    found = service(status(PREVIOUS, refused, HEAD_READY, LOADED, ready=1))

    said = lines(found)

    assert said[0] == (
        "Service tiny in namespace models serves, but its previous version: "
        f"model tandem-tiny at {URL} answers."
    )
    assert said[3] == "The spec is rejected: spec.model.source: is relative."


def test_a_kubernetes_without_kuberay() -> None:
    said = lines(service(written(ray=None, has_kuberay=False)))

    assert said[3] == "This Kubernetes serves no RayService."
    assert said[4].startswith("Install KubeRay: helm install kuberay-operator kuberay-operator ")


def test_a_service_that_starts() -> None:
    waits = under_way("the Ray head is starting in pod tiny-head", "Starting")
    found = service(status(not_ready("HeadStarting"), ACCEPTED, waits))

    said = lines(found)

    assert said[2] == "It has been starting for 5m; progressDeadlineSeconds is 600."
    assert said[3] == "In progress: the Ray head is starting in pod tiny-head."


def test_a_replica_that_fails_at_the_first_start() -> None:
    failed = not_ready("ReplicaFailed")
    found = service(status(failed, ACCEPTED, HEAD_READY, REPLICA_FAILED, under_way("…")))

    said = lines(found, pods=[pod("tiny-w", **RUNNING)])

    assert said[3] == "A replica does not start: /m/model.safetensors is cut off."
    assert said[4].startswith("Correct the manifest and apply it again: kubectl apply -f FILE; ")
    assert "kubectl exec -n models tiny-w -- sh -c 'tail" in said[4]


def test_a_changed_version_that_fails_while_the_old_one_serves() -> None:
    pending = change("Replace", *FIELDS)
    found = service(
        status(
            PREVIOUS,
            ACCEPTED,
            HEAD_READY,
            REPLICA_FAILED,
            under_way("/m/model.safetensors is cut off"),
            ready=1,
            rayCluster="c1",
            pendingChange=pending,
        )
    )
    upgrade = {"status": {"pendingServiceStatus": {"rayClusterName": "c2"}}}

    said = lines(found, ray_service=upgrade)

    assert "its previous version" in said[0]
    assert said[1] == (
        "1 of 1 desired replica answers; Ray cluster c1, and c2 for the new version; 0 pods."
    )
    assert said[2] == (
        "A change has been under way for 5m: Replace (new replicas take the place of the running "
        "ones) in spec.model.source."
    )
    assert said[3] == "A replica does not start: /m/model.safetensors is cut off."


def test_a_deadline_that_has_passed_is_told_with_what_is_in_the_way() -> None:
    failing = view(
        ray_service(pending=digest("new")),
        samples.pod("head", "new", head=True),
        new=answer("STARTING", status="DEPLOYING", message=TRACEBACK),
    )
    replace = PendingChange(change_class=ChangeClass.REPLACE, fields=tuple(FIELDS))

    said = lines(service(written(ray=failing, change=replace, is_overdue=True)))

    assert said[2].startswith("A change has exceeded its progress deadline: Replace")
    assert said[3] == (
        f"Not complete within progressDeadlineSeconds 600: a replica does not start: {CAUSE}."
    )


def test_a_deadline_that_has_passed_for_no_other_reason() -> None:
    unobserved = serving(generation=2, seen=1)

    said = lines(service(written(ray=unobserved, is_overdue=True)))

    assert said[2].startswith("A change has exceeded its progress deadline; the spec was written ")
    assert said[3].startswith(
        "Not complete within progressDeadlineSeconds 600: KubeRay has not observed this generation"
    )
    assert said[4] == (
        "Inspect the pods: kubectl describe pods -n models -l serving.tandem.dev/service=tiny."
    )


def test_a_pod_that_finds_no_node() -> None:
    loading = condition("ModelLoaded", "False", "Loading")
    waits = under_way("0 of 1 replicas answer", "Starting")
    found = service(status(not_ready("Loading"), ACCEPTED, HEAD_READY, loading, waits))

    said = lines(found, pods=[pod("tiny-w", **UNSCHEDULABLE)])

    assert said[3] == (
        "Pod tiny-w cannot be scheduled: 0/1 nodes are available: 1 Insufficient cpu."
    )
    assert said[4] == "Inspect it: kubectl describe pod -n models tiny-w."


def test_an_image_that_is_not_there() -> None:
    found = service(status(not_ready("HeadStarting"), ACCEPTED, under_way("…")))

    said = lines(found, pods=[pod("tiny-w", **IMAGE_MISSING)])

    assert "may not pull the image 'tandem:none'" in said[3]


def test_a_warning_about_a_pod_is_told() -> None:
    found = service(status(not_ready("HeadStarting"), ACCEPTED, under_way("…")))
    mount = event("FailedMount", "claim 'models' not found", "tiny-w", count=4)

    said = lines(found, pods=[pod("tiny-w", phase="Pending")], events=[mount])

    assert said[3] == "Pod tiny-w: claim 'models' not found (FailedMount, 30s ago, 4 times)."
    assert said[4] == "Inspect it: kubectl describe pod -n models tiny-w."


@pytest.mark.parametrize(
    "noise",
    [
        event("Unhealthy", "Readiness probe failed", "tiny-w"),
        event("FailedMount", "claim not found", "other-w"),
        event("FailedMount", "claim not found", "tiny-w", lastTimestamp="2026-11-21T12:00:00Z"),
    ],
)
def test_other_warnings_are_ignored(noise: Object) -> None:
    found = service(status(not_ready("HeadStarting"), ACCEPTED, under_way("the head starts")))

    assert lines(found, events=[noise])[3] == "In progress: the head starts."


def test_a_service_that_was_scaled() -> None:
    found = service(
        status(
            READY,
            ACCEPTED,
            HEAD_READY,
            LOADED,
            under_way("1 of 3 replicas answer"),
            ready=1,
            desired=3,
            pendingChange=change("InPlace", "spec.scaling.minReplicas"),
        ),
        desired=3,
    )

    said = lines(found)

    assert said[1] == "1 of 3 desired replicas answer; 0 pods."
    assert said[2].endswith("InPlace (running replicas stay) in spec.scaling.minReplicas.")
    assert said[3] == "In progress: 1 of 3 replicas answer."


def test_a_replica_that_is_lost_after_all_was_well() -> None:
    found = service(
        status(READY, ACCEPTED, HEAD_READY, LOADED, RECONCILED, ready=1, desired=2), desired=2
    )

    assert lines(found)[3] == "1 of 2 replicas run."


def test_a_service_that_the_operator_cannot_observe() -> None:
    blind = condition("Ready", "Unknown", "ApiForbidden", "pods may not be listed")

    said = lines(service(status(blind, ACCEPTED)))

    assert said[0] == (
        "The state of service tiny in namespace models has been unknown for 5m (ApiForbidden)."
    )
    assert said[3] == "The operator cannot observe the service: pods may not be listed."


def test_what_kuberay_refuses() -> None:
    refused = condition("RayReady", "False", "KubeRayRefused", "KubeRay refuses it: bad name")

    said = lines(service(status(not_ready("KubeRayRefused"), ACCEPTED, refused, under_way("…"))))

    assert said[3] == "KubeRay refuses it: bad name."
    assert said[4] == ("Check KubeRay's conditions: kubectl describe rayservice -n models tiny.")


@pytest.mark.parametrize(
    ("pods", "more", "text"),
    [
        ([pod("a"), pod("b")], {}, "2 pods may finish requests for up to ten minutes."),
        ([], {"finalizers": ["x/y"]}, "Kubernetes waits for x/y (metadata.finalizers)."),
        ([], {}, "Nothing is in the way."),
    ],
)
def test_a_service_that_is_being_deleted(pods: list[Object], more: Object, text: str) -> None:
    found = service(status(READY, ACCEPTED, ready=1), deletionTimestamp=EARLIER, **more)

    said = lines(found, pods=pods)

    assert said[0] == "Service tiny in namespace models is being deleted, since 5m."
    assert said[3] == text
    assert said[4].startswith("Wait, and watch it: kubectl get pods -n models -l ")


@pytest.mark.parametrize(
    ("earlier", "age"),
    [
        ("2026-11-21T14:00:05Z", "0s"),
        ("2026-11-21T13:58:01Z", "119s"),
        ("2026-11-21T13:57:30Z", "2m30s"),
        ("2026-11-21T13:55:00Z", "5m"),
        ("2026-11-21T12:00:00Z", "120m"),
        ("2026-11-21T09:30:00Z", "4h30m"),
        ("2026-11-20T14:00:00Z", "24h"),
        ("2026-11-18T12:00:00Z", "3d2h"),
        ("2026-10-21T14:00:00Z", "31d"),
    ],
)
def test_an_age_is_written_as_kubectl_does(earlier: str, age: str) -> None:
    assert age_between(earlier, NOW) == age


def test_a_sentence_is_one_line_with_a_full_stop() -> None:
    assert sentence("a b\n  c") == "A b c."
    assert sentence("Is it?") == "Is it?"


@pytest.mark.parametrize(
    ("mode", "way_out"),
    [
        ("Manual", "Ask for a replica, for example: kubectl scale isvc tiny -n models"),
        ("External", "Ask for a replica, for example: kubectl scale isvc tiny -n models"),
        ("Auto", "Send a request: kubectl port-forward"),
    ],
)
def test_a_service_without_replicas_says_how_it_gets_one(mode: str, way_out: str) -> None:
    asleep = condition("Ready", "True", "ScaledToZero", "no replica is asked for")
    empty = condition("ModelLoaded", "False", "ScaledToZero")
    told = status(asleep, ACCEPTED, HEAD_READY, empty, RECONCILED, desired=0)
    found = service(told, desired=0)
    found["spec"]["scaling"]["mode"] = mode

    lines = explain(found, None, (), (), NOW)

    assert lines[0] == (
        "Service tiny in namespace models has been without replicas for 5m: no replica is asked "
        "for."
    )
    assert lines[1].startswith("0 of 0 desired replicas answer")
    assert lines[3] == "Nothing is in the way."
    assert lines[4].startswith(way_out)
