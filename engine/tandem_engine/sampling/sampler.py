"""The sampler: logits of a step → one token a row, greedy and drawn rows side by side."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_engine.api.step import SampledToken
from tandem_engine.sampling.adjust import adjust
from tandem_engine.sampling.draw import Filters, draw
from tandem_engine.sampling.logprobs import logprobs_of
from tandem_engine.sampling.row import Row


class Sampler:
    """Samples all rows at once; keeps the filter tensors while the drawn rows stay the same."""

    def __init__(self) -> None:
        self._filtered_rows: tuple[Row, ...] = ()
        self._filters: Filters | None = None

    def sample(self, logits: Tensor, rows: Sequence[Row]) -> list[SampledToken | None]:
        """One token a row.

        Args:
            logits: float32 [rows, vocabulary], as the model gave them; not changed.
            rows: The sequences, in the same order.

        Returns:
            A token a row; None where the logits are no numbers, so that this row alone fails.
        """
        token_ids = self._choose(adjust(logits, rows), rows)
        logprobs = logprobs_of(logits, [max(0, token_id) for token_id in token_ids], rows)
        return [
            SampledToken(token_id, logprobs.get(at)) if token_id >= 0 else None
            for at, token_id in enumerate(token_ids)
        ]

    def _choose(self, logits: Tensor, rows: Sequence[Row]) -> list[int]:
        best, chosen = logits.max(dim=-1)
        drawn = [at for at, row in enumerate(rows) if not row.sampling.is_greedy]
        if drawn:
            own_rows = tuple(rows[at] for at in drawn)
            own_logits = logits if len(drawn) == len(rows) else logits[drawn]
            chosen[drawn] = draw(own_logits, own_rows, self._filters_of(own_rows, own_logits))
        # max() hands NaN on, so a row that holds one shows it here; a draw from no probabilities
        # ends behind the vocabulary.
        chosen[~torch.isfinite(best) | (chosen >= logits.shape[1])] = -1
        return [int(token_id) for token_id in chosen.tolist()]

    def _filters_of(self, rows: tuple[Row, ...], logits: Tensor) -> Filters:
        if self._filters is None or rows != self._filtered_rows:
            self._filters = Filters.of(rows, vocab_size=logits.shape[1], device=logits.device)
            self._filtered_rows = rows
        return self._filters
