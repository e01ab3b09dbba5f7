"""Sampling by the device's own kernel, where it has one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from tandem_engine.api.output import TokenLogprob
from tandem_engine.device.sampling import RowNow, RowSampler, Sampled, StepSampling, TokenIds
from tandem_engine.sampling.chosen import Chosen, Logprobs
from tandem_engine.sampling.row import Row, has_penalty


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Some rows, ready to be sampled in one call a step."""

    step: StepSampling
    rows: Sequence[Row]
    plain: bool
    """Whether the logits are taken as they are in all rows."""
    shown: Sequence[int]
    """Places of the rows that ask for log-probabilities."""
    ends: dict[int, TokenIds]
    """Place of a row with `min_tokens` → the tokens that may not come before."""

    @classmethod
    def of(cls, rows: Sequence[Row], sampler: RowSampler) -> "DevicePlan":
        """Gather what stays."""
        return cls(
            step=sampler.prepare([row.asked for row in rows]),
            rows=rows,
            plain=all(row.is_plain for row in rows),
            shown=[at for at, row in enumerate(rows) if row.sampling.logprobs is not None],
            ends={
                at: np.array(sorted(row.request.stop_token_ids), dtype=np.int64)
                for at, row in enumerate(rows)
                if row.sampling.min_tokens
            },
        )

    def choose(self, logits: Tensor) -> Chosen:
        """One token a row."""
        if self.plain:
            now = [RowNow(len(row.output)) for row in self.rows]
        else:
            now = [self._now(at, row) for at, row in enumerate(self.rows)]
        sampled = self.step(logits, now)
        return Chosen(sampled.token_ids, _logprobs(sampled, self.shown))

    def _now(self, at: int, row: Row) -> RowNow:
        is_short = row.num_output < row.sampling.min_tokens
        barred = self.ends[at] if is_short else None
        if not has_penalty(row.sampling):
            return RowNow(row.num_output, barred=barred)
        tally = row.tally
        return RowNow(row.num_output, tally.ids, tally.counts, barred)


def _logprobs(sampled: Sampled, shown: Sequence[int]) -> Logprobs:
    if not shown:
        return {}
    token_ids: list[int] = sampled.token_ids.tolist()
    own: list[float] = sampled.logprobs.tolist()
    top_ids: list[list[int]] = sampled.top_ids.tolist()
    top: list[list[float]] = sampled.top_logprobs.tolist()
    return {
        at: TokenLogprob(
            token_id=token_ids[at],
            logprob=own[at],
            top=tuple(pair for pair in zip(top_ids[at], top[at], strict=True) if pair[0] >= 0),
        )
        for at in shown
        if token_ids[at] >= 0
    }
