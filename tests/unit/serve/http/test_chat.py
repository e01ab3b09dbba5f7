import json
from typing import Any

import httpx
import pytest

from tandem_serve.testing import BEGIN, END, FakeEngine, client_of, fake_app

HELLO = {"role": "user", "content": "hi"}
# <begin>user:hi;assistant: in reverse.
ANSWER = ":tnatsissa;ih:resu"
BEGINNING = {"role": "assistant", "content": "", "refusal": None}
NUM_PROMPT_TOKENS = 19


async def chat(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(fake_app(engine)) as client:
        return await client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": [HELLO]} | body
        )


def events(response: httpx.Response) -> list[Any]:
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_a_whole_answer() -> None:
    response = await chat(FakeEngine())

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "id": f"chatcmpl-{2:032x}",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": "tiny",
        "system_fingerprint": None,
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": NUM_PROMPT_TOKENS,
            "completion_tokens": 19,
            "total_tokens": 38,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_stream_says_the_same_in_pieces() -> None:
    response = await chat(FakeEngine(), stream=True)

    chunks = events(response)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert "content-length" not in response.headers
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == ANSWER
    assert chunks[0] == {
        "id": f"chatcmpl-{2:032x}",
        "object": "chat.completion.chunk",
        "created": 1_800_000_000,
        "model": "tiny",
        "system_fingerprint": None,
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "delta": BEGINNING,
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    assert chunks[2]["choices"][0]["delta"] == {"content": "t"}
    assert chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }


async def test_include_usage_adds_a_last_chunk_and_null_to_the_others() -> None:
    response = await chat(
        FakeEngine(), stream=True, max_tokens=3, n=2, stream_options={"include_usage": True}
    )

    *chunks, last = events(response)
    assert len(chunks) == 2 + 6 + 2
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "completion_tokens": 6,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_each_choice_begins_with_its_role() -> None:
    response = await chat(FakeEngine(), stream=True, max_tokens=2, n=2)

    choices = [chunk["choices"][0] for chunk in events(response)]
    assert [(c["index"], c["delta"].get("role")) for c in choices] == [
        *[(0, "assistant"), (0, None)],
        *[(1, "assistant"), (1, None)],
        *[(0, None)] * 2,
        *[(1, None)] * 2,
    ]


async def test_tokens_without_text_have_events() -> None:
    # "tn" may begin the stop string "tna" and is held back; "tna" ends the answer.
    response = await chat(
        FakeEngine(), stream=True, stop="tna", stream_options={"include_usage": True}
    )

    chunks = events(response)
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [
        BEGINNING,
        {"content": ":"},
        {"content": ""},
        {"content": ""},
        {"content": ""},
        {},
    ]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 4


async def test_choices_of_a_whole_answer_stand_in_order() -> None:
    body = (await chat(FakeEngine(), n=3, max_tokens=2)).json()

    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in body["choices"]] == [":t", ":t", ":t"]
    assert [c["finish_reason"] for c in body["choices"]] == ["length"] * 3
    assert body["usage"]["completion_tokens"] == 6


async def test_logprobs_have_tokens_bytes_and_the_likeliest() -> None:
    body = (await chat(FakeEngine(), logprobs=True, top_logprobs=2, max_tokens=1)).json()

    assert body["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": ":",
                "logprob": -0.5,
                "bytes": [58],
                "top_logprobs": [
                    {"token": ":", "logprob": -0.5, "bytes": [58]},
                    {"token": ";", "logprob": -1.5, "bytes": [59]},
                ],
            }
        ],
        "refusal": None,
    }


async def test_streamed_logprobs_come_with_their_tokens() -> None:
    response = await chat(FakeEngine(), stream=True, logprobs=True, max_tokens=2)

    choices = [c["choices"][0] for c in events(response)]
    logprobs = [c["logprobs"]["content"] for c in choices if c["logprobs"]]
    assert [[entry["token"] for entry in content] for content in logprobs] == [[":"], ["t"]]
    assert logprobs[0][0]["top_logprobs"] == []


async def test_without_max_tokens_the_answer_may_fill_the_room() -> None:
    engine = FakeEngine()

    await chat(engine)

    assert engine.submitted[0].sampling.max_tokens == 128 - NUM_PROMPT_TOKENS
    assert engine.submitted[0].sampling.temperature == 1.0
    assert engine.submitted[0].sampling.top_p == 1.0


async def test_every_parameter_reaches_the_engine() -> None:
    engine = FakeEngine()

    response = await chat(
        engine,
        max_tokens=9,
        max_completion_tokens=7,
        min_tokens=2,
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"65": 3},
        seed=11,
        stop=["x", "y"],
        stop_token_ids=[5],
        ignore_eos=True,
        skip_special_tokens=False,
        n=2,
    )

    assert response.status_code == 200
    sampling = engine.submitted[0].sampling
    assert sampling.max_tokens == 7  # OpenAI's newer name goes before the older.
    assert (sampling.min_tokens, sampling.top_k, sampling.n, sampling.seed) == (2, 4, 2, 11)
    assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0.0, 0.5, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert sampling.repetition_penalty == 1.5
    assert sampling.logit_bias == {65: 3.0}
    assert (sampling.stop, sampling.stop_token_ids) == (("x", "y"), (5,))
    assert sampling.ignore_eos
    assert not sampling.skip_special_tokens
    assert sampling.logprobs is None


@pytest.mark.parametrize(
    "body",
    [
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
        {"parallel_tool_calls": True, "store": False, "service_tier": "auto"},
        {"response_format": {"type": "text"}, "modalities": ["text"], "tool_choice": "none"},
        {"tools": [], "tool_choice": None, "functions": None, "reasoning_effort": None},
        {"temperature": None, "stop": None, "max_tokens": None, "stream": None, "n": None},
    ],
)
async def test_an_unsupported_field_with_a_harmless_value_is_accepted(body: dict[str, Any]) -> None:
    assert (await chat(FakeEngine(), **body)).status_code == 200


async def test_messages_become_roles_and_texts() -> None:
    engine = FakeEngine()
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "d"},
    ]

    await chat(engine, messages=messages)

    text = "system:be kind;user:a\nb;assistant:c;user:d;assistant:"
    assert engine.submitted[0].prompt_token_ids == (BEGIN, *text.encode())


async def test_the_template_gets_the_fields_of_the_request() -> None:
    engine = FakeEngine()

    await chat(engine, add_generation_prompt=False)
    refused = await chat(engine, chat_template_kwargs={"refuse": "No such role."})

    assert engine.submitted[0].prompt_token_ids == (BEGIN, *b"user:hi;")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "No such role."
    assert refused.json()["error"]["param"] == "messages"


HISTORY = [HELLO, {"role": "assistant", "content": "Once"}]


async def test_an_answer_goes_on_with_the_final_message() -> None:
    engine = FakeEngine()

    for fields in ({}, {"add_generation_prompt": False}, {"add_generation_prompt": None}):
        response = await chat(engine, messages=HISTORY, continue_final_message=True, **fields)
        assert response.status_code == 200

    prompts = [submitted.prompt_token_ids for submitted in engine.submitted]
    assert prompts == [(BEGIN, *b"user:hi;assistant:Once")] * 3


async def test_an_answer_cannot_go_on_and_begin_a_turn() -> None:
    engine = FakeEngine()
    both = {"continue_final_message": True, "add_generation_prompt": True}

    refused = await chat(engine, messages=HISTORY, **both)
    async with client_of(fake_app(engine)) as client:
        tokens = await client.post("/tokenize", json={"messages": HISTORY, **both})
        one = await client.post(
            "/tokenize", json={"messages": HISTORY, "continue_final_message": True}
        )

    for response in (refused, tokens):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "continue_final_message"
        assert "both true" in response.json()["error"]["message"]
    assert one.json()["tokens"] == [BEGIN, *b"user:hi;assistant:Once"]


async def test_a_long_conversation_is_tokenized_in_a_thread() -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine, max_inline_length=1)) as client:
        response = await client.post(
            "/v1/chat/completions", json={"model": "tiny", "messages": [HELLO], "max_tokens": 1}
        )

    assert response.json()["choices"][0]["message"]["content"] == ":"


async def test_an_answer_may_end_with_its_first_token() -> None:
    engine = FakeEngine()

    response = await chat(engine, stream=True, logit_bias={str(END): 100}, stop=":")

    assert [c["choices"][0]["delta"] for c in events(response)] == [
        BEGINNING,
        {"content": ""},
        {},
    ]
