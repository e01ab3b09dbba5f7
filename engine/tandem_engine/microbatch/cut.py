"""The cut: which rows and tokens of a step go to which half, the same on every rank; pure."""

from dataclasses import dataclass
from enum import StrEnum
from math import fsum, sqrt
from typing import Final

import numpy as np

from tandem_engine.microbatch.predict import (
    Seconds,
    Work,
    halves_seconds,
    part_seconds,
    row_seconds,
    whole_seconds,
)
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import Ints, StepRows

_LEAST_TOKENS: Final = 2
"""Of a step that is cut, and of a part of a chunk: one token would be taken for a decode row."""


class RefusalReason(StrEnum):
    """Reason for which a step stays whole; a label of the metric."""

    OFF = "off"
    """The gate is shut."""
    TOO_SMALL = "too_small"
    """One half would be empty."""
    DECODE_ONLY = "decode_only"
    """It has no prefill, and such steps are not cut."""
    PREFIX_PARTED = "prefix_parted"
    """A row of the first half would read blocks that the second one writes."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """It scores tokens of prompts: its head takes longer than cuts are predicted for."""
    NO_GAIN = "no_gain"
    """It would be faster by less than the margin."""


@dataclass(frozen=True, kw_only=True)
class Half:
    """Rows of one half, in the order of the flat batch; only a chunk may be in both."""

    rows: Ints
    """Their numbers in the step."""
    firsts: Ints
    """The first token of each that is in this half, counted from the row's first new one."""
    counts: Ints
    """Tokens of each in this half, at least 1."""

    @property
    def num_tokens(self) -> int:
        """New tokens of the half."""
        return int(self.counts.sum())


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Two halves that have all tokens of a step, the second one's computed behind the first's."""

    first: Half
    second: Half
    whole_s: float
    """Predicted time of the whole step."""
    halves_s: float
    """Predicted time of the two halves."""


def cut(rows: StepRows, prices: CutPrices | None) -> Cut | RefusalReason:
    """Cut a step in two, or say why it stays whole.

    It depends on its arguments alone, so that ranks with the same step and the same prices never
    disagree: sums are exact, whatever a processor adds up at once. Decode rows are shared out by
    their contexts; then prompt chunks in order, up to the token at which the halves are about equal
    in predicted time.

    Args:
        rows: The step.
        prices: Its costs; None: they are not known yet, or no step is cut.
    """
    if prices is None or (rows.has_prefill and not prices.prefills):
        return RefusalReason.OFF
    if rows.num_tokens < _LEAST_TOKENS:
        return RefusalReason.TOO_SMALL
    if not rows.has_prefill and not prices.decodes:
        return RefusalReason.DECODE_ONLY
    counts = _first_counts(rows, prices)
    if not 0 < counts.sum() < rows.num_tokens:
        return RefusalReason.TOO_SMALL
    if _parts_a_prefix(rows, counts):
        return RefusalReason.PREFIX_PARTED
    return _worth_it(rows, prices, counts)


def _first_counts(rows: StepRows, prices: CutPrices) -> Ints:
    """Return [rows]: tokens of each row in the first half; the rest is in the second."""
    seconds = row_seconds(rows, prices)
    counts = np.zeros(rows.num_rows, dtype=np.int64)
    decodes = rows.num_decode_rows
    in_first = _lighter_half(seconds[:decodes])
    counts[:decodes] = in_first
    taken = seconds[:decodes][in_first > 0]
    goal = fsum(seconds.tolist()) / 2.0 - fsum(taken.tolist())
    _fill(rows, prices, seconds, counts, goal)
    return counts


def _lighter_half(
    seconds: Seconds,
) -> Ints:
    """Return [decode rows]: 1 for the leading rows that have about half of the time."""
    if not len(seconds):
        return np.zeros(0, dtype=np.int64)
    behind = np.cumsum(seconds)
    # A row in the middle goes to the side that it makes less unequal.
    count = int(np.searchsorted(behind - seconds / 2.0, behind[-1] / 2.0))
    return (np.arange(len(seconds)) < count).astype(np.int64)


def _fill(
    rows: StepRows,
    prices: CutPrices,
    seconds: Seconds,
    counts: Ints,
    goal: float,
) -> None:
    """Take chunks into the first half, in order, until they have `goal` seconds."""
    for row in range(rows.num_decode_rows, rows.num_rows):
        length, cost = int(rows.query_lens[row]), float(seconds[row])
        if cost <= goal:
            counts[row] = length
            goal -= cost
            continue
        if rows.can_be_parted[row]:
            counts[row] = _parted_at(rows, prices, row, goal)
        elif goal > cost / 2.0:
            counts[row] = length
        return


def _parted_at(rows: StepRows, prices: CutPrices, row: int, goal: float) -> int:
    """Return the tokens of a chunk that have about `goal` seconds, in whole tiles."""
    length, begin = int(rows.query_lens[row]), int(rows.begins[row])
    # token · t + pair · (begin · t + t² / 2) = goal
    goal, slope = max(goal, 0.0), prices.token_s + prices.pair_s * begin
    steepness = slope + sqrt(slope * slope + 2.0 * prices.pair_s * goal)
    tokens = 2.0 * goal / steepness if steepness > 0.0 else 0.0
    tile = max(prices.tile, _LEAST_TOKENS)
    count = min(tile * round(tokens / tile), length)
    return count - tile if 0 < length - count < _LEAST_TOKENS else count


def _parts_a_prefix(rows: StepRows, counts: Ints) -> bool:
    """Return True where a row of the first half reads a block that the second half writes.

    The other way round is right: in each layer the first half writes before the second one reads.
    A row that is in both reads its own tokens in that order, too.
    """
    late = rows.query_lens - counts
    row_of_block = np.repeat(np.arange(rows.num_rows), np.diff(rows.first_block))
    number = np.arange(len(rows.blocks)) - rows.first_block[row_of_block]
    writes_from = (rows.context_lens - late) // rows.block_size
    is_written = (late > 0)[row_of_block] & (number >= writes_from[row_of_block])
    is_read = (counts > 0)[row_of_block]
    is_of_both = ((counts > 0) & (late > 0))[row_of_block]
    read, written = rows.blocks[is_read & ~is_of_both], rows.blocks[is_written]
    read_by_both, written_by_others = rows.blocks[is_of_both], rows.blocks[is_written & ~is_of_both]
    return bool(np.isin(read, written).any() or np.isin(read_by_both, written_by_others).any())


def _worth_it(rows: StepRows, prices: CutPrices, counts: Ints) -> Cut | RefusalReason:
    """Return the cut with its prediction, if it saves enough."""
    zeros = np.zeros_like(counts)
    late = rows.query_lens - counts
    first = _work(rows, prices, zeros, counts)
    second = _work(rows, prices, counts, late)
    whole = Work(rows.num_tokens, prices.base_s + fsum(row_seconds(rows, prices).tolist()))
    whole_s, halves_s = whole_seconds(whole, prices), halves_seconds(first, second, prices)
    if halves_s > (1.0 - prices.margin) * whole_s:
        return RefusalReason.NO_GAIN
    return Cut(
        first=_half(zeros, counts), second=_half(counts, late), whole_s=whole_s, halves_s=halves_s
    )


def _work(rows: StepRows, prices: CutPrices, firsts: Ints, counts: Ints) -> Work:
    seconds = part_seconds(rows, prices, firsts, counts)
    return Work(int(counts.sum()), prices.base_s + fsum(seconds.tolist()))


def _half(firsts: Ints, counts: Ints) -> Half:
    there = np.flatnonzero(counts)
    return Half(rows=there, firsts=firsts[there], counts=counts[there])
