"""The operator against a real API server: it brings about what is asked for, and then is quiet.

KubeRay is not there; what it would say is written by the tests where it matters.
"""

import json
from typing import Any

import pytest

from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    children_of,
    manifest,
    settle,
    until,
    watch_service,
)

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


def test_the_second_look_writes_nothing(namespace: Namespace, operator: OperatorProcess) -> None:
    namespace.apply(manifest(), manifest("other"))
    settle(namespace, operator)
    settle(namespace, operator, "other")
    operator.wait_for_sweeps()
    versions, writes = namespace.versions(), operator.writes()
    passes = operator.value("reconcile_total")

    operator.wait_for_sweeps(2)

    assert operator.value("reconcile_total") >= passes + 4, "both were looked at twice"
    assert operator.writes() == writes
    assert namespace.versions() == versions


def test_what_is_deleted_goes_with_all_it_had(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)
    assert operator.samples("service_ready")

    namespace.kubectl("delete", "isvc", "tiny", "--wait=false")

    until(lambda: not namespace.children("tiny"), "nothing is left")
    until(lambda: not operator.samples("service_ready"), "its metrics are gone")
    assert operator.value("services") == 0


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


@pytest.mark.parametrize(
    "edit",
    [
        {"spec": {"serveConfigV2": "applications: []"}},
        {"spec": {"rayClusterConfig": {"rayVersion": "1.2.3"}}},
        {"metadata": {"labels": {"serving.tandem.dev/service": "other"}}},
    ],
    ids=["the Serve document", "the Ray cluster", "a label"],
)
def test_a_rayservice_edited_by_hand_is_mended(
    namespace: Namespace, operator: OperatorProcess, edit: dict[str, Any]
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)
    before = wanted_part(namespace)

    namespace.patch("rayservice", "tiny", edit)

    until(lambda: wanted_part(namespace) == before, "it is as it was")


def wanted_part(namespace: Namespace) -> tuple[Any, Any]:
    found = namespace.get("rayservice", "tiny")
    assert found
    return found["spec"], found["metadata"]["labels"]


@pytest.mark.parametrize("child", ["networkpolicy/tiny-head", "pdb/tiny", "secret/tiny-ray-token"])
def test_what_is_not_watched_comes_back_with_the_sweep(
    namespace: Namespace, operator: OperatorProcess, child: str
) -> None:
    namespace.apply(manifest())
    settle(namespace, operator)

    namespace.kubectl("delete", child)

    until(lambda: children_of("tiny") <= set(namespace.children("tiny")), "it is back")


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


def test_somebody_elses_rayservice_is_left_alone(
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
    operator.wait_for_sweeps()

    assert namespace.get("rayservice", "tiny") == before
    assert "RayService 'tiny' exists already" in namespace.condition("tiny", "Ready")["message"]


def test_a_missing_secret_is_named_and_waited_for(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest(server={"apiKeysSecret": "keys"}))
    until(lambda: namespace.has_condition("tiny", "Accepted", "SecretMissing"), "it is refused")
    assert namespace.get("rayservice", "tiny") is None
    assert "has no Secret 'keys'" in namespace.condition("tiny", "Accepted")["message"]

    namespace.kubectl("create", "secret", "generic", "keys", "--from-literal=me=secret")

    settle(namespace, operator)
    assert namespace.has_condition("tiny", "Accepted", "Valid")


def test_a_missing_volume_claim_is_named(namespace: Namespace, operator: OperatorProcess) -> None:
    namespace.apply(manifest(model={"source": "pvc://weights/tiny"}))

    until(lambda: namespace.has_condition("tiny", "Accepted", "ClaimMissing"), "it is refused")
    assert "PersistentVolumeClaim 'weights'" in namespace.condition("tiny", "Accepted")["message"]
    assert operator.health()["ok"]


def test_a_change_that_takes_too_long_is_called_so(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(manifest(progressDeadlineSeconds=30))
    settle(namespace, operator)

    until(
        lambda: namespace.has_condition("tiny", "Progressing", "ProgressDeadlineExceeded"),
        "it is overdue",
    )
    (stuck,) = operator.samples("services").items() & {((("state", "Stuck"),), 1.0)}
    assert stuck
