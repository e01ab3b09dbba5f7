"""The whole life of a service on a real Kubernetes: no request may fail on the way."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.client_load import ask_all, more_answers, openai_client, steady_load
from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.faults import is_whole, kill_pods
from tests.e2e.kubernetes.harness import Checkpoint, DeployedService
from tests.figures import Times
from tests.tiny import LEAST_ACCURACY, accuracy, held_out, misses
from tools.cluster import Cluster
from tools.kubernetes import Kubernetes

CONCURRENCY = 16
CALLERS = 8
"""Of the load: some 7 questions a second, which leave cores for pods that start."""
QUESTIONS = 100

pytestmark = [pytest.mark.e2e, pytest.mark.cluster]


async def test_a_service_lives_through_every_change_and_loses_no_request(
    tandem: Kubernetes, cluster: Cluster, checkpoint: Checkpoint, times: Times
) -> None:
    service = DeployedService(tandem, "life")
    try:
        await becomes_ready(service, times)
        async with openai_client(service.url) as client:
            await answers_questions(client, times)
            await scales(service, client, 2, times)
            await loses_a_worker(service, cluster, times)
            workers = service.pod_uids()
            await scales(service, client, 1, times)
            # While the pod of the removed replica leaves, which takes it half a minute.
            await is_replaced(service, client, checkpoint, times)
            await lets_one_pod_go(service, workers, times)
            await changes_live(service, client, checkpoint, times)
            await answers_questions(client, times)
        await goes_without_a_trace(service, times)
    finally:
        service.delete()


async def becomes_ready(service: DeployedService, times: Times) -> None:
    service.apply()
    with times.measure("apply → Ready"):
        await in_thread(service.wait_ready)


async def answers_questions(client: AsyncOpenAI, times: Times) -> None:
    conversations = held_out(QUESTIONS)
    with times.measure(f"{QUESTIONS} questions at concurrency {CONCURRENCY}"):
        answers = await ask_all(client, conversations, concurrency=CONCURRENCY)

    assert len(answers) == len(conversations), "none failed"
    assert accuracy(conversations, answers) >= LEAST_ACCURACY, misses(conversations, answers)


async def is_replaced(
    service: DeployedService, client: AsyncOpenAI, checkpoint: Checkpoint, times: Times
) -> None:
    async with steady_load(client, concurrency=CALLERS) as answers:
        await more_answers(answers, CALLERS)
        with times.measure("replace (model) under load: new pods serve"):
            await in_thread(lambda: service.apply(lambda document: use_model(document, checkpoint)))
            await in_thread(service.wait_ready)
        await more_answers(answers, CALLERS)

    # KubeRay moves the endpoint when Ray says that the replicas run, on a busy machine before the
    # probe of their pod has answered.
    others = [each for each in outages_of(service) if "the endpoint has no ready pod" not in each]
    assert not others, "the switch is no outage"


async def scales(service: DeployedService, client: AsyncOpenAI, count: int, times: Times) -> None:
    async with steady_load(client, concurrency=CALLERS) as answers:
        await more_answers(answers, CALLERS)
        with times.measure(f"kubectl scale to {count} under load"):
            scale(service, count)
            await in_thread(lambda: service.wait_for_replicas(count))
        await more_answers(answers, 2 * CALLERS)


async def lets_one_pod_go(service: DeployedService, workers: set[str], times: Times) -> None:
    """Wait until one of the workers has gone; the other one leaves with its version."""
    with times.measure("… and then: the pod of the removed replica has gone"):
        await in_thread(
            lambda: wait_for(lambda: len(workers & service.pod_uids()) < 2, "a worker has gone")
        )


async def loses_a_worker(service: DeployedService, cluster: Cluster, times: Times) -> None:
    with times.measure("one of two workers killed → a new one is ready, and Ray says that it runs"):
        (pod, _) = await asyncio.to_thread(service.serving_pods)
        lost = await asyncio.to_thread(kill_pods, service, cluster, [pod])
        await in_thread(
            lambda: wait_for(lambda: is_whole(service, cluster, lost), "it is whole again")
        )


async def changes_live(
    service: DeployedService, client: AsyncOpenAI, checkpoint: Checkpoint, times: Times
) -> None:
    def change(document: dict[str, Any]) -> None:
        use_model(document, checkpoint)
        smaller_chunks(document)

    before = restart_counts(service)
    async with steady_load(client, concurrency=CALLERS) as answers:
        await more_answers(answers, CALLERS)
        with times.measure("live change of splitChunkTokens under load"):
            await in_thread(lambda: service.apply(change))
            await in_thread(service.wait_ready)
        await more_answers(answers, CALLERS)

    after = restart_counts(service)
    assert after, "pods serve"
    assert after.items() <= before.items(), "no pod is new, and nothing was restarted"


def outages_of(service: DeployedService) -> list[str]:
    """Return why the operator has said that it is not ready any more."""
    return [
        event["message"]
        for event in service.kubernetes.list("events")
        if event["involvedObject"]["kind"] == "InferenceService"
        and event["involvedObject"]["name"] == service.name
        and event["reason"] == "NotReady"
    ]


async def goes_without_a_trace(service: DeployedService, times: Times) -> None:
    with times.measure("delete → nothing left"):
        service.delete()
        await in_thread(service.wait_gone)


def scale(service: DeployedService, count: int) -> None:
    service.kubernetes.kubectl("scale", "isvc", service.name, f"--replicas={count}")


def smaller_chunks(document: dict[str, Any]) -> None:
    document["spec"]["engine"]["schedule"]["splitFuse"]["splitChunkTokens"] = 64


def use_model(document: dict[str, Any], checkpoint: Checkpoint) -> None:
    document["spec"]["model"]["source"] = f"file://{checkpoint.folder}"


def restart_counts(service: DeployedService) -> dict[str, tuple[int, ...]]:
    """Restarts of each container of the pods that serve, by the pod's uid."""
    return {
        pod["metadata"]["uid"]: tuple(
            container["restartCount"] for container in pod["status"]["containerStatuses"]
        )
        for pod in service.serving_pods() + service.serving_pods("head")
    }


async def in_thread(work: Any) -> None:
    """kubectl waits in a thread, so that the load goes on."""
    await asyncio.to_thread(work)
