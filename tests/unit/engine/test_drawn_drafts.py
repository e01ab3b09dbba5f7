"""Drafts do not move the distribution of drawn tokens: by a chi-square test of many draws.

The model is a Markov chain over a few tokens, so every draw has known probabilities; the draft
model is another chain. The runner, its sampler and its acceptance are the real ones.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.api.drafts import Draft, DraftLimits, Proposals
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Step
from tandem_engine.api.timeline import Timeline
from tandem_engine.device.registry import open_device
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.pending_logits import Computed, PendingLogits
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.sampling.row import Row

VOCAB = 6
NUM_ROWS = 500
NUM_DRAWS = 200_000
FEW_DRAWS = 20_000
BLOCK_SIZE = 1024
MOST = 4
SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.2},
    "bias": {"logit_bias": {2: 1.0}},
}


class Chain:
    """An executor whose logits depend on the last token alone."""

    num_stages = 1
    heeds_num_top = False
    vocab_size = VOCAB

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    def forward(self, batch: FlatBatch) -> Tensor:
        return self._logits[batch.token_ids[batch.logits_at]].clone()

    def begin(self, batch: FlatBatch) -> PendingLogits:
        return Computed(self.forward(batch))

    def remove(self, sequence_ids: Sequence[str]) -> None:
        pass

    def copy(self, step: Step) -> None:
        pass

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_recording(self, num_steps: int, is_full: Callable[[], None]) -> None:
        raise NotImplementedError

    def end_recording(self) -> Timeline:
        raise NotImplementedError


class OtherChain:
    """A draft model that draws from probabilities of its own."""

    def __init__(self, logits: Tensor) -> None:
        self._probabilities = torch.softmax(logits, dim=-1)
        self._chance = torch.Generator().manual_seed(1)

    def propose(self, asked: Mapping[Row, int], num_tokens: int) -> Proposals:
        assert num_tokens
        last = torch.tensor([row.tokens[-1] for row in asked])
        drawn = []
        for _ in range(MOST):
            last = torch.multinomial(self._probabilities[last], 1, generator=self._chance)[:, 0]
            drawn.append(last)
        found = torch.stack(drawn, dim=1).tolist()
        return Proposals(
            drafts={
                row.sequence_id: Draft("draft", tokens)
                for row, tokens in zip(asked, found, strict=True)
            },
            num_passes=MOST,
        )

    def forget(self, sequence_id: str) -> None:
        pass


def request(number: int, sampling: Mapping[str, Any]) -> Request:
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=(number % VOCAB,),
        sampling=SamplingParams(max_tokens=4096, **sampling),
        max_new_tokens=4096,
        seeds=(1000 + number,),
    )


def transitions(
    logits: Tensor, draft: Tensor, sampling: Mapping[str, Any], num_draws: int
) -> tuple[Tensor, float]:
    """Return how often each token followed each other one, and the share of right drafts."""
    runner = ModelRunner(
        Chain(logits),
        runtime=open_device("cpu"),
        block_size=BLOCK_SIZE,
        draft_model=OtherChain(draft),
    )
    last = {f"r{number}": number % VOCAB for number in range(NUM_ROWS)}
    known = dict.fromkeys(last, 1)
    for number in range(NUM_ROWS):
        runner.add(request(number, sampling))
    counts = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    num_drafted = num_accepted = 0
    drafts: dict[str, Sequence[int]] = {}
    while counts.sum() < num_draws:
        step = Step(
            sequence_ids=[*last],
            num_tokens=[1 + len(drafts.get(name, ())) for name in last],
            starts=[known[name] - 1 for name in last],
            block_tables=[[at] for at in range(NUM_ROWS)],
            drafts=drafts,
        )
        result = runner.run(step)
        for name, tokens in result.tokens.items():
            num_accepted += len(tokens) - 1
            for token in tokens:
                counts[last[name], token.token_id] += 1
                last[name] = token.token_id
            known[name] += len(tokens)
        limits = DraftLimits(draft=dict.fromkeys(last, MOST), num_tokens=NUM_ROWS)
        drafts = {name: one.token_ids for name, one in runner.propose(limits).drafts.items()}
        num_drafted += MOST * len(drafts)
    return counts, num_accepted / num_drafted


def chi_square(counts: Tensor, probabilities: Tensor) -> tuple[float, int]:
    """Return the statistic of all states, and its degrees of freedom."""
    statistic, freedom = 0.0, 0
    for of_state, expected in zip(counts, probabilities.double(), strict=True):
        likely = expected > 0
        assert not of_state[~likely].any(), "a token was drawn that cannot be"
        mean = of_state.sum() * expected[likely]
        statistic += float(((of_state[likely] - mean) ** 2 / mean).sum())
        freedom += int(likely.sum()) - 1
    return statistic, freedom


@pytest.mark.parametrize(
    ("name", "sampling", "num_draws"),
    [
        ("temperature", {"temperature": 0.7}, FEW_DRAWS),
        *(
            pytest.param(name, sampling, NUM_DRAWS, marks=pytest.mark.slow)
            for name, sampling in SAMPLINGS.items()
        ),
    ],
)
def test_drawn_tokens_have_the_probabilities_of_the_model(
    name: str, sampling: Mapping[str, Any], num_draws: int
) -> None:
    chance = torch.Generator().manual_seed(7)
    logits = torch.randn((VOCAB, VOCAB), generator=chance)
    draft = logits + torch.randn((VOCAB, VOCAB), generator=chance)
    adjusted = logits.clone()
    if name == "bias":
        adjusted[:, 2] += 1.0
    adjusted /= sampling.get("temperature", 1.0)
    if name == "top_k":
        adjusted[adjusted < adjusted.topk(3, dim=-1).values[:, -1:]] = -torch.inf
    probabilities = torch.softmax(adjusted, dim=-1)
    if name == "min_p":
        probabilities[probabilities < 0.2 * probabilities.max(dim=-1, keepdim=True).values] = 0.0
        probabilities /= probabilities.sum(dim=-1, keepdim=True)

    counts, share = transitions(logits, draft, sampling, num_draws)

    assert counts.sum() >= num_draws
    assert 0.05 < share < 0.9
    statistic, freedom = chi_square(counts, probabilities)
    # Seeds are given, so this is no matter of luck; 4 deviations would be one in 30,000.
    assert abs(statistic - freedom) < 4 * sqrt(2 * freedom)
