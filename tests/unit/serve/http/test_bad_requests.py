"""Requests that are understood to be wrong before the engine sees them."""

from typing import Any

import httpx
import pytest

from tandem_serve.testing import FakeCodec, FakeEngine, client_of, fake_app

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"role": "user", "content": "hi"}


async def post(path: str, body: dict[str, Any], engine: FakeEngine | None = None) -> httpx.Response:
    valid = {"messages": [HELLO]} if path == CHAT else {"prompt": "ab"}
    async with client_of(fake_app(engine or FakeEngine(), strict=True)) as client:
        return await client.post(path, json={"model": "tiny"} | valid | body)


def the_error(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].endswith((".", "?"))
    return error


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param", "code", "message"),
    [
        pytest.param(
            CHAT,
            {"temprature": 1},
            "temprature",
            "unknown_parameter",
            "The body has an unknown field 'temprature'; did you mean 'temperature'?",
            id="unknown field",
        ),
        pytest.param(
            COMPLETIONS,
            {"stream_options": {"include_usge": True}, "stream": True},
            "stream_options.include_usge",
            "unknown_parameter",
            "stream_options has an unknown field 'include_usge'; did you mean 'include_usage'?",
            id="unknown field inside",
        ),
        pytest.param(
            CHAT,
            {"temperature": "hot"},
            "temperature",
            "invalid_type",
            'temperature is a string ("hot"); it must be a number.',
            id="wrong type",
        ),
        pytest.param(
            CHAT,
            {"n": 1.5},
            "n",
            "invalid_type",
            "n is a number (1.5); it must be an integer.",
            id="half a choice",
        ),
        pytest.param(
            CHAT,
            {"logprobs": 1},
            "logprobs",
            "invalid_type",
            "logprobs is an integer (1); it must be true or false.",
            id="logprobs in chat is no number",
        ),
        pytest.param(
            CHAT,
            {"temperature": 101},
            "temperature",
            "invalid_value",
            "temperature is 101.0; it must be in [0.0, 100.0].",
            id="out of the engine's range",
        ),
        pytest.param(
            CHAT,
            {"max_completion_tokens": 0},
            "max_completion_tokens",
            "invalid_value",
            "max_completion_tokens is 0; it must be at least 1, unless prompt_logprobs asks for "
            "the prompt.",
            id="out of range under OpenAI's name",
        ),
        pytest.param(
            CHAT,
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "invalid_value",
            "top_logprobs is 21; it must be at most 20.",
            id="too many log-probabilities",
        ),
        pytest.param(
            CHAT,
            {"top_logprobs": 2},
            "top_logprobs",
            "invalid_value",
            "top_logprobs is 2, but logprobs is not true; set it to true.",
            id="top_logprobs alone",
        ),
        pytest.param(
            CHAT,
            {"stop": [1]},
            "stop",
            "invalid_type",
            "stop[0] is an integer (1); stop must be a string or a list of at most 1024 strings.",
            id="stop that is no text",
        ),
        pytest.param(
            CHAT,
            {"logit_bias": {"x": 1}},
            "logit_bias",
            "invalid_value",
            'logit_bias has the key "x"; its keys must be token ids, as strings.',
            id="bias of a word",
        ),
        pytest.param(
            CHAT,
            {"logit_bias": {"258": 1}},
            "logit_bias",
            "invalid_value",
            "logit_bias holds the token id 258; it must be in [0, 257].",
            id="bias of a token that is not there",
        ),
        pytest.param(
            CHAT,
            {"logit_bias": {"65": 101}},
            "logit_bias",
            "invalid_value",
            "logit_bias of token 65 is 101.0; it must be in [-100.0, 100.0].",
            id="bias out of range",
        ),
        pytest.param(
            COMPLETIONS,
            {"stop_token_ids": [-1]},
            "stop_token_ids",
            "invalid_value",
            "stop_token_ids holds the token id -1; it must be in [0, 257].",
            id="stop token that is not there",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": [0, 258]},
            "prompt",
            "invalid_value",
            "prompt holds the token id 258; it must be in [0, 257].",
            id="prompt token that is not there",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": []},
            "prompt",
            "invalid_value",
            "prompt is an empty list; send at least one text or token id.",
            id="no prompt in a list",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": [[65], []]},
            "prompt[1]",
            "invalid_value",
            "prompt[1] has no tokens; the model needs at least one to continue.",
            id="a prompt without tokens",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": [[65], "a"]},
            "prompt",
            "invalid_type",
            'prompt[1] is a string ("a"); prompt must be a string, a list of strings, '
            "a list of token ids or a list of such lists.",
            id="mixed prompts",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": "x" * 100},
            "prompt",
            "context_length_exceeded",
            "This model's maximum context length is 128 tokens, of which a prompt may have 100; "
            "prompt has 101 tokens. Shorten it.",
            id="a prompt that is too long",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": "x" * 90}]},
            "messages",
            "context_length_exceeded",
            "This model's maximum context length is 128 tokens, of which a prompt may have 100; "
            "messages has 107 tokens. Shorten it.",
            id="a conversation that is too long",
        ),
        pytest.param(
            COMPLETIONS,
            {"stop": [".", ""]},
            "stop",
            "invalid_value",
            'stop[1] is ""; it must have 1 to 1024 characters.',
            id="an empty stop string",
        ),
        pytest.param(
            COMPLETIONS,
            {"stop_token_ids": [1, True]},
            "stop_token_ids[1]",
            "invalid_type",
            "stop_token_ids[1] is a boolean (true); it must be an integer.",
            id="a stop id that is a boolean",
        ),
        pytest.param(
            COMPLETIONS,
            {"suffix": "z"},
            "suffix",
            "unsupported_parameter",
            "suffix is not supported: Tandem does not fill in the middle; "
            "leave it out and put the text into the prompt.",
            id="suffix",
        ),
        pytest.param(
            COMPLETIONS,
            {"max_tokens": 0},
            "max_tokens",
            "invalid_value",
            "max_tokens is 0; it must be at least 1, unless prompt_logprobs or echo asks for the "
            "prompt.",
            id="nothing of prompt or answer",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt_logprobs": -1},
            "prompt_logprobs",
            "invalid_type",
            "prompt_logprobs is an integer (-1); it must be 0 to 20: the whole vocabulary at each "
            "position, which -1 asks for, would be gigabytes.",
            id="log-probabilities of the whole vocabulary",
        ),
        pytest.param(
            CHAT,
            {"prompt_logprobs": 21},
            "prompt_logprobs",
            "invalid_value",
            "prompt_logprobs is 21; it must be at most 20.",
            id="too many log-probabilities of a prompt",
        ),
        pytest.param(
            COMPLETIONS,
            {"prompt": [[97] * 100] * 6, "n": 32, "echo": True, "logprobs": 20},
            "prompt_logprobs",
            "invalid_value",
            "The answer would have 403200 log-probabilities of prompts; it may have 262144. Send "
            "fewer prompts, shorter ones, or a lower n, logprobs or prompt_logprobs.",
            id="too many of them in one answer",
        ),
        pytest.param(
            CHAT,
            {"messages": []},
            "messages",
            "invalid_value",
            "messages is empty; send at least one message.",
            id="no messages",
        ),
        pytest.param(
            CHAT,
            {"messages": ["hi"]},
            "messages",
            "invalid_type",
            'messages[0] is a string ("hi"); messages must be a list of messages.',
            id="messages that are none",
        ),
        pytest.param(
            CHAT,
            {"messages": [HELLO, {"role": "tool", "content": "4"}]},
            "messages[1].role",
            "unsupported_value",
            'messages[1].role is "tool", but Tandem does not call tools yet; '
            "put the result into a user message.",
            id="tool message",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "usr", "content": "4"}]},
            "messages[0].role",
            "invalid_value",
            'messages[0].role is "usr"; it must be one of system, developer, user, assistant.',
            id="unknown role",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"content": "4"}]},
            "messages[0].role",
            "missing_required_parameter",
            "messages[0].role is missing; add it.",
            id="no role",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user"}]},
            "messages[0].content",
            "missing_required_parameter",
            "messages[0].content is missing; add a text.",
            id="no content",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": 4}]},
            "messages[0].content",
            "invalid_type",
            "messages[0].content is an integer; it must be a string or a list of text parts.",
            id="content that is no text",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_value",
            'messages[0].content[0].type is "image_url", but Tandem reads text parts only; '
            'send {"type": "text", "text": …}.',
            id="image",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [4]}]},
            "messages[0].content[0]",
            "invalid_type",
            "messages[0].content[0] is an integer; it must be an object with type and text.",
            id="part that is a number",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "invalid_type",
            "messages[0].content[0].text is null; it must be a string.",
            id="part without text",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "contents": "hi"}]},
            "messages[0].contents",
            "unknown_parameter",
            "messages[0] has an unknown field 'contents'; did you mean 'content'?",
            id="unknown field of a message",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "unsupported_parameter",
            "messages[0].tool_calls is not supported: Tandem reads and writes text only; "
            "leave it out or put it into content as text.",
            id="tool calls in the history",
        ),
    ],
)
async def test_a_bad_request_gets_one_sentence(
    path: str, body: dict[str, Any], param: str, code: str, message: str, *, is_stream: bool
) -> None:
    engine = FakeEngine()

    response = await post(path, {"stream": is_stream} | body, engine)

    assert response.status_code == 400
    error = the_error(response)
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"] == message
    assert error["type"] == "invalid_request_error"
    assert engine.submitted == []


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"web_search_options": {"search_context_size": "low"}},
        {"reasoning_effort": "high"},
        {"reasoning": {"effort": "high"}},
        {"verbosity": "low"},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
    ],
    ids=str,
)
async def test_what_tandem_does_not_do_is_refused_by_name(body: dict[str, Any]) -> None:
    response = await post(CHAT, body)

    [name] = body
    error = the_error(response)
    assert response.status_code == 400
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert error["message"].startswith(f"{name} is not supported: Tandem ")


@pytest.mark.parametrize("name", ["model", "messages"])
async def test_a_missing_field_is_named(name: str) -> None:
    body = {"model": "tiny", "messages": [HELLO]}
    del body[name]
    async with client_of(fake_app(FakeEngine(), strict=True)) as client:
        response = await client.post(CHAT, json=body)

    assert response.status_code == 400
    assert the_error(response)["message"] == f"{name} is missing; add it."
    assert the_error(response)["code"] == "missing_required_parameter"


async def test_stream_options_need_a_stream() -> None:
    error = the_error(await post(CHAT, {"stream_options": {"include_usage": True}}))

    assert error["message"] == "stream_options needs stream true; set it or leave it out."


async def test_best_of_cannot_be_streamed() -> None:
    refused = await post(COMPLETIONS, {"stream": True, "best_of": 3, "n": 2})
    accepted = await post(COMPLETIONS, {"stream": True, "best_of": 2, "n": 2})

    assert refused.status_code == 400
    assert the_error(refused)["param"] == "best_of"
    assert accepted.status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_another_model_is_not_found(path: str) -> None:
    response = await post(path, {"model": "large"})

    assert response.status_code == 404
    assert the_error(response) == {
        "message": "The model 'large' does not exist; this server serves 'tiny'.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "a" * 1000}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 1000}]}),
    ],
)
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenize(*_: object, **__: object) -> list[int]:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(FakeCodec, "encode", tokenize)
    response = await post(path, body)

    assert response.status_code == 400
    message = the_error(response)["message"]
    assert "a prompt may have 100; " in message
    assert "1000 characters, which are far more." in message


async def test_the_token_that_is_none_is_named() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        response = await client.post("/detokenize", json={"model": "tiny", "tokens": [1, True]})

    error = the_error(response)
    assert error["message"] == "tokens[1] is a boolean (true); tokens must be a list of token ids."
