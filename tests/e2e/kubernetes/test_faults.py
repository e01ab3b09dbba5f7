"""Faults are repaired without intervention; the seconds that it takes are printed."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from openai import OpenAIError

from tests.e2e.client_load import ask, openai_client
from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.faults import is_whole, kill_pods, names, stop_processes
from tests.e2e.kubernetes.harness import DeployedService, OperatorProcess
from tests.figures import Times
from tests.tiny import held_out
from tools.cluster import Cluster
from tools.kubernetes import CommandFailed, Kubernetes

AWAY_S = 30.0

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def service(tandem: Kubernetes) -> Iterator[DeployedService]:
    """A service that serves; every test but the last leaves it serving."""
    service = DeployedService(tandem, "faulty")
    service.apply()
    service.wait_ready()
    yield service
    service.delete()
    service.wait_gone()


async def answers_well(url: str) -> bool:
    question = held_out(1)[0]
    async with openai_client(url) as client:
        try:
            answer: str = await ask(client, question.messages)
        except OpenAIError:
            return False
    return bool(answer == question.answer)


def serves(service: DeployedService) -> bool:
    return service.is_ready() and asyncio.run(answers_well(service.url))


def applies(service: DeployedService, count: int) -> bool:
    try:
        service.apply(lambda document: chunks(document, count))
    except CommandFailed:
        return False
    return True


def test_the_operator_is_killed_while_it_creates_changes_and_deletes(
    tandem: Kubernetes, operator: OperatorProcess, times: Times
) -> None:
    service = DeployedService(tandem, "crashed")
    service.apply()
    operator.kill()
    with times.measure("operator killed while it creates → Ready"):
        wait_for(lambda: serves(service), "it serves all the same")

    service.apply(lambda document: chunks(document, 64))
    operator.kill()
    with times.measure("operator killed while it changes → the change is there"):
        wait_for(lambda: live_chunks(service) == 64 and serves(service), "the change is there")

    service.delete()
    operator.kill()
    with times.measure("operator killed while it deletes → nothing left"):
        service.wait_gone()


def test_a_worker_pod_is_killed(service: DeployedService, cluster: Cluster, times: Times) -> None:
    with times.measure("worker pod killed → a new one is ready, and Ray says that it runs"):
        lost = kill_pods(service, cluster, service.pods())
        wait_for(lambda: is_whole(service, cluster, lost), "it is whole again")
    assert serves(service)


def test_the_ray_head_is_killed(service: DeployedService, cluster: Cluster, times: Times) -> None:
    with times.measure("Ray head killed → a new one is ready, and says that the service runs"):
        lost = kill_pods(service, cluster, service.pods("head"))
        # Workers that were connected end with it; one that still waited for a head may stay.
        wait_for(lambda: is_whole(service, cluster, lost), "it is whole again")
    assert serves(service)


def test_worker_and_head_are_killed_together(
    service: DeployedService, cluster: Cluster, times: Times
) -> None:
    with times.measure("worker killed, and then the head while a new worker starts → whole"):
        lost = kill_pods(service, cluster, service.pods()) | kill_pods(
            service, cluster, service.pods("head")
        )
        wait_for(lambda: is_whole(service, cluster, lost), "it is whole again")
    assert serves(service)


def test_the_api_server_is_away(service: DeployedService, cluster: Cluster, times: Times) -> None:
    url = service.url
    cluster.pause("kube-apiserver")
    try:
        with pytest.raises(CommandFailed):
            service.kubernetes.kubectl("get", "--raw", "/readyz", "--request-timeout=1s")
        away_until = time.monotonic() + AWAY_S
        served = 0
        while time.monotonic() < away_until:
            assert asyncio.run(answers_well(url)), "requests do not need the API server"
            served += 1
    finally:
        cluster.resume("kube-apiserver")
    assert served
    with times.measure(f"API server back after {AWAY_S:.0f} s → a change has arrived"):
        wait_for(lambda: applies(service, 128), "the API server takes a change")
        wait_for(lambda: live_chunks(service) == 128 and serves(service), "the change is there")


def test_the_rayservice_is_edited_by_hand(service: DeployedService, times: Times) -> None:
    service.kubernetes.kubectl(
        "patch", "rayservice", service.name, "--type=json",
        "-p", '[{"op": "replace", "path": "/spec/rayClusterDeletionDelaySeconds", "value": 999}]',
    )  # fmt: skip
    with times.measure("RayService edited by hand → as it was"):
        wait_for(lambda: deletion_delay(service) != 999, "the edit is undone")
    assert serves(service)


def test_the_rayservice_is_deleted_by_hand(
    service: DeployedService, cluster: Cluster, times: Times
) -> None:
    before = ray_service(service)["metadata"]["uid"]
    lost = service.pod_uids() | service.pod_uids("head")

    def is_another() -> bool:
        found = service.kubernetes.get("rayservice", service.name)
        return found is not None and found["metadata"]["uid"] != before

    with times.measure("RayService deleted by hand → another one serves, with pods of its own"):
        service.kubernetes.kubectl("delete", "rayservice", service.name, "--wait=false")
        wait_for(is_another, "another RayService is there")
        wait_for(lambda: is_whole(service, cluster, lost), "it is whole again")
    assert serves(service)


def test_a_service_is_deleted_whose_ray_hangs(
    service: DeployedService, cluster: Cluster, times: Times
) -> None:
    """Its head answers no request, and its worker waits for it in an init container."""
    lost = service.pod_uids()
    stop_processes(cluster, "gcs_server")
    service.kubernetes.kubectl(
        "delete", "pod", "--force", "--grace-period=0", *names(service.pods())
    )

    def waits_for_the_head() -> bool:
        return any(begins(pod) for pod in service.pods() if pod["metadata"]["uid"] not in lost)

    wait_for(waits_for_the_head, "a new worker waits for the head")
    with times.measure("deleted while Ray hangs → nothing left"):
        service.delete()
        service.wait_gone()


def begins(pod: dict[str, Any]) -> bool:
    """Return True when a pod's init container runs."""
    (init,) = pod["status"].get("initContainerStatuses", [{}])
    return "running" in init.get("state", {})


def ray_service(service: DeployedService) -> dict[str, Any]:
    found = service.kubernetes.get("rayservice", service.name)
    assert found is not None
    return found


def deletion_delay(service: DeployedService) -> int:
    delay: int = ray_service(service)["spec"]["rayClusterDeletionDelaySeconds"]
    return delay


def chunks(document: dict[str, Any], count: int) -> None:
    document["spec"]["engine"]["schedule"]["splitFuse"]["splitChunkTokens"] = count


def live_chunks(service: DeployedService) -> int:
    """splitChunkTokens as the operator hands it to Ray."""
    document = yaml.safe_load(ray_service(service)["spec"]["serveConfigV2"])
    schedule = document["applications"][0]["deployments"][0]["user_config"]["schedule"]
    count: int = schedule["splitFuse"]["splitChunkTokens"]
    return count
