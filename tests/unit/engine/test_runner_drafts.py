"""Drafts change no token, whether they are right or not."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.api.drafts import NO_LIMITS
from tandem_engine.api.request import Request
from tandem_engine.model.decoder import Decoder
from tandem_engine.runner.batch import PADDING
from tandem_engine.runner.drafts import Drafter
from tests.unit.engine.runner_bench import (
    NUM_BLOCKS,
    Bench,
    RowSpec,
    _one_thread,
    decoder,
    ids_of,
    request,
    tiny,
)

# Fixtures stand here by being imported.
__all__ = ["_one_thread", "decoder", "tiny"]


class Foreseeing:
    """Knows how each prompt goes on, and errs where it is told to."""

    def __init__(
        self, outputs: Mapping[tuple[int, ...], list[int]], errs: Callable[[int], bool]
    ) -> None:
        self._outputs = outputs
        self._errs = errs

    def propose(self, _: str, request: Request, output: Sequence[int], count: int) -> Sequence[int]:
        first = len(output)
        foreseen = self._outputs[request.prompt_token_ids][first : first + count]
        return [
            (token + 1) % 50 if self._errs(first + at) else token
            for at, token in enumerate(foreseen)
        ]

    def forget(self, *_: object) -> None:
        pass


class Saying:
    """Always says the same."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def propose(self, _: str, request: Request, output: Sequence[int], count: int) -> Sequence[int]:
        assert request.prompt_token_ids
        assert output
        assert count
        return self._tokens

    def forget(self, *_: object) -> None:
        pass


NUM_OUTPUT = 16
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy with penalties": {
        "temperature": 0.0,
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.6,
        "presence_penalty": 0.3,
        "min_tokens": 9,
    },
    "drawn": {"temperature": 1.3, "top_p": 0.95},
    "drawn with penalties": {"temperature": 1.5, "frequency_penalty": 0.8, "logit_bias": {7: 4.0}},
}
ERRORS: dict[str, Callable[[int], bool]] = {
    "right": lambda _: False,
    "wrong": lambda _: True,
    "half right": lambda at: at % 2 == 1,
}


def drafted(
    decoder: Decoder, requests: Sequence[Request], drafter: Drafter | None, count: int
) -> tuple[dict[str, list[int]], int]:
    """Tokens of all requests with `count` drafts a step, and the steps that the first one took.

    Only the requests at even positions are drafted for: rows with and without drafts stand in one
    step, in any order.
    """
    bench = Bench(decoder, drafter=drafter)
    bench.add(*requests)
    got: dict[str, list[int]] = {each.request_id: [] for each in requests}
    blocks = NUM_BLOCKS // len(requests)
    num_steps = 0
    while any(len(tokens) < NUM_OUTPUT for tokens in got.values()):
        num_steps += len(got[requests[0].request_id]) < NUM_OUTPUT
        rows: list[RowSpec] = []
        num_drafts: dict[str, int] = {}
        for at, each in enumerate(requests):
            name, output = each.request_id, got[each.request_id]
            if len(output) >= NUM_OUTPUT:
                continue
            known = len(each.prompt_token_ids) + len(output)
            start = known - 1 if output else 0
            if count and output and at % 2 == 0:
                num_drafts[name] = count
            table = range(at * blocks, (at + 1) * blocks)
            rows.append((name, start, known - start + num_drafts.get(name, 0), table))
        for name, tokens in bench.step(*rows, num_drafts=num_drafts).tokens.items():
            assert 1 <= len(tokens) <= 1 + num_drafts.get(name, 0)
            got[name] += ids_of(tokens)
    return {name: tokens[:NUM_OUTPUT] for name, tokens in got.items()}, num_steps


PROMPTS = [tuple(range(5, 14)), tuple(range(30, 42)), tuple(range(60, 67))]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_drafts_change_no_token(tiny: Decoder, sampling: dict[str, Any]) -> None:
    requests = [
        request(f"r{at}", prompt, seeds=(at + 5,), stop_token_ids=frozenset({2, 3}), **sampling)
        for at, prompt in enumerate(PROMPTS)
    ]
    plain, _ = drafted(tiny, requests, None, 0)
    foreseen = {prompt: plain[f"r{at}"] for at, prompt in enumerate(PROMPTS)}

    for name, errs in ERRORS.items():
        got, num_steps = drafted(tiny, requests, Foreseeing(foreseen, errs), 3)

        assert got == plain, name
        # A prompt, then 15 tokens: four a step, one a step, and right-wrong by turns.
        assert num_steps == {"right": 5, "wrong": 16, "half right": 9}[name]


@pytest.mark.parametrize(
    "drafter",
    [None, Saying(()), Saying((PADDING,)), Saying((-4, 8)), Saying((10**6,)), Saying((1,) * 9)],
    ids=["none", "silent", "padding itself", "below", "beyond the vocabulary", "too many"],
)
def test_a_draft_that_is_missing_or_nonsense_costs_only_time(
    decoder: Decoder, drafter: Drafter | None
) -> None:
    requests = [request(f"r{at}", prompt) for at, prompt in enumerate(PROMPTS)]

    assert drafted(decoder, requests, drafter, 3)[0] == drafted(decoder, requests, None, 0)[0]


def test_padding_is_never_accepted(decoder: Decoder) -> None:
    always = request("r", logit_bias={PADDING: 100.0})  # padding would be the right draft
    bench = Bench(decoder, drafter=Saying(()))
    bench.add(always)
    bench.step(("r", 0, 10, [0, 1, 2]))

    result = bench.step(("r", 10, 4, [0, 1, 2, 3]), num_drafts={"r": 3})

    assert ids_of(result.tokens["r"]) == [PADDING]


def test_drafted_tokens_have_the_logprobs_of_their_positions(tiny: Decoder) -> None:
    prompt = PROMPTS[0]
    plain = drafted(tiny, [request("r0", prompt)], None, 0)[0]["r0"]
    asked = request("r0", prompt, logprobs=2)
    bench = Bench(tiny, drafter=Foreseeing({prompt: plain}, ERRORS["right"]))
    bench.add(asked)
    num_prompt = len(prompt)
    bench.step(("r0", 0, num_prompt, range(8)))
    together = bench.step(("r0", num_prompt, 3, range(8)), num_drafts={"r0": 2}).tokens["r0"]

    slow = Bench(tiny)
    slow.add(asked)
    slow.step(("r0", 0, num_prompt, range(8)))
    for at, token in enumerate(together):
        [expected] = slow.step(("r0", num_prompt + at, 1, range(8))).tokens["r0"]
        assert token.token_id == expected.token_id
        assert token.logprob is not None
        assert expected.logprob is not None
        assert token.logprob.logprob == pytest.approx(expected.logprob.logprob, abs=1e-4)
        assert [i for i, _ in token.logprob.top] == [i for i, _ in expected.logprob.top]
    assert len(together) == 3


# What goes wrong


class Failing:
    """Raises wherever it is called."""

    def propose(self, *_: Any) -> Sequence[int]:
        raise ZeroDivisionError

    def forget(self, *_: Any) -> None:
        raise ZeroDivisionError


def test_a_drafter_that_raises_is_off(decoder: Decoder, caplog: pytest.LogCaptureFixture) -> None:
    requests = [request(f"r{at}", prompt) for at, prompt in enumerate(PROMPTS)]

    found = drafted(decoder, requests, Failing(), 3)[0]

    assert found == drafted(decoder, requests, None, 0)[0]
    assert caplog.text.count("Draft tokens have failed and are off") == 1


def test_a_drafter_that_raises_at_the_end_of_a_sequence_is_off(decoder: Decoder) -> None:
    bench = Bench(decoder, drafter=Failing())
    bench.add(request("a"))
    bench.runner.remove("a")

    assert not bench.runner.propose(NO_LIMITS)


def test_a_draft_that_leads_to_no_numbers_is_not_followed(decoder: Decoder) -> None:
    bench = Bench(decoder, drafter=Saying((7, 7)))
    bench.add(request("a", logit_bias={7: 100.0}))
    bench.step(("a", 0, 10, [0, 1, 2]))

    def spoil(logits: Tensor) -> None:
        logits[1:] = torch.nan

    bench.runner.spoil = spoil
    result = bench.step(("a", 10, 3, [0, 1, 2, 3]), num_drafts={"a": 2})

    assert ids_of(result.tokens["a"]) == [7]
    assert not result.failed
