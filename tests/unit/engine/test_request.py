"""Requests that the engine takes, and the messages for those that it refuses."""

from typing import Any

import pytest

from tandem_engine.api.errors import InvalidParameter
from tandem_engine.api.request import Request, SamplingParams


def params(**given: Any) -> SamplingParams:
    return SamplingParams(max_tokens=16, **given)


BEAMS: dict[str, Any] = {"use_beam_search": True, "n": 2}


@pytest.mark.parametrize(
    ("given", "parameter", "sentence"),
    [
        ({"n": 0}, "n", "n is 0; it must be in [1, 8192]."),
        ({"n": 8193}, "n", "n is 8193; it must be in [1, 8192]."),
        (
            {"n": 3, "best_of": 2},
            "best_of",
            "best_of is 2; it must be in [n, 128], here [3, 128].",
        ),
        ({"best_of": 129}, "best_of", "best_of is 129; it must be in [n, 128], here [1, 128]."),
        (
            {"logit_bias": dict.fromkeys(range(301), 1.0)},
            "logit_bias",
            "logit_bias has 301 token ids; it must have at most 300.",
        ),
        (
            BEAMS | {"length_penalty": -10.5},
            "length_penalty",
            "length_penalty is -10.5; it must be in [-10.0, 10.0].",
        ),
        (
            {"length_penalty": float("nan")},
            "length_penalty",
            "length_penalty is NaN; it must be in [-10.0, 10.0].",
        ),
        (
            BEAMS | {"early_stopping": "soon"},
            "early_stopping",
            'early_stopping is "soon"; it must be true, false or "never".',
        ),
        (
            {"early_stopping": "never"},
            "early_stopping",
            'early_stopping is "never"; it must be false without use_beam_search.',
        ),
        (
            {"length_penalty": 0.9},
            "length_penalty",
            "length_penalty is 0.9; it must be 1.0 without use_beam_search.",
        ),
        (
            BEAMS | {"temperature": 0.5},
            "temperature",
            "temperature is 0.5; it must be 0 or 1 with use_beam_search.",
        ),
        (
            BEAMS | {"top_k": 5},
            "top_k",
            "top_k is 5; it must be -1 or 0 with use_beam_search.",
        ),
        (BEAMS | {"top_p": 0.9}, "top_p", "top_p is 0.9; it must be 1 with use_beam_search."),
        (BEAMS | {"min_p": 0.1}, "min_p", "min_p is 0.1; it must be 0 with use_beam_search."),
        (
            BEAMS | {"logprobs": 1},
            "logprobs",
            "logprobs is 1; it must be 0, for the tokens of the answer alone, or left out with "
            "use_beam_search.",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(
    given: dict[str, Any], parameter: str, sentence: str
) -> None:
    with pytest.raises(InvalidParameter) as refused:
        params(**given)

    assert str(refused.value) == sentence
    assert refused.value.parameter == parameter


@pytest.mark.parametrize(
    "given",
    [
        BEAMS | {"length_penalty": -10.0, "early_stopping": "never"},
        BEAMS | {"length_penalty": 10.0, "early_stopping": True},
        BEAMS | {"temperature": 0.0, "top_k": 0, "logprobs": 0},
        BEAMS | {"stop_token_ids": (3,), "min_tokens": 2, "repetition_penalty": 1.2},
        BEAMS | {"logit_bias": {1: 5.0}, "presence_penalty": 1.0, "ignore_eos": True},
        {"use_beam_search": True},
        {"n": 200, "best_of": 200},
        {"n": 8192},
    ],
)
def test_what_a_search_by_likelihood_can_use_is_taken(given: dict[str, Any]) -> None:
    asked = params(**given)

    assert asked.num_sequences == given.get("best_of", given.get("n", 1))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"priority": 0}, "priority is 0; it must be in [1 (highest), 5 (lowest)]."),
        ({"priority": 6}, "priority is 6; it must be in [1 (highest), 5 (lowest)]."),
        (
            {"cache_salt": "x" * 300},
            "cache_salt has 300 characters; it must have at most 256.",
        ),
    ],
)
def test_a_request_has_a_priority_and_a_salt_of_bounded_length(
    given: dict[str, Any], sentence: str
) -> None:
    def request(**more: Any) -> Request:
        return Request(
            request_id="r",
            prompt_token_ids=(1,),
            sampling=params(),
            max_new_tokens=1,
            **more,
        )

    with pytest.raises(InvalidParameter) as refused:
        request(**given)

    assert str(refused.value) == sentence
    assert (request().priority, request().cache_salt) == (5, "")
