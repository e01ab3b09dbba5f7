"""The sampler: logits of a step → one token a row, greedy and drawn rows side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from tandem_engine.api.step import SampledToken
from tandem_engine.device.host_memory import ints_to_device
from tandem_engine.device.sampling import RowSampler
from tandem_engine.sampling.adjust import Adjustments
from tandem_engine.sampling.device_plan import DevicePlan
from tandem_engine.sampling.draw import Filters, draw, is_cut
from tandem_engine.sampling.logprobs import logprobs_of
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.step_tokens import NO_LOGPROBS, NO_TOKEN, Logprobs, StepTokens
from tandem_engine.sampling.top_logits import ALL_LOGITS, SharedTop
from tandem_engine.sampling.top_tokens import argmax

# What a NamedTuple calls, past a function of its own that takes as long again.
_NEW: Final = tuple.__new__


class _Plan(Protocol):
    """Sampling of some rows, prepared once while they stay the same."""

    def sample_step(self, logits: Tensor) -> StepTokens:
        """One token a row; the logits are float32 [rows, vocabulary], as the model gave them."""


class Sampler:
    """Samples all rows at once; keeps what it knows of the rows while they stay the same.

    Args:
        on_device: The device's own sampling; None: torch samples, which is the reference.
    """

    def __init__(self, on_device: RowSampler | None = None) -> None:
        self._on_device = on_device
        self._rows: tuple[Row, ...] = ()
        self._vocab_size = 0
        self._plan: _Plan | None = None

    def sample(
        self, logits: Tensor, rows: Sequence[Row], *, num_top: int = ALL_LOGITS
    ) -> list[SampledToken | None]:
        """One token a row.

        Args:
            logits: float32 [rows, vocabulary], as the model gave them; not changed.
            rows: The sequences, in the same order.
            num_top: The logits are the so many largest of each share of the vocabulary, as
                `TopLogits` gives them; ALL_LOGITS: all of the vocabulary.

        Returns:
            A token a row; None where the logits are not finite, so that this row alone fails.
        """
        chosen = self.sample_step(logits, rows, num_top=num_top)
        token_ids: list[int] = chosen.token_ids.tolist()
        return to_sampled_tokens(token_ids, chosen.logprobs.read(token_ids))

    def sample_step(
        self, logits: Tensor, rows: Sequence[Row], *, num_top: int = ALL_LOGITS
    ) -> StepTokens:
        """The same as tensors, which the next step can be fed with."""
        if num_top == ALL_LOGITS:
            return self._plan_for(tuple(rows), logits).sample_step(logits)
        top = SharedTop.of(logits, num_top)
        chosen = self._plan_for(tuple(rows), top.logits).sample_step(top.logits)
        return chosen._replace(token_ids=top.tokens_at(chosen.token_ids))

    def _plan_for(self, rows: tuple[Row, ...], logits: Tensor) -> _Plan:
        vocab_size = logits.shape[1]
        if self._plan is None or rows != self._rows or vocab_size != self._vocab_size:
            # The plan first: had the rows another one's plan when this fails, the next step of the
            # same rows, already on its way, would be sampled by it.
            self._plan = self._new_plan(rows, logits)
            self._rows, self._vocab_size = rows, vocab_size
        return self._plan

    def _new_plan(self, rows: tuple[Row, ...], logits: Tensor) -> _Plan:
        if self._on_device is not None:
            return DevicePlan.of(rows, self._on_device)
        return _ReferencePlan.of(rows, vocab_size=logits.shape[1], device=logits.device)


def to_sampled_tokens(token_ids: list[int], logprobs: Logprobs) -> list[SampledToken | None]:
    """Tokens with their log-probabilities, for rows that ask; None: the row has no token."""
    if not logprobs:
        return [
            _NEW(SampledToken, (token_id, None)) if token_id >= 0 else None
            for token_id in token_ids
        ]
    return [
        SampledToken(token_id, logprobs.get(at)) if token_id >= 0 else None
        for at, token_id in enumerate(token_ids)
    ]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Rows that are drawn in the same way."""

    at: Tensor
    """int64: their indices among all rows."""
    rows: tuple[Row, ...]
    filters: Filters


@dataclass(frozen=True, slots=True)
class _ReferencePlan:
    """Sampling in torch."""

    rows: tuple[Row, ...]
    adjustments: Adjustments | None
    shows_logprobs: bool
    drawn: tuple[_Drawn, ...]
    """Those with top_k or top_p, and those without; empty: all are greedy."""

    @classmethod
    def of(
        cls, rows: tuple[Row, ...], *, vocab_size: int, device: torch.device
    ) -> "_ReferencePlan":
        groups: dict[bool, list[int]] = {}
        for at, row in enumerate(rows):
            if not row.sampling.is_greedy:
                groups.setdefault(is_cut(row, vocab_size), []).append(at)
        drawn = []
        for at_rows in groups.values():
            own = tuple(rows[at] for at in at_rows)
            drawn.append(
                _Drawn(
                    ints_to_device(at_rows, device),
                    own,
                    Filters.of(own, vocab_size=vocab_size, device=device),
                )
            )
        return cls(
            rows=rows,
            adjustments=Adjustments.of(rows, vocab_size=vocab_size, device=device),
            shows_logprobs=any(row.sampling.logprobs is not None for row in rows),
            drawn=tuple(drawn),
        )

    def sample_step(self, logits: Tensor) -> StepTokens:
        """Adjust the logits, take the argmax, then draw."""
        raw = logits
        if self.adjustments is not None:
            logits = self.adjustments.apply(logits)
        # NaN counts as the largest, so a row that holds one shows it here.
        chosen, is_wrong = argmax(logits)
        for group in self.drawn:
            is_all = len(group.at) == len(self.rows)
            drawn = draw(logits if is_all else logits[group.at], group.rows, group.filters)
            # A draw from no probabilities ends behind the vocabulary.
            drawn.masked_fill_(drawn >= logits.shape[1], NO_TOKEN)
            if is_all:
                chosen = drawn
            else:
                chosen[group.at] = drawn
        if is_wrong is not None:
            chosen.masked_fill_(is_wrong, NO_TOKEN)
        return StepTokens(
            chosen, logprobs_of(raw, chosen, self.rows) if self.shows_logprobs else NO_LOGPROBS
        )
