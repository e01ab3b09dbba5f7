"""A machine whose steps take what its prices say, driven by the gate as rank 0 is."""

from dataclasses import dataclass, field

import numpy as np

from tandem_engine.api.micro_batch_stats import Phase
from tandem_engine.microbatch.counts import MicroBatchCounts
from tandem_engine.microbatch.cut import Cut, RefusalReason, cut
from tandem_engine.microbatch.gate import MicroBatchGate
from tandem_engine.microbatch.overlap import StepOverlap, StepShape
from tandem_engine.microbatch.predict import Work, halves_seconds, part_seconds, row_seconds
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows


@dataclass
class Machine:
    """Ranks that compute steps; `hides` is false where nothing overlaps after all."""

    truth: CutPrices
    hides: bool = True
    now: float = 0.0
    counts: MicroBatchCounts = field(default_factory=MicroBatchCounts)

    def __post_init__(self) -> None:
        self.gate = MicroBatchGate(
            num_collectives=self.truth.num_collectives, token_bytes=self.truth.token_bytes
        )

    def run(self, rows: StepRows) -> Cut | RefusalReason:
        """Compute one step, and let the gate learn of it."""
        outcome = cut(rows, self.gate.prices())
        is_cut = isinstance(outcome, Cut)
        measured = self._halves(rows, outcome) if isinstance(outcome, Cut) else self._whole(rows)
        self.now += measured.seconds
        shape = StepShape.of(
            rows,
            num_passes=1 + is_cut,
            num_collectives=self.truth.num_collectives,
            token_bytes=self.truth.token_bytes,
        )
        phase: Phase = "prefill" if rows.has_prefill else "decode"
        self.gate.observe(phase, shape, measured, is_cut=is_cut)
        if isinstance(outcome, Cut):
            self.counts.cut(measured, self.now)
        else:
            self.counts.whole(outcome, measured)
        return outcome

    def cuts(self, rows: StepRows, times: int) -> int:
        """Compute the same step again and again; return how often it was cut."""
        return sum(isinstance(self.run(rows), Cut) for _ in range(times))

    def _whole(self, rows: StepRows) -> StepOverlap:
        compute_s = self.truth.base_s + float(row_seconds(rows, self.truth).sum())
        link_s = self.truth.num_collectives * self.truth.collective_s(rows.num_tokens)
        return StepOverlap(compute_s=compute_s, communication_s=link_s, exposed_s=link_s)

    def _halves(self, rows: StepRows, outcome: Cut) -> StepOverlap:
        works, link_s = [], 0.0
        for half in (outcome.first, outcome.second):
            firsts, counts = np.zeros_like(rows.query_lens), np.zeros_like(rows.query_lens)
            firsts[half.rows], counts[half.rows] = half.firsts, half.counts
            seconds = float(part_seconds(rows, self.truth, firsts, counts).sum())
            works.append(Work(half.num_tokens, self.truth.base_s + seconds))
            link_s += self.truth.num_collectives * self.truth.collective_s(half.num_tokens)
        compute_s = works[0].compute_s + works[1].compute_s
        both_s = halves_seconds(works[0], works[1], self.truth)
        exposed_s = both_s - compute_s if self.hides else link_s
        return StepOverlap(compute_s=compute_s, communication_s=link_s, exposed_s=exposed_s)
