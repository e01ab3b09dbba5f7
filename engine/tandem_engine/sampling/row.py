"""One request as the sampler and the runner see it: its tokens, and how to sample the next."""

from dataclasses import dataclass

from tandem_engine.api.request import Request, SamplingParams


@dataclass(slots=True, eq=False)
class Row:
    """A request with all tokens known so far; grows by one at each token it yields."""

    request: Request
    tokens: list[int]
    num_prompt: int

    @property
    def sampling(self) -> SamplingParams:
        """How to sample."""
        return self.request.sampling

    @property
    def num_output(self) -> int:
        """Tokens sampled so far, hence the position of the next one."""
        return len(self.tokens) - self.num_prompt


def row_of(request: Request) -> Row:
    """A row that knows the prompt only."""
    prompt = list(request.prompt_token_ids)
    return Row(request=request, tokens=prompt, num_prompt=len(prompt))
