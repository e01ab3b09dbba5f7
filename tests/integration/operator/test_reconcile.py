"""The operator against a real API server: it brings about what is asked for, and then is quiet.

KubeRay is not there; what it would say is written by the tests where it matters.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.integration.operator.conftest import StartOperator
from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    children_of,
    manifest,
    settle,
    until,
    watch_service,
)
from tests.slow import slow_but

pytestmark = pytest.mark.cluster


def test_a_service_gets_its_children_and_owns_them(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)

    service = namespace.get("isvc", "tiny")
    assert service
    for child in namespace.children("tiny").values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == service["metadata"]["uid"]
        assert owner["controller"]
        assert owner["blockOwnerDeletion"]
    assert "finalizers" not in service["metadata"]
    assert "kopf" not in json.dumps(service["metadata"])
    assert service["status"]["observedGeneration"] == service["metadata"]["generation"]
    assert service["status"]["url"] == f"http://tiny.{namespace.name}.svc:8000"


def test_the_second_reconcile_writes_nothing(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest(), manifest("other"))
    settle(namespace, operator)
    settle(namespace, operator, "other")
    operator.wait_for_resyncs()
    versions, writes = namespace.versions(), operator.writes()
    reconciles = operator.value("reconcile_total")

    operator.wait_for_resyncs(2)

    assert operator.value("reconcile_total") >= reconciles + 4, "both were reconciled twice"
    assert operator.writes() == writes
    assert namespace.versions() == versions


@pytest.mark.slow
def test_a_settled_service_is_not_read(namespace: Namespace, operator: OperatorProcess) -> None:
    """Everything comes from the cache, the endpoint that KubeRay makes as well."""
    namespace.apply(manifest())
    settle(namespace, operator)
    namespace.apply(endpoint("tiny", uid(namespace)))
    operator.wait_for_resyncs()
    reads, reconciles = operator.reads(), operator.value("reconcile_total")

    operator.wait_for_resyncs(2)

    assert operator.value("reconcile_total") >= reconciles + 2
    assert operator.reads() == reads


def endpoint(service: str, owner: str | None) -> dict[str, Any]:
    """The Service that KubeRay makes for the RayService with this id."""
    reference = {"apiVersion": "ray.io/v1", "kind": "RayService", "name": service, "uid": owner}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service,
            "labels": {"ray.io/originated-from-crd": "RayService"},
            "ownerReferences": [{**reference, "controller": True}],
        },
        "spec": {"ports": [{"port": 8000}]},
    }


def test_a_rayservice_deleted_by_hand_comes_back(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)
    before = uid(namespace)

    namespace.kubectl("delete", "rayservice", "tiny")

    until(lambda: uid(namespace) not in {before, None}, "there is another")


def uid(namespace: Namespace) -> str | None:
    found = namespace.get("rayservice", "tiny")
    return found["metadata"]["uid"] if found else None


EDITS: Final[Mapping[str, Any]] = {
    "the Serve document": {"spec": {"serveConfigV2": "applications: []"}},
    "the Ray cluster": {"spec": {"rayClusterConfig": {"rayVersion": "1.2.3"}}},
    "a label": {"metadata": {"labels": {"serving.tandem.dev/service": "other"}}},
}


@pytest.mark.parametrize("edit", slow_but({"the Ray cluster"}, EDITS, value=EDITS.__getitem__))
def test_a_rayservice_edited_by_hand_is_mended(
    namespace: Namespace, operator: OperatorProcess, edit: dict[str, Any]
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)
    before = desired_part(namespace)

    namespace.patch("rayservice", "tiny", edit)

    until(lambda: desired_part(namespace) == before, "it is as it was")


def desired_part(namespace: Namespace) -> tuple[Any, Any]:
    found = namespace.get("rayservice", "tiny")
    assert found
    return found["spec"], found["metadata"]["labels"]


def test_every_child_is_watched(namespace: Namespace, start_operator: StartOperator) -> None:
    """What is deleted or changed by hand comes back, long before the next resync."""
    operator = start_operator(settings={"resyncSeconds": 3600}).wait_until_leading()
    namespace.apply(manifest())
    settle(namespace, operator)

    namespace.kubectl("delete", "networkpolicy/tiny-head", "pdb/tiny")
    namespace.patch("networkpolicy", "tiny-worker", {"spec": {"policyTypes": ["Ingress"]}})

    until(lambda: children_of("tiny") <= set(namespace.children("tiny")), "they are back")
    until(lambda: policy_types(namespace) == ["Ingress", "Egress"], "it is as it was")


def policy_types(namespace: Namespace) -> Any:
    found = namespace.get("networkpolicy", "tiny-worker")
    return found and found["spec"]["policyTypes"]


def test_a_change_is_announced_with_its_class_before_it_is_made(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)
    before = namespace.get("rayservice", "tiny")
    assert before
    with watch_service(namespace, "tiny") as versions:
        namespace.apply(manifest(engine={"dtype": "float32"}))
        announced = next(one for one in versions if "pendingChange" in one.get("status", {}))
    until(lambda: "float32" in json.dumps(namespace.get("rayservice", "tiny")), "it is made")

    change = announced["status"]["pendingChange"]
    assert change == {"class": "Replace", "fields": ["spec.engine.dtype"]}
    after = namespace.get("rayservice", "tiny")
    assert after
    assert version(announced) < version(after), "first it was said, then it was done"
    events = [one["reason"] for one in namespace.list("events")]
    assert "Replace" in events


def version(found: dict[str, Any]) -> int:
    return int(found["metadata"]["resourceVersion"])


def test_a_foreign_rayservice_is_left_alone(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": {"name": "tiny"},
            "spec": {"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {
                "containers": [{"name": "ray-head", "image": "theirs"}]}}}}},
        }
    )  # fmt: skip
    before = namespace.get("rayservice", "tiny")

    namespace.apply(manifest())
    until(lambda: namespace.has_condition("tiny", "Accepted", "NameTaken"), "it is refused")
    operator.wait_for_resyncs()

    assert namespace.get("rayservice", "tiny") == before
    assert "RayService 'tiny' already exists" in namespace.condition("tiny", "Ready")["message"]


@pytest.mark.slow
def test_a_token_that_was_deleted_comes_back_as_it_was(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    """Running pods have the old one: any other would lock them out."""
    namespace.apply(manifest())
    settle(namespace, operator)
    before, cluster = token(namespace), desired_part(namespace)

    namespace.kubectl("delete", "secret", namespace.token_secret("tiny"))
    until(lambda: "Secret/tiny-token" in namespace.children("tiny"), "it is back by itself")

    assert token(namespace) == before
    assert desired_part(namespace) == cluster


def test_a_token_that_a_pod_waits_for_comes_back_at_once(
    namespace: Namespace, start_operator: StartOperator
) -> None:
    operator = start_operator(settings={"resyncSeconds": 3600}).wait_until_leading()
    namespace.apply(manifest())
    settle(namespace, operator)
    name = namespace.token_secret("tiny")
    namespace.kubectl("delete", "secret", name)

    text = f'secret "{name}" not found'
    waiting = {"reason": "CreateContainerConfigError", "message": text}
    make_pod(namespace, "worker", containerStatuses=[container(waiting)])

    until(lambda: "Secret/tiny-token" in namespace.children("tiny"), "it is back")


def token(namespace: Namespace) -> str:
    data: str = namespace.children("tiny")["Secret/tiny-token"]["data"]["auth_token"]
    return data


def make_pod(namespace: Namespace, name: str, **status: Any) -> None:
    """A pod of the service that has a node, by what the test writes into its status."""
    labels = {
        "serving.tandem.dev/service": "tiny",
        "ray.io/cluster": "tiny-abcde",
        "ray.io/node-type": "worker",
    }
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "schedulerName": "nobody",
                "containers": [{"name": "ray-worker", "image": "none"}],
            },
        }
    )
    has_node = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    namespace.patch("pod", name, {"status": has_node | status}, "--subresource=status")


def container(waiting: dict[str, str]) -> dict[str, Any]:
    return {
        "name": "ray-worker",
        "image": "none",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }


def test_a_secret_that_a_pod_cannot_mount_is_named(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    """The operator may not look for it; the kubelet says so in an Event."""
    namespace.apply(manifest(server={"apiKeysSecret": "keys"}))
    settle(namespace, operator)
    assert namespace.has_condition("tiny", "Accepted", "Valid")

    make_pod(namespace, "worker", containerStatuses=[container({"reason": "ContainerCreating"})])
    complain(namespace, "worker", 'MountVolume.SetUp failed: secret "keys" not found')
    found = namespace.get("rayservice", "tiny")
    assert found
    status = {
        "observedGeneration": found["metadata"]["generation"],
        "pendingServiceStatus": {"rayClusterName": "tiny-abcde"},
    }
    namespace.patch("rayservice", "tiny", {"status": status}, "--subresource=status")

    until(lambda: namespace.has_condition("tiny", "ModelLoaded", "PodFailed"), "it is named")
    said = namespace.condition("tiny", "ModelLoaded")["message"]
    assert 'pod worker waits for its volumes: MountVolume.SetUp failed: secret "keys"' in said


def complain(namespace: Namespace, pod: str, message: str) -> None:
    """An Event about a pod, as the kubelet posts it."""
    found = namespace.get("pod", pod)
    assert found
    about = {"kind": "Pod", "name": pod, "namespace": namespace.name}
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{pod}.1"},
            "involvedObject": {**about, "uid": found["metadata"]["uid"]},
            "type": "Warning",
            "reason": "FailedMount",
            "message": message,
            "lastTimestamp": "2026-11-21T14:00:00Z",
        }
    )


def test_a_missing_volume_claim_is_named(namespace: Namespace, operator: OperatorProcess) -> None:
    namespace.apply(manifest(model={"source": "pvc://weights/tiny"}))

    until(lambda: namespace.has_condition("tiny", "Accepted", "ClaimMissing"), "it is refused")
    assert "PersistentVolumeClaim 'weights'" in namespace.condition("tiny", "Accepted")["message"]
    assert operator.health()["ok"]


@pytest.mark.slow
def test_a_change_that_takes_too_long_is_called_so(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest(progressDeadlineSeconds=30))
    settle(namespace, operator)

    until(
        lambda: namespace.has_condition("tiny", "Progressing", "ProgressDeadlineExceeded"),
        "it is overdue",
    )
    (late,) = operator.samples("services").items() & {
        ((("phase", "ProgressDeadlineExceeded"),), 1.0)
    }
    assert late


def test_what_is_deleted_goes_with_all_it_had(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    """The last, since the garbage collector knows kinds half a minute after they were made."""
    namespace.apply(manifest())
    settle(namespace, operator)
    assert operator.samples("service_ready")

    namespace.kubectl("delete", "isvc", "tiny", "--wait=false")

    until(lambda: not namespace.children("tiny"), "nothing is left")
    until(lambda: not operator.samples("service_ready"), "its metrics are gone")
    assert operator.value("services") == 0
