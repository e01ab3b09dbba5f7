"""Beam search against transformers: the same outputs in the same order, on tandem-tiny."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem_engine.api.step import Candidate
from tandem_engine.scheduler.beam_search import BeamSearch, Hypothesis
from tandem_engine.text.codec import load_codec
from tests.tiny import TINY, held_out

END_OF_TEXT, END = 256, 260
MAX_NEW_TOKENS = 12
# A whole question has one likely answer; a prompt that is cut short leaves a choice.
PROMPTS = {"a question": (0, None), "half a word": (1, 4), "half a sum": (2, 4)}

EarlyStopping = bool | Literal["never"]
Tokens = tuple[int, ...]


@cache
def prompt_of(name: str) -> Tokens:
    """Token ids of a held-out question without examples in front, or of a part of it."""
    number, end = PROMPTS[name]
    questions = [each.messages for each in held_out(60) if len(each.messages) == 1]
    return tuple(load_codec(TINY).encode_chat(questions[number]))[:end]


@cache
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)


@cache
@torch.inference_mode()
def transformers_search(
    name: str, *, eos_token_id: Tokens = (END,), **settings: Any
) -> tuple[list[Tokens], list[float]]:
    """Outputs without what fills them up, and their scores."""
    prompt = torch.tensor([prompt_of(name)])
    found = reference().generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        pad_token_id=END_OF_TEXT,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
        eos_token_id=list(eos_token_id),
        **settings,
    )
    outputs = found.sequences[:, prompt.shape[1] :].tolist()
    return [up_to_end(output, eos_token_id) for output in outputs], found.sequences_scores.tolist()


def up_to_end(output: Sequence[int], ends: Sequence[int]) -> Tokens:
    at = next((at for at, token_id in enumerate(output) if token_id in ends), len(output))
    return tuple(output[: at + 1])


@cache
@torch.inference_mode()
def likeliest(tokens: Tokens, count: int) -> tuple[Candidate, ...]:
    """Return the runner's answer for one beam; all that went before is computed again."""
    logits = reference()(torch.tensor([tokens])).logits[0, -1]
    values, token_ids = torch.log_softmax(logits, dim=-1).topk(count)
    return tuple(map(Candidate, token_ids.tolist(), values.tolist()))


def tandem_search(
    name: str,
    *,
    num_beams: int,
    num_return_sequences: int,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    min_new_tokens: int = 0,
    eos_token_id: Tokens = (END,),
) -> list[Hypothesis]:
    search = BeamSearch(
        sequence_ids=[str(index) for index in range(num_beams)],
        num_best=num_return_sequences,
        max_new_tokens=MAX_NEW_TOKENS,
        min_new_tokens=min_new_tokens,
        stop_token_ids=frozenset(eos_token_id),
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    count = max(2 * num_beams, num_beams + len(eos_token_id))
    live: dict[str, Tokens] = {"0": prompt_of(name)}
    while not search.is_done:
        step = search.advance({beam: likeliest(tokens, count) for beam, tokens in live.items()})
        live = {beam: (*live[move.parent], move.token_id) for beam, move in step.moves.items()}
    return search.best()


def compare(name: str, **settings: Any) -> None:
    expected, scores = transformers_search(name, **settings)

    found = tandem_search(name, **settings)

    assert [tuple(token.token_id for token in each.tokens) for each in found] == expected
    assert [each.score for each in found] == pytest.approx(scores, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [0.5, pytest.param(1.0, marks=pytest.mark.slow), 1.5])
@pytest.mark.parametrize("num_beams", [2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", PROMPTS)
def test_outputs_and_order_are_those_of_transformers(
    name: str, num_beams: int, length_penalty: float, early_stopping: EarlyStopping
) -> None:
    compare(
        name,
        num_beams=num_beams,
        num_return_sequences=num_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 3.0])
@pytest.mark.parametrize("name", PROMPTS)
def test_unusual_length_penalties_mean_what_they_mean_to_transformers(
    name: str, length_penalty: float
) -> None:
    compare(
        name,
        num_beams=3,
        num_return_sequences=3,
        length_penalty=length_penalty,
        early_stopping="never",
    )


@pytest.mark.parametrize("num_return_sequences", [1, 2, 3])
def test_fewer_outputs_than_beams_are_the_best_ones(num_return_sequences: int) -> None:
    compare("half a sum", num_beams=4, num_return_sequences=num_return_sequences)


@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("min_new_tokens", [1, 6, MAX_NEW_TOKENS])
@pytest.mark.parametrize("name", PROMPTS)
def test_no_output_ends_before_its_least_length(
    name: str,
    min_new_tokens: int,
    early_stopping: bool,
) -> None:
    compare(
        name,
        num_beams=3,
        num_return_sequences=3,
        min_new_tokens=min_new_tokens,
        early_stopping=early_stopping,
    )


@pytest.mark.parametrize("min_new_tokens", [0, 4])
@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("name", PROMPTS)
def test_more_end_tokens_than_beams_leave_beams_to_go_on(
    name: str,
    early_stopping: bool,
    min_new_tokens: int,
) -> None:
    compare(
        name,
        num_beams=2,
        num_return_sequences=2,
        eos_token_id=(END, *b"eisvy+1 "),
        early_stopping=early_stopping,
        min_new_tokens=min_new_tokens,
    )


def test_the_settings_that_are_compared_lead_to_different_outputs() -> None:
    """Else the tests above could not tell one rule from another."""
    settings = {"num_beams": 2, "num_return_sequences": 2}
    outputs = {
        (length_penalty, early_stopping): tuple(
            transformers_search(
                "half a sum",
                **settings,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
            )[0]
        )
        for length_penalty in (0.5, 1.0, 1.5)
        for early_stopping in (True, False, "never")
    }

    assert outputs[1.0, True] != outputs[1.0, False]
    assert outputs[0.5, False] != outputs[0.5, "never"]
    assert outputs[0.5, False] != outputs[1.0, False] != outputs[1.5, False]
