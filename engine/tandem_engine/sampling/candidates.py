"""Logits of beams → the tokens that may continue them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_engine.api.step import Candidate
from tandem_engine.sampling.adjust import adjust
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.top_tokens import TopTokens


def candidates_of(logits: Tensor, rows: Sequence[Row]) -> list[list[Candidate] | None]:
    """Return the top continuations of each beam, best first.

    As in `transformers`, bias, penalties and min_tokens change log-probabilities, which are not
    normalised again, and temperature has no effect. Equal ones are sorted by token id, so that a
    search does not depend on the device. Tokens that may not be sampled (−inf) are left out, so
    there may be fewer than asked for.

    Args:
        logits: float32 [rows, vocabulary], as the model gave them; not changed.
        rows: One beam a row of logits.

    Returns:
        None where the logits are not finite, so that this row alone fails.
    """
    table = adjust(torch.log_softmax(logits, dim=-1), rows)
    counts = [min(_num_candidates(row), table.shape[1]) for row in rows]
    return [
        [Candidate(*pair) for pair in of_row if pair[1] > -math.inf] or None
        for of_row in TopTokens(table, counts).read()
    ]


def _num_candidates(row: Row) -> int:
    """Enough for every beam to go on, were all end tokens likelier than what goes on."""
    width = row.sampling.num_sequences
    return width + max(width, len(row.request.stop_token_ids))
