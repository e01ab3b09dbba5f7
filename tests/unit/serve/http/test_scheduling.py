"""Fields that vLLM and MindIE have beside OpenAI's: beams, priority, and a salt for the cache."""

from typing import Any

import httpx
import pytest

from tandem_serve.testing import FakeEngine, Submitted, client_of, fake_app

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "tiny", "prompt": "ab"},
}


async def post(path: str, body: dict[str, Any], engine: FakeEngine) -> httpx.Response:
    async with client_of(fake_app(engine)) as client:
        return await client.post(path, json=VALID[path] | body)


async def submitted(path: str, body: dict[str, Any]) -> Submitted:
    engine = FakeEngine()
    response = await post(path, body, engine)
    assert response.status_code == 200, response.text
    (found,) = engine.submitted
    return found


@pytest.mark.parametrize("path", VALID)
async def test_beams_reach_the_engine(path: str) -> None:
    fields = {
        "use_beam_search": True,
        "best_of": 4,
        "n": 2,
        "length_penalty": 0.5,
        "early_stopping": "never",
        "temperature": 0,
    }

    sampling = (await submitted(path, fields)).sampling

    assert sampling.use_beam_search
    assert (sampling.num_sequences, sampling.n) == (4, 2)
    assert (sampling.length_penalty, sampling.early_stopping) == (0.5, "never")


@pytest.mark.parametrize("path", VALID)
async def test_beams_answer_with_n_choices(path: str) -> None:
    response = await post(path, {"use_beam_search": True, "best_of": 4, "n": 2}, FakeEngine())

    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1]


@pytest.mark.parametrize("path", VALID)
async def test_priority_and_salt_reach_the_engine(path: str) -> None:
    found = await submitted(path, {"priority": 1, "cache_salt": "team-a"})

    assert (found.priority, found.cache_salt) == (1, "team-a")


@pytest.mark.parametrize("path", VALID)
@pytest.mark.parametrize("body", [{}, {"priority": None, "cache_salt": None}])
async def test_a_request_without_priority_is_last_and_shares_with_all(
    path: str, body: dict[str, Any]
) -> None:
    found = await submitted(path, body)

    assert (found.priority, found.cache_salt) == (5, "")


async def test_the_longest_salt_is_taken() -> None:
    assert (await submitted(CHAT, {"cache_salt": "é" * 256})).cache_salt == "é" * 256


async def test_every_prompt_of_a_call_has_its_priority_and_salt() -> None:
    engine = FakeEngine()

    await post(COMPLETIONS, {"prompt": ["a", "b"], "priority": 2, "cache_salt": "s"}, engine)

    assert [(one.priority, one.cache_salt) for one in engine.submitted] == [(2, "s"), (2, "s")]


@pytest.mark.parametrize("path", VALID)
@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        (
            {"priority": 0},
            "priority",
            "invalid_value",
            "priority is 0; it must be in [1 (highest), 5 (lowest)].",
        ),
        (
            {"priority": 6},
            "priority",
            "invalid_value",
            "priority is 6; it must be in [1 (highest), 5 (lowest)].",
        ),
        (
            {"priority": "high"},
            "priority",
            "invalid_type",
            'priority is a string ("high"); it must be an integer.',
        ),
        (
            {"cache_salt": "x" * 257},
            "cache_salt",
            "invalid_value",
            "cache_salt has 257 characters; it must have at most 256.",
        ),
        (
            {"cache_salt": 7},
            "cache_salt",
            "invalid_type",
            "cache_salt is an integer (7); it must be a string.",
        ),
        (
            {"use_beam_search": 1},
            "use_beam_search",
            "invalid_type",
            "use_beam_search is an integer (1); it must be true or false.",
        ),
        (
            {"use_beam_search": True, "early_stopping": "always"},
            "early_stopping",
            "invalid_type",
            'early_stopping is a string ("always"); it must be true, false or "never".',
        ),
        (
            {"use_beam_search": True, "length_penalty": 11},
            "length_penalty",
            "invalid_value",
            "length_penalty is 11.0; it must be in [-10.0, 10.0].",
        ),
        (
            {"length_penalty": 2},
            "length_penalty",
            "invalid_value",
            "length_penalty is 2.0; it must be 1.0 without use_beam_search.",
        ),
        (
            {"early_stopping": True},
            "early_stopping",
            "invalid_value",
            "early_stopping is true; it must be false without use_beam_search.",
        ),
        (
            {"use_beam_search": True, "temperature": 0.7},
            "temperature",
            "invalid_value",
            "temperature is 0.7; it must be 0 or 1 with use_beam_search.",
        ),
        (
            {"use_beam_search": True, "top_k": 10},
            "top_k",
            "invalid_value",
            "top_k is 10; it must be -1 or 0 with use_beam_search.",
        ),
        (
            {"use_beam_search": True, "stop": "."},
            "stop",
            "invalid_value",
            'stop is ["."]; it must be left out (stop_token_ids may be used instead) '
            "with use_beam_search.",
        ),
        (
            {"n": 9},
            "n",
            "invalid_value",
            "n is 9; it must be in [1, 8], the maxN of this service.",
        ),
        (
            {"use_beam_search": True, "best_of": 9},
            "best_of",
            "invalid_value",
            "best_of is 9; it must be in [1, 8], the maxN of this service.",
        ),
        (
            {"best_of": 129},
            "best_of",
            "invalid_value",
            "best_of is 129; it must be in [n, 128], here [1, 128].",
        ),
    ],
)
async def test_what_is_out_of_range_is_refused_with_name_value_and_range(
    path: str, body: dict[str, Any], param: str, code: str, message: str
) -> None:
    engine = FakeEngine(max_n=8)

    response = await post(path, body, engine)

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"], error["message"]) == (param, code, message)
    assert engine.submitted == []


@pytest.mark.parametrize("path", VALID)
async def test_beams_cannot_be_streamed(path: str) -> None:
    refused = await post(path, {"stream": True, "use_beam_search": True, "n": 2}, FakeEngine())
    accepted = await post(path, {"stream": True, "use_beam_search": False}, FakeEngine())

    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "use_beam_search is true, which needs all beams to end before the first token can be "
        "returned; leave out stream or use_beam_search."
    )
    assert accepted.status_code == 200


async def test_best_of_cannot_be_streamed_in_chat_either() -> None:
    refused = await post(CHAT, {"stream": True, "best_of": 3, "n": 2}, FakeEngine())

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "best_of"


async def test_beams_know_the_log_probabilities_of_their_own_tokens_alone() -> None:
    beams = {"use_beam_search": True, "n": 2, "logprobs": True}

    accepted = await submitted(CHAT, beams)
    in_chat = await post(CHAT, beams | {"top_logprobs": 2}, FakeEngine())
    in_completions = await post(COMPLETIONS, beams | {"logprobs": 2}, FakeEngine())

    assert accepted.sampling.logprobs == 0
    assert in_chat.json()["error"]["param"] == "top_logprobs"
    assert in_completions.json()["error"]["message"] == (
        "logprobs is 2; it must be 0, for the tokens of the answer alone, or left out with "
        "use_beam_search."
    )
