import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from tandem_engine.api.errors import ConfigError
from tandem_serve.http.admission.slots import AdmissionControl, SlotRequest
from tandem_serve.testing import Caller, FakeEngine, client_of, fake_app

COMPLETIONS = "/v1/completions"
BODY = {"model": "tiny", "prompt": "ab"}


@asynccontextmanager
async def waiting_calls(app: FastAPI, engine: FakeEngine, number: int) -> AsyncIterator[None]:
    callers = [Caller(app, COMPLETIONS, BODY) for _ in range(number)]
    async with asyncio.TaskGroup() as calls:
        for caller in callers:
            calls.create_task(caller.call())
        while engine.num_paused < number:
            engine.paused.clear()
            await engine.paused.wait()
        yield
        engine.resume.set()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_request_number_3n_plus_1_is_refused(*, is_stream: bool) -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine, max_link_num=1)

    async with waiting_calls(app, engine, 3), client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"stream": is_stream})

    assert response.status_code == 429
    assert response.headers["retry-after"] == "5"
    assert response.json() == {
        "error": {
            "message": "3 of at most 3 sequences are running or waiting; try again in 5 s.",
            "type": "queue_full",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }


async def test_a_slot_is_free_again_when_a_request_has_ended() -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine, max_link_num=1)
    async with waiting_calls(app, engine, 3):
        pass

    async with client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY)

    assert response.status_code == 200


async def test_each_prompt_takes_a_slot() -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine, max_link_num=1)

    async with waiting_calls(app, engine, 2), client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"prompt": ["a", "b"]})

    assert response.status_code == 429


@pytest.mark.parametrize(
    "fields", [{"n": 2}, {"best_of": 2}, {"use_beam_search": True, "n": 2}, {"n": 1, "best_of": 2}]
)
@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/chat/completions"])
async def test_each_choice_and_each_beam_takes_a_slot(path: str, fields: dict[str, Any]) -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine, max_link_num=1)
    valid: dict[str, Any] = (
        {"prompt": "a"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "a"}]}
    )
    body = {"model": "tiny"} | valid | fields

    async with waiting_calls(app, engine, 2), client_of(app) as client:
        refused = await client.post(path, json=body)
        assert app.state.http.admission.num_in_flight == 2
    async with client_of(app) as client:
        accepted = await client.post(path, json=body)

    assert (refused.status_code, accepted.status_code) == (429, 200)
    assert app.state.http.admission.num_in_flight == 0


async def test_a_number_of_choices_that_nothing_allows_is_refused_with_its_range() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"n": 10**12})

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "n is 1000000000000; it must be in [1, 8192]."


async def test_a_full_replica_refuses_before_it_reads() -> None:
    engine = FakeEngine(pauses_after=0)
    app = fake_app(engine, max_link_num=1)

    async with waiting_calls(app, engine, 3), client_of(app) as client:
        response = await client.post(COMPLETIONS, content=b"no JSON at all")

    assert response.status_code == 429


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"prompt": ["a"] * 4},
            "prompt",
            "prompt has 4 prompts; this server takes at most 3 sequences at once, three times "
            "its maxLinkNum of 1. Send the prompts in several requests.",
        ),
        (
            {"prompt": ["a"] * 2, "n": 2},
            "prompt",
            "prompt has 2 prompts and n is 2, which makes 4 sequences; this server takes at most "
            "3 sequences at once, three times its maxLinkNum of 1. "
            "Send the prompts in several requests.",
        ),
        (
            {"best_of": 4},
            "best_of",
            "best_of is 4; this server takes at most 3 sequences at once, three times its "
            "maxLinkNum of 1. Lower best_of.",
        ),
    ],
)
async def test_more_sequences_than_slots_can_never_be_served(
    fields: dict[str, Any], param: str, message: str
) -> None:
    async with client_of(fake_app(FakeEngine(), max_link_num=1)) as client:
        response = await client.post(COMPLETIONS, json=BODY | fields)

    assert response.status_code == 400
    assert response.json()["error"]["message"] == message
    assert response.json()["error"]["param"] == param


async def test_a_request_that_was_refused_later_returns_its_slot() -> None:
    app = fake_app(FakeEngine(), max_link_num=1)
    async with client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"temperature": -1})

    assert response.status_code == 400
    assert app.state.http.admission.num_in_flight == 0


def test_the_rate_is_that_of_the_last_completions() -> None:
    clock = [0.0]
    admission = AdmissionControl(1, lambda: clock[0])
    for now_s in (0.0, 1.0, 2.0):
        with admission.slots(SlotRequest()):
            clock[0] = now_s

    clock[0] = 10.0

    assert admission.completions_per_s() == pytest.approx(0.3)


def test_no_rate_before_the_first_completion() -> None:
    assert AdmissionControl(1, float).completions_per_s() == 0.0


@pytest.mark.parametrize(
    "settings",
    [{"max_link_num": 0}, {"max_link_num": 4097}, {"max_request_bytes": 0}, {"model_name": ""}],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    [name] = settings

    with pytest.raises(ConfigError, match=name):
        fake_app(FakeEngine(), **settings)
