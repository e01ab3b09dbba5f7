"""The whole life of a service on a real Kubernetes: no request may fail on the way."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.e2e.client_load import ask_all, more_answers, openai_client, steady_load
from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.harness import GONE_S, Checkpoint, DeployedService
from tests.figures import Times
from tests.tiny import LEAST_ACCURACY, accuracy, held_out, misses
from tools.kubernetes import Kubernetes

CONCURRENCY = 16

pytestmark = [pytest.mark.e2e, pytest.mark.cluster]


async def test_a_service_lives_through_every_change_and_loses_no_request(
    tandem: Kubernetes, checkpoint: Checkpoint, times: Times
) -> None:
    service = DeployedService(tandem, "life")
    try:
        await becomes_ready(service, times)
        async with openai_client(service.url) as client:
            await answers_500_questions(client, times)
            await changes_live(service, client, times)
            await scales(service, client, times)
            await is_replaced(service, client, checkpoint, times)
        await goes_without_a_trace(service, times)
    finally:
        service.delete()


async def becomes_ready(service: DeployedService, times: Times) -> None:
    service.apply()
    with times.measure("apply → Ready"):
        await in_thread(service.wait_ready)


async def answers_500_questions(client: AsyncOpenAI, times: Times) -> None:
    conversations = held_out()
    with times.measure("500 questions at concurrency 16"):
        answers = await ask_all(client, conversations, concurrency=CONCURRENCY)

    assert len(answers) == len(conversations), "none failed"
    assert accuracy(conversations, answers) >= LEAST_ACCURACY, misses(conversations, answers)


async def changes_live(service: DeployedService, client: AsyncOpenAI, times: Times) -> None:
    pods, heads = service.pod_uids(), service.pod_uids("head")
    restarts = restart_counts(service)
    async with steady_load(client, concurrency=CONCURRENCY) as answers:
        await more_answers(answers, CONCURRENCY)
        with times.measure("live change of splitChunkTokens under load"):
            await in_thread(lambda: service.apply(smaller_chunks))
            await in_thread(service.wait_ready)
        await more_answers(answers, CONCURRENCY)

    assert (service.pod_uids(), service.pod_uids("head")) == (pods, heads), "no pod is new"
    assert restart_counts(service) == restarts, "nothing was restarted"


async def scales(service: DeployedService, client: AsyncOpenAI, times: Times) -> None:
    first = service.pod_uids()
    async with steady_load(client, concurrency=CONCURRENCY) as answers:
        await more_answers(answers, CONCURRENCY)
        for count in (2, 1):
            with times.measure(f"kubectl scale to {count} under load"):
                scale(service, count)
                await in_thread(lambda count=count: service.wait_for_replicas(count))
            await more_answers(answers, 2 * CONCURRENCY)
        with times.measure("the pod that is not needed any more has gone"):
            await in_thread(lambda: wait_for(lambda: len(service.pods()) == 1, "one worker pod"))
        await more_answers(answers, CONCURRENCY)

    assert len(first) == 1


async def is_replaced(
    service: DeployedService, client: AsyncOpenAI, checkpoint: Checkpoint, times: Times
) -> None:
    def another_model(document: dict[str, Any]) -> None:
        smaller_chunks(document)
        document["spec"]["model"]["source"] = f"file://{checkpoint.folder}"

    old = service.pod_uids() | service.pod_uids("head")
    async with steady_load(client, concurrency=CONCURRENCY) as answers:
        await more_answers(answers, CONCURRENCY)
        with times.measure("replace (model) under load: new pods serve"):
            await in_thread(lambda: service.apply(another_model))
            await in_thread(service.wait_ready)
        with times.measure("the old pods have gone"):
            await in_thread(
                lambda: wait_for(
                    lambda: not old & (service.pod_uids() | service.pod_uids("head")),
                    "the old pods have gone",
                )
            )
        await more_answers(answers, CONCURRENCY)

    assert "NotReady" not in events_of(service), "the switch is no outage"


def events_of(service: DeployedService) -> set[str]:
    """Reasons of what the operator has told of it."""
    return {
        one["reason"]
        for one in service.kubernetes.list("events")
        if one["involvedObject"]["kind"] == "InferenceService"
        and one["involvedObject"]["name"] == service.name
    }


async def goes_without_a_trace(service: DeployedService, times: Times) -> None:
    with times.measure("delete → nothing left"):
        service.delete()
        await in_thread(lambda: service.wait_gone(timeout_s=GONE_S))


def scale(service: DeployedService, count: int) -> None:
    service.kubernetes.kubectl("scale", "isvc", service.name, f"--replicas={count}")


def smaller_chunks(document: dict[str, Any]) -> None:
    document["spec"]["engine"]["schedule"]["splitFuse"]["splitChunkTokens"] = 64


def restart_counts(service: DeployedService) -> list[int]:
    pods = service.pods() + service.pods("head")
    return [
        container["restartCount"]
        for pod in pods
        for container in pod["status"]["containerStatuses"]
    ]


async def in_thread(work: Any) -> None:
    """kubectl waits in a thread, so that the load goes on."""
    await asyncio.to_thread(work)
