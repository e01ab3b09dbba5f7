"""Scores of known tokens: the device's sampling against torch, in every variant of the kernels."""

import pytest
import torch

from tandem_engine.device.cpu.native.library import runnable_variants
from tandem_engine.device.cpu.native.sampling import NativeRowSampler
from tandem_engine.sampling.token_scores import NUM_OWN, TokenScorer
from tests.unit.engine.native import native_kernels

VOCAB = 3001


def scorer_of(variant: str | None) -> TokenScorer:
    """None: torch computes."""
    if variant is None:
        return TokenScorer()
    return TokenScorer(NativeRowSampler(native_kernels(variant).library))


VARIANTS = [None, *runnable_variants()]


@pytest.mark.parametrize("num_top", [0, 1, 20])
@pytest.mark.parametrize("variant", VARIANTS)
def test_scores_follow_from_log_softmax(variant: str | None, num_top: int) -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(3)) * 4
    token_ids = torch.tensor([0, VOCAB - 1, int(logits[2].argmax()), int(logits[3].argmin()), 7])

    scores = scorer_of(variant).score(logits.clone(), token_ids, num_top)

    table = logits.double().log_softmax(dim=-1)
    own = table.gather(1, token_ids.unsqueeze(1))
    assert torch.allclose(scores[:, 0].double(), own.squeeze(1), atol=1e-5)
    assert scores[:, 1].tolist() == ((table > own).sum(1) + 1).tolist()
    best = table.topk(num_top)
    assert scores[:, NUM_OWN : NUM_OWN + num_top].tolist() == best.indices.tolist()
    assert torch.allclose(scores[:, NUM_OWN + num_top :].double(), best.values, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_among_the_likeliest_has_the_same_bits_there(variant: str | None) -> None:
    logits = torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(5)) * 4
    token_ids = logits.topk(3).indices[:, 2]

    scores = scorer_of(variant).score(logits, token_ids, 3)

    assert scores[:, 0].tolist() == scores[:, -1].tolist()
    assert scores[:, 1].tolist() == [3] * 64


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_are_sorted_by_token_and_share_a_rank(variant: str | None) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 9] = 1.0

    scores = scorer_of(variant).score(logits, torch.tensor([9, 5]), 3)

    assert scores[:, 1].tolist() == [1, 2]
    assert scores[:, NUM_OWN : NUM_OWN + 3].tolist() == [[9, 0, 1]] * 2


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_have_no_score(variant: str | None, wrong: float) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, 100] = wrong

    scores = scorer_of(variant).score(logits, torch.tensor([3, 3]), 2)

    assert scores[:, 0].isnan().tolist() == [False, True]
