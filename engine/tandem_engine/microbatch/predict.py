"""The time of a step, whole and in two halves, from prices; pure.

A step is a row of stages with a collective behind each. Of two halves A and B one computes while
the other communicates, in the order A, B, A, B, …:

    compute  A1 B1 A2 B2 A3 B3
    link        A1 B1 A2 B2 A3 B3

So a stage of A begins when B's last one has computed and A's last collective is over.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import Ints, StepRows

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed and communicated of a step, or of one of its halves."""

    num_tokens: int
    compute_s: float
    """Of all stages together."""


def row_seconds(rows: StepRows, prices: CutPrices) -> Seconds:
    """Return [rows]: what each row adds to the computation of a step."""
    return part_seconds(rows, prices, np.zeros_like(rows.query_lens), rows.query_lens)


def part_seconds(rows: StepRows, prices: CutPrices, firsts: Ints, counts: Ints) -> Seconds:
    """Return [rows]: what `counts` tokens of each row, from `firsts` on, add to a step."""
    begins = rows.begins + firsts
    pairs = counts * (begins + counts / 2.0)
    is_decode = np.arange(rows.num_rows) < rows.num_decode_rows
    attention = np.where(is_decode, prices.context_s * rows.context_lens, prices.pair_s * pairs)
    seconds: Seconds = np.where(counts > 0, prices.token_s * counts + attention, 0.0)
    return seconds


def whole_seconds(work: Work, prices: CutPrices) -> float:
    """Return the time of a step that is not cut."""
    return work.compute_s + prices.num_collectives * prices.collective_s(work.num_tokens)


def halves_seconds(first: Work, second: Work, prices: CutPrices) -> float:
    """Return the time of a step in two halves.

    Args:
        first: The half that begins; with its own base, as each half reads all weights.
        second: The other one.
        prices: Those of the step.
    """
    stages = max(1, prices.num_collectives)
    a_compute, b_compute = first.compute_s / stages, second.compute_s / stages
    a_link = prices.collective_s(first.num_tokens)
    b_link = prices.collective_s(second.num_tokens)
    computed = linked = a_done = b_done = 0.0
    for _ in range(stages):
        computed = max(computed, a_done) + a_compute
        linked = a_done = max(linked, computed) + a_link
        computed = max(computed, b_done) + b_compute
        linked = b_done = max(linked, computed) + b_link
    return linked
