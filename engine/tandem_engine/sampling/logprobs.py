"""Log-probabilities of the chosen tokens and of the likeliest ones, for rows that ask."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_engine.api.output import TokenLogprob
from tandem_engine.sampling.row import Row


def logprobs_of(
    logits: Tensor, token_ids: Sequence[int], rows: Sequence[Row]
) -> dict[int, TokenLogprob]:
    """Row index → log-probabilities under the model itself: before bias, penalties, temperature.

    Args:
        logits: float32 [rows, vocabulary], as the model gave them.
        token_ids: The token that was chosen in each row.
        rows: One a row of logits.
    """
    which = [at for at, row in enumerate(rows) if row.sampling.logprobs is not None]
    if not which:
        return {}
    table = torch.log_softmax(logits[which], dim=-1)
    chosen = table.gather(1, torch.tensor([[token_ids[at]] for at in which], device=table.device))
    count = max(rows[at].sampling.logprobs or 0 for at in which)
    values, ids = table.topk(min(count, table.shape[1]), dim=-1)
    best = [
        list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    return {
        at: TokenLogprob(
            token_id=token_ids[at],
            logprob=chosen[index, 0].item(),
            top=tuple(best[index][: rows[at].sampling.logprobs]),
        )
        for index, at in enumerate(which)
    }
