"""A runner without a model that computes a step in two halves, one behind the other.

Of one layer all of the first half is written before the second half reads, and nothing of the
second half is there when the first one reads: what the runner's ledger finds wrong in this order
would be wrong on ranks.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tandem_engine.api.step import Step, StepResult
from tandem_engine.microbatch.cut import Cut, Half, cut
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows, parted_rows
from tests.unit.engine.moody_runner import MoodyRunner


class CuttingRunner(MoodyRunner):
    """Cuts each step that can be cut by `prices`; None: no step is."""

    def __init__(self, *, block_size: int, **given: Any) -> None:
        super().__init__(block_size=block_size, **given)
        self.prices: CutPrices | None = None
        self.num_cuts = 0
        self._block_size = block_size

    def count(self, step: Step) -> StepResult:
        """Compute the rows of a step, in halves where it can be."""
        if not step.sequence_ids:
            return super().count(step)
        step = _short_rows_first(step)
        rows = self._rows_of(step)
        here, there = cut(rows, self.prices), cut(rows, _sent(self.prices))
        assert _tokens(here) == _tokens(there), "two ranks cut differently"
        if not isinstance(here, Cut):
            return super().count(step)
        self.num_cuts += 1
        check_no_sequence_is_at_once_in_two_steps(rows, here)
        first = super().count(_half_of(step, here.first))
        second = super().count(_half_of(step, here.second))
        return _merged(first, second)

    def _rows_of(self, step: Step) -> StepRows:
        lengths = np.array(step.num_tokens, dtype=np.int64)
        contexts = lengths + np.array(step.starts, dtype=np.int64)
        sizes = -(-contexts // self._block_size)
        tables = [table[:size] for table, size in zip(step.block_tables, sizes, strict=True)]
        return StepRows(
            query_lens=lengths,
            context_lens=contexts,
            first_block=np.concatenate(([0], np.cumsum(sizes))),
            blocks=np.concatenate([np.array(one, dtype=np.int32) for one in tables]),
            block_size=self._block_size,
            num_decode_rows=int((lengths == 1).sum()),
            can_be_parted=parted_rows(lengths, self._yields(step)),
        )

    def _yields(self, step: Step) -> Any:
        """Return the tokens of the step that yield, counted over all rows."""
        found: list[int] = []
        end = 0
        for at, sequence_id in enumerate(step.sequence_ids):
            end += step.num_tokens[at]
            drafts = len(step.drafts.get(sequence_id, ()))
            known = step.starts[at] + step.num_tokens[at] - drafts
            if known == self._sequences[sequence_id].num_known:
                found += range(end - 1 - drafts, end)
        return np.array(found, dtype=np.int64)


def check_no_sequence_is_at_once_in_two_steps(rows: StepRows, found: Cut) -> None:
    """A sequence that decodes is in one half; a chunk may be in both, its beginning in the first.

    The rule of the seed: two steps of one sequence are never computed at once.
    """
    both = set(found.first.rows.tolist()) & set(found.second.rows.tolist())
    assert len(both) <= 1, "two rows are in both halves"
    assert all(rows.can_be_parted[row] for row in both), "a row that decodes is in both halves"


def _short_rows_first(step: Step) -> Step:
    """Order the rows as a flat batch does: those of one token before all others."""
    order = sorted(range(len(step.num_tokens)), key=lambda row: step.num_tokens[row] != 1)
    decodes = [row for row in order if row < step.num_decodes]
    prompts = [row for row in order if row >= step.num_decodes]
    if order != decodes + prompts:
        # What decodes with drafts stands between prompts of one token and longer ones there.
        return _picked(step, order, num_decodes=0)
    return _picked(step, order, num_decodes=len(decodes))


def _picked(step: Step, order: list[int], *, num_decodes: int) -> Step:
    return replace(
        step,
        sequence_ids=[step.sequence_ids[row] for row in order],
        num_tokens=[step.num_tokens[row] for row in order],
        starts=[step.starts[row] for row in order],
        block_tables=[step.block_tables[row] for row in order],
        num_decodes=num_decodes,
    )


def _half_of(step: Step, half: Half) -> Step:
    """Return the step of the tokens of one half."""
    order = half.rows.tolist()
    found = _picked(step, order, num_decodes=sum(row < step.num_decodes for row in order))
    return replace(
        found,
        num_tokens=half.counts.tolist(),
        starts=[start + first for start, first in zip(found.starts, half.firsts, strict=True)],
        drafts={each: one for each, one in step.drafts.items() if each in found.sequence_ids},
    )


def _sent(prices: CutPrices | None) -> CutPrices | None:
    return None if prices is None else CutPrices.decode(prices.encode())


def _tokens(found: object) -> object:
    """Return the tokens of both halves, or the reason for which a step is whole."""
    if not isinstance(found, Cut):
        return found
    return [
        (half.rows.tolist(), half.firsts.tolist(), half.counts.tolist())
        for half in (found.first, found.second)
    ]


def _merged(first: StepResult, second: StepResult) -> StepResult:
    assert not first.tokens.keys() & second.tokens.keys(), "a sequence yields in both halves"
    return StepResult(
        tokens={**first.tokens, **second.tokens},
        candidates={**first.candidates, **second.candidates},
    )
