"""Drawing one token a row from what temperature and filters leave, in torch for any device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tandem_engine.device.host_memory import ints_to_device, to_device
from tandem_engine.sampling.counter_rng import uniform
from tandem_engine.sampling.row import Row, min_p_margin
from tandem_engine.sampling.top_tokens import break_ties, largest

_NO_TOP_P: Final = 2.0
"""No sum of probabilities reaches it."""
_WIDTHS: Final = (256, 2048, 16384)
"""Numbers of tokens that are scanned for the top ones; after the last of them all are."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of the rows that are drawn, as columns; built once while the rows stay."""

    temperature: Tensor
    margin: Tensor | None
    """Lower bound by min_p relative to the largest logit, 0 or less; None: no row has a min_p."""
    top_k: Tensor
    top_p: Tensor
    """_NO_TOP_P where a row has none."""
    num_enough: tuple[int, ...]
    """Number of tokens that are enough to scan in each row, whatever their logits are."""
    first_widths: tuple[int, ...]
    """Number of tokens scanned first in each row; 0: nothing is cut off."""
    seeds: np.ndarray[tuple[int], np.dtype[np.uint64]]

    @classmethod
    def of(cls, rows: Sequence[Row], *, vocab_size: int, device: torch.device) -> "Filters":
        """Gather the parameters of `rows`."""
        params = [row.sampling for row in rows]

        def column(values: list[float], dtype: type[np.generic] = np.float64) -> Tensor:
            return to_device(np.array(values, dtype=dtype), device).unsqueeze(1)

        top_k = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
        margins = [min_p_margin(p) for p in params]
        return cls(
            temperature=column([p.temperature for p in params], np.float32),
            margin=column(margins) if any(p.min_p for p in params) else None,
            top_k=ints_to_device(top_k, device).unsqueeze(1),
            top_p=column([p.top_p if p.top_p < 1.0 else _NO_TOP_P for p in params]),
            num_enough=tuple(
                k if k < vocab_size or p.top_p < 1.0 else 0
                for k, p in zip(top_k, params, strict=True)
            ),
            first_widths=tuple(
                _width_for(k, vocab_size) if is_cut(row, vocab_size) else 0
                for row, k in zip(rows, top_k, strict=True)
            ),
            seeds=np.array([row.seed for row in rows], dtype=np.uint64),
        )

    def select(self, at: Tensor) -> "Filters":
        """Return the filters of some rows, as far as top tokens need them."""
        return Filters(
            temperature=self.temperature[at],
            margin=None,
            top_k=self.top_k[at],
            top_p=self.top_p[at],
            num_enough=(),
            first_widths=(),
            seeds=self.seeds[:0],
        )


def is_cut(row: Row, vocab_size: int) -> bool:
    """True if top_k or top_p leaves a row only its top tokens."""
    return 0 < row.sampling.top_k < vocab_size or row.sampling.top_p < 1.0


def _width_for(top_k: int, vocab_size: int) -> int:
    if top_k == vocab_size:
        return min(_WIDTHS[0], vocab_size)  # top_p alone cuts: the number that stays is unknown
    # One more than stay: whether the last one that does is as likely as the next.
    return next((width for width in _WIDTHS if top_k < width < vocab_size), vocab_size)


def draw(logits: Tensor, rows: Sequence[Row], filters: Filters) -> Tensor:
    """Draw one token a row.

    The number that decides comes from (seed, position) alone and is looked up in the cumulated
    probabilities in the order of the vocabulary, not of probability: a rounding difference
    between two batches then moves a boundary by that difference, and never reorders tokens.

    min_p leaves out tokens less likely than that share of the top token, then top_k keeps the top
    ones, then top_p of those the first that add up to their share. Of tokens with equal logits the
    first ones of the vocabulary stay. The top token always does.

    Args:
        logits: float32 [rows, vocabulary].
        rows: One a row of logits, all with a temperature above 0, and of all of them or of none
            `is_cut` holds.
        filters: Their filters.

    Returns:
        int64 [rows]; the probabilities of a row with NaN yield an index out of the vocabulary.
    """
    best = logits.amax(dim=-1, keepdim=True)
    if filters.margin is not None:
        floor = (best.double() + filters.margin).float()
        logits = logits.where(logits >= floor, -torch.inf)
    numbers = to_device(_numbers(rows, filters), logits.device).unsqueeze(1)
    if not any(filters.first_widths):
        return _look_up(_weights(logits, best, filters), numbers).squeeze(1)
    return _Cut(logits, best, numbers, filters).draw()


def _weights(logits: Tensor, best: Tensor, filters: Filters) -> Tensor:
    """Probabilities but for one factor a row: the top token has 1."""
    return logits.sub(best).div_(filters.temperature).exp_()


@dataclass(frozen=True, slots=True)
class _Cut:
    """Rows of which top_k and top_p leave the top tokens.

    Each is scanned in as many tokens as it needs itself, and with those alone that need as many:
    a row whose tokens are all about as likely costs the others nothing.
    """

    logits: Tensor
    best: Tensor
    numbers: Tensor
    filters: Filters

    def draw(self) -> Tensor:
        """int64 [rows]."""
        vocab_size = self.logits.shape[1]
        chosen = torch.full((len(self.logits),), vocab_size, device=self.logits.device)
        waiting: list[int] = []
        for width in (*(width for width in _WIDTHS if width < vocab_size), vocab_size):
            waiting += [at for at, own in enumerate(self.filters.first_widths) if own == width]
            if waiting:
                waiting = self._draw_of(width, sorted(waiting), chosen)
        return chosen

    def _draw_of(self, width: int, which: list[int], chosen: Tensor) -> list[int]:
        """Draw some rows from their `width` top tokens; return those that need more."""
        is_all = len(which) == len(self.logits)
        at = ints_to_device(which, self.logits.device)
        logits = self.logits if is_all else self.logits[at]
        best, numbers = self.best[at], self.numbers[at]
        filters = self.filters.select(at)
        values, ids = largest(logits, width)
        weights = _weights(values, best, filters).double()
        is_kept = torch.arange(width, device=logits.device) < filters.top_k
        weights = weights * is_kept
        before = weights.cumsum(dim=-1)
        of_kept = before[:, -1:]
        # Known by the host, which would wait for a device that it asks.
        are_enough = all(self.filters.num_enough[row] <= width for row in which)
        is_whole = (filters.top_k <= width) | (filters.top_p > 1.0)
        mass = of_kept
        if not are_enough:
            total = _weights(logits, best, filters).sum(dim=-1, keepdim=True, dtype=torch.float64)
            mass = torch.where(is_whole, of_kept, total)
        enough = filters.top_p * mass
        is_kept &= (before - weights) < enough
        is_kept[:, 0] = True
        if width < logits.shape[1]:
            break_ties(logits, values, ids, is_kept.sum(dim=-1, keepdim=True))
        ids, order = ids.sort(dim=-1)
        places = _look_up((weights * is_kept).gather(1, order), numbers)
        tokens = ids.gather(1, places.clamp(max=width - 1))
        drawn = torch.where(places < width, tokens, logits.shape[1]).squeeze(1)
        # Rows that are not done are drawn once more, and from more tokens.
        chosen[at] = drawn
        if are_enough:
            return []
        is_done = (is_whole | (of_kept >= enough) | of_kept.isnan()).squeeze(1)
        return [row for row, done in zip(which, is_done.tolist(), strict=True) if not done]


def _look_up(weights: Tensor, numbers: Tensor) -> Tensor:
    """[rows, 1]: where each number falls among a row's cumulated weights."""
    cumulated = weights.cumsum(dim=-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    below_total = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulated, torch.minimum(numbers * total, below_total), right=True)


def _numbers(rows: Sequence[Row], filters: Filters) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    positions = np.array([row.num_output for row in rows], dtype=np.uint64)
    return uniform(filters.seeds, positions)
