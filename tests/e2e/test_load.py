"""A real Ray and real HTTP under load: accuracy, clients that leave, live changes."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from tests.e2e.client_load import MODEL, ask, ask_all, more_answers, openai_client, steady_load
from tests.e2e.harness import Service
from tests.patience import HANG_S
from tests.tiny import LEAST_ACCURACY, MAX_ANSWER_TOKENS, accuracy, held_out, misses

CONCURRENCY = 32
NUM_LEAVERS = 200
LEAVERS_TOKENS = 480
ATTEMPTS = 10
LONG = [{"role": "user", "content": "Reverse: " + "abcdefg " * 30}]

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(service.url) as client:
        yield client


async def value(service: Service, name: str) -> float:
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as http:
        text = (await http.get(f"{service.url}/metrics")).text
    found = re.search(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"{name} is not in the metrics"
    return float(found[1])


async def until_idle(service: Service) -> None:
    async with asyncio.timeout(HANG_S):
        for name in ("tandem_num_requests_running", "tandem_num_requests_waiting"):
            while await value(service, name) > 0:
                await asyncio.sleep(0.05)
        while await value(service, "tandem_kv_cache_usage_ratio") > 0:
            await asyncio.sleep(0.05)


async def test_500_questions_at_concurrency_32(service: Service, client: AsyncOpenAI) -> None:
    conversations = held_out()
    answers = await ask_all(client, conversations, concurrency=CONCURRENCY)

    assert len(answers) == len(conversations), "none failed"
    assert accuracy(conversations, answers) >= LEAST_ACCURACY, misses(conversations, answers)
    await until_idle(service)


async def leave_at_random(http: httpx.AsyncClient, service: Service, chance: random.Random) -> None:
    body = {
        "model": MODEL,
        "messages": LONG,
        "stream": True,
        "max_tokens": LEAVERS_TOKENS,
        "ignore_eos": True,
        "skip_special_tokens": False,  # past its end the model repeats one: no text
        "temperature": 0,
    }
    lines = chance.randrange(40)
    async with http.stream("POST", f"{service.url}/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        async for _ in response.aiter_lines():
            lines -= 1
            if lines <= 0:
                return


async def test_200_clients_that_leave_at_random_hold_no_block(service: Service) -> None:
    chance = random.Random(5)
    aborted_before = await value(service, "tandem_request_aborted_total")
    said_before = await value(service, "tandem_generation_tokens_total")
    pool = httpx.Limits(max_connections=64, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=pool, timeout=HANG_S, trust_env=False) as http:
        await asyncio.gather(*(leave_at_random(http, service, chance) for _ in range(NUM_LEAVERS)))

    await until_idle(service)
    aborted = await value(service, "tandem_request_aborted_total") - aborted_before
    said = await value(service, "tandem_generation_tokens_total") - said_before
    # How many answers end before their readers leave is a matter of the machine.
    assert aborted > 0, "who leaves is noticed"
    assert said < NUM_LEAVERS * LEAVERS_TOKENS, "and his answer ends"


async def apply_changed(service: Service, change: Callable[[dict[str, Any]], object]) -> str:
    service.write(change)
    return await asyncio.to_thread(service.apply)


def limits(chunk: int, batch: int) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        schedule = document["spec"]["engine"]["schedule"]
        schedule["maxBatchSize"] = batch
        schedule["splitFuse"] = {"splitChunkTokens": chunk, "splitStartBatchSize": 0}

    return change


def larger_blocks(document: dict[str, Any]) -> None:
    document["spec"]["engine"]["schedule"]["cacheBlockSize"] = 32


@pytest.fixture
def restored(service: Service) -> Iterator[Service]:
    """The service, brought back to its manifest afterwards."""
    original = service.manifest.read_text()
    yield service
    service.manifest.write_text(original)
    service.apply()


async def test_live_changes_under_load_lose_nothing(restored: Service, client: AsyncOpenAI) -> None:
    pids = restored.replica_pids()
    async with steady_load(client, concurrency=CONCURRENCY, pause_s=0.0) as answers:
        await more_answers(answers, CONCURRENCY)
        for chunk, batch in ((32, 8), (512, 64), (64, 16)):
            assert "live" in await apply_changed(restored, limits(chunk, batch))
            await more_answers(answers, CONCURRENCY)

    assert restored.replica_pids() == pids, "nothing was restarted"


async def test_new_replicas_under_load_lose_nothing(restored: Service, client: AsyncOpenAI) -> None:
    pids = restored.replica_pids()
    async with steady_load(client, concurrency=CONCURRENCY, pause_s=0.0) as answers:
        await more_answers(answers, CONCURRENCY)
        assert "replace" in await apply_changed(restored, larger_blocks)
        await more_answers(answers, CONCURRENCY)

    assert not set(restored.replica_pids()) & set(pids)


def few_slots(document: dict[str, Any]) -> None:
    document["spec"]["server"] = {"maxLinkNum": 1, "maxRequestLength": 1}
    document["spec"]["model"]["maxSeqLen"] = 2048


async def answer_of_a_full_queue(service: Service, http: httpx.AsyncClient) -> httpx.Response:
    """Return the answer to a fourth call while the first three have none.

    On a late machine the first may end before the fourth arrives: then they are sent again.
    """
    url = f"{service.url}/v1/chat/completions"
    body = {"model": MODEL, "messages": LONG, "max_tokens": 1700, "ignore_eos": True}
    for _ in range(ATTEMPTS):
        await until_idle(service)
        first = [asyncio.create_task(http.post(url, json=body)) for _ in range(3)]
        while await num_requests(service) < len(first) and not any(map(done, first)):
            await asyncio.sleep(0.01)
        fourth = await http.post(url, json=body)
        # Admitted, it would have been answered behind them.
        was_full = not any(map(done, first))
        answers = await asyncio.gather(*first)
        assert [answer.status_code for answer in answers] == [200] * len(first)
        if was_full:
            return fourth
    raise AssertionError(f"{ATTEMPTS} times a fourth call was let in")


def done(task: asyncio.Task[httpx.Response]) -> bool:
    return task.done()


async def num_requests(service: Service) -> float:
    return await value(service, "tandem_num_requests_running") + await value(
        service, "tandem_num_requests_waiting"
    )


async def test_a_full_queue_and_a_large_body_are_refused_through_the_proxy(
    restored: Service,
) -> None:
    await apply_changed(restored, few_slots)  # one runs, two wait, the fourth is refused
    url = f"{restored.url}/v1/chat/completions"
    async with httpx.AsyncClient(timeout=HANG_S, trust_env=False) as http:
        refused = await answer_of_a_full_queue(restored, http)
        large = await http.post(url, content=b" " * (2 * 2**20))

    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert large.status_code == 413
    assert large.json()["error"]["code"] == "request_too_large"


async def test_the_openai_client_streams_what_it_gets_at_once(
    client: AsyncOpenAI,
) -> None:
    messages: list[Any] = held_out(1)[0].messages
    whole = await ask(client, messages)
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        temperature=0,
        max_tokens=MAX_ANSWER_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces, usage = [], None
    async for chunk in stream:
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]

    assert "".join(pieces) == whole
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_wrong_requests_get_a_sentence_and_disturb_no_other(
    service: Service, client: AsyncOpenAI
) -> None:
    running = asyncio.create_task(ask(client, LONG, extra_body={"ignore_eos": True}))
    messages: Any = [{"role": "user", "content": "47+38=?"}]
    with pytest.raises(NotFoundError, match=MODEL):
        await client.chat.completions.create(model="gpt-nothing", messages=messages)
    with pytest.raises(BadRequestError, match="temperature"):
        await client.chat.completions.create(model=MODEL, messages=messages, temperature=-1)
    with pytest.raises(BadRequestError, match="maximum context length is 1024 tokens"):
        await ask(client, [{"role": "user", "content": "a" * 5000}])
    with pytest.raises(BadRequestError, match="tools"):
        await ask(
            client,
            messages,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        )
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as http:
        malformed = await http.post(f"{service.url}/v1/chat/completions", content=b'{"model": ')

    assert malformed.status_code == 400
    assert malformed.json()["error"]["type"] == "invalid_request_error"
    assert await running
    await until_idle(service)
