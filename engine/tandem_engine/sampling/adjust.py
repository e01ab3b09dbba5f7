"""What is done to logits before anything is chosen: bias, minimum length, penalties.

Every function takes the logits of all rows, touches only rows that ask for it, and works in
place on a copy that `adjust` makes when at least one row does.
"""

from collections.abc import Sequence

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
    """Repetition as in CTRL (Keskar et al., 2019), presence and frequency as OpenAI has them."""
    chosen = logits[list(which)]
    output = _counts([rows[at].output for at in which], like=chosen)
    seen = output + _counts([rows[at].prompt for at in which], like=chosen)
    repetition = _column([rows[at].sampling.repetition_penalty for at in which], like=chosen)
    scaled = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    chosen = torch.where(seen > 0, scaled, chosen)
    chosen -= _column([rows[at].sampling.frequency_penalty for at in which], like=chosen) * output
    presence = _column([rows[at].sampling.presence_penalty for at in which], like=chosen)
    chosen -= presence * (output > 0)
    logits[list(which)] = chosen


def _counts(tokens: Sequence[Sequence[int]], *, like: Tensor) -> Tensor:
    """How often each id of the vocabulary stands in each list: [rows, vocabulary]."""
    num_rows, vocab_size = like.shape
    flat = [at * vocab_size + token for at, ids in enumerate(tokens) for token in ids]
    index = torch.tensor(flat, dtype=torch.int64, device=like.device)
    counts = torch.bincount(index, minlength=num_rows * vocab_size)
    return counts.view(num_rows, vocab_size).to(like.dtype)


def _column(values: Sequence[float], *, like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)
