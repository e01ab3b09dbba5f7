"""Adjustments of logits before sampling: bias, penalties, minimum length.

In the order of vLLM's sampler (`vllm/v1/sample/sampler.py`): the bias is added to the model's own
logits, as OpenAI describes `logit_bias`, and penalties see what it made of them. OpenAI's own
penalties are subtracted, so that for them the order makes no difference; for `repetition_penalty`,
which multiplies, it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tandem_engine.device.host_memory import ints_to_device, to_device
from tandem_engine.sampling.row import Row, has_penalty


@dataclass(slots=True)
class _Ends:
    """End tokens that may not come yet, of the rows that are too short for them."""

    rows: Sequence[int]
    indices: Tensor
    """int64: in the logits of all rows, side by side."""


@dataclass(slots=True)
class Adjustments:
    """Adjustments of some rows, in tensors that are made once while the rows stay.

    Penalties apply to the tokens that were seen alone; those of all rows are in one list.
    """

    rows: Sequence[Row]
    vocab_size: int
    device: torch.device
    bias_indices: Tensor
    """int64: in the logits of all rows, side by side."""
    biases: Tensor
    with_minimum: Sequence[int]
    penalised: Sequence[int]
    _ends: _Ends | None = field(default=None)

    @classmethod
    def of(
        cls, rows: Sequence[Row], *, vocab_size: int, device: torch.device
    ) -> "Adjustments | None":
        """None: no row asks for anything."""
        asking = [at for at, row in enumerate(rows) if not row.is_plain]
        if not asking:
            return None
        biased = [at for at in asking if rows[at].sampling.logit_bias]
        indices = [at * vocab_size + rows[at].device_params.biased for at in biased]
        biases = [rows[at].device_params.biases for at in biased]
        return cls(
            rows=rows,
            vocab_size=vocab_size,
            device=device,
            bias_indices=to_device(_joined(indices, np.int64), device),
            biases=to_device(_joined(biases, np.float32), device),
            with_minimum=[at for at in asking if rows[at].sampling.min_tokens],
            penalised=[at for at in asking if has_penalty(rows[at].sampling)],
        )

    def apply(self, logits: Tensor) -> Tensor:
        """The logits themselves when there is nothing to do now, else a changed copy.

        Args:
            logits: float32 [rows, vocabulary]; not changed.
        """
        ends = self._ends_now()
        if not (len(self.biases) or self.penalised or ends is not None):
            return logits
        logits = logits.clone(memory_format=torch.contiguous_format)
        flat = logits.view(-1)
        if len(self.biases):
            flat[self.bias_indices] += self.biases
        if self.penalised:
            self._penalise(flat)
        if ends is not None:
            flat[ends] = -torch.inf
        return logits

    def _ends_now(self) -> Tensor | None:
        """Indices of the end tokens of rows that are too short for them; None: there are none."""
        short = [
            at
            for at in self.with_minimum
            if self.rows[at].num_output < self.rows[at].sampling.min_tokens
        ]
        if not short:
            return None
        if self._ends is None or self._ends.rows != short:
            flat = [
                at * self.vocab_size + token_id
                for at in short
                for token_id in self.rows[at].request.stop_token_ids
                if token_id < self.vocab_size
            ]
            self._ends = _Ends(short, ints_to_device(flat, self.device))
        return self._ends.indices if len(self._ends.indices) else None

    def _penalise(self, flat: Tensor) -> None:
        """Repetition as in CTRL (Keskar et al., 2019), presence and frequency as OpenAI has them.

        In double precision, rounded once, so that every device comes to the same bits.
        """
        counted = [self.rows[at].token_counts for at in self.penalised]
        lengths = np.array([len(row.ids) for row in counted])
        if not lengths.sum():
            return
        first = np.repeat(np.array(self.penalised) * self.vocab_size, lengths)
        indices = to_device(first + np.concatenate([row.ids for row in counted]), self.device)
        params = [self.rows[at].sampling for at in self.penalised]

        def spread(values: list[float]) -> Tensor:
            each = np.repeat(np.array(values, dtype=np.float32).astype(np.float64), lengths)
            return to_device(each, self.device)

        counts = to_device(np.concatenate([row.counts for row in counted]), self.device).double()
        repetition = spread([p.repetition_penalty for p in params])
        values = flat[indices].double()
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= spread([p.frequency_penalty for p in params]) * counts
        values -= spread([p.presence_penalty for p in params]) * (counts > 0)
        flat[indices] = values.float()


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays])


def adjust(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Apply bias, penalties and min_tokens of rows that do not stay.

    Args:
        logits: float32 [rows, vocabulary]; not changed.
        rows: One a row of logits.

    Returns:
        The logits themselves when no row asks for anything, else a changed copy.
    """
    adjustments = Adjustments.of(rows, vocab_size=logits.shape[1], device=logits.device)
    return logits if adjustments is None else adjustments.apply(logits)
