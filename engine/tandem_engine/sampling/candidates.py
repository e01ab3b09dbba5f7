"""Logits of beams → the tokens that may continue them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_engine.api.step import Candidate
from tandem_engine.sampling.adjust import adjust
from tandem_engine.sampling.row import Row


def candidates_of(logits: Tensor, rows: Sequence[Row]) -> list[list[Candidate] | None]:
    """The likeliest continuations of each beam, best first.

    As in `transformers`, bias, penalties and min_tokens change log-probabilities, which are not
    normalised anew, and temperature has no part. Equal ones stand in the order of the token id, so
    that a search does not depend on the device. Tokens that cannot come (−inf) are left out, so
    there may be fewer than asked for.

    Args:
        logits: float32 [rows, vocabulary], as the model gave them; not changed.
        rows: One beam a row of logits.

    Returns:
        None where the logits are no numbers, so that this row alone fails.
    """
    table = adjust(torch.log_softmax(logits, dim=-1), rows)
    counts = [min(_num_candidates(row), table.shape[1]) for row in rows]
    best = table.topk(max(counts), dim=-1).values
    floors = best.gather(1, torch.tensor(counts, device=table.device).unsqueeze(1) - 1)
    # topk promises no order among equals, so all that reach the last value are looked at. NaN
    # reaches nothing.
    at, ids = torch.nonzero((table >= floors) & (table > -torch.inf), as_tuple=True)
    found: list[list[Candidate]] = [[] for _ in rows]
    for row, token_id, logprob in zip(
        at.tolist(), ids.tolist(), table[at, ids].tolist(), strict=True
    ):
        found[row].append(Candidate(token_id, logprob))
    return [
        sorted(of_row, key=lambda candidate: -candidate.logprob)[:count] or None
        for of_row, count in zip(found, counts, strict=True)
    ]


def _num_candidates(row: Row) -> int:
    """Enough for every beam to go on, were all end tokens likelier than what goes on."""
    width = row.sampling.num_sequences
    return width + max(width, len(row.request.stop_token_ids))
