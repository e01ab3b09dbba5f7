"""Answers have every field that OpenAI's response types ask for, and what they say is allowed."""

import json
from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tandem_serve.testing import FakeEngine, client_of, fake_app

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
BODIES: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2},
    COMPLETIONS: {"prompt": ["ab", "cd"], "logprobs": 2},
}
WITHOUT_LOGPROBS: Final = {"logprobs": None, "top_logprobs": None}
TYPES: Final[list[tuple[str, type[BaseModel], type[BaseModel]]]] = [
    (CHAT, ChatCompletion, ChatCompletionChunk),
    (COMPLETIONS, Completion, Completion),
]
OURS: Final = {"choices[].stop_reason"}
"""Fields beyond OpenAI's, which vLLM has."""
NULL_IN_CHUNKS: Final = "choices[].finish_reason"
"""In completions OpenAI's client has one type for whole answers and chunks, which asks for it."""


async def answer(path: str, body: dict[str, Any], **engine: Any) -> str:
    async with client_of(fake_app(FakeEngine(**engine))) as client:
        response = await client.post(path, json={"model": "tiny"} | BODIES[path] | body)
    assert response.status_code == 200, response.text
    return response.text


async def chunks_of(path: str, body: dict[str, Any], **engine: Any) -> list[dict[str, Any]]:
    text = await answer(path, {"stream": True} | body, **engine)
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def wrong(model: type[BaseModel], document: Any, path: str = "") -> Iterator[str]:
    """Fields that are required and absent, or unknown to `model` and its parts."""
    fields = model.model_fields
    yield from (f"{path}{name} is absent" for name in required(model) - document.keys())
    for name, value in document.items():
        place = f"{path}{name}"
        if name not in fields:
            yield from [] if place in OURS else [f"{place} is unknown"]
        elif (part := part_of(fields[name].annotation)) and value is not None:
            values = value if isinstance(value, list) else [value]
            mark = "[]" if isinstance(value, list) else ""
            for one in values:
                yield from wrong(part, one, f"{place}{mark}.")


def required(model: type[BaseModel]) -> set[str]:
    return {name for name, field in model.model_fields.items() if field.is_required()}


def part_of(annotation: Any) -> type[BaseModel] | None:
    """The model within a field's type, as in Optional[List[Choice]]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    parts = (part_of(each) for each in get_args(annotation))
    return next((part for part in parts if part is not None), None)


def assert_fits(model: type[BaseModel], document: dict[str, Any], *, is_chunk: bool) -> None:
    assert list(wrong(model, document)) == []
    if is_chunk and model is Completion:
        for choice in document["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
    # By hand, as its own parsing takes whatever comes.
    model.model_validate_json(json.dumps(document), strict=True)


@pytest.mark.parametrize("change", [{}, WITHOUT_LOGPROBS, {"n": 2}], ids=["logprobs", "plain", "n"])
@pytest.mark.parametrize(("path", "whole", "_chunk"), TYPES)
async def test_a_whole_answer_is_of_openais_type(
    path: str, whole: type[BaseModel], _chunk: type[BaseModel], change: dict[str, Any]
) -> None:
    assert_fits(whole, json.loads(await answer(path, change)), is_chunk=False)


@pytest.mark.parametrize("options", [{}, {"include_usage": True}], ids=["plain", "usage"])
@pytest.mark.parametrize("change", [{}, WITHOUT_LOGPROBS, {"n": 2}], ids=["logprobs", "plain", "n"])
@pytest.mark.parametrize(("path", "_whole", "chunk"), TYPES)
async def test_chunks_are_of_openais_type(
    path: str,
    _whole: type[BaseModel],
    chunk: type[BaseModel],
    change: dict[str, Any],
    options: dict[str, Any],
) -> None:
    chunks = await chunks_of(path, change | {"stream_options": options})

    for document in chunks:
        assert_fits(chunk, document, is_chunk=True)
    heads = [
        {name: value for name, value in document.items() if name not in ("choices", "usage")}
        for document in chunks
    ]
    assert heads == heads[:1] * len(heads)


def test_the_walk_sees_what_is_absent_and_what_is_unknown() -> None:
    document = {
        "id": "a",
        "choices": [{"index": 0, "message": {"role": "assistant", "text": "hi"}}],
        "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"bought": 1}},
    }

    assert set(wrong(ChatCompletion, document)) == {
        "created is absent",
        "model is absent",
        "object is absent",
        "choices[].finish_reason is absent",
        "choices[].message.text is unknown",
        "usage.completion_tokens is absent",
        "usage.total_tokens is absent",
        "usage.prompt_tokens_details.bought is unknown",
    }


async def test_a_model_is_of_openais_type() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        alone = (await client.get("/v1/models/tiny")).json()

    for document in [*listed, alone]:
        assert required(Model) <= document.keys()
        Model.model_validate_json(json.dumps(document), strict=True)


async def test_the_first_and_the_last_chunk_of_each_choice_are_openais() -> None:
    chunks = await chunks_of(
        CHAT,
        {"n": 2, "max_tokens": 2, "stream_options": {"include_usage": True}} | WITHOUT_LOGPROBS,
    )

    *chunks, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    for index in (0, 1):
        choices = [
            choice for one in chunks for choice in one["choices"] if choice["index"] == index
        ]
        assert [choice["delta"] for choice in choices] == [
            {"role": "assistant", "content": "", "refusal": None},
            {"content": ":"},
            {"content": "t"},
            {},
        ]
        assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert all(len(one["choices"]) == 1 and one["usage"] is None for one in chunks)


@pytest.mark.parametrize("path", BODIES)
async def test_the_usage_counts_cached_tokens_of_all_prompts(path: str) -> None:
    num_prompts = len(BODIES[path].get("prompt", [""]))
    whole = json.loads(await answer(path, {}, num_cached_tokens=3))
    *_, last = await chunks_of(
        path, {"stream_options": {"include_usage": True}}, num_cached_tokens=3
    )

    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3 * num_prompts}
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize("path", BODIES)
async def test_each_chunk_has_the_usage_so_far(path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await chunks_of(path, {"stream_options": options, "max_tokens": 3})

    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == counts[-2]
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


@pytest.mark.parametrize("path", BODIES)
async def test_without_include_usage_no_chunk_has_one_as_in_vllm(path: str) -> None:
    chunks = await chunks_of(path, {"stream_options": {"continuous_usage_stats": True}})

    assert not [chunk for chunk in chunks if "usage" in chunk]
