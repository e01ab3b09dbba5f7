"""With a store that outlives it, the Ray head may die or leave, and no request notices."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client_load import more_answers, openai_client, steady_load
from tests.e2e.harness import wait_for
from tests.e2e.kubernetes import store
from tests.e2e.kubernetes.harness import DeployedService
from tests.figures import Times
from tools.kubernetes import CommandFailed, Kubernetes

CONCURRENCY = 4
CHUNKS = 64
# Every process of the pod; process 1, which is none of Ray's, takes no signal from within.
KILL_ALL = "kill -9 -1"
CONNECT = (
    "import socket, sys\n"
    "try:\n"
    "    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close()\n"
    "except OSError:\n"
    "    print('closed')\n"
    "else:\n"
    "    print('open')"
)

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def service(tandem: Kubernetes) -> Iterator[DeployedService]:
    """A service whose control plane is kept in a Redis; the last test deletes it."""
    store.start(tandem)
    service = DeployedService(tandem, "outlived")
    service.apply(with_store)
    service.wait_ready()
    yield service
    service.delete()
    service.wait_gone()
    store.stop(tandem)


async def test_a_killed_head_costs_no_request(service: DeployedService, times: Times) -> None:
    workers, containers = service.pod_uids(), containers_of(service)
    async with (
        openai_client(service.url) as client,
        # A request that fails is raised from here.
        steady_load(client, concurrency=CONCURRENCY) as answers,
    ):
        await more_answers(answers, CONCURRENCY)
        killed = await asyncio.to_thread(kill_head, service)
        with times.measure("Ray head killed, with a store → a new one is Ready"):
            await asyncio.to_thread(wait_for_another_head, service, killed)
            await asyncio.to_thread(service.wait_ready)
        await more_answers(answers, CONCURRENCY)
        # Ray's new control plane has the replicas of the old one in hand.
        await asyncio.to_thread(service.apply, smaller_chunks)
        await asyncio.to_thread(service.wait_ready)
        await more_answers(answers, CONCURRENCY)

    assert (service.pod_uids(), containers_of(service)) == (workers, containers), "none is new"


async def test_an_evicted_head_leaves_at_once_and_alone(
    service: DeployedService, times: Times
) -> None:
    workers, containers = service.pod_uids(), containers_of(service)
    (head,), (worker,) = service.pods("head"), service.pods()
    async with (
        openai_client(service.url) as client,
        steady_load(client, concurrency=CONCURRENCY) as answers,
    ):
        await more_answers(answers, CONCURRENCY)
        with times.measure("Ray head evicted, with a store → it has gone"):
            evict(service.kubernetes, head)
            with pytest.raises(CommandFailed, match="disruption budget"):
                evict(service.kubernetes, worker)
            await asyncio.to_thread(wait_until_gone, service, head)
        with times.measure("… → a new one is Ready"):
            await asyncio.to_thread(wait_for_another_head, service, head)
            await asyncio.to_thread(service.wait_ready)
        await more_answers(answers, CONCURRENCY)

    assert (service.pod_uids(), containers_of(service)) == (workers, containers), "none is new"


def test_the_head_alone_reaches_the_store(service: DeployedService) -> None:
    (head,), (worker,) = service.pods("head"), service.pods()

    assert tries_the_store(service, head) == "open"
    assert tries_the_store(service, worker) == "closed"


def test_a_deleted_service_leaves_nothing_in_the_store(
    service: DeployedService, times: Times
) -> None:
    assert store.keys(service.kubernetes), "its head keeps something there"

    with times.measure("delete, with a store → nothing left"):
        service.delete()
        service.wait_gone()

    assert store.keys(service.kubernetes) == []


def with_store(document: dict[str, Any]) -> None:
    document["spec"]["runtime"] = {"gcsFaultToleranceOptions": store.options()}


def smaller_chunks(document: dict[str, Any]) -> None:
    with_store(document)
    document["spec"]["engine"]["schedule"]["splitFuse"]["splitChunkTokens"] = CHUNKS


def kill_head(service: DeployedService) -> dict[str, Any]:
    """Kill every process of the head, so that no container of it answers any more, and its pod."""
    (head,) = service.pods("head")
    name = head["metadata"]["name"]
    # The shell kills itself, too.
    with contextlib.suppress(CommandFailed):
        service.kubernetes.kubectl("exec", name, "-c", "ray-head", "--", "sh", "-c", KILL_ALL)
    wait_for(lambda: not is_running(service, head), "the head's processes have ended")
    service.kubernetes.kubectl(
        "delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found"
    )
    return head


def evict(kubernetes: Kubernetes, pod: dict[str, Any]) -> None:
    """Request the eviction of a pod, as `kubectl drain` does.

    Raises:
        CommandFailed: a PodDisruptionBudget forbids it now.
    """
    name, namespace = (pod["metadata"][key] for key in ("name", "namespace"))
    kubernetes.kubectl(
        "create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", "--filename=-",
        document={
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        },
    )  # fmt: skip


def is_running(service: DeployedService, pod: dict[str, Any]) -> bool:
    """Return True when the Ray container of a pod still is the same and runs."""
    for found in service.pods("head"):
        if found["metadata"]["uid"] == pod["metadata"]["uid"]:
            states = {
                one["name"]: one["state"] for one in found["status"].get("containerStatuses", [])
            }
            return "running" in states.get("ray-head", {})
    return False


def wait_until_gone(service: DeployedService, head: dict[str, Any]) -> None:
    wait_for(
        lambda: head["metadata"]["uid"] not in service.pod_uids("head"),
        "the head has gone",
        instead=lambda: service.kubernetes.kubectl("get", "pods", "-o", "wide"),
    )


def wait_for_another_head(service: DeployedService, before: dict[str, Any]) -> None:
    def is_there() -> bool:
        return any(
            pod["metadata"]["uid"] != before["metadata"]["uid"] and is_ready(pod)
            for pod in service.pods("head")
        )

    wait_for(
        is_there,
        "another head is Ready",
        instead=lambda: service.kubernetes.kubectl("get", "pods,events"),
    )


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def containers_of(service: DeployedService) -> set[str]:
    """The containers of the workers; one that is started again is another."""
    return {
        container["containerID"]
        for pod in service.pods()
        for container in pod["status"]["containerStatuses"]
    }


def tries_the_store(service: DeployedService, pod: dict[str, Any]) -> str:
    """`open` or `closed`, as the pod's Ray container finds the store."""
    address = f"redis.{store.NAMESPACE_OF_STORES}.svc"
    found = service.kubernetes.kubectl(
        "exec", pod["metadata"]["name"], "-c", pod["spec"]["containers"][0]["name"], "--",
        "python", "-c", CONNECT, address, str(store.PORT),
    )  # fmt: skip
    return found.strip()
