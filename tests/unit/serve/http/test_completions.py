import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tandem_engine.api.output import TokenLogprob
from tandem_serve.http.openai.logprobs import TextOffsets, completion_logprobs
from tandem_serve.testing import BEGIN, FakeCodec, FakeEngine, client_of, fake_app


async def complete(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(fake_app(engine)) as client:
        return await client.post("/v1/completions", json={"model": "tiny"} | body)


def events(response: httpx.Response) -> list[Any]:
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def usage(num_prompt: int, num_output: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_whole_answer() -> None:
    body = (await complete(FakeEngine(), prompt="abc")).json()

    assert body == {
        "id": f"cmpl-{2:032x}",
        "object": "text_completion",
        "created": 1_800_000_000,
        "model": "tiny",
        "system_fingerprint": None,
        "choices": [{"index": 0, "text": "cba", "logprobs": None, "finish_reason": "stop"}],
        "usage": usage(4, 4),
    }


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        pytest.param("ab", ["ba"], id="one text"),
        pytest.param(["ab", "cd"], ["ba", "dc"], id="several texts"),
        pytest.param([97, 98], ["ba"], id="one list of token ids"),
        pytest.param([[97, 98], [99]], ["ba", "c"], id="several lists of token ids"),
    ],
)
async def test_each_prompt_has_its_choice(prompt: object, texts: list[str]) -> None:
    body = (await complete(FakeEngine(), prompt=prompt)).json()

    assert [choice["text"] for choice in body["choices"]] == texts
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))


async def test_choices_of_several_prompts_are_numbered_through() -> None:
    response = await complete(FakeEngine(), prompt=["ab", "cd"], n=2, max_tokens=2)

    body = response.json()
    assert [choice["text"] for choice in body["choices"]] == ["ba", "ba", "dc", "dc"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"] == usage(6, 8)


async def test_a_stream_of_several_prompts() -> None:
    response = await complete(
        FakeEngine(),
        prompt=["ab", "cd"],
        n=2,
        max_tokens=2,
        stream=True,
        stream_options={"include_usage": True},
    )

    *chunks, last = events(response)
    texts = ["", "", "", ""]
    for chunk in chunks:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == ["ba", "ba", "dc", "dc"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


async def test_a_stream_chunk() -> None:
    response = await complete(FakeEngine(), prompt="ab", max_tokens=1, stream=True)

    assert events(response) == [
        {
            "id": f"cmpl-{2:032x}",
            "object": "text_completion",
            "created": 1_800_000_000,
            "model": "tiny",
            "system_fingerprint": None,
            "choices": [{"index": 0, "text": "b", "logprobs": None, "finish_reason": "length"}],
        }
    ]


async def test_sixteen_tokens_by_default() -> None:
    engine = FakeEngine()

    await complete(engine, prompt="ab")

    assert engine.submitted[0].sampling.max_tokens == 16


async def test_best_of_reaches_the_engine() -> None:
    engine = FakeEngine()

    body = (await complete(engine, prompt="ab", n=1, best_of=4)).json()

    assert engine.submitted[0].sampling.best_of == 4
    assert len(body["choices"]) == 1


async def test_special_tokens_may_be_left_out() -> None:
    engine = FakeEngine()

    await complete(engine, prompt="ab", add_special_tokens=False)

    assert engine.submitted[0].prompt_token_ids == (97, 98)


@pytest.mark.parametrize("prompt", ["ab", [97, 98]])
async def test_echo_puts_the_prompt_before_each_choice(prompt: object) -> None:
    whole = await complete(FakeEngine(), prompt=prompt, echo=True, n=2)
    stream = await complete(FakeEngine(), prompt=prompt, echo=True, stream=True)

    assert [choice["text"] for choice in whole.json()["choices"]] == ["abba", "abba"]
    assert [c["choices"][0]["text"] for c in events(stream)] == ["abb", "a", ""]


async def test_logprobs_in_their_older_form() -> None:
    body = (await complete(FakeEngine(), prompt="ab", logprobs=2, max_tokens=2)).json()

    assert body["choices"][0]["logprobs"] == {
        "tokens": ["b", "a"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"b": -0.5, "c": -1.5}, {"a": -0.5, "b": -1.5}],
        "text_offset": [0, 1],
    }


async def test_offsets_go_on_from_chunk_to_chunk() -> None:
    response = await complete(FakeEngine(), prompt="abc", logprobs=0, max_tokens=3, stream=True)

    logprobs = [chunk["choices"][0]["logprobs"] for chunk in events(response)]
    assert [entry["text_offset"] for entry in logprobs] == [[0], [1], [2]]
    assert [entry["top_logprobs"] for entry in logprobs] == [
        [{"c": -0.5}],
        [{"b": -0.5}],
        [{"a": -0.5}],
    ]


def test_parts_of_a_character_start_where_it_does() -> None:
    offsets = TextOffsets()

    starts = [offsets.advance(data) for data in (b"x", b"\xe2\x82", b"\xac", b"yz", b"!")]

    assert starts == [0, 1, 1, 2, 4]


def test_tokens_that_are_no_text_are_written_as_bytes() -> None:
    logprobs = completion_logprobs(FakeCodec(), [TokenLogprob(0xE2, float("-inf"))], [0])

    assert logprobs["tokens"] == ["bytes:\\xe2"]
    assert logprobs["token_logprobs"] == [-9999.0]


async def test_a_begin_token_is_not_echoed_from_ids() -> None:
    prompt: Sequence[int] = [BEGIN, 97]

    body = (await complete(FakeEngine(), prompt=prompt, echo=True)).json()

    assert body["choices"][0]["text"] == "aa"
