"""The operator's roles are enough, and no more: compared with the audit log of a whole life."""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from tests.integration.chart.audit import Audited, Right, allowed, audited
from tests.integration.chart.release import OPERATOR, Release, isvc, placed, wait_for
from tests.patience import HANG_S
from tools.cluster import Cluster, ClusterError, kuberay

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NAMESPACE: Final = "tandem-rights"
ACCOUNT: Final = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
SERVICES: Final = "serving.tandem.dev"

UNSEEN: Final = {
    # Asked for by the admission plugin, within the request that makes the object; the next test
    # shows what happens without.
    Right(SERVICES, "inferenceservices/finalizers", "update"),
    # A Kubernetes without the Prometheus operator has no such kind.
    *(
        Right("monitoring.coreos.com", "prometheusrules", verb)
        for verb in ("get", "list", "watch", "create", "patch")
    ),
}


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[Audited]:
    with audited(cluster, ACCOUNT, cluster.files.folder) as server:
        yield server


@pytest.fixture(scope="module")
def release(cluster: Cluster, development: Mapping[str, Any], api: Audited) -> Iterator[Release]:
    """An operator that speaks to the audited API server."""
    env = [
        {"name": "KUBERNETES_SERVICE_HOST", "value": api.host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(api.port)},
    ]
    with placed(cluster, NAMESPACE, development) as place:
        place.install(
            extraEnv=env,
            settings={"resyncSeconds": 5},
            networkPolicy={"apiServerPorts": [api.port]},
        )
        yield place


def test_every_right_is_used_and_no_request_is_forbidden(release: Release, api: Audited) -> None:
    live_through_everything(release)

    assert api.refused() == []
    assert {str(right) for right in given(release) - api.used() - UNSEEN} == set()


def test_without_the_right_on_finalizers_nothing_could_be_owned(
    release: Release, api: Audited
) -> None:
    release.apply(isvc("owner"))
    role = release.get("clusterrole", OPERATOR)
    rules = [r for r in role["rules"] if r["resources"] != ["inferenceservices/finalizers"]]
    owned = json.dumps(budget(release, "owner"))
    as_operator = ("create", "--dry-run=server", "-f", "-", f"--as={ACCOUNT}")

    api.kubectl(*as_operator, input=owned)
    release.cluster.kubectl(
        "patch", "clusterrole", OPERATOR, "--type=merge", "-p", json.dumps({"rules": rules})
    )

    said = wait_for("a refusal", lambda: refusal(api, *as_operator, input=owned))
    assert "blockOwnerDeletion" in said


def given(release: Release) -> set[Right]:
    roles = (release.get("clusterrole", OPERATOR), release.get("role", f"{OPERATOR}-lease"))
    return {right for role in roles for right in allowed(role["rules"])}


def live_through_everything(release: Release) -> None:
    """A service from before KubeRay to its end, with everything that can happen on the way."""
    waits_for_kuberay(release)
    leaves_the_number_to_an_hpa(release)
    kuberay.install(release.cluster)
    wait_for("the service serves", lambda: release.is_ready("tiny"))
    names_a_secret_that_is_missing(release)
    counts_up_an_event(release)
    puts_back_what_others_changed(release)
    comes_back_after_a_crash(release)
    release.kubectl("delete", "isvc", "tiny", "--wait")
    wait_for("nothing is left", lambda: not release.names("rayservices"))


def waits_for_kuberay(release: Release) -> None:
    release.apply(volume(release.namespace))
    release.apply(claim())
    release.apply(isvc("tiny", source="pvc://weights"))
    wait_for("it says why it waits", lambda: "KubeRay" in release.status("tiny").get("message", ""))


def leaves_the_number_to_an_hpa(release: Release) -> None:
    """Without a number the API server refuses to read the scale subresource."""
    release.apply(isvc("outer", source="pvc://weights", scaling={"mode": "External"}))
    wait_for("it has one", lambda: release.get("isvc", "outer")["spec"]["scaling"].get("replicas"))
    release.kubectl("delete", "isvc", "outer", "--wait")


def names_a_secret_that_is_missing(release: Release) -> None:
    """The operator may not look for it: the pods' Events say so."""
    locked = isvc("locked", source="pvc://weights", server={"apiKeysSecret": "no-keys"})
    release.apply(locked)
    wait_for("it is named", lambda: 'secret "no-keys" not found' in loading(release, "locked"))
    release.kubectl("delete", "isvc", "locked", "--wait")


def loading(release: Release, name: str) -> str:
    """Return the message of the condition ModelLoaded."""
    conditions = release.status(name).get("conditions", ())
    return next(
        (condition["message"] for condition in conditions if condition["type"] == "ModelLoaded"), ""
    )


def counts_up_an_event(release: Release) -> None:
    """The same live change there and back, until it is no news and its first event is counted."""
    chunks = itertools.cycle((128, 256))

    def change_again() -> bool:
        fuse = {"splitChunkTokens": next(chunks)}
        engine = {"schedule": {"templateType": "Mix", "splitFuse": fuse}}
        release.apply(isvc("tiny", source="pvc://weights", engine=engine))
        wait_for("the change is served", lambda: release.is_ready("tiny"))
        return any(event.get("count", 1) > 1 for event in operator_events(release))

    wait_for("an event that was counted up", change_again)


def operator_events(release: Release) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = release.get("events")["items"]
    return [item for item in items if item.get("reportingComponent") == OPERATOR]


def puts_back_what_others_changed(release: Release) -> None:
    for kind, name, path in (
        ("networkpolicy", "tiny-worker", "/spec/ingress"),
        ("poddisruptionbudget", "tiny", "/spec/selector"),
    ):
        patch = json.dumps([{"op": "remove", "path": path}])
        release.kubectl("patch", kind, name, "--type=json", "-p", patch)
        part = path.rpartition("/")[2]
        wait_for(f"{kind} is back", lambda: part in release.get(kind, name)["spec"])  # noqa: B023


def comes_back_after_a_crash(release: Release) -> None:
    old = release.pod()
    release.kubectl("delete", "pod", f"--selector=app.kubernetes.io/name={OPERATOR}")
    release.kubectl("rollout", "status", f"deployment/{OPERATOR}", f"--timeout={HANG_S:.0f}s")
    assert release.pod() != old


def refusal(api: Audited, *args: str, input: str) -> str:  # noqa: A002
    """Return the API server's refusal; empty while it accepts."""
    try:
        api.kubectl(*args, input=input)
    except ClusterError as error:
        return str(error)
    return ""


def budget(release: Release, owner: str) -> dict[str, Any]:
    """A PodDisruptionBudget as the operator makes it."""
    metadata = release.get("isvc", owner)["metadata"]
    reference = {
        "apiVersion": f"{SERVICES}/v1alpha1",
        "kind": "InferenceService",
        "name": owner,
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": "owned",
            "namespace": release.namespace,
            "ownerReferences": [reference],
        },
        "spec": {"minAvailable": 0, "selector": {"matchLabels": {"a": "b"}}},
    }


def volume(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "by-hand",
            "hostPath": {"path": "/models/tandem-tiny"},
        },
    }


def claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "by-hand",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
