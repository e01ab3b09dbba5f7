"""The tokens that a step has chosen."""

from typing import Final, NamedTuple

from torch import Tensor

from tandem_engine.api.output import TokenLogprob

NO_TOKEN: Final = -1
"""Stands for a row whose logits are no numbers."""

Logprobs = dict[int, TokenLogprob]
"""Row index → log-probabilities of the token and of the likeliest ones."""


class StepTokens(NamedTuple):
    """The tokens of a step."""

    token_ids: Tensor
    """int64 [rows]; NO_TOKEN where the logits are no numbers."""
    logprobs: Logprobs
    """Of the rows that ask for them."""
