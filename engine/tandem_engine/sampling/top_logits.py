"""The largest logits of each share of the vocabulary: all that many rows are sampled from.

Ranks compute the logits of a share each. A greedy row needs the largest of all, and one with a
top_k that many; both are among as many of each share. So a rank hands over these and their tokens,
and not its share: of 256 rows and 151,936 tokens, 156 MB in all, the second of two ranks would hand
over 78 MB, and for greedy rows it is 2 KB. The tokens stay in the order of the vocabulary, by which
ties are broken and draws are looked up, so that what is sampled is the same to the bit.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tandem_engine.device.sampling import RowSampler, RowState, StepSampling, greedy_params
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.step_tokens import NO_TOKEN
from tandem_engine.sampling.top_tokens import argmax, top_ids

MAX_TOP_LOGITS: Final = 128
"""Rows that need more of a share are handed all of it."""
ALL_LOGITS: Final = 0
"""Number of top logits of a step that is sampled from all logits."""


def num_top_logits(rows: Iterable[Row]) -> int:
    """Return how many of the largest logits are enough for each of some rows.

    Returns:
        1 to MAX_TOP_LOGITS; ALL_LOGITS: a row needs all, or there is no row.
    """
    most = ALL_LOGITS
    for row in rows:
        sampling = row.sampling
        own = 1 if sampling.is_greedy else sampling.top_k
        if not (0 < own <= MAX_TOP_LOGITS and row.is_plain) or (
            sampling.use_beam_search or sampling.logprobs is not None
        ):
            return ALL_LOGITS
        most = max(most, own)
    return most


def num_columns(num_top: int, *, num_shares: int, vocab_size: int) -> int:
    """Return the columns of a step's logits, as the sampler gets them."""
    return vocab_size if num_top == ALL_LOGITS else num_shares * 2 * num_top


class TopLogits:
    """Takes the largest logits out of a rank's share; implements `model.stages.ShareReducer`.

    Args:
        num_top: Of each row.
        on_device: The device's own sampling; None: torch computes, which is the reference.
    """

    def __init__(self, num_top: int, on_device: RowSampler | None = None) -> None:
        self.num_top = num_top
        self._on_device = on_device
        self._steps: dict[int, StepSampling] = {}

    @property
    def num_columns(self) -> int:
        """Columns of what is made of a share."""
        return 2 * self.num_top

    def reduce(self, logits: Tensor, first_id: int) -> Tensor:
        """Take the largest logits of each row, and their tokens.

        Args:
            logits: float32 [rows, tokens of the share], as the model gave them.
            first_id: The first token of the share.

        Returns:
            float32 [rows, 2 · num_top]: logits in the order of the vocabulary, −inf behind those of
            a smaller share, then their tokens, which are exact up to 2²⁴. A row that holds NaN has
            one here, and one whose largest logit is infinite has that.
        """
        num_top = min(self.num_top, logits.shape[1])
        reduced = logits.new_zeros(len(logits), self.num_columns)
        reduced[:, num_top : self.num_top] = -torch.inf
        if num_top and len(logits):
            ids, is_wrong = self._top_ids(logits, num_top)
            reduced[:, :num_top] = logits.gather(1, ids)
            reduced[:, self.num_top : self.num_top + num_top] = ids + first_id
            if is_wrong is not None:
                reduced[is_wrong, :num_top] = logits[is_wrong].amax(dim=-1, keepdim=True)
        return reduced

    def _top_ids(self, logits: Tensor, num_top: int) -> tuple[Tensor, Tensor | None]:
        """Ids within the share in ascending order, and the rows, if any, that have none."""
        if self._on_device is not None:
            return self._by_device(self._on_device, logits, num_top)
        # Logits that are not finite are among the largest.
        if num_top == 1:
            return argmax(logits)[0].unsqueeze(1), None
        return top_ids(logits, num_top).sort(dim=-1).values, None

    def _by_device(
        self, sampler: RowSampler, logits: Tensor, num_top: int
    ) -> tuple[Tensor, Tensor | None]:
        num_rows = len(logits)
        step = self._steps.get(num_rows)
        if step is None:
            params = greedy_params(num_logprobs=None if num_top == 1 else num_top)
            step = self._steps[num_rows] = sampler.prepare([params] * num_rows)
        sampled = step(logits, [RowState(0)] * num_rows)
        is_wrong = sampled.token_ids < 0
        if num_top == 1:
            ids = sampled.token_ids.unsqueeze(1)
        else:
            ids = sampled.top_ids.sort(dim=-1).values
        return ids.clamp_(min=0), is_wrong if is_wrong.any() else None


class SharedTop(NamedTuple):
    """The largest logits of all shares, side by side in the order of the vocabulary."""

    logits: Tensor
    """float32 [rows, shares · num_top]."""
    token_ids: Tensor
    """int64 of the same shape: the token of each."""

    @classmethod
    def of(cls, reduced: Tensor, num_top: int) -> "SharedTop":
        """Take apart what `TopLogits.reduce` has made of each share, side by side."""
        shares = reduced.view(len(reduced), -1, 2, num_top)
        logits, token_ids = shares[:, :, 0].flatten(1), shares[:, :, 1].flatten(1)
        return cls(logits.contiguous(), token_ids.long())

    def tokens_at(self, chosen: Tensor) -> Tensor:
        """Return the tokens of some columns, int64 [rows]; NO_TOKEN stays."""
        tokens = self.token_ids.gather(1, chosen.clamp(min=0).unsqueeze(1)).squeeze(1)
        return tokens.where(chosen >= 0, NO_TOKEN)
