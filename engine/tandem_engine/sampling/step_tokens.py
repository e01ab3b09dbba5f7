"""The tokens that a step has sampled."""

from typing import Final, NamedTuple

from torch import Tensor

from tandem_engine.api.output import TokenLogprob

NO_TOKEN: Final = -1
"""Token of a row whose logits are not finite."""

Logprobs = dict[int, TokenLogprob]
"""Row index → log-probabilities of the token and of the top tokens."""


class StepTokens(NamedTuple):
    """The tokens of a step."""

    token_ids: Tensor
    """int64 [rows]; NO_TOKEN where the logits are not finite."""
    logprobs: Logprobs
    """Log-probabilities of the rows that ask for them."""
