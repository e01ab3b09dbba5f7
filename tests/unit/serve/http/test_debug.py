"""GET /debug/steps: which steps it gives, what it refuses, and who may ask."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tandem_engine.api.steps import (
    MAX_KEPT_STEPS,
    RowExplanation,
    StepExplanation,
    WaitExplanation,
)
from tandem_serve.api.steps import StepsReport
from tandem_serve.testing import LIMITS, FakeEngine, client_of, fake_app


def step(number: int) -> StepExplanation:
    return StepExplanation(
        number=number,
        started=1_800_000_000.0 + number,
        seconds=0.02,
        predicted_s=0.019,
        token_budget=64,
        max_token_budget=512,
        num_decode_tokens=1,
        num_prefill_tokens=48,
        num_decodes=1,
        num_drafts=0,
        num_accepted=0,
        rows=(
            RowExplanation(sequence_id="a", kind="decode", num_tokens=1, start=30),
            RowExplanation(
                sequence_id="b", kind="chunk", num_tokens=48, start=16, num_known=100, num_hit=16
            ),
        ),
        recomputed=("c",),
        swapped=(),
        blocked_by=WaitExplanation(
            sequence_id="d", reason="kv_blocks", text="d waits for KV blocks: 3 free, 8 needed."
        ),
        skipped=(),
        num_waiting=3,
        num_swapped=0,
    )


class FakeSteppedEngine(FakeEngine):
    """An engine with so many steps behind it, of which it keeps the last few."""

    def __init__(self, num_steps: int, kept: int = MAX_KEPT_STEPS) -> None:
        super().__init__()
        self.kept_steps = [step(number) for number in range(max(0, num_steps - kept), num_steps)]


async def numbers(engine: FakeEngine, query: str = "") -> list[int]:
    async with client_of(fake_app(engine)) as client:
        response = await client.get(f"/debug/steps{query}")
    assert response.status_code == 200, response.text
    return [one["number"] for one in response.json()["steps"]]


async def refused(query: str) -> dict[str, Any]:
    async with client_of(fake_app(FakeSteppedEngine(3))) as client:
        response = await client.get(f"/debug/steps{query}")
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


async def test_the_newest_steps_come_oldest_first() -> None:
    assert await numbers(FakeSteppedEngine(100)) == list(range(80, 100))
    assert await numbers(FakeSteppedEngine(100), "?limit=3") == [97, 98, 99]


async def test_steps_after_a_number_can_be_requested() -> None:
    assert await numbers(FakeSteppedEngine(100), "?since=98") == [98, 99]
    assert await numbers(FakeSteppedEngine(100), "?since=10&limit=2") == [98, 99]


async def test_steps_that_are_yet_to_come_are_no_error() -> None:
    assert await numbers(FakeSteppedEngine(100), "?since=100") == []
    assert await numbers(FakeSteppedEngine(0)) == []


async def test_many_steps_are_explained_beside_the_event_loop() -> None:
    assert await numbers(FakeSteppedEngine(600), "?limit=512") == list(range(88, 600))


async def test_decodes_may_be_counted_without_a_list_of_them() -> None:
    async with client_of(fake_app(FakeSteppedEngine(1))) as client:
        listed = await client.get("/debug/steps?decodes=true")
        counted = await client.get("/debug/steps?decodes=false")

    assert [row["kind"] for row in listed.json()["steps"][0]["rows"]] == ["decode", "chunk"]
    assert [row["kind"] for row in counted.json()["steps"][0]["rows"]] == ["chunk"]
    assert counted.json()["steps"][0]["num_decodes"] == 1


async def test_the_answer_says_what_is_newest_and_what_the_replica_holds() -> None:
    async with client_of(fake_app(FakeSteppedEngine(100))) as client:
        response = await client.get("/debug/steps?since=1000")

    answer = response.json()
    assert answer["newest"] == 99
    assert answer["model"] == "tiny"
    assert answer["time"] == 1_800_000_000.0
    assert answer["limits"]["num_kv_blocks"] == LIMITS.num_kv_blocks
    assert answer["limits"]["max_sequences"] == LIMITS.max_sequences
    assert answer["stats"]["num_free_kv_blocks"] == LIMITS.num_kv_blocks


async def test_a_fresh_engine_has_no_newest_step() -> None:
    async with client_of(fake_app(FakeSteppedEngine(0))) as client:
        response = await client.get("/debug/steps")

    assert response.json()["newest"] is None


async def test_a_reader_gets_back_what_was_written() -> None:
    async with client_of(fake_app(FakeSteppedEngine(2))) as client:
        response = await client.get("/debug/steps")

    report = TypeAdapter(StepsReport).validate_json(response.content)

    assert report.steps == (step(0), step(1))
    assert report.limits == LIMITS


@pytest.mark.parametrize(
    ("query", "code", "param", "words"),
    [
        ("?limit=0", "invalid_value", "limit", "limit is 0; it must be at least 1."),
        ("?limit=513", "invalid_value", "limit", "limit is 513; it must be at most 512."),
        ("?since=-1", "invalid_value", "since", "since is -1; it must be at least 0."),
        ("?since=soon", "invalid_type", "since", 'since is a string ("soon"); it must be an int'),
        ("?since=", "invalid_type", "since", "it must be an integer"),
        ("?since=1_0", "invalid_type", "since", "it must be an integer"),
        (f"?since={'9' * 5000}", "invalid_type", "since", "it must be an integer"),
        ("?decodes=no", "invalid_type", "decodes", "it must be true or false"),
        ("?decodes=1", "invalid_type", "decodes", "it must be true or false"),
        ("?since=true", "invalid_type", "since", "it must be an integer"),
        ("?limt=3", "unknown_parameter", "limt", "did you mean 'limit'?"),
        ("?since=1&since=2", "invalid_value", "since", "since is given 2 times in the query"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(
    query: str, code: str, param: str, words: str
) -> None:
    error = await refused(query)

    assert (error["code"], error["param"]) == (code, param)
    assert words in error["message"]


async def test_only_get_and_only_this_path() -> None:
    async with client_of(fake_app(FakeSteppedEngine(3))) as client:
        posted = await client.post("/debug/steps")
        other = await client.get("/debug/made-up")

    assert (posted.status_code, posted.json()["error"]["code"]) == (405, "method_not_allowed")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "unknown_url")
    assert "/debug/steps" in other.json()["error"]["message"]


async def test_an_engine_that_starts_has_no_steps_yet() -> None:
    async with client_of(fake_app(None)) as client:
        response = await client.get("/debug/steps")

    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_starting"


async def test_an_engine_that_stopped_still_returns_its_last_steps() -> None:
    engine = FakeSteppedEngine(3)
    engine.stop_because("The device is gone.")

    assert await numbers(engine) == [0, 1, 2]


async def test_steps_need_an_api_key_where_there_are_keys(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("sk-1\n")
    async with client_of(fake_app(FakeSteppedEngine(3), api_keys_folder=tmp_path)) as client:
        without = await client.get("/debug/steps")
        with_key = await client.get("/debug/steps", headers={"authorization": "Bearer sk-1"})

    assert without.status_code == 401
    assert with_key.status_code == 200
