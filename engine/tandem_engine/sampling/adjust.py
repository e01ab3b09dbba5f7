"""What is done to logits before anything is chosen: bias, minimum length, penalties.

Every function takes the logits of all rows, touches only rows that ask for it, and works in
place on a copy that `adjust` makes when at least one row does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tandem_engine.sampling.row import Row, has_penalty


def adjust(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Apply bias, min_tokens and penalties.

    Args:
        logits: float32 [rows, vocabulary]; not changed.
        rows: One a row of logits.

    Returns:
        The logits themselves when no row asks for anything, else a changed copy.
    """
    asking = [at for at, row in enumerate(rows) if not row.is_plain]
    biased = [at for at in asking if rows[at].sampling.logit_bias]
    early = [at for at in asking if rows[at].num_output < rows[at].sampling.min_tokens]
    penalised = [at for at in asking if has_penalty(rows[at].sampling)]
    if not (biased or early or penalised):
        return logits
    logits = logits.clone()
    if penalised:
        _penalise(logits, rows, penalised)
    for at in biased:
        _add_bias(logits[at], rows[at])
    for at in early:
        _forbid_end(logits[at], rows[at])
    return logits


def _add_bias(logits: Tensor, row: Row) -> None:
    bias = row.sampling.logit_bias
    ids = torch.tensor(list(bias.keys()), device=logits.device)
    logits[ids] += torch.tensor(list(bias.values()), dtype=logits.dtype, device=logits.device)


def _forbid_end(logits: Tensor, row: Row) -> None:
    ends = [token_id for token_id in row.request.stop_token_ids if token_id < logits.shape[0]]
    if ends:
        logits[torch.tensor(ends, device=logits.device)] = -torch.inf


def _penalise(logits: Tensor, rows: Sequence[Row], which: Sequence[int]) -> None:
    """Repetition as in CTRL (Keskar et al., 2019), presence and frequency as OpenAI has them.

    Only tokens that were seen are looked at, those of all rows in one flat list.
    """
    tallies = [rows[at].tally for at in which]
    lengths = np.array([len(tally.ids) for tally in tallies])
    if not lengths.sum():
        return
    first = np.repeat(np.array(which) * logits.shape[1], lengths)
    places = torch.from_numpy(first + np.concatenate([tally.ids for tally in tallies]))
    params = [rows[at].sampling for at in which]

    def spread(values: list[float]) -> Tensor:
        each = np.repeat(np.array(values, dtype=np.float32), lengths)
        return torch.from_numpy(each).to(logits.device)

    places = places.to(logits.device)
    counts = torch.from_numpy(np.concatenate([tally.counts for tally in tallies]))
    counts = counts.to(logits.device)
    repetition = spread([p.repetition_penalty for p in params])
    flat = logits.view(-1)
    chosen = flat[places]
    chosen = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    chosen -= spread([p.frequency_penalty for p in params]) * counts
    chosen -= spread([p.presence_penalty for p in params]) * (counts > 0)
    flat[places] = chosen
