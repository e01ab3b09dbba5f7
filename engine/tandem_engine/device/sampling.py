"""Sampling as a device's own kernel takes it: rows of logits in, a token each out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

TokenIds = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSamplingParams:
    """Sampling parameters of one row, for its whole life."""

    temperature: float
    """0: the argmax is taken, and the fields below do not matter but for the bias."""
    margin: float
    """Lower bound by min_p of a logit relative to the largest: 0 or less."""
    top_k: int
    """0: off."""
    top_p: float
    """1: off."""
    seed: int
    """64 unsigned bits."""
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    num_logprobs: int | None
    """None: none are asked for; else that of the token, and of so many top tokens."""
    biased: TokenIds
    """Tokens whose logits are changed first."""
    biases: Values
    """Added to each."""


def greedy_params(*, num_logprobs: int | None) -> RowSamplingParams:
    """Return the parameters of a row whose likeliest tokens are asked for, and nothing else."""
    none = np.empty(0, dtype=np.int64)
    return RowSamplingParams(
        temperature=0.0,
        margin=0.0,
        top_k=0,
        top_p=1.0,
        seed=0,
        repetition_penalty=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        num_logprobs=num_logprobs,
        biased=none,
        biases=none.astype(np.float32),
    )


class RowState(NamedTuple):
    """The part of a row's sampling that changes with each step."""

    position: int
    """Of its next token in the output."""
    seen: TokenIds | None = None
    """Tokens that penalties apply to; None: there are no penalties."""
    counts: Values | None = None
    """Occurrences of each of `seen` in the output."""
    banned: TokenIds | None = None
    """Tokens that may not be sampled; None: all may."""


class Sampled(NamedTuple):
    """The tokens of a step, and log-probabilities, which are the model's own."""

    token_ids: Tensor
    """int64 [rows]; below 0: the adjusted logits are not finite."""
    logprobs: Tensor
    """float32 [rows]: of the tokens, in rows that ask."""
    top_ids: Tensor
    """int64 [rows, width]: the top tokens, best first; below 0: there are no more."""
    top_logprobs: Tensor
    """float32 [rows, width]."""


class StepSampling(Protocol):
    """Samples the same rows step after step."""

    def __call__(self, logits: Tensor, now: Sequence[RowState]) -> Sampled:
        """One token a row.

        Args:
            logits: float32 [rows, vocabulary]; the same after the call as before it, though not
                during it.
            now: One a row.
        """


class RowSampler(Protocol):
    """A device's own sampling, by the rules of `tandem_engine.sampling` in torch.

    The rules are the same to the letter, and so is the number that a draw looks up; but weights and
    their sums are rounded elsewhere. So a token can be another one where that number comes within
    a millionth of the whole mass of the boundary between two tokens, or where `top_p` comes that
    close to what the tokens before its last one add up to.
    """

    def prepare(self, rows: Sequence[RowSamplingParams]) -> StepSampling:
        """Get ready to sample such rows."""


class SamplingKernels(Protocol):
    """The part of `runtime.Kernels` that sampling needs."""

    def row_sampler(self) -> RowSampler | None:
        """A sampler for one runner; None: sample in torch."""
