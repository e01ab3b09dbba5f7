"""Choosing one token a row: the likeliest, or one drawn from what temperature and filters leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tandem_engine.sampling.chance import uniform
from tandem_engine.sampling.row import Row

_FEW: Final = 256
"""Tokens that are looked at first where top_p alone decides how many there are to draw from."""
_WIDEN: Final = 8


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of the rows that are drawn, as columns; built once while the rows stay."""

    temperature: Tensor
    min_p: Tensor | None
    """None: no row has one."""
    top_k: Tensor
    top_p: Tensor
    """2, which no sum reaches, where a row has none."""
    largest_k: int
    """Of the rows that have a top_k."""
    by_mass: Tensor | None
    """[rows, 1] bool: only top_p says how many tokens are left; None: of no row."""
    seeds: np.ndarray[tuple[int], np.dtype[np.uint64]]

    @classmethod
    def of(cls, rows: Sequence[Row], *, vocab_size: int, device: torch.device) -> "Filters":
        """Gather the parameters of `rows`."""
        params = [row.sampling for row in rows]

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)

        top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
        by_mass = [k == vocab_size and p.top_p < 1.0 for k, p in zip(top_k, params, strict=True)]
        return cls(
            temperature=column([p.temperature for p in params]),
            min_p=column([p.min_p for p in params]) if any(p.min_p for p in params) else None,
            top_k=torch.tensor(top_k, device=device).unsqueeze(1),
            top_p=column([p.top_p if p.top_p < 1.0 else 2.0 for p in params]),
            largest_k=max((k for k in top_k if k < vocab_size), default=0),
            by_mass=torch.tensor(by_mass, device=device).unsqueeze(1) if any(by_mass) else None,
            seeds=np.array([row.seed for row in rows], dtype=np.uint64),
        )


def is_cut(row: Row, vocab_size: int) -> bool:
    """Whether top_k or top_p leaves a row only its likeliest tokens."""
    return 0 < row.sampling.top_k < vocab_size or row.sampling.top_p < 1.0


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor | None]:
    """The first of each row's largest logits; NaN counts as the largest.

    Returns:
        int64 [rows], and bool [rows], whether its logit is no finite number; None: all are.
    """
    if logits.device.type != "cpu":
        best, chosen = logits.max(dim=-1)
        return chosen, ~torch.isfinite(best)
    # torch looks at one number at a time here. And after a forward pass, which has read all of the
    # weights, every function that was not called for a while costs 50 µs: so few of them.
    array = logits.numpy()
    chosen = torch.from_numpy(array.argmax(axis=-1))
    are_finite = np.isfinite(array.max(axis=-1))
    return chosen, None if are_finite.all() else torch.from_numpy(~are_finite)


def draw(logits: Tensor, rows: Sequence[Row], filters: Filters) -> Tensor:
    """Draw one token a row.

    The number that decides comes from (seed, position) alone and is looked up in the cumulated
    probabilities in the order of the vocabulary, not of probability: a rounding difference
    between two batches then moves a boundary by that difference, and never reorders tokens.

    Args:
        logits: float32 [rows, vocabulary].
        rows: One a row of logits, all with a temperature above 0, and of all of them or of none
            `is_cut` holds.
        filters: Their filters.

    Returns:
        int64 [rows]; the probabilities of a row with NaN yield an index out of the vocabulary.
    """
    weights = _weights(logits, filters)
    numbers = torch.from_numpy(_numbers(rows, filters)).to(logits.device).unsqueeze(1)
    if not filters.largest_k and filters.by_mass is None:
        return _look_up(weights, numbers).squeeze(1)
    kept, ids = _keep_likely(weights, filters)
    at = _look_up(kept, numbers)
    chosen = ids.gather(1, at.clamp(max=ids.shape[1] - 1))
    return torch.where(at < ids.shape[1], chosen, logits.shape[1]).squeeze(1)


def _weights(logits: Tensor, filters: Filters) -> Tensor:
    """Probabilities but for one factor a row: the likeliest token has 1. Less than min_p is 0."""
    best = logits.amax(dim=-1, keepdim=True)
    weights = logits.sub(best).div_(filters.temperature).exp_()
    if filters.min_p is not None:
        weights *= weights >= filters.min_p
    return weights


def _keep_likely(weights: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """What top_k and top_p leave, in the order of the vocabulary; the likeliest token always stays.

    Of tokens that are equally likely the first ones of the vocabulary stay, so it does not depend
    on how many tokens are looked at for the sake of other rows.

    Returns:
        Weights, 0 for what they leave out, and the ids of their tokens; both [rows, some].
    """
    vocab_size = weights.shape[1]
    total = weights.sum(dim=-1, keepdim=True) if filters.by_mass is not None else None
    few = _FEW if filters.by_mass is not None else 0
    # One more than stay: whether the last one that does is as likely as the next.
    count = min(vocab_size, max(filters.largest_k + 1, few))
    while True:
        values, ids = weights.topk(count, dim=-1)
        rank = torch.arange(count, device=weights.device)
        is_kept = rank < filters.top_k
        kept = values * is_kept
        before = kept.cumsum(dim=-1)
        of_kept = before[:, -1:]
        mass = of_kept if total is None else torch.where(_column(filters.by_mass), total, of_kept)
        enough = filters.top_p * mass
        # A row that is cut by nothing but top_p may need more tokens than were looked at.
        if total is None or count == vocab_size or _is_reached(of_kept, enough, filters):
            break
        count = min(vocab_size, count * _WIDEN)
    is_kept &= ((before - kept) < enough) | (rank == 0)
    _settle_ties(weights, values, ids, is_kept.sum(dim=-1, keepdim=True))
    ids, order = ids.sort(dim=-1)
    return (kept * is_kept).gather(1, order), ids


def _settle_ties(weights: Tensor, values: Tensor, ids: Tensor, num_kept: Tensor) -> None:
    """Put the first ones of the vocabulary where the last ones that stay are equal to others.

    Args:
        weights: [rows, vocabulary].
        values: [rows, some], the largest of them, from the largest on.
        ids: Their tokens; those of equals are changed.
        num_kept: [rows, 1], how many of them stay.
    """
    last = values.gather(1, num_kept - 1)
    # Where all that were looked at stay, nobody knows the next one: taken for equal.
    following = values.gather(1, num_kept.clamp(max=values.shape[1] - 1))
    for row in ((following == last) & (last > 0)).squeeze(1).nonzero().flatten().tolist():
        end = int(num_kept[row])
        begin = int((values[row] > last[row]).sum())
        equals = (weights[row] == last[row]).nonzero().flatten()
        ids[row, begin:end] = equals[: end - begin]


def _is_reached(of_kept: Tensor, enough: Tensor, filters: Filters) -> bool:
    return bool(((of_kept >= enough) | ~_column(filters.by_mass) | of_kept.isnan()).all())


def _column(values: Tensor | None) -> Tensor:
    if values is None:
        raise ValueError("no row is cut by top_p alone; this is a bug")
    return values


def _look_up(weights: Tensor, numbers: Tensor) -> Tensor:
    """[rows, 1]: where each number falls among a row's cumulated weights."""
    cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulated, torch.minimum(numbers * total, below_total), right=True)


def _numbers(rows: Sequence[Row], filters: Filters) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    positions = np.array([row.num_output for row in rows], dtype=np.uint64)
    return uniform(filters.seeds, positions)
