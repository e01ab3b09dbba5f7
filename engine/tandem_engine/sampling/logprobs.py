"""Log-probabilities of the sampled tokens and of the top tokens, for rows that ask.

They are the model's own: before bias, penalties and temperature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_engine.api.output import TokenLogprob
from tandem_engine.device.host_memory import ints_to_device
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.step_tokens import Logprobs
from tandem_engine.sampling.top_tokens import top_tokens


def logprobs_of(logits: Tensor, chosen: Tensor, rows: Sequence[Row]) -> Logprobs:
    """Log-probabilities of the rows that ask.

    Args:
        logits: float32 [rows, vocabulary], as the model gave them.
        chosen: int64 [rows], the token of each row; below 0: it has none, and no entry.
        rows: One a row of logits.
    """
    token_ids: list[int] = chosen.tolist()
    asking = [
        (at, row.sampling.logprobs, token_ids[at])
        for at, row in enumerate(rows)
        if row.sampling.logprobs is not None and token_ids[at] >= 0
    ]
    if not asking:
        return {}
    which = ints_to_device([at for at, _, _ in asking], logits.device)
    table = torch.log_softmax(logits[which], dim=-1)
    own = table.gather(1, chosen[which].unsqueeze(1)).flatten().tolist()
    best = top_tokens(table, [min(count, table.shape[1]) for _, count, _ in asking])
    return {
        at: TokenLogprob(token_id=token_id, logprob=logprob, top=tuple(of_row))
        for (at, _, token_id), logprob, of_row in zip(asking, own, best, strict=True)
    }
