"""Choosing one token a row: the likeliest, or one drawn from what temperature and filters leave."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tandem_engine.sampling.chance import uniform
from tandem_engine.sampling.row import Row


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of the rows that are drawn, as columns; built once while the rows stay."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    sorts: bool
    """Whether any row needs its tokens in order of probability."""

    @classmethod
    def of(cls, rows: Sequence[Row], *, vocab_size: int, device: torch.device) -> "Filters":
        """Gather the parameters of `rows`."""
        params = [row.sampling for row in rows]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)

        top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
        return cls(
            temperature=column([p.temperature for p in params]),
            top_k=torch.tensor(top_k, device=device).unsqueeze(1),
            top_p=column([p.top_p for p in params]),
            min_p=column([p.min_p for p in params]),
            sorts=any(k < vocab_size for k in top_k) or any(p.top_p < 1.0 for p in params),
        )


def draw(logits: Tensor, rows: Sequence[Row], filters: Filters) -> Tensor:
    """Draw one token a row.

    The number that decides comes from (seed, position) alone and is looked up in the cumulated
    probabilities in the order of the vocabulary, not of probability: a rounding difference
    between two batches then moves a boundary by that difference, and never reorders tokens.

    Args:
        logits: float32 [rows, vocabulary].
        rows: One a row of logits, all with a temperature above 0.
        filters: Their filters.

    Returns:
        int64 [rows]; the probabilities of a row with NaN yield an index out of the vocabulary.
    """
    kept = keep_likely(logits / filters.temperature, filters)
    cumulated = torch.softmax(kept, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    numbers = torch.from_numpy(_numbers(rows)).to(logits.device).unsqueeze(1) * total
    below_total = torch.nextafter(total, torch.zeros_like(total))
    chosen = torch.searchsorted(cumulated, torch.minimum(numbers, below_total), right=True)
    return chosen.squeeze(1)


def keep_likely(logits: Tensor, filters: Filters) -> Tensor:
    """Set to −inf what top_k, top_p and min_p leave out; the likeliest token always stays."""
    best = logits.max(dim=-1, keepdim=True).values
    logits = logits.masked_fill(logits < best + filters.min_p.log(), -torch.inf)
    if not filters.sorts:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    ordered = ordered.masked_fill(rank >= filters.top_k, -torch.inf)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    ordered = ordered.masked_fill((before >= filters.top_p) & (rank > 0), -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(1, order, ordered)


def _numbers(rows: Sequence[Row]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    seeds = np.array([row.seed for row in rows], dtype=np.uint64)
    positions = np.array([row.num_output for row in rows], dtype=np.uint64)
    return uniform(seeds, positions)
