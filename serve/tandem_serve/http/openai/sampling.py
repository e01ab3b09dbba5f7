"""Turns the fields of a request into the engine's sampling parameters."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem_engine.api.engine_client import EngineClient
from tandem_engine.api.request import MAX_BIAS, SamplingParams
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_serve.http.errors import ApiError
from tandem_serve.http.openai.protocol import GenerationRequest
from tandem_serve.http.openai.validation import as_json

MAX_PROMPT_LOGPROBS: Final = 2**18
"""Log-probabilities of prompts in an answer: each takes hundreds of bytes while it is written."""
DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's default of /v1/completions."""

_OF_DRAWING: Final = frozenset({"temperature", "top_p", "top_k", "min_p"})
_SAME_NAME: Final = (
    "n",
    "best_of",
    "use_beam_search",
    "length_penalty",
    "early_stopping",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "skip_special_tokens",
)


def sampling_params(
    body: GenerationRequest,
    engine: EngineClient,
    *,
    max_tokens: int | None,
    default_max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The parameters of one prompt.

    Of what was not given, the checkpoint's defaults go before the engine's.

    Args:
        body: The body.
        engine: The engine that serves it.
        max_tokens: Output tokens at most, as the body says; None: it does not.
        default_max_tokens: The same, where neither the body nor the checkpoint says it.
        logprobs: Likeliest tokens at each position; None: no log-probabilities.
        prompt_logprobs: The same of the prompt.

    Raises:
        ApiError: a token id is outside of the vocabulary, or a bias out of its range.
        InvalidParameter: another value is out of its range.
    """
    given: dict[str, Any] = {
        name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None
    }
    defaults = _defaults(engine.sampling_defaults, use_beam_search=bool(body.use_beam_search))
    vocab_size = engine.limits.vocab_size
    stop_token_ids = body.stop_token_ids or []
    check_token_ids(stop_token_ids, vocab_size, "stop_token_ids")
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    return SamplingParams(
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
        stop=_stop_strings(body.stop),
        stop_token_ids=tuple(stop_token_ids),
        **{"max_tokens": default_max_tokens, **defaults, **given},
    )


def _defaults(defaults: SamplingDefaults, *, use_beam_search: bool) -> dict[str, Any]:
    """The checkpoint's parameters, without those by which tokens are drawn if none is."""
    named = defaults.named()
    if not use_beam_search:
        return named
    return {name: value for name, value in named.items() if name not in _OF_DRAWING}


def check_prompt_only(max_tokens: int | None, *, param: str, shows: Mapping[str, bool]) -> None:
    """Refuse to generate nothing where nothing of the prompt is asked for either.

    Args:
        max_tokens: Output tokens at most; None: it is not said.
        param: Its name in the body.
        shows: Fields that can ask for the prompt, and if they do.

    Raises:
        ApiError: there would be no answer.
    """
    if max_tokens == 0 and not any(shows.values()):
        raise ApiError(
            f"{param} is 0; it must be at least 1, unless {' or '.join(shows)} asks for the "
            "prompt.",
            param=param,
            code="invalid_value",
        )


def check_prompt_logprobs(
    prompts: Sequence[list[int]], num_choices: int, num_top: int | None
) -> None:
    """Refuse log-probabilities of prompts that would be a huge answer.

    Raises:
        ApiError: there would be too many.
    """
    if num_top is None:
        return
    count = sum(map(len, prompts)) * num_choices * (1 + num_top)
    if count > MAX_PROMPT_LOGPROBS:
        raise ApiError(
            f"The answer would have {count} log-probabilities of prompts; it may have "
            f"{MAX_PROMPT_LOGPROBS}. Send fewer prompts, shorter ones, or a lower n, logprobs or "
            "prompt_logprobs.",
            param="prompt_logprobs",
            code="invalid_value",
        )


def check_token_ids(token_ids: list[int], vocab_size: int, param: str) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        ApiError: the vocabulary has no such token.
    """
    # Two passes in C; a hundred thousand of them in Python would block the event loop.
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise ApiError(
            f"{param} holds the token id {as_json(wrong)}; it must be in [0, {vocab_size - 1}].",
            param=param,
            code="invalid_value",
        )


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logit_bias(biases: dict[str, float], vocab_size: int) -> dict[int, float]:
    by_id = {_token_id(key): bias for key, bias in biases.items()}
    check_token_ids(list(by_id), vocab_size, "logit_bias")
    for token_id, bias in by_id.items():
        if not -MAX_BIAS <= bias <= MAX_BIAS:
            raise ApiError(
                f"logit_bias of token {token_id} is {as_json(bias)}; "
                f"it must be in [{-MAX_BIAS}, {MAX_BIAS}].",
                param="logit_bias",
                code="invalid_value",
            )
    return by_id


def _token_id(key: str) -> int:
    # A long run of digits is not a token id, and int() refuses it with another error.
    if key.isascii() and key.isdecimal() and len(key) <= len(str(2**63)):
        return int(key)
    raise ApiError(
        f"logit_bias has the key {as_json(key)}; its keys must be token ids, as strings.",
        param="logit_bias",
        code="invalid_value",
    )
