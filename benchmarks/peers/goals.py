"""Goals for Tandem, as ratios within one run. Pure."""

from typing import Final

from benchmarks.peers.roofline import is_prompt_row
from benchmarks.serving.case import Case

SHARE_OF_LIMIT: Final = 0.85
"""Of the limit that was measured in the same run."""
THROUGH_HTTP: Final = 0.95
"""Of the engine's own throughput, at 16 concurrent streams."""

_W8A8: Final = 1.3
_W8A8_PROMPT: Final = 1.2
_BF16_PROMPT: Final = 1.1
_BF16_BATCH: Final = 1.25
_BF16_ONE: Final = {"S": 1.0}
_BF16_ONE_ELSEWHERE: Final = 1.15


def goal(model: str, row: Case, weights: str) -> float:
    """Return the goal of a row, as a multiple of the best peer's speed.

    Args:
        model: S or M; one sequence on S needs only to keep up.
        row: The row.
        weights: bf16, or w8a8, which is set against the best 8 bit of a peer.
    """
    is_prompt = is_prompt_row(row)
    if weights != "bf16":
        return _W8A8_PROMPT if is_prompt else _W8A8
    if is_prompt:
        return _BF16_PROMPT
    if row.concurrency > 1:
        return _BF16_BATCH
    return _BF16_ONE.get(model, _BF16_ONE_ELSEWHERE)
