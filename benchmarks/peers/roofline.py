"""The limit of each row, by arithmetic from what the machine can do at best. Pure.

A step cannot be faster than its bytes can be read, nor than its products can be computed
(S. Williams et al., Roofline, 2009); a row is its prompt and its steps one after the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.peers.shapes import BYTES, ModelShape
from benchmarks.serving.case import Case

_CHUNK: Final = 512
"""Rows of the products of a prompt; more do not make them faster."""
_PER_PAIR: Final = 4
"""Operations of a query value with one cached token: two products, a multiply and an add each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The machine's limits, as measured."""

    bandwidth: float
    """Bytes a second that are read from memory."""
    bf16: Mapping[int, float]
    """Operations a second of products in bfloat16, by the rows of their left matrix."""
    w8a8: Mapping[int, float]
    """The same of u8 with s8; empty where it is not known."""

    def rates(self, weights: str) -> Mapping[int, float]:
        """Operations a second of products with weights of a type."""
        return self.bf16 if weights == "bf16" else self.w8a8


def sizes_of(rows: tuple[Case, ...]) -> list[int]:
    """Rows of the left matrix at which products must be measured for the limits of `rows`.

    Below four rows a step is bound by memory, and a product's rate would only measure that again.
    """
    widths = {row.concurrency for row in rows if row.concurrency >= 4}  # noqa: PLR2004
    return sorted(widths | {_CHUNK})


def rate_at(rates: Mapping[int, float], rows: int) -> float:
    """The rate measured at the smallest size that is not below `rows`, or else at the largest."""
    above = [size for size in rates if size >= rows]
    return rates[min(above) if above else max(rates)]


def weight_bytes(shape: ModelShape, weights: str) -> int:
    """Bytes that every step reads: all layers, and the head, which stays in bfloat16."""
    per_weight = BYTES if weights == "bf16" else 1
    return shape.linear_parameters * per_weight + shape.head_parameters * BYTES


def row_limit_s(shape: ModelShape, row: Case, roof: Roofline, weights: str) -> float | None:
    """Seconds that a row takes at least; None where the roof of that type is not known."""
    if not roof.rates(weights):
        return None
    seconds = _prefill_s(shape, row, roof, weights)
    first, last = row.shape.num_input + 1, row.shape.num_tokens
    for context in range(first, last):
        seconds += _decode_s(shape, row.concurrency, context, roof, weights)
    return seconds


def row_limit(shape: ModelShape, row: Case, roof: Roofline, weights: str) -> float | None:
    """Tokens a second of a row at best, counted as `tokens_counted` does."""
    seconds = row_limit_s(shape, row, roof, weights)
    return None if seconds is None else tokens_counted(row) / seconds


def is_prompt_row(row: Case) -> bool:
    """True when a row is all prompt: it asks for one token."""
    return row.shape.num_output == 1


def tokens_counted(row: Case) -> int:
    """Tokens that a row's throughput counts: its prompts' when it is all prompt, else its output's.

    The time is the whole row's, its prompts included.
    """
    shape = row.shape
    return row.concurrency * (shape.num_input if is_prompt_row(row) else shape.num_output)


def _prefill_s(shape: ModelShape, row: Case, roof: Roofline, weights: str) -> float:
    """Seconds from the prompts to their first tokens."""
    num_rows, length = row.concurrency, row.shape.num_input
    num_tokens = num_rows * length
    pairs = num_rows * length * (length + 1) // 2
    return _step_s(
        shape,
        roof,
        weights,
        num_tokens=num_tokens,
        num_logits=num_rows,
        pairs=pairs,
        num_bytes=weight_bytes(shape, weights) + num_tokens * shape.kv_bytes_per_token,
    )


def _decode_s(
    shape: ModelShape, num_rows: int, context: int, roof: Roofline, weights: str
) -> float:
    """Seconds of one token for each row, `context` tokens long with it."""
    num_cached = num_rows * context
    return _step_s(
        shape,
        roof,
        weights,
        num_tokens=num_rows,
        num_logits=num_rows,
        pairs=num_cached,
        num_bytes=weight_bytes(shape, weights) + num_cached * shape.kv_bytes_per_token,
    )


def _step_s(
    shape: ModelShape,
    roof: Roofline,
    weights: str,
    *,
    num_tokens: int,
    num_logits: int,
    pairs: int,
    num_bytes: int,
) -> float:
    """The larger of reading and computing."""
    size = min(num_tokens, _CHUNK)
    linear = 2 * shape.linear_parameters * num_tokens / rate_at(roof.rates(weights), size)
    head = 2 * shape.head_parameters * num_logits / rate_at(roof.bf16, min(num_logits, _CHUNK))
    per_pair = _PER_PAIR * shape.num_layers * shape.num_heads * shape.head_size
    attention = pairs * per_pair / max(roof.bf16.values())
    return max(num_bytes / roof.bandwidth, linear + head + attention)
