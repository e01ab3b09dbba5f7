"""Sampling by the device's own kernel, where it has one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tandem_engine.api.output import TokenLogprob
from tandem_engine.device.sampling import RowSampler, RowState, Sampled, StepSampling, TokenIds
from tandem_engine.sampling.row import Row, has_penalty
from tandem_engine.sampling.step_tokens import (
    NO_LOGPROBS,
    KnownLogprobs,
    PendingLogprobs,
    StepTokens,
)


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Some rows, ready to be sampled in one call a step."""

    step: StepSampling
    rows: Sequence[Row]
    counted: Sequence[int]
    """Indices of the rows with penalties."""
    shown: Sequence[int]
    """Indices of the rows that ask for log-probabilities."""
    ends: dict[int, TokenIds]
    """Index of a row with `min_tokens` → the tokens that may not come before."""

    @classmethod
    def of(cls, rows: Sequence[Row], sampler: RowSampler) -> "DevicePlan":
        """Prepare some rows for sampling."""
        return cls(
            step=sampler.prepare([row.device_params for row in rows]),
            rows=rows,
            counted=[at for at, row in enumerate(rows) if has_penalty(row.sampling)],
            shown=[at for at, row in enumerate(rows) if row.sampling.logprobs is not None],
            ends={
                at: np.array(sorted(row.request.stop_token_ids), dtype=np.int64)
                for at, row in enumerate(rows)
                if row.sampling.min_tokens
            },
        )

    def sample_step(self, logits: Tensor) -> StepTokens:
        """One token a row."""
        now = [RowState(len(row.output)) for row in self.rows]
        for at in self.counted:
            counted = self.rows[at].token_counts
            now[at] = RowState(now[at].position, counted.ids, counted.counts)
        for at, ends in self.ends.items():
            if now[at].position < self.rows[at].sampling.min_tokens:
                now[at] = now[at]._replace(banned=ends)
        sampled = self.step(logits, now)
        return StepTokens(sampled.token_ids, _logprobs(sampled, self.shown))


def _logprobs(sampled: Sampled, shown: Sequence[int]) -> PendingLogprobs:
    if not shown:
        return NO_LOGPROBS
    token_ids: list[int] = sampled.token_ids.tolist()
    own: list[float] = sampled.logprobs.tolist()
    top_ids: list[list[int]] = sampled.top_ids.tolist()
    top: list[list[float]] = sampled.top_logprobs.tolist()
    return KnownLogprobs(
        {
            at: TokenLogprob(
                token_id=token_ids[at],
                logprob=own[at],
                top=_pairs(top_ids[at], top[at]),
            )
            for at in shown
            if token_ids[at] >= 0
        }
    )


def _pairs(token_ids: list[int], logprobs: list[float]) -> tuple[tuple[int, float], ...]:
    """Return the top tokens of a row; fewer than of other rows where the last ids are below 0."""
    pairs = zip(token_ids, logprobs, strict=True)
    if not token_ids or token_ids[-1] >= 0:
        return tuple(pairs)
    return tuple(pair for pair in pairs if pair[0] >= 0)
