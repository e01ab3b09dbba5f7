"""Scores of tokens that are known: their log-probabilities, and the likeliest in their place."""

from typing import Final

import numpy as np
import torch
from torch import Tensor

from tandem_engine.device.sampling import RowSampler, RowState, greedy_params
from tandem_engine.sampling.top_tokens import TopTokens

NUM_OWN: Final = 2
"""Columns of scores before those of the likeliest tokens."""


class TokenScorer:
    """Scores the tokens that follow some positions; all that is kept of their logits.

    Log-probabilities are the model's own: before bias, penalties and temperature.

    Args:
        on_device: The device's own sampling; None: torch computes, which is the reference.
    """

    def __init__(self, on_device: RowSampler | None = None) -> None:
        self._on_device = on_device

    def score(self, logits: Tensor, token_ids: Tensor, width: int) -> Tensor:
        """Score a token at each position.

        Args:
            logits: float32 [positions, vocabulary], as the model gave them.
            token_ids: int64 [positions], the tokens that follow.
            width: Likeliest tokens to keep, at most the vocabulary.

        Returns:
            float32 [positions, 2 + 2 · width]: log-probability and rank of the token (1: none is
            likelier), then the likeliest tokens, best first, then their log-probabilities. Ids and
            ranks are exact up to 2²⁴. The first column is NaN where logits are not finite.
        """
        scores = logits.new_empty(len(logits), NUM_OWN + 2 * width)
        own = logits.gather(1, token_ids.unsqueeze(1))
        if self._on_device is None:
            self._in_torch(logits, own, scores, width)
        else:
            self._by_device(self._on_device, logits, own, scores, width)
        scores[:, 1] = _ranks(logits, own)
        # Evaluators ask if it is the likeliest by comparing the two.
        is_own = scores[:, NUM_OWN : NUM_OWN + width] == token_ids.unsqueeze(1)
        rows, at = (is_own & ~scores[:, :1].isnan()).nonzero(as_tuple=True)
        scores[rows, 0] = scores[rows, NUM_OWN + width + at]
        return scores

    def _in_torch(self, logits: Tensor, own: Tensor, scores: Tensor, width: int) -> None:
        total = logits.logsumexp(dim=-1, keepdim=True)
        scores[:, 0] = (own - total).squeeze(1)
        scores[~total.isfinite().squeeze(1), 0] = torch.nan
        top = TopTokens(logits - total, [width] * len(logits))
        for row, best in zip(scores, top.read(), strict=True):
            # A row with NaN has none.
            if best:
                row[NUM_OWN:] = torch.tensor(best).T.flatten()

    def _by_device(
        self, sampler: RowSampler, logits: Tensor, own: Tensor, scores: Tensor, width: int
    ) -> None:
        """Take what the device knows of the likeliest token: its log-probability and its logit."""
        step = sampler.prepare([greedy_params(num_logprobs=width)] * len(logits))
        sampled = step(logits, [RowState(0)] * len(logits))
        best = logits.gather(1, sampled.token_ids.clamp(min=0).unsqueeze(1))
        total = best - sampled.logprobs.unsqueeze(1)
        scores[:, 0] = (own - total).squeeze(1)
        scores[sampled.token_ids < 0, 0] = torch.nan
        scores[:, NUM_OWN : NUM_OWN + width] = sampled.top_ids
        scores[:, NUM_OWN + width :] = sampled.top_logprobs


def _ranks(logits: Tensor, own: Tensor) -> Tensor:
    if logits.device.type != "cpu":
        return (logits > own).sum(dim=-1) + 1
    # torch adds up truth values one by one.
    array, values = logits.numpy(), own.numpy()
    counts = [np.count_nonzero(row > value) for row, value in zip(array, values, strict=True)]
    return torch.tensor(counts, dtype=torch.float32) + 1
