"""The tokens that a step has sampled."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from torch import Tensor

from tandem_engine.api.output import TokenLogprob

NO_TOKEN: Final = -1
"""Token of a row whose logits are not finite."""

Logprobs = dict[int, TokenLogprob]
"""Row index → log-probabilities of the token and of the top tokens."""


class PendingLogprobs(Protocol):
    """Log-probabilities of the rows that ask for them."""

    def read(self, token_ids: Sequence[int]) -> Logprobs:
        """Return them when they are there.

        Args:
            token_ids: Of all rows, NO_TOKEN where the logits are not finite; these have none.
        """


class KnownLogprobs:
    """Log-probabilities that are there; implements `PendingLogprobs`."""

    def __init__(self, logprobs: Logprobs) -> None:
        self._logprobs = logprobs

    def read(self, token_ids: Sequence[int]) -> Logprobs:  # noqa: ARG002  # it has left them out
        """Return them."""
        return self._logprobs


NO_LOGPROBS: Final = KnownLogprobs({})


class StepTokens(NamedTuple):
    """The tokens of a step."""

    token_ids: Tensor
    """int64 [rows]; NO_TOKEN where the logits are not finite."""
    logprobs: PendingLogprobs
