"""Calls of thousands of prompts: other callers have their turns, and all-or-nothing holds."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from tandem_serve.testing import Caller, FakeCodec, FakeEngine, client_of, fake_app

COMPLETIONS = "/v1/completions"
NUM_PROMPTS = 3000
BODY = {"model": "tiny", "prompt": ["a"] * NUM_PROMPTS, "max_tokens": 1}
MOST_OF_TURN = 100
"""Far more than a turn of the event loop may do of a call, and far less than the call."""

forms = pytest.mark.parametrize("is_stream", [False, True])


@asynccontextmanager
async def turns(progress: Callable[[], int]) -> AsyncIterator[list[int]]:
    """What `progress` says in each turn that another task of the event loop has."""
    seen = [progress()]

    async def look() -> None:
        while True:
            await asyncio.sleep(0)
            seen.append(progress())

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


def largest_step(seen: list[int]) -> int:
    return max(after - before for before, after in pairwise(seen))


@forms
async def test_other_tasks_have_turns_while_prompts_are_submitted(*, is_stream: bool) -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine)) as client, turns(lambda: len(engine.submitted)) as seen:
        response = await client.post(COMPLETIONS, json=BODY | {"stream": is_stream})

    assert response.status_code == 200
    assert seen[-1] == NUM_PROMPTS
    assert largest_step(seen) <= MOST_OF_TURN


async def test_a_piece_has_as_many_sequences_whatever_the_number_of_choices() -> None:
    engine = FakeEngine()
    body = BODY | {"prompt": ["a"] * 100, "n": 30}
    async with client_of(fake_app(engine)) as client, turns(lambda: len(engine.submitted)) as seen:
        response = await client.post(COMPLETIONS, json=body)

    assert len(response.json()["choices"]) == NUM_PROMPTS
    assert 30 * largest_step(seen) <= MOST_OF_TURN


@forms
async def test_other_tasks_have_turns_while_streams_begin_to_be_read(*, is_stream: bool) -> None:
    engine = FakeEngine(pauses_after=0)
    caller = Caller(fake_app(engine), COMPLETIONS, BODY | {"stream": is_stream})
    async with turns(lambda: engine.num_paused) as seen:
        calling = asyncio.create_task(caller.call())
        while engine.num_paused < NUM_PROMPTS:
            await asyncio.sleep(0)
        engine.resume.set()
        await calling

    assert largest_step(seen) <= MOST_OF_TURN


async def test_other_tasks_have_turns_while_streams_are_given_up() -> None:
    engine = Abandoned()
    caller = Caller(fake_app(engine), COMPLETIONS, BODY)
    async with turns(lambda: engine.num_abandoned) as seen:
        calling = asyncio.create_task(caller.call())
        while engine.num_paused < NUM_PROMPTS:
            await asyncio.sleep(0)
        caller.hang_up()
        await calling

    assert seen[-1] == NUM_PROMPTS
    assert largest_step(seen) <= MOST_OF_TURN


class Abandoned(FakeEngine):
    """It never answers, and counts the streams whose readers gave up."""

    def __init__(self) -> None:
        super().__init__(pauses_after=0)
        self.num_abandoned = 0

    async def before_output(self, num_done: int) -> None:
        try:
            await super().before_output(num_done)
        except asyncio.CancelledError:
            self.num_abandoned += 1
            raise


@pytest.mark.parametrize(
    ("fields", "does"),
    [
        pytest.param({}, "encode", id="tokenized"),
        pytest.param({"prompt": [[97]] * NUM_PROMPTS, "echo": True}, "decode", id="echoed"),
        pytest.param({"logprobs": 0}, "token_bytes", id="written"),
    ],
)
async def test_many_short_prompts_are_handled_in_a_thread(
    fields: dict[str, Any], does: str
) -> None:
    engine = FakeEngine()
    engine.codec = codec = WatchedCodec()
    async with client_of(fake_app(engine)) as client:
        response = await client.post(COMPLETIONS, json=BODY | fields)

    assert response.status_code == 200
    assert codec.threads[does]
    assert threading.main_thread() not in codec.threads[does]


class WatchedCodec(FakeCodec):
    """Notes the threads in which it works."""

    def __init__(self) -> None:
        self.threads = defaultdict[str, set[threading.Thread]](set)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.threads["encode"].add(threading.current_thread())
        return super().encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = True) -> str:
        self.threads["decode"].add(threading.current_thread())
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        self.threads["token_bytes"].add(threading.current_thread())
        return super().token_bytes(token_id)


@forms
async def test_a_caller_that_leaves_during_submission_leaves_nothing(*, is_stream: bool) -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine)
    caller = Caller(app, COMPLETIONS, BODY | {"stream": is_stream})
    calling = asyncio.create_task(caller.call())
    while not engine.submitted:
        await asyncio.sleep(0)

    caller.hang_up()
    await calling

    assert (await caller.received.get())["status"] == 499
    assert 0 < len(engine.submitted) < NUM_PROMPTS
    assert sorted(engine.aborted) == sorted(each.request_id for each in engine.submitted)
    assert app.state.http.admission.num_in_flight == 0


@forms
async def test_an_error_during_submission_gives_back_those_before(*, is_stream: bool) -> None:
    engine = FakeEngine(max_requests=2000)
    app = fake_app(engine)
    async with client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"stream": is_stream})

    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_stopped"
    assert sorted(engine.aborted) == sorted(each.request_id for each in engine.submitted)
    assert app.state.http.admission.num_in_flight == 0


@forms
async def test_a_deadline_may_pass_during_submission(*, is_stream: bool) -> None:
    engine = FakeEngine()
    app = fake_app(engine, monotonic_s=lambda: float(len(engine.submitted)))
    async with client_of(app) as client:
        response = await client.post(
            COMPLETIONS,
            json=BODY | {"stream": is_stream},
            headers={"x-request-timeout": "500"},
        )

    assert response.status_code == 504
    assert [each.timeout_s for each in engine.submitted] == [500.0 - i for i in range(500)]
    assert len(engine.aborted) == 500
    assert app.state.http.admission.num_in_flight == 0


async def test_all_slots_are_taken_before_the_first_prompt_is_submitted() -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine)
    calling = asyncio.create_task(Caller(app, COMPLETIONS, BODY).call())
    while not engine.submitted:
        await asyncio.sleep(0)

    async with client_of(app) as client:
        refused = await client.post(COMPLETIONS, json=BODY | {"prompt": "a"})

    assert refused.status_code == 429
    engine.resume.set()
    await calling
    assert len(engine.submitted) == NUM_PROMPTS
