"""POST /debug/timeline: the trace that it gives, what it refuses, and what a caller leaves."""

import asyncio
from pathlib import Path

import pytest

from tandem_engine.api.timeline import Timeline
from tandem_serve.api.timeline_summary import summary_of
from tandem_serve.api.trace_events import trace_document
from tandem_serve.fake_timeline import FAKE_TIMELINE
from tandem_serve.testing import Caller, FakeEngine, client_of, fake_app

PATH = "/debug/timeline"


async def test_the_answer_is_a_trace_of_the_next_steps() -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine)) as client:
        response = await client.post(f"{PATH}?steps=2&withinSeconds=0.5")

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == trace_document(FAKE_TIMELINE, summary_of(FAKE_TIMELINE, "tiny"))
    assert engine.recorded == [(2, 0.5)]


async def test_it_records_twenty_steps_in_ten_seconds_unless_told_otherwise() -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine)) as client:
        response = await client.post(PATH)

    assert response.status_code == 200
    assert engine.recorded == [(20, 10.0)]


@pytest.mark.parametrize("query", ["?steps=1&withinSeconds=60", "?steps=512&withinSeconds=0.1"])
async def test_the_ends_of_the_ranges_are_taken(query: str) -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        assert (await client.post(f"{PATH}{query}")).status_code == 200


async def test_an_idle_engine_gives_a_trace_without_events() -> None:
    engine = FakeEngine()
    engine.shown_timeline = Timeline(steps=())
    async with client_of(fake_app(engine)) as client:
        response = await client.post(PATH)

    document = response.json()
    assert document["traceEvents"] == []
    assert document["otherData"]["num_steps"] == document["otherData"]["num_ranks"] == 0
    assert document["otherData"]["model"] == "tiny"


@pytest.mark.parametrize(
    ("query", "code", "param", "words"),
    [
        ("?steps=0", "invalid_value", "steps", "steps is 0; it must be at least 1."),
        ("?steps=513", "invalid_value", "steps", "steps is 513; it must be at most 512."),
        ("?steps=two", "invalid_type", "steps", 'steps is a string ("two"); it must be an integer'),
        ("?steps=2.5", "invalid_type", "steps", "it must be an integer"),
        ("?withinSeconds=0", "invalid_value", "withinSeconds", "it must be at least 0.1."),
        ("?withinSeconds=-1.5", "invalid_value", "withinSeconds", "is -1.5; it must be at least"),
        ("?withinSeconds=60.5", "invalid_value", "withinSeconds", "it must be at most 60.0."),
        ("?withinSeconds=nan", "invalid_type", "withinSeconds", "it must be a number."),
        ("?withinSeconds=1e1", "invalid_type", "withinSeconds", "it must be a number."),
        ("?within=3", "unknown_parameter", "within", "did you mean 'withinSeconds'?"),
        ("?steps=1&steps=2", "invalid_value", "steps", "steps is given 2 times in the query"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(
    query: str, code: str, param: str, words: str
) -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine)) as client:
        response = await client.post(f"{PATH}{query}")

    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == (code, param)
    assert words in error["message"]
    assert engine.recorded == []


async def test_a_body_is_refused_where_it_would_have_no_effect() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post(PATH, json={"steps": 2})

    assert response.status_code == 400
    assert "send it without a body" in response.json()["error"]["message"]


async def test_only_post() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.get(PATH)

    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")


async def test_one_is_recorded_at_a_time() -> None:
    engine = FakeEngine()
    engine.may_record.clear()
    async with client_of(fake_app(engine)) as client:
        first = asyncio.create_task(client.post(f"{PATH}?withinSeconds=6.5"))
        while not engine.num_recording:
            await asyncio.sleep(0)
        second = await client.post(PATH)
        engine.may_record.set()
        answered = await first
        third = await client.post(PATH)

    assert second.status_code == 429
    assert second.headers["retry-after"] == "7"
    assert second.json()["error"]["message"] == (
        "Another timeline is being recorded, one at a time; try again in 7 s."
    )
    assert (answered.status_code, third.status_code) == (200, 200)
    assert engine.recorded == [(20, 6.5), (20, 10.0)]


async def test_a_caller_that_leaves_ends_its_recording() -> None:
    engine = FakeEngine()
    engine.may_record.clear()
    app = fake_app(engine)
    caller = Caller(app, PATH, {})
    call = asyncio.create_task(caller.call())
    while not engine.num_recording:
        await asyncio.sleep(0)

    caller.hang_up()
    await call

    assert engine.num_recording == 0
    engine.may_record.set()
    async with client_of(app) as client:
        assert (await client.post(PATH)).status_code == 200


async def test_a_recording_that_fails_makes_room_for_the_next() -> None:
    engine = FakeEngine()
    engine.stop_because("The device is gone.")
    async with client_of(fake_app(engine)) as client:
        answers = [await client.post(PATH) for _ in range(2)]

    for response in answers:
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_stopped"
        assert response.json()["error"]["message"] == "The device is gone."


async def test_an_engine_that_starts_records_nothing_yet() -> None:
    async with client_of(fake_app(None)) as client:
        response = await client.post(PATH)

    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_starting"


async def test_it_needs_an_api_key_where_there_are_keys(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("sk-1\n")
    async with client_of(fake_app(FakeEngine(), api_keys_folder=tmp_path)) as client:
        without = await client.post(PATH)
        with_key = await client.post(PATH, headers={"authorization": "Bearer sk-1"})

    assert (without.status_code, with_key.status_code) == (401, 200)
