"""A service of two ranks on a real Kubernetes: every change of its life, and a rank that dies."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest
from openai import AsyncOpenAI, OpenAIError

from tests.e2e.client_load import MODEL, ask_all, more_answers, openai_client, steady_load
from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.faults import processes_of
from tests.e2e.kubernetes.harness import (
    REPLICA_METRICS_PORT,
    DeployedService,
    metrics_of,
    sum_of_metric,
)
from tests.e2e.kubernetes.test_life import in_thread, restart_counts, scale, smaller_chunks
from tests.figures import Times
from tests.patience import HANG_S
from tests.tiny import LEAST_ACCURACY, accuracy, held_out, misses
from tools.cluster import Cluster
from tools.kubernetes import Kubernetes

CONCURRENCY: Final = 8
NUM_QUESTIONS: Final = 100
NUM_STREAMS: Final = 8
MANY_TOKENS: Final = 900

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.slow]


async def test_a_service_of_two_ranks_lives_and_loses_only_what_its_killed_group_computed(
    tandem: Kubernetes, cluster: Cluster, times: Times
) -> None:
    service = DeployedService(tandem, "ranks")
    try:
        with times.measure("two ranks: apply → Ready"):
            service.apply(in_two_ranks)
            await in_thread(service.wait_ready)
        async with openai_client(service.url) as client:
            await answers_questions(client)
            await changes_live(service, cluster, client)
            await scales(service, client)
            await loses_a_rank(service, cluster, client, times)
            await is_drained(service, cluster, client, times)
            await is_replaced(service, client, times)
        with times.measure("two ranks: delete → nothing left"):
            service.delete()
            await in_thread(service.wait_gone)
    finally:
        service.delete()


def in_two_ranks(document: dict[str, Any]) -> None:
    document["spec"]["engine"]["parallelism"] = {"tp": 2}
    document["spec"]["resources"] = {"cpu": 2, "memory": "2Gi"}


def in_two_ranks_with_smaller_chunks(document: dict[str, Any]) -> None:
    in_two_ranks(document)
    smaller_chunks(document)


async def answers_questions(client: AsyncOpenAI) -> None:
    conversations = held_out(NUM_QUESTIONS)

    answers = await ask_all(client, conversations, concurrency=CONCURRENCY)

    assert accuracy(conversations, answers) >= LEAST_ACCURACY, misses(conversations, answers)


async def changes_live(service: DeployedService, cluster: Cluster, client: AsyncOpenAI) -> None:
    restarts, ranks = restart_counts(service), ranks_of(service, cluster)
    async with steady_load(client, concurrency=CONCURRENCY) as answers:
        await more_answers(answers, CONCURRENCY)
        await in_thread(lambda: service.apply(in_two_ranks_with_smaller_chunks))
        await in_thread(service.wait_ready)
        await more_answers(answers, CONCURRENCY)

    assert restart_counts(service) == restarts
    assert ranks_of(service, cluster) == ranks
    assert len(ranks) == 1


async def scales(service: DeployedService, client: AsyncOpenAI) -> None:
    async with steady_load(client, concurrency=CONCURRENCY) as answers:
        await more_answers(answers, CONCURRENCY)
        await in_thread(lambda: scale(service, 2))
        await in_thread(lambda: service.wait_for_replicas(2))
        await more_answers(answers, 2 * CONCURRENCY)


async def loses_a_rank(
    service: DeployedService, cluster: Cluster, client: AsyncOpenAI, times: Times
) -> None:
    """One of two groups ends; the streams of the other one go on to their end."""
    begun, is_enough = [asyncio.Event() for _ in range(NUM_STREAMS)], asyncio.Event()
    before = ranks_of(service, cluster)
    victim = min(before)
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(keep_streaming(client, one, is_enough)) for one in begun]
        async with asyncio.timeout(HANG_S):
            await asyncio.gather(*(one.wait() for one in begun))
        await in_thread(lambda: wait_for(lambda: all_answer(service), "each group has a stream"))
        # A rank that is stopped holds the streams of its group open, so that however late it is
        # killed, it is killed in some. It is not stopped before: a new group gets its first stream
        # late, and a rank that is silent for as long ends its group.
        await in_thread(lambda: signal_rank(cluster, victim, "STOP"))
        await in_thread(lambda: wait_for(lambda: all_answer(service), "each group has one still"))
        is_enough.set()
        await in_thread(lambda: signal_rank(cluster, victim, "KILL"))
    failed = [one.result() for one in streams if one.result()]

    assert 0 < len(failed) < NUM_STREAMS
    assert all("Rank 1 was ended by SIGKILL" in one for one in failed), failed

    def is_whole() -> bool:
        found = ranks_of(service, cluster)
        return len(found) == len(before) and victim not in found and service.is_ready()

    with times.measure("a killed rank: another group serves"):
        await in_thread(lambda: wait_for(is_whole, "two whole groups of ranks"))


async def is_drained(
    service: DeployedService, cluster: Cluster, client: AsyncOpenAI, times: Times
) -> None:
    async with steady_load(client, concurrency=CONCURRENCY) as answers:
        await more_answers(answers, CONCURRENCY)
        with times.measure("two ranks: kubectl scale to 1 under load, the pod has gone"):
            await in_thread(lambda: scale(service, 1))
            await in_thread(lambda: wait_for(lambda: len(service.pods()) == 1, "one worker pod"))
        await more_answers(answers, CONCURRENCY)

    await in_thread(lambda: wait_for(lambda: len(ranks_of(service, cluster)) == 1, "one rank"))


async def is_replaced(service: DeployedService, client: AsyncOpenAI, times: Times) -> None:
    def shorter(document: dict[str, Any]) -> None:
        in_two_ranks_with_smaller_chunks(document)
        document["spec"]["model"]["maxSeqLen"] = 512

    old = service.pod_uids()
    async with steady_load(client, concurrency=CONCURRENCY) as answers:
        await more_answers(answers, CONCURRENCY)
        with times.measure("two ranks: replace under load"):
            await in_thread(lambda: service.apply(shorter))
            await in_thread(service.wait_ready)
            gone = "the old pods have gone"
            await in_thread(lambda: wait_for(lambda: not old & service.pod_uids(), gone))
        await more_answers(answers, CONCURRENCY)


def signal_rank(cluster: Cluster, process: str, signal: str) -> None:
    done = cluster.run(["kill", f"-{signal}", process])
    assert done.returncode == 0, done.stderr


async def keep_streaming(
    client: AsyncOpenAI, begun: asyncio.Event, is_enough: asyncio.Event
) -> str:
    """Read long answers, one after the other, so that one is being written when a rank dies.

    Returns the message with which one failed, or nothing.
    """
    while not is_enough.is_set():
        if message := await stream(client, begun):
            return message
    return ""


async def stream(client: AsyncOpenAI, begun: asyncio.Event) -> str:
    """Read a long answer; return the message with which it failed, or nothing."""
    try:
        chunks = await client.completions.create(
            model=MODEL,
            prompt="What is 12 + 30?",
            max_tokens=MANY_TOKENS,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for _ in chunks:
            begun.set()
    except OpenAIError as error:
        begun.set()
        return str(error)
    return ""


def all_answer(service: DeployedService) -> bool:
    """True if each replica has a request, by what its proxy's side counts: the step loop of one
    whose rank is stopped counts no more. A new one gets its first some time after it is Ready, when
    the proxies have heard of it."""
    texts = [metrics_of(pod, REPLICA_METRICS_PORT) for pod in service.pods()]
    return all(sum_of_metric(text, "tandem_http_requests_in_flight") for text in texts)


def ranks_of(service: DeployedService, cluster: Cluster) -> set[str]:
    """Processes of its ranks from 1 on, by the node's numbers."""
    files = processes_of(cluster, service.pod_uids())
    found = {Path(file).parent.name for file in files}
    return found & set(cluster.run(["pgrep", "-f", r"ray::\S+ \S+ rank 1"]).stdout.split())
