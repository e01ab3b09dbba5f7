"""One sequence as the sampler and the runner see it: its tokens, and how to sample the next."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.sampling import RowSamplingParams
from tandem_engine.sampling.token_counts import TokenCounts

_UNSIGNED_64 = 0xFFFFFFFFFFFFFFFF


@dataclass(slots=True, eq=False)
class Row:
    """A sequence with all tokens known so far; grows by those that it yields.

    The prompt is the request's own tuple, so any number of choices or beams hold it once.
    """

    sequence_id: str
    request: Request
    sampling: SamplingParams
    """Sampling parameters."""
    prompt: tuple[int, ...]
    seed: int
    """The seed in force, as 64 unsigned bits."""
    is_plain: bool
    """True if the logits are not adjusted: no bias, no penalty, no minimum length."""
    is_single: bool
    """True if it is the only sequence of its request, and no beam."""
    output: list[int] = field(default_factory=list)
    """Tokens so far, beside the prompt."""
    num_scored: int = 0
    """Positions of the prompt whose log-probabilities are known, or computed in a step on its
    way."""
    _token_counts: TokenCounts | None = None
    _params: RowSamplingParams | None = None

    @property
    def device_params(self) -> RowSamplingParams:
        """Sampling parameters in the form that devices take; made once, and shared by its twins."""
        if self._params is None:
            self._params = _device_params(self.sampling, self.seed)
        return self._params

    @property
    def token_counts(self) -> TokenCounts:
        """Its tokens, counted; only rows with penalties ask."""
        if self._token_counts is None:
            self._token_counts = TokenCounts(self.prompt)
        self._token_counts.update(self.output)
        return self._token_counts

    @property
    def num_output(self) -> int:
        """Tokens sampled so far, hence the position of the next one."""
        return len(self.output)

    @property
    def num_known(self) -> int:
        """Tokens of prompt and output."""
        return len(self.prompt) + len(self.output)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output as one new list."""
        return [*self.prompt, *self.output]

    def is_choice_with(self, num_known: int) -> bool:
        """True if with so many known tokens it is independent: it is no beam, and has begun."""
        return num_known > len(self.prompt) and not self.sampling.use_beam_search

    def tokens_between(self, start: int, end: int) -> Sequence[int]:
        """The known tokens `start` … `end`−1; fewer when fewer are known."""
        num_prompt = len(self.prompt)
        if start >= num_prompt:
            return self.output[start - num_prompt : end - num_prompt]
        if end <= num_prompt:
            return self.prompt[start:end]
        return [*self.prompt[start:], *self.output[: end - num_prompt]]

    def with_output(self, tokens: Sequence[int]) -> "Row":
        """Return a copy of the row with `tokens` appended; the row itself is not changed."""
        return self._twin(self.sequence_id, [*self.output, *tokens])

    def become(self, sequence_id: str, token_id: int) -> "Row":
        """Another beam, that goes on from here with `token_id`."""
        return self._twin(sequence_id, [*self.output, token_id])

    def _twin(self, sequence_id: str, output: list[int]) -> "Row":
        return Row(
            sequence_id=sequence_id,
            request=self.request,
            sampling=self.sampling,
            prompt=self.prompt,
            seed=self.seed,
            is_plain=self.is_plain,
            is_single=self.is_single,
            output=output,
            num_scored=self.num_scored,
            _params=self._params,
        )


def row_of(request: Request, index: int = 0) -> Row:
    """The row of the request's sequence `index`, which knows the prompt only."""
    sampling = request.sampling
    return Row(
        sequence_id=request.sequences[index],
        request=request,
        sampling=sampling,
        prompt=request.prompt_token_ids,
        seed=request.seeds[index] & _UNSIGNED_64,
        is_plain=not (sampling.logit_bias or sampling.min_tokens or has_penalty(sampling)),
        is_single=len(request.sequences) == 1 and not sampling.use_beam_search,
    )


def has_penalty(sampling: SamplingParams) -> bool:
    """True if tokens that were seen already become less (or more) likely."""
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def min_p_margin(params: SamplingParams) -> float:
    """Lower bound by min_p of a row's logits relative to the largest: 0 or less."""
    return params.temperature * math.log(params.min_p) if params.min_p > 0 else -math.inf


def _device_params(params: SamplingParams, seed: int) -> RowSamplingParams:
    def single(value: float) -> float:
        """In single precision, as the reference has it in its tensors."""
        return float(np.float32(value))

    return RowSamplingParams(
        temperature=0.0 if params.is_greedy else single(params.temperature),
        margin=min_p_margin(params),
        top_k=max(0, params.top_k),
        top_p=params.top_p,
        seed=seed,
        repetition_penalty=single(params.repetition_penalty),
        frequency_penalty=single(params.frequency_penalty),
        presence_penalty=single(params.presence_penalty),
        num_logprobs=params.logprobs,
        biased=np.array(list(params.logit_bias), dtype=np.int64),
        biases=np.array(list(params.logit_bias.values()), dtype=np.float32),
    )
