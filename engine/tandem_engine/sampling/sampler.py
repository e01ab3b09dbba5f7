"""The sampler: logits of a step → one token a row, greedy and drawn rows side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.step import SampledToken
from tandem_engine.sampling.adjust import adjust
from tandem_engine.sampling.draw import Filters, draw, is_cut, likeliest
from tandem_engine.sampling.logprobs import logprobs_of
from tandem_engine.sampling.row import Row

NO_TOKEN: Final = -1
"""Stands for a row whose logits are no numbers."""

# What a NamedTuple calls, past a function of its own that takes as long again.
_NEW: Final = tuple.__new__


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Rows that are drawn in the same way."""

    at: list[int]
    """Their places among all rows."""
    rows: tuple[Row, ...]
    filters: Filters


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done for rows, found out once while they stay the same."""

    rows: tuple[Row, ...]
    is_plain: bool
    """Whether all logits are taken as they are."""
    shows_logprobs: bool
    drawn: tuple[_Drawn, ...]
    """Those with top_k or top_p, and those without; empty: all are greedy."""


class Sampler:
    """Samples all rows at once; keeps what it knows of the rows while they stay the same."""

    def __init__(self) -> None:
        self._plan: _Plan | None = None

    def sample(self, logits: Tensor, rows: Sequence[Row]) -> list[SampledToken | None]:
        """One token a row.

        Args:
            logits: float32 [rows, vocabulary], as the model gave them; not changed.
            rows: The sequences, in the same order.

        Returns:
            A token a row; None where the logits are no numbers, so that this row alone fails.
        """
        return name_tokens(self.choose(logits, rows), logits, rows)

    @property
    def shows_logprobs(self) -> bool:
        """Whether any of the rows that were sampled last asks for log-probabilities."""
        return self._plan is not None and self._plan.shows_logprobs

    def choose(self, logits: Tensor, rows: Sequence[Row]) -> Tensor:
        """int64 [rows]: one token a row, NO_TOKEN where the logits are no numbers."""
        plan = self._plan_for(rows, logits)
        if not plan.is_plain:
            logits = adjust(logits, rows)
        # NaN counts as the largest, so a row that holds one shows it here.
        chosen, is_wrong = likeliest(logits)
        for group in plan.drawn:
            is_all = len(group.at) == len(rows)
            drawn = draw(logits if is_all else logits[group.at], group.rows, group.filters)
            # A draw from no probabilities ends behind the vocabulary.
            drawn[drawn >= logits.shape[1]] = NO_TOKEN
            if is_all:
                chosen = drawn
            else:
                chosen[group.at] = drawn
        if is_wrong is not None:
            chosen[is_wrong] = NO_TOKEN
        return chosen

    def _plan_for(self, rows: Sequence[Row], logits: Tensor) -> _Plan:
        rows = tuple(rows)
        if self._plan is None or rows != self._plan.rows:
            self._plan = _plan(rows, vocab_size=logits.shape[1], device=logits.device)
        return self._plan


def name_tokens(
    chosen: Tensor, logits: Tensor | None, rows: Sequence[Row]
) -> list[SampledToken | None]:
    """The tokens of `Sampler.choose` with their log-probabilities, for rows that ask.

    Args:
        chosen: int64 [rows].
        logits: As the model gave them; None: no row asks.
        rows: The sequences.
    """
    token_ids: list[int] = chosen.tolist()
    if logits is None or not any(row.sampling.logprobs is not None for row in rows):
        return [
            _NEW(SampledToken, (token_id, None)) if token_id >= 0 else None
            for token_id in token_ids
        ]
    logprobs = logprobs_of(logits, [max(0, token_id) for token_id in token_ids], rows)
    return [
        SampledToken(token_id, logprobs.get(at)) if token_id >= 0 else None
        for at, token_id in enumerate(token_ids)
    ]


def _plan(rows: tuple[Row, ...], *, vocab_size: int, device: torch.device) -> _Plan:
    groups: dict[bool, list[int]] = {}
    for at, row in enumerate(rows):
        if not row.sampling.is_greedy:
            groups.setdefault(is_cut(row, vocab_size), []).append(at)
    drawn = []
    for places in groups.values():
        own = tuple(rows[at] for at in places)
        drawn.append(_Drawn(places, own, Filters.of(own, vocab_size=vocab_size, device=device)))
    return _Plan(
        rows=rows,
        is_plain=all(row.is_plain for row in rows),
        shows_logprobs=any(row.sampling.logprobs is not None for row in rows),
        drawn=tuple(drawn),
    )
