"""Every field of OpenAI's and vLLM's requests works, has no effect, or is refused by name."""

import pytest
from openai.types import completion_create_params as openai_completions
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import completion_create_params as openai_chat

from tandem_serve.http.openai.messages import KNOWN_OF_MESSAGE
from tandem_serve.http.openai.protocol import (
    ChatRequest,
    CompletionRequest,
    RequestModel,
    StreamOptions,
)

# https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html: extra parameters of 0.11.
_VLLM_SAMPLING = [
    "best_of",
    "use_beam_search",
    "top_k",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "early_stopping",
]
_VLLM_EXTRA = [
    "add_special_tokens",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "priority",
    "request_id",
    "logits_processors",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "cache_salt",
    "kv_transfer_params",
    "vllm_xargs",
]
_VLLM_CHAT = [
    "echo",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "include_reasoning",
]
_VLLM_COMPLETIONS = ["echo", "prompt_embeds"]


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        pytest.param(
            ChatRequest,
            {*openai_chat.CompletionCreateParamsBase.__annotations__, "stream"},
            id="OpenAI's chat",
        ),
        pytest.param(
            CompletionRequest,
            {*openai_completions.CompletionCreateParamsBase.__annotations__, "stream"},
            id="OpenAI's completions",
        ),
        pytest.param(
            StreamOptions, {*ChatCompletionStreamOptionsParam.__annotations__}, id="stream_options"
        ),
        pytest.param(ChatRequest, {*_VLLM_SAMPLING, *_VLLM_EXTRA, *_VLLM_CHAT}, id="vLLM's chat"),
        pytest.param(
            CompletionRequest,
            {*_VLLM_SAMPLING, *_VLLM_EXTRA, *_VLLM_COMPLETIONS},
            id="vLLM's completions",
        ),
    ],
)
def test_every_field_is_decided_about(model: type[RequestModel], fields: set[str]) -> None:
    undecided = fields - model.known()

    assert not undecided, "implement, ignore or refuse them: see unsupported.py"


@pytest.mark.parametrize(
    "message",
    [
        ChatCompletionSystemMessageParam,
        ChatCompletionDeveloperMessageParam,
        ChatCompletionUserMessageParam,
        ChatCompletionAssistantMessageParam,
    ],
)
def test_every_field_of_a_message_is_decided_about(message: type) -> None:
    assert {*message.__annotations__} <= KNOWN_OF_MESSAGE


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_no_field_is_decided_about_twice(model: type[RequestModel]) -> None:
    decided = [*model.model_fields, *model.ignored, *model.unsupported]

    assert len(decided) == len({*decided})
