import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI

from tandem_engine.api.errors import ConfigError
from tandem_serve.http.gate import Gate
from tandem_serve.testing import Caller, FakeFront, client_of, fake_app

COMPLETIONS = "/v1/completions"
BODY = {"model": "tiny", "prompt": "ab"}


@asynccontextmanager
async def waiting_calls(app: FastAPI, front: FakeFront, number: int) -> AsyncIterator[None]:
    callers = [Caller(app, COMPLETIONS, BODY) for _ in range(number)]
    async with asyncio.TaskGroup() as calls:
        for caller in callers:
            calls.create_task(caller.call())
        while front.num_paused < number:
            front.paused.clear()
            await front.paused.wait()
        yield
        front.resume.set()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_request_number_3n_plus_1_is_refused(*, is_stream: bool) -> None:
    front = FakeFront(pauses_after=0)
    app = fake_app(front, max_link_num=1)

    async with waiting_calls(app, front, 3), client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"stream": is_stream})

    assert response.status_code == 429
    assert response.headers["retry-after"] == "5"
    assert response.json() == {
        "error": {
            "message": "3 requests are in process or waiting here, of 3 at most; try again in 5 s.",
            "type": "queue_full",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }


async def test_a_place_is_free_again_when_a_request_has_ended() -> None:
    front = FakeFront(pauses_after=0)
    app = fake_app(front, max_link_num=1)
    async with waiting_calls(app, front, 3):
        pass

    async with client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY)

    assert response.status_code == 200


async def test_each_prompt_takes_a_place() -> None:
    front = FakeFront(pauses_after=0)
    app = fake_app(front, max_link_num=1)

    async with waiting_calls(app, front, 2), client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"prompt": ["a", "b"]})

    assert response.status_code == 429


async def test_choices_share_the_place_of_their_prompt() -> None:
    async with client_of(fake_app(FakeFront(), max_link_num=1)) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"n": 8})

    assert response.status_code == 200


async def test_more_prompts_than_places_can_never_be_served() -> None:
    async with client_of(fake_app(FakeFront(), max_link_num=1)) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"prompt": ["a"] * 4})

    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "prompt holds 4 prompts; this server takes at most 3 at once. "
        "Send them in several requests."
    )


async def test_a_request_that_was_refused_later_gives_its_place_back() -> None:
    app = fake_app(FakeFront(), max_link_num=1)
    async with client_of(app) as client:
        response = await client.post(COMPLETIONS, json=BODY | {"temperature": -1})

    assert response.status_code == 400
    assert app.state.http.gate.num_in_flight == 0


def test_the_rate_is_that_of_the_last_completions() -> None:
    clock = [0.0]
    gate = Gate(1, lambda: clock[0])
    for now_s in (0.0, 1.0, 2.0):
        with gate.places(1):
            clock[0] = now_s

    clock[0] = 10.0

    assert gate.completions_per_s() == pytest.approx(0.3)


def test_no_rate_before_the_first_completion() -> None:
    assert Gate(1, float).completions_per_s() == 0.0


@pytest.mark.parametrize(
    "settings",
    [{"max_link_num": 0}, {"max_link_num": 4097}, {"max_request_bytes": 0}, {"model_name": ""}],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    [name] = settings

    with pytest.raises(ConfigError, match=name):
        fake_app(FakeFront(), **settings)
