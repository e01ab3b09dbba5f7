"""Log-probabilities of the sampled tokens and of the top tokens, for rows that ask.

They are the model's own: before bias, penalties and temperature.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_engine.api.output import TokenLogprob
from tandem_engine.device.host_memory import HostCopy, ints_to_device
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.step_tokens import NO_LOGPROBS, Logprobs, PendingLogprobs
from tandem_engine.sampling.top_tokens import TopTokens


def logprobs_of(logits: Tensor, chosen: Tensor, rows: Sequence[Row]) -> PendingLogprobs:
    """Log-probabilities of the rows that ask.

    Args:
        logits: float32 [rows, vocabulary], as the model gave them.
        chosen: int64 [rows], the token of each row; below 0: it has none.
        rows: One a row of logits.
    """
    asking = {
        at: row.sampling.logprobs
        for at, row in enumerate(rows)
        if row.sampling.logprobs is not None
    }
    return _ArrivingLogprobs(logits, chosen, asking) if asking else NO_LOGPROBS


class _ArrivingLogprobs:
    """Log-probabilities that a device may still compute; implements `PendingLogprobs`."""

    def __init__(self, logits: Tensor, chosen: Tensor, asking: dict[int, int]) -> None:
        which = ints_to_device([*asking], logits.device)
        table = torch.log_softmax(logits[which], dim=-1)
        own = table.gather(1, chosen[which].clamp(min=0).unsqueeze(1))
        counts = [min(count, table.shape[1]) for count in asking.values()]
        self._rows = [*asking]
        self._own, self._top = HostCopy(own.flatten()), TopTokens(table, counts)

    def read(self, token_ids: Sequence[int]) -> Logprobs:
        own: list[float] = self._own.wait().tolist()
        return {
            at: TokenLogprob(token_id=token_ids[at], logprob=logprob, top=tuple(of_row))
            for at, logprob, of_row in zip(self._rows, own, self._top.read(), strict=True)
            if token_ids[at] >= 0
        }
